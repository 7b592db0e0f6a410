"""The head block: the newest samples of all series, side by side in memory, one row a series, one column a timestamp.

Series of one group are appended at the same timestamps and share them. Which series those are, and what came before
the newest samples, is the group's own business (series_group.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alerts.arrays import Floats, Times
from alerts.sample import MISSING

HEAD_POINTS = 32
"""Columns: the newest 24 to 32 points of each series. Windows of two minutes every 5 s need no older, packed ones."""
MAX_TIME_MS = np.iinfo(np.int64).max
MIN_TIME_MS = np.iinfo(np.int64).min
_GROWTH = 1.125


class HeadBlock:
    """Samples and timestamps (Unix milliseconds) that are in no chunk yet.

    Shapes: `values` (rows, HEAD_POINTS), MISSING where nothing was appended; `times` (groups, HEAD_POINTS), rising,
    then MAX_TIME_MS; `fill` (groups,), the columns in use; `chunks_until_ms` (groups,), the newest timestamp
    in a chunk, MIN_TIME_MS without one. Rows not given out yet are not written to either: spare ones take no memory.
    """

    def __init__(self) -> None:
        self.values: Floats = np.empty((64, HEAD_POINTS))
        self.times: Times = np.full((16, HEAD_POINTS), MAX_TIME_MS, dtype=np.int64)
        self.fill = np.zeros(16, dtype=np.intp)
        self.chunks_until_ms = np.full(16, MIN_TIME_MS, dtype=np.int64)
        self.num_scrape_writes = 0  # changes whenever the timestamps of a scraped group do
        self._free_rows: list[int] = []
        self._free_groups: list[int] = []
        self._num_rows = 0
        self._num_groups = 0

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, spare rows left out."""
        own = self._num_rows * HEAD_POINTS * self.values.itemsize
        return own + self.times.nbytes + self.fill.nbytes + self.chunks_until_ms.nbytes

    def new_row(self) -> int:
        """A row, MISSING everywhere."""
        if self._free_rows:
            return self._free_rows.pop()
        if self._num_rows == len(self.values):
            self.values = _larger(self.values)
        self.values[self._num_rows] = MISSING
        self._num_rows += 1
        return self._num_rows - 1

    def free_row(self, row: int) -> None:
        """The row may be given to another series."""
        self.values[row] = MISSING
        self._free_rows.append(row)

    def new_group(self) -> int:
        """A row of `times`."""
        if self._free_groups:
            return self._free_groups.pop()
        if self._num_groups == len(self.times):
            self.times = _grown(self.times, MAX_TIME_MS)
            self.chunks_until_ms = _grown(self.chunks_until_ms, MIN_TIME_MS)
            self.fill = _grown(self.fill, 0)
        self._num_groups += 1
        return self._num_groups - 1

    def free_group(self, group: int) -> None:
        """The row of `times` may be given to another group."""
        self.times[group] = MAX_TIME_MS
        self.fill[group] = 0
        self.chunks_until_ms[group] = MIN_TIME_MS
        self._free_groups.append(group)


def _grown(array: Any, filler: float) -> Any:
    """A larger copy, the new part filled."""
    larger = _larger(array)
    larger[len(array) :] = filler
    return larger


def _larger(array: Any) -> Any:
    """A larger copy, the new part not written to."""
    larger = np.empty((int(len(array) * _GROWTH) + 64, *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
