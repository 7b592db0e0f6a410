"""Label sets: interned, so that equal labels are one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from sys import getrefcount
from threading import Lock
from typing import ClassVar

Labels = tuple[tuple[str, str], ...]
"""Sorted (name, value) pairs without empty values; the metric's name is under `__name__`."""

METRIC_NAME = "__name__"

_SWEPT_AT_LEAST = 4096
_PROBE = {0: object()}
_HELD_BY_TABLE = getrefcount(_PROBE[0])  # what is counted of an object that one dictionary alone holds


class LabelSet:
    """One distinct set of labels. Interned: equal labels are the same object, so dictionaries hash by identity.

    What is derived from one set (without its name, only some labels, ...) is kept with it. Rules over many series
    derive whole columns instead: see LabelColumn.
    """

    __slots__ = ("_derived", "pairs")

    # Sets that nobody uses any more leave when the table has grown by a quarter. Weak references instead would take
    # 90 bytes more for each of a million.
    _interned: ClassVar[dict[Labels, LabelSet]] = {}
    _sweep_at: ClassVar[int] = _SWEPT_AT_LEAST
    _intern_lock = Lock()

    pairs: Labels
    _derived: dict[object, LabelSet] | None  # made when first needed: most sets never are

    @classmethod
    def of(cls, labels: Mapping[str, str] | Iterable[tuple[str, str]]) -> LabelSet:
        """The set with these labels; labels with an empty value count as absent."""
        items = labels.items() if isinstance(labels, Mapping) else labels
        # Pairs stay the same objects: the series of one target then share the pairs of its labels.
        return cls.intern(tuple(sorted([pair for pair in items if pair[1] != ""])))

    @classmethod
    def intern(cls, pairs: Labels) -> LabelSet:
        """The set of pairs that are sorted and without empty values already."""
        found = cls._interned.get(pairs)
        if found is None:
            with cls._intern_lock:
                found = cls._interned.get(pairs)
                if found is None:
                    found = object.__new__(cls)
                    found.pairs = pairs
                    found._derived = None
                    cls._interned[pairs] = found
                    if len(cls._interned) >= cls._sweep_at:
                        cls._sweep()
        return found

    @classmethod
    def _sweep(cls) -> None:
        """Forgets the sets that only the table holds. A set before those derived from it, which then go too."""
        table = cls._interned
        for pairs in list(table):
            if getrefcount(table[pairs]) <= _HELD_BY_TABLE:
                del table[pairs]
        cls._sweep_at = max(_SWEPT_AT_LEAST, len(table) * 5 // 4)

    def get(self, name: str) -> str:
        """The label's value, "" when absent."""
        for key, value in self.pairs:
            if key == name:
                return value
        return ""

    @property
    def name(self) -> str:
        """The metric name, "" without one."""
        return self.get(METRIC_NAME)

    def keep(self, names: tuple[str, ...]) -> LabelSet:
        """Only these labels."""
        key = _key(True, names)
        return self._derive(key, lambda: self.intern(tuple([p for p in self.pairs if p[0] in names])))

    def drop(self, names: tuple[str, ...]) -> LabelSet:
        """All but these labels."""
        key = _key(False, names)
        return self._derive(key, lambda: self.intern(tuple([p for p in self.pairs if p[0] not in names])))

    def without_name(self) -> LabelSet:
        """All labels but the metric name."""
        return self.drop((METRIC_NAME,))

    def having(self, added: Labels) -> LabelSet:
        """With these labels set; an empty value removes the label."""
        return self._derive(added, lambda: self.having_now(added))

    def having_now(self, added: Labels) -> LabelSet:
        """As `having`, for one use: the result is not kept here."""
        wanted = dict(added)
        return self.of([*(pair for pair in self.pairs if pair[0] not in wanted), *wanted.items()])

    def _derive(self, key: object, make: Callable[[], LabelSet]) -> LabelSet:
        if self._derived is None:
            self._derived = {}
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = make()
        return found

    def as_dict(self) -> dict[str, str]:
        """The labels as a dictionary of the caller's own."""
        return dict(self.pairs)

    def __repr__(self) -> str:
        name = self.name
        rest = ", ".join(f'{key}="{value}"' for key, value in self.pairs if key != METRIC_NAME)
        return f"{name}{{{rest}}}" if rest or not name else name

    def as_matched(self) -> str:
        """The form Prometheus uses in its error messages: the name written as a label."""
        return "{" + ", ".join(f'{key}="{value}"' for key, value in self.pairs) + "}"


@lru_cache(maxsize=4096)
def _key(keeps: bool, names: tuple[str, ...]) -> tuple[bool, tuple[str, ...]]:
    """One object for what thousands of sets derive alike."""
    return keeps, names


EMPTY = LabelSet.of({})
