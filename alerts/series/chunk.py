"""Points that are no longer the newest: the values of several series over the same times, packed without loss.

Most series of a scrape stand still or count up in small steps, so a row becomes one number, or its first value and
steps of one or two bytes. A packed value reads back bit by bit as it was written, markers included.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times, sorted_unique
from alerts.sample import MISSING, MISSING_BITS

_CONSTANT, _STEPS_8, _STEPS_16, _FLOAT_32, _FLOAT_64 = range(5)


class Chunk(Protocol):
    """`refs` name the series within their group, rising; rows and columns of `read` follow them."""

    @property
    def refs(self) -> Index:
        """Numbers of the series in their group, rising."""

    @property
    def times(self) -> Times:
        """Unix milliseconds, rising."""

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""

    def read(self, rows: Index, low: int, high: int) -> Floats:
        """Values of these rows (positions in `refs`) at times[low:high]."""


class PlainChunk:
    """Values as they are: for recordings, which are read many times and not kept for long."""

    __slots__ = ("_values", "refs", "times")

    def __init__(self, refs: Index, times: Times, values: Floats) -> None:
        self.refs, self.times, self._values = refs, times, values

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return self._values.nbytes + self.times.nbytes

    def read(self, rows: Index, low: int, high: int) -> Floats:
        """As Chunk.read."""
        part = self._values[:, low:high]
        return part if np.array_equal(rows, np.arange(len(part))) else part[rows]


class PackedChunk:
    """One string of bytes: the first value and the kind of each row, then the rows kind by kind."""

    __slots__ = ("_blob", "_num_rows", "_own_refs", "times")

    def __init__(self, refs: Index, times: Times, values: Floats) -> None:
        self._num_rows = len(refs)
        self._own_refs = None if _counts_up(refs) else refs.astype(np.int32)
        self.times = times
        self._blob = _pack(values)

    @property
    def refs(self) -> Index:
        """As Chunk.refs."""
        return np.arange(self._num_rows) if self._own_refs is None else self._own_refs.astype(np.intp)

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return len(self._blob) + self.times.nbytes + (0 if self._own_refs is None else self._own_refs.nbytes)

    def read(self, rows: Index, low: int, high: int) -> Floats:
        """As Chunk.read."""
        values = _unpacked(self._blob, self._num_rows, len(self.times))
        return values[rows, low:high]


def find_rows(chunk: Chunk, refs: Index) -> tuple[Index, Index]:
    """Which of `refs` the chunk has: their positions in `refs`, and their rows in the chunk."""
    own = chunk.refs
    if not len(own):
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=np.intp)
    rows = np.searchsorted(own, refs)
    there = np.flatnonzero(own[np.minimum(rows, len(own) - 1)] == refs)
    return there, rows[there]


def is_missing(values: Floats) -> Bools:
    """Where the value is MISSING, an element each."""
    found: Bools = values.view(np.int64) == MISSING_BITS
    return found


def merge_chunks(first: Chunk, second: Chunk) -> PackedChunk:
    """Both as one; `second` begins after `first` ends."""
    refs = sorted_unique(np.concatenate((first.refs, second.refs)))
    times = np.concatenate((first.times, second.times))
    values = np.full((len(refs), len(times)), MISSING)
    border = len(first.times)
    for chunk, low, high in ((first, 0, border), (second, border, len(times))):
        there, rows = find_rows(chunk, refs)
        values[there, low:high] = chunk.read(rows, 0, high - low)
    return PackedChunk(refs, times, values)


def _counts_up(refs: Index) -> bool:
    """Whether `refs`, which rise, are 0, 1, 2, ..."""
    return len(refs) == 0 or (int(refs[0]) == 0 and int(refs[-1]) == len(refs) - 1)


def _pack(values: Floats) -> bytes:
    """Shapes: `values` (rows, times)."""
    bits = np.ascontiguousarray(values).view(np.int64)
    num_rows = len(values)
    kinds = np.full(num_rows, _FLOAT_64, dtype=np.uint8)
    parts = [np.ascontiguousarray(values[:, 0]).tobytes()]
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        kinds[(single.astype(np.float64).view(np.int64) == bits).all(axis=1)] = _FLOAT_32
        steps = np.diff(values, axis=1)
        # Whole steps from a whole start add up exactly, and give back the very same bits unless zero has a sign: of
        # numbers too large for each whole one, neighbours within two bytes of each other still subtract exactly.
        whole = (values == np.rint(values)).all(axis=1)
        whole &= ~((values == 0) & np.signbit(values)).any(axis=1)
    reach = np.abs(steps).max(axis=1, initial=0.0)
    kinds[whole & (reach <= 32767)] = _STEPS_16
    kinds[whole & (reach <= 127)] = _STEPS_8
    kinds[(bits == bits[:, :1]).all(axis=1)] = _CONSTANT
    parts.append(kinds.tobytes())
    for kind, rows, dtype in (
        (_STEPS_8, steps, np.int8),
        (_STEPS_16, steps, np.int16),
        (_FLOAT_32, single, np.float32),
        (_FLOAT_64, values, np.float64),
    ):
        chosen = kinds == kind
        if chosen.any():
            parts.append(rows[chosen].astype(dtype).tobytes())
    return b"".join(parts)


def _unpacked(blob: bytes, num_rows: int, num_times: int) -> Floats:
    firsts = np.frombuffer(blob, dtype=np.float64, count=num_rows)
    kinds = np.frombuffer(blob, dtype=np.uint8, count=num_rows, offset=8 * num_rows)
    values = np.repeat(firsts[:, np.newaxis], num_times, axis=1)
    at = 9 * num_rows

    def take(chosen: Bools, dtype: type[np.generic], width: int) -> Floats:
        nonlocal at
        count = int(chosen.sum()) * width
        found = np.frombuffer(blob, dtype=dtype, count=count, offset=at).reshape(-1, width)
        at += found.nbytes
        return found.astype(np.float64)

    steps: tuple[tuple[int, type[np.generic]], ...] = ((_STEPS_8, np.int8), (_STEPS_16, np.int16))
    for kind, dtype in steps:
        chosen = kinds == kind
        if chosen.any():
            values[chosen, 1:] += np.cumsum(take(chosen, dtype, num_times - 1), axis=1)
    whole: tuple[tuple[int, type[np.generic]], ...] = ((_FLOAT_32, np.float32), (_FLOAT_64, np.float64))
    for kind, dtype in whole:
        chosen = kinds == kind
        if chosen.any():
            values[chosen] = take(chosen, dtype, num_times)
    return values
