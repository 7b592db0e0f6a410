"""Series that are written at the same moments: a target's scrape, what one rule records, or one series alone.

They share the times. The newest points lie in the head; when its columns are used up, the oldest become a chunk.
A series that is not appended when others are is MISSING there, and never without a staleness marker before: so MISSING
at the newest timestamp says that the series is not there.
"""

from __future__ import annotations

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.labels import LabelSet
from alerts.sample import MISSING, is_stale_nan
from alerts.series.chunk import Chunk, PackedChunk, PlainChunk, find_rows, is_missing, merge_chunks
from alerts.series.head import HEAD_POINTS, MAX_TIME_MS, MIN_TIME_MS, HeadBlock

POINTS_CUT_AT_ONCE = HEAD_POINTS // 4
MAX_CHUNK_POINTS = 128


class MemSeries:
    """One series' place: its group, its number in it, and its row in the head. `group` None: it was forgotten."""

    __slots__ = ("group", "labels", "number", "row")

    def __init__(self, labels: LabelSet, group: SeriesGroup, number: int, row: int) -> None:
        self.labels = labels
        self.group: SeriesGroup | None = group
        self.number = number
        self.row = row

    def points(self, after_ms: int = MIN_TIME_MS, until_ms: int = MAX_TIME_MS - 1) -> tuple[Times, Floats]:
        """Times in (after_ms, until_ms] and values, staleness markers included."""
        if self.group is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        times, values = self.group.block(np.array([self.number]), np.array([self.row]), after_ms, until_ms)
        there = ~is_missing(values[0])
        return times[there], values[0][there]

    @property
    def has_ended(self) -> bool:
        """True when the last sample is a staleness marker."""
        if self.group is None:
            return False
        newest = self.group.head.values[self.row]
        newest = newest[~is_missing(newest)]
        if not len(newest):
            _, newest = self.points()
        return bool(len(newest)) and is_stale_nan(float(newest[-1]))


class SeriesGroup:
    """Only the store changes one. `version` grows when a series leaves: rows learned before then mean nothing."""

    __slots__ = (
        "_next",
        "chunks",
        "head",
        "is_packed",
        "is_scrape",
        "keep_ms",
        "max_chunk_ms",
        "max_chunk_points",
        "members",
        "number",
        "version",
    )

    def __init__(
        self,
        head: HeadBlock,
        *,
        is_packed: bool,
        is_scrape: bool,
        keep_ms: int,
        max_chunk_ms: int,
        max_chunk_points: int,
    ) -> None:
        self.head = head
        self.number = head.new_group()
        self.is_packed = is_packed
        self.is_scrape = is_scrape
        self.keep_ms = keep_ms
        self.max_chunk_ms = max_chunk_ms
        self.max_chunk_points = max_chunk_points
        self.members: dict[int, MemSeries] = {}
        self.chunks: list[Chunk] = []
        self.version = 0
        self._next = 0

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, labels: LabelSet) -> MemSeries:
        """A new series without points."""
        series = MemSeries(labels, self, self._next, self.head.new_row())
        self.members[self._next] = series
        self._next += 1
        return series

    def remove(self, series: MemSeries) -> None:
        """The series leaves; its points are gone."""
        del self.members[series.number]
        self.head.free_row(series.row)
        series.group = None
        self.version += 1

    def close(self) -> None:
        """Gives its place in the head back."""
        for series in list(self.members.values()):
            self.remove(series)
        self.chunks.clear()
        self.head.free_group(self.number)
        self.head.num_scrape_writes += self.is_scrape
        self.number = -1

    @property
    def is_closed(self) -> bool:
        """True after `close`: nothing can be appended any more."""
        return self.number < 0

    # -- writing ------------------------------------------------------------------------------------------------

    def append_column(self, rows: Index, at_ms: int, values: Floats) -> int:
        """Points of these rows at one time; how many were taken.

        Nothing when something newer is there; at the newest time itself those of series that have no point yet.
        """
        head, group = self.head, self.number
        fill = int(head.fill[group])
        last_ms = int(head.times[group, fill - 1]) if fill else int(head.chunks_until_ms[group])
        if at_ms > last_ms:
            if fill == HEAD_POINTS:
                self.cut_chunk(POINTS_CUT_AT_ONCE)
                fill -= POINTS_CUT_AT_ONCE
            head.times[group, fill] = at_ms
            head.fill[group] = fill + 1
            head.num_scrape_writes += self.is_scrape
            head.values[rows, fill] = values
            return len(rows)
        if at_ms < last_ms or not fill:
            return 0
        free = is_missing(head.values[rows, fill - 1])
        head.values[rows[free], fill - 1] = values[free]
        return int(free.sum())

    def append_range(self, ids: Index, times: Times, values: Floats) -> None:
        """Many points at once, all newer than the newest. Shapes: `values` (ids, times)."""
        self.cut_chunk(int(self.head.fill[self.number]))
        if self.is_packed:
            for low in range(0, len(times), self.max_chunk_points):
                part = slice(low, low + self.max_chunk_points)
                self.chunks.append(PackedChunk(ids, times[part].copy(), values[:, part]))
        else:
            self.chunks.append(PlainChunk(ids, times, values))
        self.head.chunks_until_ms[self.number] = times[-1]
        self.head.num_scrape_writes += self.is_scrape

    def cut_chunk(self, count: int) -> None:
        """Moves the oldest columns of the head into chunks."""
        if not count:
            return
        head, group = self.head, self.number
        ids, rows = self.ids_and_rows()
        times = head.times[group, :count].copy()
        values = head.values[rows, :count]
        lived = np.flatnonzero(~is_missing(values).all(axis=1))
        if len(lived):
            chunk: Chunk
            if self.is_packed:
                chunk = PackedChunk(ids[lived], times, values[lived])
                while self.chunks and self._may_join(self.chunks[-1], chunk):
                    chunk = merge_chunks(self.chunks.pop(), chunk)
            else:
                chunk = PlainChunk(ids[lived], times, values[lived])
            self.chunks.append(chunk)
        head.chunks_until_ms[group] = times[-1]
        self._shift(rows, count)

    def _may_join(self, older: Chunk, newer: Chunk) -> bool:
        """Neighbours of one size: each point is packed anew a few times only, and few chunks are left."""
        return (
            len(older.times) <= len(newer.times)
            and len(older.times) + len(newer.times) <= self.max_chunk_points
            and int(newer.times[-1] - older.times[0]) <= self.max_chunk_ms
        )

    def _shift(self, rows: Index, count: int) -> None:
        """Drops the oldest columns of the head."""
        head, group = self.head, self.number
        head.values[rows, : HEAD_POINTS - count] = head.values[rows, count:]
        head.values[rows, HEAD_POINTS - count :] = MISSING
        head.times[group, : HEAD_POINTS - count] = head.times[group, count:]
        head.times[group, HEAD_POINTS - count :] = MAX_TIME_MS
        head.fill[group] -= count
        head.num_scrape_writes += self.is_scrape

    # -- reading ------------------------------------------------------------------------------------------------

    def ids_and_rows(self) -> tuple[Index, Index]:
        """Numbers, rising, and head rows of all members."""
        ids = np.fromiter(self.members, dtype=np.intp, count=len(self.members))
        rows = np.fromiter((s.row for s in self.members.values()), dtype=np.intp, count=len(self.members))
        return ids, rows

    def block(self, ids: Index, rows: Index, after_ms: int, until_ms: int) -> tuple[Times, Floats]:
        """All times in (after_ms, until_ms] and the values (ids, times) then, MISSING where there is no sample."""
        head = self.head
        times: list[Times] = []
        values: list[Floats] = []
        for chunk in self.chunks:
            if int(chunk.times[-1]) <= after_ms or int(chunk.times[0]) > until_ms:
                continue
            low, high = np.searchsorted(chunk.times, (after_ms, until_ms), side="right").tolist()
            there, own = find_rows(chunk, ids)
            times.append(chunk.times[low:high])
            if len(there) == len(ids):
                values.append(chunk.read(own, low, high))
            else:
                part = np.full((len(ids), high - low), MISSING)
                if len(there):
                    part[there] = chunk.read(own, low, high)
                values.append(part)
        own_times = head.times[self.number]
        low, high = np.searchsorted(own_times, (after_ms, until_ms), side="right").tolist()
        if low < high or not times:
            times.append(own_times[low:high])
            values.append(head.values[rows, low:high])
        if len(times) == 1:
            return times[0], values[0]
        return np.concatenate(times), np.concatenate(values, axis=1)

    @property
    def first_ms(self) -> int | None:
        """Timestamp of the oldest sample, None without one."""
        if self.chunks:
            return int(self.chunks[0].times[0])
        return int(self.head.times[self.number, 0]) if self.head.fill[self.number] else None

    @property
    def last_ms(self) -> int | None:
        """Timestamp of the newest sample, also of one that was forgotten; None without one."""
        fill = int(self.head.fill[self.number])
        if fill:
            return int(self.head.times[self.number, fill - 1])
        chunks_until_ms = int(self.head.chunks_until_ms[self.number])
        return None if chunks_until_ms == MIN_TIME_MS else chunks_until_ms

    @property
    def num_points(self) -> int:
        """Timestamps of the group, in chunks and head."""
        return int(self.head.fill[self.number]) + sum(len(chunk.times) for chunk in self.chunks)

    @property
    def num_bytes(self) -> int:
        """Of its chunks."""
        return sum(chunk.num_bytes for chunk in self.chunks)

    # -- forgetting ---------------------------------------------------------------------------------------------

    def trim(self, before_ms: int, max_points: int) -> None:
        """Forgets points up to `before_ms` and the oldest beyond `max_points`, chunk by chunk."""
        count = self.num_points
        while self.chunks:
            oldest = self.chunks[0]
            if int(oldest.times[-1]) > before_ms and count - len(oldest.times) < max_points:
                break
            count -= len(oldest.times)
            del self.chunks[0]
        if not self.chunks:
            gone = int(np.searchsorted(self.head.times[self.number], before_ms, side="right"))
            if gone:
                self._shift(self.ids_and_rows()[1], gone)

    def without_points(self) -> list[MemSeries]:
        """Members of which nothing is left."""
        ids, rows = self.ids_and_rows()
        fill = int(self.head.fill[self.number])
        if fill and not is_missing(self.head.values[rows, fill - 1]).any():
            return []
        alive: Bools = np.any(~is_missing(self.head.values[rows]), axis=1)
        for chunk in self.chunks:
            alive[find_rows(chunk, ids)[0]] = True
        return [self.members[number] for number in ids[~alive].tolist()]
