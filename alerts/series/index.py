"""Which series there are: by metric name and labels, and by what selectors ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakValueDictionary

from alerts.labels import METRIC_NAME, LabelSet
from alerts.matcher import Matcher
from alerts.series.group_set import SeriesGroupSet
from alerts.series.head import HeadBlock
from alerts.series.selection import Selection
from alerts.series.series_group import MemSeries

_MAX_CACHED_SELECTIONS = 4096


class _Postings(dict[LabelSet, MemSeries]):
    """The series of one metric name. `version` changes when one comes, leaves or moves."""

    version = 0


class _CachedSelection:
    """A selection, and the metrics that it was made from, as they were then."""

    __slots__ = ("_postings", "names_version", "selection", "version")

    def __init__(self, selection: Selection, postings: list[_Postings], names_version: int) -> None:
        self.selection = selection
        self._postings = postings
        self.names_version = names_version
        self.version = self.now()

    def now(self) -> int:
        """What `version` would be if the selection were made now. Versions only grow, so their sum tells."""
        return sum(postings.version for postings in self._postings)


class SeriesIndex:
    """Changed by the store alone."""

    def __init__(self, head: HeadBlock) -> None:
        self._head = head
        self._by_name: dict[str, _Postings] = {}
        self._num_series = 0
        self._nothing = Selection(head, ())
        self._group_sets: WeakValueDictionary[bytes, SeriesGroupSet] = WeakValueDictionary()
        self._selections: dict[tuple[Matcher, ...], _CachedSelection] = {}
        self.names_version = 0  # changes when the first series of a metric comes or the last one leaves

    def __len__(self) -> int:
        return self._num_series

    def __iter__(self) -> Iterator[MemSeries]:
        return (series for postings in self._by_name.values() for series in postings.values())

    def find(self, labels: LabelSet) -> MemSeries | None:
        """The series of exactly these labels."""
        postings = self._by_name.get(labels.name)
        return postings.get(labels) if postings is not None else None

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether there is a series of one of these metrics."""
        return any(name in self._by_name for name in names)

    def named(self, name: str) -> list[MemSeries]:
        """All series of one metric."""
        return list(self._by_name.get(name, _Postings()).values())

    # -- changes ------------------------------------------------------------------------------------------------

    def add(self, series: MemSeries) -> None:
        """A new series; its labels must not be known yet."""
        postings = self._by_name.get(series.labels.name)
        if postings is None:
            postings = self._by_name[series.labels.name] = _Postings()
            self.names_version += 1
        postings[series.labels] = series
        self._num_series += 1
        postings.version += 1

    def remove(self, series: MemSeries) -> None:
        """A series that the store forgets."""
        postings = self._by_name[series.labels.name]
        del postings[series.labels]
        if not postings:
            del self._by_name[series.labels.name]
            self.names_version += 1
        self._num_series -= 1
        postings.version += 1

    def moved(self, series: MemSeries) -> None:
        """It has another place now: selections that hold the old one are made anew."""
        self._by_name[series.labels.name].version += 1

    # -- reading ------------------------------------------------------------------------------------------------

    def select(self, matchers: tuple[Matcher, ...]) -> Selection:
        """Every series that all matchers accept, whether it still has fresh points or not."""
        cached = self._selections.get(matchers)
        if cached is not None and cached.names_version == self.names_version and cached.version == cached.now():
            return cached.selection
        named = [matcher for matcher in matchers if matcher.name == METRIC_NAME]
        exact = next((matcher.value for matcher in named if matcher.op == "="), None)
        if exact is not None and exact not in self._by_name:
            return self._nothing
        names = [exact] if exact is not None else list(self._by_name)
        found_postings = [self._by_name[name] for name in names if all(matcher.accepts(name) for matcher in named)]
        rest = tuple(matcher for matcher in matchers if matcher.name != METRIC_NAME)
        found = _accepted((series for postings in found_postings for series in postings.values()), rest)
        selection = Selection(self._head, found, has_one_name=exact is not None, group_sets=self._group_sets)
        if len(self._selections) >= _MAX_CACHED_SELECTIONS:
            self._selections.clear()
        self._selections[matchers] = _CachedSelection(selection, found_postings, self.names_version)
        return selection

    def select_any(self, alternatives: Iterable[tuple[Matcher, ...]]) -> Selection:
        """Every series that one of the alternatives accepts."""
        found = {id(series): series for each in alternatives for series in self.select(each).series}
        return Selection(self._head, list(found.values()))

    def check_integrity(self) -> None:
        """Asserts that names, label sets and the count agree."""
        assert sum(len(postings) for postings in self._by_name.values()) == self._num_series
        for name, postings in self._by_name.items():
            assert postings
            for labels, series in postings.items():
                assert series.labels is labels
                assert labels.name == name


def _accepted(candidates: Iterable[MemSeries], matchers: tuple[Matcher, ...]) -> list[MemSeries]:
    found = list(candidates)
    for matcher in matchers:
        known: dict[str, bool] = {}  # thousands of series have few values of a label
        kept = []
        for series in found:
            value = series.labels.get(matcher.name)
            is_accepted = known.get(value)
            if is_accepted is None:
                is_accepted = known[value] = matcher.accepts(value)
            if is_accepted:
                kept.append(series)
        found = kept
    return found
