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
"""Columns: the newest 24 to 32 points of each series. Windows of two minutes every 5 s need no older, packed ones."""
NEVER = np.iinfo(np.int64).max
LONG_AGO = np.iinfo(np.int64).min
_GROWTH = 1.125


class Head:
    """Shapes: `values` (rows, WIDTH), holes where nothing was written; `times` (tracks, WIDTH), rising, then NEVER.

    Rows not given out yet are not written to either, so that spare ones take no memory.
    `fill` is how many columns each track has; `sealed_ms` the newest time that left the head, LONG_AGO when none did.
    """

    def __init__(self) -> None:
        self.values: Floats = np.empty((64, WIDTH))
        self.times: Times = np.full((16, WIDTH), NEVER, dtype=np.int64)
        self.fill = np.zeros(16, dtype=np.intp)
        self.sealed_ms = np.full(16, LONG_AGO, dtype=np.int64)
        self.num_scrape_writes = 0  # changes whenever the times of scraped tracks do
        self._free_rows: list[int] = []
        self._free_tracks: list[int] = []
        self._num_rows = 0
        self._num_tracks = 0

    @property
    def num_bytes(self) -> int:
        own = self._num_rows * WIDTH * self.values.itemsize
        return own + self.times.nbytes + self.fill.nbytes + self.sealed_ms.nbytes

    def new_row(self) -> int:
        """A row of holes."""
        if self._free_rows:
            return self._free_rows.pop()
        if self._num_rows == len(self.values):
            self.values = _larger(self.values)
        self.values[self._num_rows] = HOLE
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
    larger = _larger(array)
    larger[len(array) :] = filler
    return larger


def _larger(array: Any) -> Any:
    """A larger copy, the new part not written to."""
    larger = np.empty((int(len(array) * _GROWTH) + 64, *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
