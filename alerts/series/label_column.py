"""The labels of many series as one column, and what is derived from it: once, not at every evaluation.

A selector gives the same column as long as the same series exist, so everything that a rule does with labels (drop
the name, group, match, sort buckets) is looked up at the next evaluation and only numbers are computed. Label sets
that nobody asks for one by one, as those of buckets on their way through a rule, are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from alerts.arrays import Bools, Index
from alerts.labels import METRIC_NAME, Labels, LabelSet

_T = TypeVar("_T")
_MAX_PICKS = 3  # of one column: which series are there changes seldom, what a comparison keeps often
_MAX_PARTNERS = 6
_ALL: frozenset[str] = frozenset()


class LabelGroups(NamedTuple):
    """Series put into groups. Shapes: `labels`, `starts`, `sizes` one a group; `group_of`, `order` one a series.

    `order` puts each group's series together, in their own order; group g is order[starts[g]:starts[g] + sizes[g]].
    """

    labels: LabelColumn
    group_of: Index
    order: Index
    starts: Index
    sizes: Index

    @property
    def is_one_each(self) -> bool:
        """True when no group has two series."""
        return len(self.starts) == len(self.order)


class LabelColumn(Sequence[LabelSet]):
    """Immutable. Two columns are the same when they are the same object; only then is anything remembered.

    `is_wide`: of so many series that what is derived is remembered by the column alone and not by each label set too.
    `has_one_name`: all of one metric, so that they differ without their name too.
    """

    __slots__ = ("_base", "_keeps", "_made", "_memo", "_names", "_partners", "has_one_name", "is_wide")

    def __init__(
        self,
        labels: Iterable[LabelSet] = (),
        *,
        is_wide: bool = False,
        has_one_name: bool = False,
        keeps: bool = False,
        names: frozenset[str] = _ALL,
    ) -> None:
        """`keeps` and `names`: the column has only these labels of each set, or all but these."""
        self._base = labels if isinstance(labels, list) else list(labels)
        self._keeps, self._names = keeps, names
        self._made: list[LabelSet] | None = None if keeps or names else self._base
        self._memo: dict[Hashable, Any] = {}
        self._partners: list[tuple[LabelColumn, Hashable, Any]] = []
        self.is_wide = is_wide
        self.has_one_name = has_one_name

    # -- as a sequence ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._base)

    def __iter__(self) -> Iterator[LabelSet]:
        return iter(self._sets())

    @overload
    def __getitem__(self, index: int) -> LabelSet: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LabelSet]: ...
    def __getitem__(self, index: int | slice) -> LabelSet | Sequence[LabelSet]:
        if self._made is None and isinstance(index, int):
            return LabelSet.intern(self._pairs(self._base[index]))
        return self._sets()[index]

    def _sets(self) -> list[LabelSet]:
        if self._made is None:
            if self.is_wide:
                self._made = [LabelSet.intern(self._pairs(entry)) for entry in self._base]
            else:
                names = tuple(sorted(self._names))
                self._made = [entry.keep(names) if self._keeps else entry.drop(names) for entry in self._base]
        return self._made

    def _pairs(self, entry: LabelSet) -> Labels:
        names = self._names
        if self._keeps:
            return tuple([pair for pair in entry.pairs if pair[0] in names])
        return tuple([pair for pair in entry.pairs if pair[0] not in names]) if names else entry.pairs

    # -- derived ------------------------------------------------------------------------------------------------

    def remembered(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """What `make` gives, from memory when it was asked for under this key before."""
        found: _T | None = self._memo.get(key)
        if found is None:
            found = self._memo[key] = make()
        return found

    def remembered_with(self, other: LabelColumn, key: Hashable, make: Callable[[], _T]) -> _T:
        """As `remembered`, of two columns together; the last few partners are known."""
        for partner, its_key, result in self._partners:
            if partner is other and its_key == key:
                known: _T = result
                return known
        made = make()
        if len(self._partners) >= _MAX_PARTNERS:
            del self._partners[0]
        self._partners.append((other, key, made))
        return made

    @property
    def is_distinct(self) -> bool:
        """False when a label set appears twice."""
        if self.has_one_name:
            return True
        return self.remembered("distinct", lambda: (len(set(self.keys(False, ()))) == len(self),))[0]

    def without_names(self) -> LabelColumn:
        """Each set without the metric name."""
        return self.having_only(False, (METRIC_NAME,))

    def having_only(self, keeps: bool, names: tuple[str, ...]) -> LabelColumn:
        """Each set with these labels only (`keeps`), or with all but these."""
        return self.remembered((keeps, names), lambda: self._having_only(keeps, frozenset(names)))

    def _having_only(self, keeps: bool, names: frozenset[str]) -> LabelColumn:
        if keeps:
            names = names & self._names if self._keeps else names - self._names
        else:
            names, keeps = (self._names - names, True) if self._keeps else (self._names | names, False)
        one_name = self.has_one_name and not keeps and names == {METRIC_NAME}
        return LabelColumn(self._base, is_wide=self.is_wide, has_one_name=one_name, keeps=keeps, names=names)

    def keys(self, keeps: bool, names: tuple[str, ...]) -> Sequence[Hashable]:
        """One key a series, equal where these labels (or all but these) are equal; only for keys of equal columns."""
        derived = self.having_only(keeps, names)
        if derived._made is not None or not self.is_wide:
            return derived._sets()
        return [derived._pairs(entry) for entry in derived._base]

    def having(self, added: Labels) -> LabelColumn:
        """Each set with these labels set."""
        return self.remembered(added, lambda: LabelColumn(self._having(dict(added))))

    def _having(self, added: dict[str, str]) -> list[LabelSet]:
        if self._made is not None or not self.is_wide:
            pairs = tuple(added.items())
            return [entry.having(pairs) for entry in self._sets()]
        return [
            LabelSet.of([*(pair for pair in self._pairs(entry) if pair[0] not in added), *added.items()])
            for entry in self._base
        ]

    def values_of(self, name: str) -> list[str]:
        """The value of one label in each set, "" where it is absent."""
        if (name in self._names) != self._keeps:
            return [""] * len(self._base)
        return [entry.get(name) for entry in self._base]

    def groups(self, keeps: bool, names: tuple[str, ...]) -> LabelGroups:
        """The series grouped by these labels, or by all but these."""
        return self.remembered(("groups", keeps, names), lambda: self._grouped(keeps, names))

    def _grouped(self, keeps: bool, names: tuple[str, ...]) -> LabelGroups:
        rows: dict[Hashable, int] = {}
        group_of = np.array([rows.setdefault(key, len(rows)) for key in self.keys(keeps, names)], dtype=np.intp)
        order = np.argsort(group_of, kind="stable")
        sizes = np.bincount(group_of, minlength=len(rows)).astype(np.intp)
        starts = np.cumsum(sizes) - sizes
        derived = self.having_only(keeps, names)
        firsts = [derived._base[index] for index in order[starts].tolist()]
        labels = LabelColumn(firsts, is_wide=self.is_wide, keeps=derived._keeps, names=derived._names)
        if not (keeps and "le" in names):  # buckets are many, and most rules read them no further
            labels = LabelColumn(labels)
        return LabelGroups(labels, group_of, order, starts, sizes)

    def where(self, mask: Bools) -> LabelColumn:
        """The sets where the mask is true. The last few answers are known."""
        picks: dict[bytes, LabelColumn] = self.remembered("picks", dict)
        key = mask.tobytes()
        found = picks.pop(key, None)
        if found is None:
            found = self._at([entry for entry, wanted in zip(self._base, mask.tolist(), strict=True) if wanted])
            if len(picks) >= _MAX_PICKS:
                del picks[next(iter(picks))]
        picks[key] = found
        return found

    def take_rows(self, index: Index) -> LabelColumn:
        """The sets at these places, in this order."""
        return self._at([self._base[place] for place in index.tolist()])

    def _at(self, base: list[LabelSet]) -> LabelColumn:
        return LabelColumn(
            base, is_wide=self.is_wide, has_one_name=self.has_one_name, keeps=self._keeps, names=self._names
        )


def group_indices(of: LabelColumn, among: LabelColumn, keeps: bool, names: tuple[str, ...]) -> Index:
    """For each series of `of`: the group of `among` (see `groups`) with the same key, -1 without one."""

    def look_up() -> Index:
        groups = among.groups(keeps, names)
        known = {_plain(key): index for index, key in enumerate(groups.labels.keys(False, ()))}
        return np.array([known.get(_plain(key), -1) for key in of.keys(keeps, names)], dtype=np.intp)

    return of.remembered_with(among, ("places", keeps, names), look_up)


def _plain(key: Hashable) -> Hashable:
    return key.pairs if isinstance(key, LabelSet) else key


def as_column(labels: Iterable[LabelSet]) -> LabelColumn:
    """The column itself, or a new one of these labels."""
    return labels if isinstance(labels, LabelColumn) else LabelColumn(labels)
