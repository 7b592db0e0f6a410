"""Series that are written at the same moments: a target's scrape, what one rule records, or one series alone.

They share the times. The newest points lie in the head; when its columns are used up, the oldest become a chunk.
A series that is not written when others are has a hole there, never without the mark of its end before: so a hole at
the newest time says that the series is not there.
"""

from __future__ import annotations

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.sample import HOLE, LabelSet, is_stale
from alerts.series.chunk import Chunk, PackedChunk, PlainChunk, is_hole, joined, rows_in
from alerts.series.head import LONG_AGO, NEVER, WIDTH, Head

SEALED_AT_ONCE = WIDTH // 4
MAX_CHUNK_POINTS = 128


class Series:
    """One series' place: its track, its number in it, and its row in the head. `track` None: it was forgotten."""

    __slots__ = ("labels", "number", "row", "track")

    def __init__(self, labels: LabelSet, track: Track, number: int, row: int) -> None:
        self.labels = labels
        self.track: Track | None = track
        self.number = number
        self.row = row

    def points(self, after_ms: int = LONG_AGO, until_ms: int = NEVER - 1) -> tuple[Times, Floats]:
        """Times in (after_ms, until_ms] and values, marks of an end included."""
        if self.track is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        times, values = self.track.block(np.array([self.number]), np.array([self.row]), after_ms, until_ms)
        there = ~is_hole(values[0])
        return times[there], values[0][there]

    @property
    def has_ended(self) -> bool:
        """True when the last point is the mark that the series ended."""
        if self.track is None:
            return False
        newest = self.track.head.values[self.row]
        newest = newest[~is_hole(newest)]
        if not len(newest):
            _, newest = self.points()
        return bool(len(newest)) and is_stale(float(newest[-1]))


class Track:
    """Only the store changes one. `version` grows when a series leaves: rows learned before then mean nothing."""

    __slots__ = (
        "_next", "chunks", "head", "is_packed", "is_scrape", "keep_ms", "max_chunk_ms", "max_chunk_points", "members",
        "number", "version",
    )  # fmt: skip

    def __init__(
        self, head: Head, *, is_packed: bool, is_scrape: bool, keep_ms: int, max_chunk_ms: int, max_chunk_points: int
    ) -> None:
        self.head = head
        self.number = head.new_track()
        self.is_packed = is_packed
        self.is_scrape = is_scrape
        self.keep_ms = keep_ms
        self.max_chunk_ms = max_chunk_ms
        self.max_chunk_points = max_chunk_points
        self.members: dict[int, Series] = {}
        self.chunks: list[Chunk] = []
        self.version = 0
        self._next = 0

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, labels: LabelSet) -> Series:
        """A new series without points."""
        series = Series(labels, self, self._next, self.head.new_row())
        self.members[self._next] = series
        self._next += 1
        return series

    def remove(self, series: Series) -> None:
        del self.members[series.number]
        self.head.free_row(series.row)
        series.track = None
        self.version += 1

    def close(self) -> None:
        """Gives its place in the head back."""
        for series in list(self.members.values()):
            self.remove(series)
        self.chunks.clear()
        self.head.free_track(self.number)
        self.head.num_scrape_writes += self.is_scrape
        self.number = -1

    @property
    def is_closed(self) -> bool:
        return self.number < 0

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, rows: Index, at_ms: int, values: Floats) -> int:
        """Points of these rows at one time; how many were taken.

        Nothing when something newer is there; at the newest time itself those of series that have no point yet.
        """
        head, track = self.head, self.number
        fill = int(head.fill[track])
        last_ms = int(head.times[track, fill - 1]) if fill else int(head.sealed_ms[track])
        if at_ms > last_ms:
            if fill == WIDTH:
                self.seal(SEALED_AT_ONCE)
                fill -= SEALED_AT_ONCE
            head.times[track, fill] = at_ms
            head.fill[track] = fill + 1
            head.num_scrape_writes += self.is_scrape
            head.values[rows, fill] = values
            return len(rows)
        if at_ms < last_ms or not fill:
            return 0
        free = is_hole(head.values[rows, fill - 1])
        head.values[rows[free], fill - 1] = values[free]
        return int(free.sum())

    def load(self, ids: Index, times: Times, values: Floats) -> None:
        """Many points at once, all newer than the newest. Shapes: `values` (ids, times)."""
        self.seal(int(self.head.fill[self.number]))
        if self.is_packed:
            for low in range(0, len(times), self.max_chunk_points):
                part = slice(low, low + self.max_chunk_points)
                self.chunks.append(PackedChunk(ids, times[part].copy(), values[:, part]))
        else:
            self.chunks.append(PlainChunk(ids, times, values))
        self.head.sealed_ms[self.number] = times[-1]
        self.head.num_scrape_writes += self.is_scrape

    def seal(self, count: int) -> None:
        """Moves the oldest columns of the head into chunks."""
        if not count:
            return
        head, track = self.head, self.number
        ids, rows = self.ids_and_rows()
        times = head.times[track, :count].copy()
        values = head.values[rows, :count]
        lived = np.flatnonzero(~is_hole(values).all(axis=1))
        if len(lived):
            chunk: Chunk
            if self.is_packed:
                chunk = PackedChunk(ids[lived], times, values[lived])
                while self.chunks and self._may_join(self.chunks[-1], chunk):
                    chunk = joined(self.chunks.pop(), chunk)
            else:
                chunk = PlainChunk(ids[lived], times, values[lived])
            self.chunks.append(chunk)
        head.sealed_ms[track] = times[-1]
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
        head, track = self.head, self.number
        head.values[rows, : WIDTH - count] = head.values[rows, count:]
        head.values[rows, WIDTH - count :] = HOLE
        head.times[track, : WIDTH - count] = head.times[track, count:]
        head.times[track, WIDTH - count :] = NEVER
        head.fill[track] -= count
        head.num_scrape_writes += self.is_scrape

    # -- reading ------------------------------------------------------------------------------------------------

    def ids_and_rows(self) -> tuple[Index, Index]:
        """Numbers, rising, and head rows of all members."""
        ids = np.fromiter(self.members, dtype=np.intp, count=len(self.members))
        rows = np.fromiter((s.row for s in self.members.values()), dtype=np.intp, count=len(self.members))
        return ids, rows

    def block(self, ids: Index, rows: Index, after_ms: int, until_ms: int) -> tuple[Times, Floats]:
        """All times in (after_ms, until_ms] and the values (ids, times) then, holes where there is no point."""
        head = self.head
        times: list[Times] = []
        values: list[Floats] = []
        for chunk in self.chunks:
            if int(chunk.times[-1]) <= after_ms or int(chunk.times[0]) > until_ms:
                continue
            low, high = np.searchsorted(chunk.times, (after_ms, until_ms), side="right").tolist()
            there, own = rows_in(chunk, ids)
            times.append(chunk.times[low:high])
            if len(there) == len(ids):
                values.append(chunk.read(own, low, high))
            else:
                part = np.full((len(ids), high - low), HOLE)
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
        if self.chunks:
            return int(self.chunks[0].times[0])
        return int(self.head.times[self.number, 0]) if self.head.fill[self.number] else None

    @property
    def last_ms(self) -> int | None:
        fill = int(self.head.fill[self.number])
        if fill:
            return int(self.head.times[self.number, fill - 1])
        sealed_ms = int(self.head.sealed_ms[self.number])
        return None if sealed_ms == LONG_AGO else sealed_ms

    @property
    def num_points(self) -> int:
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

    def without_points(self) -> list[Series]:
        """Members of which nothing is left."""
        ids, rows = self.ids_and_rows()
        fill = int(self.head.fill[self.number])
        if fill and not is_hole(self.head.values[rows, fill - 1]).any():
            return []
        alive: Bools = np.any(~is_hole(self.head.values[rows]), axis=1)
        for chunk in self.chunks:
            alive[rows_in(chunk, ids)[0]] = True
        return [self.members[number] for number in ids[~alive].tolist()]
