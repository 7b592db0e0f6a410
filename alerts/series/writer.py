"""Who writes several series at the same moments, again and again: a target's scrapes, a rule's evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from alerts.arrays import Floats, Index, Times
from alerts.sample import STALE, LabelSet, to_ms
from alerts.series.chunk import is_hole
from alerts.series.series_group import Series, Track


class Shelf(Protocol):
    """What a writer needs of the store."""

    def new_track(self, *, is_scrape: bool = False, keep_ms: int = 0) -> Track: ...
    def series_in(self, track: Track, labels: LabelSet) -> Series | None:
        """The series, made in this track when it is new; None when the store is full."""

    @property
    def has_room(self) -> bool: ...


class Writer:
    """Remembers where its series lie: as long as it writes the same ones, a moment is one write of one column."""

    __slots__ = (
        "_ended",
        "_foreign",
        "_is_scrape",
        "_keep_ms",
        "_key",
        "_places",
        "_refused",
        "_rows",
        "_shelf",
        "_track",
        "_version",
        "series",
    )

    def __init__(self, shelf: Shelf, *, is_scrape: bool = False, keep_ms: int = 0) -> None:
        self._shelf = shelf
        self._keep_ms = keep_ms
        self._is_scrape = is_scrape
        self._track: Track | None = None
        self._version = 0
        self._key: object = None
        self._rows: Index = np.empty(0, dtype=np.intp)
        self._places: Index | None = None  # which of the given values are written; None: all
        self._ended: list[Series] = []  # had values before, have none now: not yet marked so
        self._foreign: list[tuple[int, Series]] = []  # also written by others, so with times of their own
        self._refused = 0
        self.series: Sequence[Series] = ()  # of the last moment

    @property
    def track(self) -> Track | None:
        return self._track

    def keep_at_least(self, keep_s: float) -> None:
        """Its series' points are kept for this long, from now on."""
        self._keep_ms = max(self._keep_ms, to_ms(keep_s))
        if self._track is not None:
            self._track.keep_ms = max(self._track.keep_ms, self._keep_ms)

    def take(self, key: object, labels: Callable[[], Iterable[LabelSet]]) -> int:
        """Makes these the series that are written from now on; how many were not among the last ones.

        `key` stands for the labels: while it is the same object, nothing is looked up.
        """
        track = self._track
        if track is None or track.is_closed:
            track = self._track = self._shelf.new_track(is_scrape=self._is_scrape, keep_ms=self._keep_ms)
            self._key = None
        known = key is self._key and track.version == self._version
        if known and not (self._refused and self._shelf.has_room):
            return 0
        found = [self._shelf.series_in(track, entry) for entry in labels()]
        rows: list[int] = []
        places: list[int] = []
        self._foreign = []
        now_there: dict[int, Series] = {}
        for place, series in enumerate(found):
            if series is None or id(series) in now_there:
                continue
            now_there[id(series)] = series
            if series.track is track:
                rows.append(series.row)
                places.append(place)
            else:
                self._foreign.append((place, series))
        before = {id(series) for series in self.series}
        self._ended += [one for one in self.series if id(one) not in now_there and one.track is not None]
        self._refused = len(found) - len(now_there)
        self._rows = np.array(rows, dtype=np.intp)
        self._places = None if len(places) == len(found) else np.array(places, dtype=np.intp)
        self._key, self._version = key, track.version
        self.series = list(now_there.values())
        return len(now_there.keys() - before)

    def write(self, at_ms: int, values: Floats) -> tuple[int, int]:
        """One value for each label given to `take`, at one time; how many were stored and how many dropped.

        Series that are no longer written end at this time.
        """
        track = self._track
        assert track is not None
        rows = self._rows
        given = values if self._places is None else values[self._places]
        ended = self._ended
        if ended:
            own = np.array([one.row for one in ended if one.track is track], dtype=np.intp)
            rows, given = np.concatenate((rows, own)), np.concatenate((given, np.full(len(own), STALE)))
        taken = track.write(rows, at_ms, given)
        stored = min(taken, len(self._rows))
        for place, series in self._foreign:
            if series.track is not None:
                stored += series.track.write(np.array([series.row]), at_ms, values[place : place + 1])
        for series in ended:
            if series.track is not None and series.track is not track:
                series.track.write(np.array([series.row]), at_ms, np.array([STALE]))
        self._ended = []
        return stored, len(values) - stored

    def load(self, times: Times, values: Floats) -> None:
        """Many moments at once, newer than all before. Shapes: `values` (labels, times), holes and marks included."""
        track = self._track
        assert track is not None
        given = values if self._places is None else values[self._places]
        own = [series for series in self.series if series.track is track]
        track.load(np.array([series.number for series in own], dtype=np.intp), times, given)
        for place, series in self._foreign:
            there = ~is_hole(values[place])
            if series.track is not None and there.any():
                series.track.load(np.array([series.number]), times[there], values[place : place + 1, there])

    def end(self) -> None:
        """All its series end, right after their last point; nothing is written until `take` is called again."""
        track = self._track
        if track is None or track.last_ms is None:
            return
        for _, series in self._foreign:
            if series.track is not None and not series.has_ended:
                series.track.write(np.array([series.row]), (series.track.last_ms or 0) + 1, np.array([STALE]))
        self.take(None, lambda: ())
        self.write(track.last_ms + 1, np.empty(0))
