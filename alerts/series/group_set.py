"""The groups that a selection reads, and where a window of time lies in each: worked out once for all who ask alike.

Rules read dozens of metrics of the same targets over the same window. As long as no target is scraped in between, the
columns of that window are the same for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from alerts.arrays import Index, Times
from alerts.series.head import HeadBlock
from alerts.series.series_group import SeriesGroup

_MAX_WINDOWS = 8


class HeadWindow(NamedTuple):
    """Columns of the head with times in a window. Shapes: `low`, `counts` one a group; `times` (groups, HEAD_POINTS).

    `width`: how many there are when it is the same for each group, 0 when not; `first` is then the first column, when
    it too is the same, else None. `has_older`: some group has points in the window that have left the head.
    """

    times: Times
    low: Index
    counts: Index
    width: int
    first: int | None
    has_older: bool


class SeriesGroupSet:
    """`head_rows` are the groups' rows in the head's `times`."""

    __slots__ = ("__weakref__", "_is_scraped", "_known_at", "_windows", "groups", "head_rows")

    def __init__(self, groups: list[SeriesGroup]) -> None:
        self.groups = groups
        self.head_rows: Index = np.array([group.head_row for group in groups], dtype=np.intp)
        self._is_scraped = all(group.is_scrape for group in groups)
        self._known_at = -1
        self._windows: dict[tuple[int, int], HeadWindow] = {}

    def window(self, head: HeadBlock, after_ms: int, until_ms: int) -> HeadWindow:
        """Of (after_ms, until_ms]."""
        if not self._is_scraped:
            return self._looked_up(head, after_ms, until_ms)
        if self._known_at != head.num_scrape_writes or len(self._windows) >= _MAX_WINDOWS:
            self._windows.clear()
            self._known_at = head.num_scrape_writes
        found = self._windows.get((after_ms, until_ms))
        if found is None:
            found = self._windows[after_ms, until_ms] = self._looked_up(head, after_ms, until_ms)
        return found

    def _looked_up(self, head: HeadBlock, after_ms: int, until_ms: int) -> HeadWindow:
        times = head.times[self.head_rows]
        low = (times <= after_ms).sum(axis=1)
        counts = (times <= until_ms).sum(axis=1) - low
        width, first = int(counts[0]), int(low[0])
        return HeadWindow(
            times,
            low,
            counts,
            width if (counts == width).all() else 0,
            first if (low == first).all() else None,
            bool((head.chunks_until_ms[self.head_rows] > after_ms).any()),
        )
