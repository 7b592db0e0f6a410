"""A token bucket. Pure: the time comes in."""

from __future__ import annotations


class RateLimit:
    """`per_minute` on average, and as many at once after a quiet minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_s = per_minute / 60
        self._capacity = float(per_minute)
        self._left = self._capacity
        self._at: float | None = None

    def wait_s(self, now: float) -> float:
        """0 and one taken, or the seconds after which there is one again."""
        if self._at is not None:
            passed = max(0.0, now - self._at)  # a clock that was set back gives nothing and takes nothing
            self._left = min(self._capacity, self._left + passed * self._per_s)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_s
