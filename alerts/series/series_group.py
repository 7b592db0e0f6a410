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
    """One series' place: its group, its ref there, and its row in the head block.

    A ref is a number within the group that is never given again. `group` None: the series was forgotten.
    """

    __slots__ = ("group", "labels", "ref", "row")

    def __init__(self, labels: LabelSet, group: SeriesGroup, ref: int, row: int) -> None:
        self.labels = labels
        self.group: SeriesGroup | None = group
        self.ref = ref
        self.row = row

    def points(self, after_ms: int = MIN_TIME_MS, until_ms: int = MAX_TIME_MS - 1) -> tuple[Times, Floats]:
        """Times in (after_ms, until_ms] and values, staleness markers included."""
        if self.group is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        times, values = self.group.block(np.array([self.ref]), np.array([self.row]), after_ms, until_ms)
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
        "_next_ref",
        "chunks",
        "head",
        "head_row",
        "is_packed",
        "is_scrape",
        "keep_ms",
        "max_chunk_ms",
        "max_chunk_points",
        "members",
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
        self.head_row = head.new_group()
        self.is_packed = is_packed
        self.is_scrape = is_scrape
        self.keep_ms = keep_ms
        self.max_chunk_ms = max_chunk_ms
        self.max_chunk_points = max_chunk_points
        self.members: dict[int, MemSeries] = {}
        self.chunks: list[Chunk] = []
        self.version = 0
        self._next_ref = 0

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, labels: LabelSet) -> MemSeries:
        """A new series without points."""
        series = MemSeries(labels, self, self._next_ref, self.head.new_row())
        self.members[self._next_ref] = series
        self._next_ref += 1
        return series

    def remove(self, series: MemSeries) -> None:
        """The series leaves; its points are gone."""
        del self.members[series.ref]
        self.head.free_row(series.row)
        series.group = None
        self.version += 1

    def close(self) -> None:
        """Gives its place in the head back."""
        for series in list(self.members.values()):
            self.remove(series)
        self.chunks.clear()
        self.head.free_group(self.head_row)
        self.head.num_scrape_writes += self.is_scrape
        self.head_row = -1

    @property
    def is_closed(self) -> bool:
        """True after `close`: nothing can be appended any more."""
        return self.head_row < 0

    # -- writing ------------------------------------------------------------------------------------------------

    def append_column(self, rows: Index, at_ms: int, values: Floats) -> int:
        """Points of these rows at one time; how many were taken.

        Nothing when something newer is there; at the newest time itself those of series that have no point yet.
        """
        head, group = self.head, self.head_row
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

    def append_range(self, refs: Index, times: Times, values: Floats) -> None:
        """Many points at once, all newer than the newest. Shapes: `values` (refs, times)."""
        self.cut_chunk(int(self.head.fill[self.head_row]))
        if self.is_packed:
            for low in range(0, len(times), self.max_chunk_points):
                part = slice(low, low + self.max_chunk_points)
                self.chunks.append(PackedChunk(refs, times[part].copy(), values[:, part]))
        else:
            self.chunks.append(PlainChunk(refs, times, values))
        self.head.chunks_until_ms[self.head_row] = times[-1]
        self.head.num_scrape_writes += self.is_scrape

    def cut_chunk(self, count: int) -> None:
        """Moves the oldest columns of the head into chunks."""
        if not count:
            return
        head, group = self.head, self.head_row
        refs, rows = self.refs_and_rows()
        times = head.times[group, :count].copy()
        values = head.values[rows, :count]
        lived = np.flatnonzero(~is_missing(values).all(axis=1))
        if len(lived):
            chunk: Chunk
            if self.is_packed:
                chunk = PackedChunk(refs[lived], times, values[lived])
                while self.chunks and self._may_join(self.chunks[-1], chunk):
                    chunk = merge_chunks(self.chunks.pop(), chunk)
            else:
                chunk = PlainChunk(refs[lived], times, values[lived])
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
        head, group = self.head, self.head_row
        head.values[rows, : HEAD_POINTS - count] = head.values[rows, count:]
        head.values[rows, HEAD_POINTS - count :] = MISSING
        head.times[group, : HEAD_POINTS - count] = head.times[group, count:]
        head.times[group, HEAD_POINTS - count :] = MAX_TIME_MS
        head.fill[group] -= count
        head.num_scrape_writes += self.is_scrape

    # -- reading ------------------------------------------------------------------------------------------------

    def refs_and_rows(self) -> tuple[Index, Index]:
        """Numbers, rising, and head rows of all members."""
        refs = np.fromiter(self.members, dtype=np.intp, count=len(self.members))
        rows = np.fromiter((s.row for s in self.members.values()), dtype=np.intp, count=len(self.members))
        return refs, rows

    def block(self, refs: Index, rows: Index, after_ms: int, until_ms: int) -> tuple[Times, Floats]:
        """All times in (after_ms, until_ms] and the values (refs, times) then, MISSING where there is no sample."""
        head = self.head
        times: list[Times] = []
        values: list[Floats] = []
        for chunk in self.chunks:
            if int(chunk.times[-1]) <= after_ms or int(chunk.times[0]) > until_ms:
                continue
            low, high = np.searchsorted(chunk.times, (after_ms, until_ms), side="right").tolist()
            there, own = find_rows(chunk, refs)
            times.append(chunk.times[low:high])
            if len(there) == len(refs):
                values.append(chunk.read(own, low, high))
            else:
                part = np.full((len(refs), high - low), MISSING)
                if len(there):
                    part[there] = chunk.read(own, low, high)
                values.append(part)
        own_times = head.times[self.head_row]
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
        return int(self.head.times[self.head_row, 0]) if self.head.fill[self.head_row] else None

    @property
    def last_ms(self) -> int | None:
        """Timestamp of the newest sample, also of one that was forgotten; None without one."""
        fill = int(self.head.fill[self.head_row])
        if fill:
            return int(self.head.times[self.head_row, fill - 1])
        chunks_until_ms = int(self.head.chunks_until_ms[self.head_row])
        return None if chunks_until_ms == MIN_TIME_MS else chunks_until_ms

    @property
    def num_points(self) -> int:
        """Timestamps of the group, in chunks and head."""
        return int(self.head.fill[self.head_row]) + sum(len(chunk.times) for chunk in self.chunks)

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
            gone = int(np.searchsorted(self.head.times[self.head_row], before_ms, side="right"))
            if gone:
                self._shift(self.refs_and_rows()[1], gone)

    def without_points(self) -> list[MemSeries]:
        """Members of which nothing is left."""
        refs, rows = self.refs_and_rows()
        fill = int(self.head.fill[self.head_row])
        if fill and not is_missing(self.head.values[rows, fill - 1]).any():
            return []
        alive: Bools = np.any(~is_missing(self.head.values[rows]), axis=1)
        for chunk in self.chunks:
            alive[find_rows(chunk, refs)[0]] = True
        return [self.members[ref] for ref in refs[~alive].tolist()]
