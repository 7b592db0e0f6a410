"""The series that a selector names, read together: one look into the head for all of them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.labels import LabelSet
from alerts.sample import MISSING_BITS, STALE_NAN_BITS
from alerts.series.chunk import is_missing
from alerts.series.group_set import SeriesGroupSet
from alerts.series.head import HeadBlock
from alerts.series.label_column import LabelColumn
from alerts.series.series_group import MemSeries, SeriesGroup


class Selection:
    """Valid as long as these series exist; the store makes a new one when that changes."""

    __slots__ = ("_group_of", "_group_set", "_head", "_rows", "labels", "series")

    def __init__(
        self,
        head: HeadBlock,
        series: Sequence[MemSeries],
        *,
        has_one_name: bool = False,
        group_sets: MutableMapping[bytes, SeriesGroupSet] | None = None,
    ) -> None:
        """`group_sets`: those that other selections have, to be shared."""
        self._head = head
        self.series = series
        places: dict[int, int] = {}
        groups: list[SeriesGroup] = []
        group_of = np.empty(len(series), dtype=np.intp)
        for index, one in enumerate(series):
            group = one.group
            assert group is not None
            place = places.setdefault(group.head_row, len(places))
            if place == len(groups):
                groups.append(group)
            group_of[index] = place
        self._group_of: Index = group_of
        self._group_set = _shared(SeriesGroupSet(groups), group_sets)
        self._rows: Index = np.array([one.row for one in series], dtype=np.intp)
        is_wide = any(group.is_scrape for group in groups)
        self.labels = LabelColumn([one.labels for one in series], is_wide=is_wide, has_one_name=has_one_name)

    def __len__(self) -> int:
        return len(self.series)

    def newest(self, at_ms: int, after_ms: int) -> tuple[Bools, Floats, Times]:
        """Of each series: whether it has a point in (after_ms, at_ms] and had not ended then; value; time."""
        head, groups = self._head, self._group_set.head_rows
        if len(groups) == 1 and (found := self._newest_of_one(int(groups[0]), at_ms, after_ms)) is not None:
            return found
        last = head.fill[groups] - 1
        newest = head.times[groups, last]
        if (
            int(newest.max(initial=at_ms)) > at_ms or int(last.min(initial=0)) < 0
        ):  # a look into the past, or a group without a head
            times = head.times[groups]
            last = (times <= at_ms).sum(axis=1) - 1
            newest = times[np.arange(len(groups)), last]
        there = (last >= 0) & (newest > after_ms)
        values = head.values[self._rows, last[self._group_of]]
        present, at = there[self._group_of], newest[self._group_of]
        older = ((last < 0) & (head.chunks_until_ms[groups] > after_ms)).nonzero()[0]
        for place in older.tolist():
            own = (self._group_of == place).nonzero()[0]
            own_times, own_values = self._block(place, own, after_ms, at_ms)
            if len(own_times):
                present[own], at[own], values[own] = True, own_times[-1], own_values[:, -1]
        return _without_ended(present, values), values, at

    def _newest_of_one(self, group: int, at_ms: int, after_ms: int) -> tuple[Bools, Floats, Times] | None:
        """As `newest`, of a single group, which is what rules record in; None when it must be looked up in full."""
        head, last = self._head, int(self._head.fill[group]) - 1
        newest_ms = int(head.times[group, last]) if last >= 0 else 0
        if last < 0 or newest_ms > at_ms:
            return None
        values: Floats = head.values[self._rows, last]
        present = np.full(len(values), newest_ms > after_ms)
        return _without_ended(present, values), values, np.full(len(values), newest_ms, dtype=np.int64)

    def windows(self, after_ms: int, until_ms: int) -> tuple[LabelColumn, Times, Floats, Index]:
        """Points in (after_ms, until_ms], series after series: labels, times, values, and where each begins.

        Without staleness markers, and without series that have no point then. `starts` has one entry more than labels.
        """
        head = self._head
        if not len(self.series):
            return self.labels, np.empty(0, dtype=np.int64), np.empty(0), np.zeros(1, dtype=np.intp)
        times, low, counts, count, first, has_older = self._group_set.window(head, after_ms, until_ms)
        if has_older:
            return self._older_windows(after_ms, until_ms)
        if count:
            if first is not None:
                values = head.values[self._rows, first : first + count].ravel()
                at = times[self._group_of, first : first + count].ravel()
            else:
                columns = (low[:, np.newaxis] + np.arange(count))[self._group_of]
                values = head.values[self._rows[:, np.newaxis], columns].ravel()
                at = times[self._group_of[:, np.newaxis], columns].ravel()
            starts = np.arange(0, len(values) + 1, count)
            if not np.isnan(values).any():
                return self.labels, at, values, starts
            return without_markers(self.labels, at, values, starts)
        labels, rows, group_of = self.labels, self._rows, self._group_of
        occupied = counts[group_of] > 0
        if not occupied.all():
            labels, rows, group_of = labels.where(occupied), rows[occupied], group_of[occupied]
        own = counts[group_of]
        starts = np.concatenate(([0], np.cumsum(own)))
        flat = np.arange(starts[-1]) + np.repeat(low[group_of] - starts[:-1], own)
        values = head.values[np.repeat(rows, own), flat]
        return without_markers(labels, times[np.repeat(group_of, own), flat], values, starts)

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
        return without_markers(self.labels, at, values, starts)

    def _blocks(self, after_ms: int, until_ms: int) -> Iterator[tuple[Index, Times, Floats]]:
        """SeriesGroup by group: which of the series, the times, the values (series, times)."""
        order = np.argsort(self._group_of, kind="stable")
        borders = np.searchsorted(self._group_of[order], np.arange(len(self._group_set.groups) + 1))
        for place in range(len(self._group_set.groups)):
            own = order[borders[place] : borders[place + 1]]
            yield own, *self._block(place, own, after_ms, until_ms)

    def _block(self, place: int, own: Index, after_ms: int, until_ms: int) -> tuple[Times, Floats]:
        refs = np.array([self.series[index].ref for index in own.tolist()], dtype=np.intp)
        return self._group_set.groups[place].block(refs, self._rows[own], after_ms, until_ms)

    def aligned(
        self, after_ms: int, until_ms: int, *, keep_stale: bool
    ) -> Iterator[tuple[Times, list[LabelSet], Floats]]:
        """Series that have points in (after_ms, until_ms] at the same times: times, labels, values (series, times)."""
        ragged: dict[bytes, tuple[Times, list[LabelSet], list[Floats]]] = {}
        for own, times, values in self._blocks(after_ms, until_ms):
            if not len(times):
                continue
            marks = is_missing(values)
            if not keep_stale:
                marks |= values.view(np.int64) == STALE_NAN_BITS
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
    there: Bools = present & (bits != STALE_NAN_BITS) & (bits != MISSING_BITS)
    return there


def _shared(own: SeriesGroupSet, known: MutableMapping[bytes, SeriesGroupSet] | None) -> SeriesGroupSet:
    """The same set of groups that another selection has, or this one."""
    if known is None:
        return own
    found = known.setdefault(own.head_rows.tobytes(), own)
    if found.groups != own.groups:  # a row has been given to another group since
        found = known[own.head_rows.tobytes()] = own
    return found


def without_markers(
    labels: LabelColumn, times: Times, values: Floats, starts: Index
) -> tuple[LabelColumn, Times, Floats, Index]:
    """The same windows without staleness markers, MISSING, and series of which nothing is left."""
    bits = values.view(np.int64)
    kept = (bits != STALE_NAN_BITS) & (bits != MISSING_BITS) if np.isnan(values).any() else None
    if kept is not None and not kept.all():
        starts = np.concatenate(([0], np.cumsum(kept)))[starts]
        times, values = times[kept], values[kept]
    occupied = np.diff(starts) > 0
    if not occupied.all():
        labels = labels.where(occupied)
        starts = np.concatenate((starts[:-1][occupied], starts[-1:]))
    return labels, times, values, starts.astype(np.intp, copy=False)
