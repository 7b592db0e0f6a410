"""Who writes several series at the same moments, again and again: a target's scrapes, a rule's evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from alerts.arrays import Floats, Index, Times
from alerts.labels import LabelSet
from alerts.sample import STALE_NAN, to_ms
from alerts.series.chunk import is_missing
from alerts.series.series_group import MemSeries, SeriesGroup


class SeriesAllocator(Protocol):
    """What a appender needs of the store."""

    def new_group(self, *, is_scrape: bool = False, keep_ms: int = 0) -> SeriesGroup:
        """A group without series, kept for `keep_ms` at least."""

    def series_for(self, group: SeriesGroup, labels: LabelSet) -> MemSeries | None:
        """The series, made in this group when it is new; None when the store is full."""

    @property
    def has_room(self) -> bool:
        """Whether a new series would be taken."""


class Appender:
    """Remembers where its series lie: as long as it writes the same ones, a timestamp is one write of one column."""

    __slots__ = (
        "_allocator",
        "_ended",
        "_foreign",
        "_group",
        "_is_scrape",
        "_keep_ms",
        "_key",
        "_places",
        "_refused",
        "_rows",
        "_version",
        "series",
    )

    def __init__(self, allocator: SeriesAllocator, *, is_scrape: bool = False, keep_ms: int = 0) -> None:
        self._allocator = allocator
        self._keep_ms = keep_ms
        self._is_scrape = is_scrape
        self._group: SeriesGroup | None = None
        self._version = 0
        self._key: object = None
        self._rows: Index = np.empty(0, dtype=np.intp)
        self._places: Index | None = None  # which of the given values are written; None: all
        self._ended: list[MemSeries] = []  # had values before, have none now: not yet marked so
        self._foreign: list[tuple[int, MemSeries]] = []  # also written by others, so with times of their own
        self._refused = 0
        self.series: Sequence[MemSeries] = ()  # of the last timestamp

    @property
    def group(self) -> SeriesGroup | None:
        """Where its series lie; None before the first ones."""
        return self._group

    def keep_at_least(self, keep_s: float) -> None:
        """Its series' points are kept for this long, from now on."""
        self._keep_ms = max(self._keep_ms, to_ms(keep_s))
        if self._group is not None:
            self._group.keep_ms = max(self._group.keep_ms, self._keep_ms)

    def set_series(self, key: object, labels: Callable[[], Iterable[LabelSet]]) -> int:
        """Makes these the series that are written from now on; how many were not among the last ones.

        `key` stands for the labels: while it is the same object, nothing is looked up.
        """
        group = self._group
        if group is None or group.is_closed:
            group = self._group = self._allocator.new_group(is_scrape=self._is_scrape, keep_ms=self._keep_ms)
            self._key = None
        known = key is self._key and group.version == self._version
        if known and not (self._refused and self._allocator.has_room):
            return 0
        found = [self._allocator.series_for(group, entry) for entry in labels()]
        rows: list[int] = []
        places: list[int] = []
        self._foreign = []
        now_there: dict[int, MemSeries] = {}
        for place, series in enumerate(found):
            if series is None or id(series) in now_there:
                continue
            now_there[id(series)] = series
            if series.group is group:
                rows.append(series.row)
                places.append(place)
            else:
                self._foreign.append((place, series))
        before = {id(series) for series in self.series}
        self._ended += [one for one in self.series if id(one) not in now_there and one.group is not None]
        self._refused = len(found) - len(now_there)
        self._rows = np.array(rows, dtype=np.intp)
        self._places = None if len(places) == len(found) else np.array(places, dtype=np.intp)
        self._key, self._version = key, group.version
        self.series = list(now_there.values())
        return len(now_there.keys() - before)

    def append(self, at_ms: int, values: Floats) -> tuple[int, int]:
        """One value for each label given to `set_series`, at one time; how many were stored and how many dropped.

        Series that are no longer written end at this time.
        """
        group = self._group
        assert group is not None
        rows = self._rows
        given = values if self._places is None else values[self._places]
        ended = self._ended
        if ended:
            own = np.array([one.row for one in ended if one.group is group], dtype=np.intp)
            rows, given = np.concatenate((rows, own)), np.concatenate((given, np.full(len(own), STALE_NAN)))
        taken = group.append_column(rows, at_ms, given)
        stored = min(taken, len(self._rows))
        for place, series in self._foreign:
            if series.group is not None:
                stored += series.group.append_column(np.array([series.row]), at_ms, values[place : place + 1])
        for series in ended:
            if series.group is not None and series.group is not group:
                series.group.append_column(np.array([series.row]), at_ms, np.array([STALE_NAN]))
        self._ended = []
        return stored, len(values) - stored

    def append_range(self, times: Times, values: Floats) -> None:
        """Many timestamps at once, newer than all before.

        Shapes: `values` (labels, times), MISSING and staleness markers included.
        """
        group = self._group
        assert group is not None
        given = values if self._places is None else values[self._places]
        own = [series for series in self.series if series.group is group]
        group.append_range(np.array([series.ref for series in own], dtype=np.intp), times, given)
        for place, series in self._foreign:
            there = ~is_missing(values[place])
            if series.group is not None and there.any():
                series.group.append_range(np.array([series.ref]), times[there], values[place : place + 1, there])

    def mark_stale(self) -> None:
        """All its series end, right after their last point; nothing is written until `set_series` is called again."""
        group = self._group
        if group is None or group.last_ms is None:
            return
        for _, series in self._foreign:
            if series.group is not None and not series.has_ended:
                series.group.append_column(
                    np.array([series.row]), (series.group.last_ms or 0) + 1, np.array([STALE_NAN])
                )
        self.set_series(None, lambda: ())
        self.append(group.last_ms + 1, np.empty(0))
