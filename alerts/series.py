"""The points of one series: two parallel arrays, appended at the end, trimmed at the front."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from alerts.sample import LabelSet, is_stale


class Series:
    """Times are Unix milliseconds, strictly increasing. 16 bytes a point."""

    __slots__ = ("labels", "times", "values")

    def __init__(self, labels: LabelSet) -> None:
        self.labels = labels
        self.times = array("q")
        self.values = array("d")

    def append(self, at_ms: int, value: float) -> bool:
        """Adds a point; False when it is not newer than the last one, which is then left as it is."""
        times = self.times
        if times and at_ms <= times[-1]:
            return False
        times.append(at_ms)
        self.values.append(value)
        return True

    def newest(self, at_ms: int, after_ms: int) -> tuple[int, float] | None:
        """The newest point in (after_ms, at_ms], None when there is none or the series had ended by then."""
        times = self.times
        if not times:
            return None
        index = len(times) - 1
        if times[index] > at_ms:
            index = bisect_right(times, at_ms) - 1
            if index < 0:
                return None
        if times[index] <= after_ms:
            return None
        value = self.values[index]
        if value != value and is_stale(value):
            return None
        return times[index], value

    def window(self, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Index range of the points in (after_ms, until_ms]."""
        times = self.times
        high = len(times) if times and times[-1] <= until_ms else bisect_right(times, until_ms)
        return bisect_right(times, after_ms, 0, high), high

    @property
    def last_ms(self) -> int | None:
        return self.times[-1] if self.times else None

    @property
    def has_ended(self) -> bool:
        """True when the last point is the marker that the series ended."""
        return bool(self.values) and is_stale(self.values[-1])

    def trim(self, before_ms: int, max_points: int) -> None:
        """Forgets points older than `before_ms`, and the oldest beyond `max_points`."""
        count = max(bisect_right(self.times, before_ms), len(self.times) - max_points)
        if count > 0:
            del self.times[:count]
            del self.values[:count]
