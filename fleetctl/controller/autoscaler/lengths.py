"""Requests as they may have come, drawn from what histograms and counters tell of them. Pure and repeatable."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

SEED = 20261122
PREFIX_GROUPS = 16


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Observations by bucket: upper bounds, rising and finite but for the last, counts of each, and the sum of all."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """All observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """None without observations."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Linear within its bucket, as Prometheus' `histogram_quantile`."""
        if not self.count:
            return None
        rank, below, lower = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if below + count >= rank and count:
                if math.isinf(bound):
                    return lower
                return lower + (bound - lower) * (rank - below) / count
            below += count
            lower = bound if math.isfinite(bound) else lower
        return lower

    def draw(self, count: int, rng: random.Random) -> list[int]:
        """Whole lengths of at least 1. Within the buckets they lie where the histogram's sum says that they do."""
        if not self.count:
            return []
        spans = self._spans()
        place = self._place(spans)
        drawn = []
        for lower, upper in rng.choices(spans, weights=self.counts, k=count):
            low, high = max(0.0, 2 * place - 1), min(1.0, 2 * place)
            drawn.append(max(1, round(lower + (upper - lower) * rng.uniform(low, high))))
        return drawn

    def _spans(self) -> list[tuple[float, float]]:
        lowers = (0.0, *self.bounds[:-1])
        return [(low, 2 * low if math.isinf(high) else high) for low, high in zip(lowers, self.bounds, strict=True)]

    def _place(self, spans: Sequence[tuple[float, float]]) -> float:
        """Where in its bucket an observation lies on average, 0 its lower bound and 1 its upper one."""
        least = sum(count * low for count, (low, _) in zip(self.counts, spans, strict=True))
        width = sum(count * (high - low) for count, (low, high) in zip(self.counts, spans, strict=True))
        return min(1.0, max(0.0, (self.total - least) / width)) if width else 0.5


@dataclass(frozen=True, slots=True)
class Traffic:
    """What came in the last minutes. `arrivals`: requests in each interval of `interval_s`, the oldest first."""

    interval_s: float
    arrivals: tuple[float, ...]
    prompt: LengthHistogram
    output: LengthHistogram
    prefix_hit_ratio: float = 0.0

    @property
    def window_s(self) -> float:
        """How long it was watched."""
        return self.interval_s * len(self.arrivals)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return sum(self.arrivals) / self.window_s if self.arrivals else 0.0

    def columns(self, most: int, factor: float = 1.0) -> dict[str, list[float] | list[int]]:
        """Requests as the simulator takes them, of the newest intervals with at most `most` of them together.

        `factor`: times as many as came.
        """
        kept: list[float] = []
        left = float(most)
        for count in reversed(self.arrivals):
            left -= count * factor
            if left < 0 and kept:
                break
            kept.append(count * factor)
        rng = random.Random(SEED)
        at: list[float] = []
        owed = 0.0
        for index, count in enumerate(reversed(kept)):
            owed += count
            whole = int(owed + 1e-9)
            owed -= whole
            at += sorted((index + rng.random()) * self.interval_s for _ in range(whole))
        prompt, output = self.prompt.draw(len(at), rng), self.output.draw(len(at), rng)
        columns: dict[str, list[float] | list[int]] = {"at_s": at, "prompt_tokens": prompt, "output_tokens": output}
        if self.prefix_hit_ratio > 0:
            columns["prefix_tokens"] = [int(length * self.prefix_hit_ratio) for length in prompt]
            columns["prefix_ids"] = [number % PREFIX_GROUPS for number in range(len(at))]
        return columns
