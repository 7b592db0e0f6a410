"""A token bucket: a rate with room for bursts. Pure but for its level; times are monotonic seconds and come in."""

from __future__ import annotations


class TokenBucket:
    """Fills with `per_min / 60` a second up to `burst_s` seconds' worth.

    What is taken is an estimate, so the level may fall below 0 when the real cost is known: later requests pay for it.
    `share`: the part of the rate that may be used here, when several share one limit.
    """

    __slots__ = ("_at", "_burst_s", "_per_min", "_share", "capacity", "level", "rate_per_s")

    def __init__(self, per_min: float, burst_s: float, now: float, *, share: float = 1.0) -> None:
        self._per_min, self._burst_s, self._share, self._at = per_min, burst_s, share, now
        self.rate_per_s, self.capacity = _rate_and_capacity(per_min, burst_s, share)
        self.level = self.capacity

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; 0 when now. More than the bucket holds may be taken when it is full."""
        # Comparisons instead of min() and max(): this runs three times a request.
        level, capacity = self.level, self.capacity
        if now > self._at:
            level += (now - self._at) * self.rate_per_s
            self.level = level = level if level < capacity else capacity
            self._at = now
        missing = (amount if amount < capacity else capacity) - level
        return missing / self.rate_per_s if missing > 0 else 0.0

    def level_at(self, now: float) -> float:
        """What may be taken now."""
        self.wait_s(0.0, now)
        return self.level

    def lower_to(self, level: float, now: float) -> None:
        """Others know that no more than this is left."""
        self.level = min(self.level_at(now), level)

    def take(self, amount: float) -> None:
        """Take `amount`, also below 0. A negative one gives back, up to the capacity."""
        level = self.level - amount
        self.level = level if level < self.capacity else self.capacity

    def use_share(self, share: float, now: float) -> None:
        """From now on hold this part of the limit: what does not fit any more is lost, what is free has to fill."""
        if share != self._share:
            self._resize(self._per_min, self._burst_s, share, now)

    def use_limit(self, per_min: float, burst_s: float, now: float) -> None:
        """From now on hold another limit; what is used stays used."""
        if (per_min, burst_s) != (self._per_min, self._burst_s):
            self._resize(per_min, burst_s, self._share, now)

    def _resize(self, per_min: float, burst_s: float, share: float, now: float) -> None:
        self.level_at(now)
        self._per_min, self._burst_s, self._share = per_min, burst_s, share
        self.rate_per_s, self.capacity = _rate_and_capacity(per_min, burst_s, share)
        # Nothing is made by a change: a larger bucket has to fill first, so shares that move over gateways add nothing.
        self.level = min(self.level, self.capacity)


def _rate_and_capacity(per_min: float, burst_s: float, share: float) -> tuple[float, float]:
    rate_per_s = per_min * share / 60.0
    return rate_per_s, max(1.0, rate_per_s * burst_s)
