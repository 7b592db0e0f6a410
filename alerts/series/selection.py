"""The series that a selector names, read together: one look into the head for all of them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.sample import HOLE_BITS, STALE_BITS, LabelSet
from alerts.series.chunk import is_hole
from alerts.series.columns import LabelColumn
from alerts.series.group_windows import TrackSet
from alerts.series.head import Head
from alerts.series.series_group import Series, Track


class Selection:
    """Valid as long as these series exist; the store makes a new one when that changes."""

    __slots__ = ("_head", "_rows", "_track_of", "_track_set", "labels", "series")

    def __init__(
        self,
        head: Head,
        series: Sequence[Series],
        *,
        has_one_name: bool = False,
        track_sets: MutableMapping[bytes, TrackSet] | None = None,
    ) -> None:
        """`track_sets`: those that other selections have, to be shared."""
        self._head = head
        self.series = series
        places: dict[int, int] = {}
        tracks: list[Track] = []
        track_of = np.empty(len(series), dtype=np.intp)
        for index, one in enumerate(series):
            track = one.track
            assert track is not None
            place = places.setdefault(track.number, len(places))
            if place == len(tracks):
                tracks.append(track)
            track_of[index] = place
        self._track_of: Index = track_of
        self._track_set = _shared(TrackSet(tracks), track_sets)
        self._rows: Index = np.array([one.row for one in series], dtype=np.intp)
        is_wide = any(track.is_scrape for track in tracks)
        self.labels = LabelColumn([one.labels for one in series], is_wide=is_wide, has_one_name=has_one_name)

    def __len__(self) -> int:
        return len(self.series)

    def newest(self, at_ms: int, after_ms: int) -> tuple[Bools, Floats, Times]:
        """Of each series: whether it has a point in (after_ms, at_ms] and had not ended then; value; time."""
        head, tracks = self._head, self._track_set.numbers
        if len(tracks) == 1 and (found := self._newest_of_one(int(tracks[0]), at_ms, after_ms)) is not None:
            return found
        last = head.fill[tracks] - 1
        newest = head.times[tracks, last]
        if (
            int(newest.max(initial=at_ms)) > at_ms or int(last.min(initial=0)) < 0
        ):  # a look into the past, or a track without a head
            times = head.times[tracks]
            last = (times <= at_ms).sum(axis=1) - 1
            newest = times[np.arange(len(tracks)), last]
        there = (last >= 0) & (newest > after_ms)
        values = head.values[self._rows, last[self._track_of]]
        present, at = there[self._track_of], newest[self._track_of]
        older = ((last < 0) & (head.sealed_ms[tracks] > after_ms)).nonzero()[0]
        for place in older.tolist():
            own = (self._track_of == place).nonzero()[0]
            own_times, own_values = self._block(place, own, after_ms, at_ms)
            if len(own_times):
                present[own], at[own], values[own] = True, own_times[-1], own_values[:, -1]
        return _without_ended(present, values), values, at

    def _newest_of_one(self, track: int, at_ms: int, after_ms: int) -> tuple[Bools, Floats, Times] | None:
        """As `newest`, of a single track, which is what rules record in; None when it must be looked up in full."""
        head, last = self._head, int(self._head.fill[track]) - 1
        newest_ms = int(head.times[track, last]) if last >= 0 else 0
        if last < 0 or newest_ms > at_ms:
            return None
        values: Floats = head.values[self._rows, last]
        present = np.full(len(values), newest_ms > after_ms)
        return _without_ended(present, values), values, np.full(len(values), newest_ms, dtype=np.int64)

    def windows(self, after_ms: int, until_ms: int) -> tuple[LabelColumn, Times, Floats, Index]:
        """Points in (after_ms, until_ms], series after series: labels, times, values, and where each begins.

        Without marks of an end, and without series that have no point then. `starts` has one entry more than labels.
        """
        head = self._head
        if not len(self.series):
            return self.labels, np.empty(0, dtype=np.int64), np.empty(0), np.zeros(1, dtype=np.intp)
        times, low, counts, count, first, has_older = self._track_set.window(head, after_ms, until_ms)
        if has_older:
            return self._older_windows(after_ms, until_ms)
        if count:
            if first is not None:
                values = head.values[self._rows, first : first + count].ravel()
                at = times[self._track_of, first : first + count].ravel()
            else:
                columns = (low[:, np.newaxis] + np.arange(count))[self._track_of]
                values = head.values[self._rows[:, np.newaxis], columns].ravel()
                at = times[self._track_of[:, np.newaxis], columns].ravel()
            starts = np.arange(0, len(values) + 1, count)
            if not np.isnan(values).any():
                return self.labels, at, values, starts
            return without_marks(self.labels, at, values, starts)
        labels, rows, track_of = self.labels, self._rows, self._track_of
        occupied = counts[track_of] > 0
        if not occupied.all():
            labels, rows, track_of = labels.picked(occupied), rows[occupied], track_of[occupied]
        own = counts[track_of]
        starts = np.concatenate(([0], np.cumsum(own)))
        flat = np.arange(starts[-1]) + np.repeat(low[track_of] - starts[:-1], own)
        values = head.values[np.repeat(rows, own), flat]
        return without_marks(labels, times[np.repeat(track_of, own), flat], values, starts)

    def _older_windows(self, after_ms: int, until_ms: int) -> tuple[LabelColumn, Times, Floats, Index]:
        blocks = list(self._blocks(after_ms, until_ms))
        counts = np.zeros(len(self.series), dtype=np.intp)
        for own, times, _ in blocks:
            counts[own] = len(times)
        starts = np.concatenate(([0], np.cumsum(counts)))
        at, values = np.empty(starts[-1], dtype=np.int64), np.empty(starts[-1])
        for own, times, block in blocks:
            places = starts[own][:, np.newaxis] + np.arange(len(times))
            at[places], values[places] = times, block
        return without_marks(self.labels, at, values, starts)

    def _blocks(self, after_ms: int, until_ms: int) -> Iterator[tuple[Index, Times, Floats]]:
        """Track by track: which of the series, the times, the values (series, times)."""
        order = np.argsort(self._track_of, kind="stable")
        borders = np.searchsorted(self._track_of[order], np.arange(len(self._track_set.tracks) + 1))
        for place in range(len(self._track_set.tracks)):
            own = order[borders[place] : borders[place + 1]]
            yield own, *self._block(place, own, after_ms, until_ms)

    def _block(self, place: int, own: Index, after_ms: int, until_ms: int) -> tuple[Times, Floats]:
        ids = np.array([self.series[index].number for index in own.tolist()], dtype=np.intp)
        return self._track_set.tracks[place].block(ids, self._rows[own], after_ms, until_ms)

    def aligned(
        self, after_ms: int, until_ms: int, *, keep_stale: bool
    ) -> Iterator[tuple[Times, list[LabelSet], Floats]]:
        """Series that have points in (after_ms, until_ms] at the same times: times, labels, values (series, times)."""
        ragged: dict[bytes, tuple[Times, list[LabelSet], list[Floats]]] = {}
        for own, times, values in self._blocks(after_ms, until_ms):
            if not len(times):
                continue
            marks = is_hole(values)
            if not keep_stale:
                marks |= values.view(np.int64) == STALE_BITS
            whole = ~marks.any(axis=1)
            labels = [self.labels[index] for index in own.tolist()]
            if whole.all():
                yield times, labels, values
                continue
            for row, entry in enumerate(labels):
                there = ~marks[row]
                if there.any():
                    key = times[there].tobytes()
                    group = ragged.setdefault(key, (times[there], [], []))
                    group[1].append(entry)
                    group[2].append(values[row, there])
        for times, labels, rows in ragged.values():
            yield times, labels, np.stack(rows)


def _without_ended(present: Bools, values: Floats) -> Bools:
    if not np.isnan(values).any():
        return present
    bits = values.view(np.int64)
    there: Bools = present & (bits != STALE_BITS) & (bits != HOLE_BITS)
    return there


def _shared(own: TrackSet, known: MutableMapping[bytes, TrackSet] | None) -> TrackSet:
    """The same set of tracks that another selection has, or this one."""
    if known is None:
        return own
    found = known.setdefault(own.numbers.tobytes(), own)
    if found.tracks != own.tracks:  # a number has been given to another track since
        found = known[own.numbers.tobytes()] = own
    return found


def without_marks(
    labels: LabelColumn, times: Times, values: Floats, starts: Index
) -> tuple[LabelColumn, Times, Floats, Index]:
    """The same windows without marks of an end, holes, and series of which nothing is left."""
    bits = values.view(np.int64)
    kept = (bits != STALE_BITS) & (bits != HOLE_BITS) if np.isnan(values).any() else None
    if kept is not None and not kept.all():
        starts = np.concatenate(([0], np.cumsum(kept)))[starts]
        times, values = times[kept], values[kept]
    occupied = np.diff(starts) > 0
    if not occupied.all():
        labels = labels.picked(occupied)
        starts = np.concatenate((starts[:-1][occupied], starts[-1:]))
    return labels, times, values, starts.astype(np.intp, copy=False)
