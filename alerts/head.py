"""The newest points of all series, side by side in memory: one row a series, one column a moment.

A track is a set of series that are written at the same moments: they share the times. Which series, and what came
before the newest points, is the track's own business (track.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alerts.arrays import Floats, Times
from alerts.sample import HOLE

WIDTH = 32
"""Columns: the newest 16 to 32 points of each series, more than the windows of rules that run all the time need."""
NEVER = np.iinfo(np.int64).max
LONG_AGO = np.iinfo(np.int64).min
_GROWTH = 1.3


class Head:
    """Shapes: `values` (rows, WIDTH), holes where nothing was written; `times` (tracks, WIDTH), rising, then NEVER.

    `fill` is how many columns each track has; `sealed_ms` the newest time that left the head, LONG_AGO when none did.
    """

    def __init__(self) -> None:
        self.values: Floats = np.full((64, WIDTH), HOLE)
        self.times: Times = np.full((16, WIDTH), NEVER, dtype=np.int64)
        self.fill = np.zeros(16, dtype=np.intp)
        self.sealed_ms = np.full(16, LONG_AGO, dtype=np.int64)
        self._free_rows: list[int] = []
        self._free_tracks: list[int] = []
        self._num_rows = 0
        self._num_tracks = 0

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + self.times.nbytes + self.fill.nbytes + self.sealed_ms.nbytes

    def new_row(self) -> int:
        """A row of holes."""
        if self._free_rows:
            return self._free_rows.pop()
        if self._num_rows == len(self.values):
            self.values = _grown(self.values, HOLE)
        self._num_rows += 1
        return self._num_rows - 1

    def free_row(self, row: int) -> None:
        self.values[row] = HOLE
        self._free_rows.append(row)

    def new_track(self) -> int:
        if self._free_tracks:
            return self._free_tracks.pop()
        if self._num_tracks == len(self.times):
            self.times = _grown(self.times, NEVER)
            self.sealed_ms = _grown(self.sealed_ms, LONG_AGO)
            self.fill = _grown(self.fill, 0)
        self._num_tracks += 1
        return self._num_tracks - 1

    def free_track(self, track: int) -> None:
        self.times[track] = NEVER
        self.fill[track] = 0
        self.sealed_ms[track] = LONG_AGO
        self._free_tracks.append(track)


def _grown(array: Any, filler: float) -> Any:
    """A larger copy, the new part filled."""
    larger = np.full((int(len(array) * _GROWTH) + 64, *array.shape[1:]), filler, dtype=array.dtype)
    larger[: len(array)] = array
    return larger
