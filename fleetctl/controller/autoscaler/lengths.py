"""Requests as they may have come, drawn from what histograms and counters tell of them. Pure and repeatable."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from fleetctl.controller.autoscaler.bucket_means import BucketMeans, span_of

SEED = 20261122
PREFIX_GROUPS = 16


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Observations by bucket: upper bounds, rising and finite but for the last, counts of each, and the sum of all.

    `within`: where in the buckets they lie, where more than the sum is known.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    within: BucketMeans | None = None

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
        """Whole lengths of at least 1, with each bucket's share of them as exact as `count` allows."""
        if not self.count:
            return []
        drawn = []
        spans = span_of(self.bounds)
        within = self.within or self._shared_place(spans)
        for index in _shares(self.counts, count, rng):
            (lower, upper), mean = spans[index], within.means[index]
            reach = within.spread * min(mean - lower, upper - mean)
            drawn.append(max(1, round(rng.uniform(mean - reach, mean + reach))))
        return drawn

    def _shared_place(self, spans: Sequence[tuple[float, float]]) -> BucketMeans:
        """Of a histogram as a whole its sum alone is known: as far up in each bucket as that says for all together."""
        least = sum(count * low for count, (low, _) in zip(self.counts, spans, strict=True))
        width = sum(count * (high - low) for count, (low, high) in zip(self.counts, spans, strict=True))
        place = min(1.0, max(0.0, (self.total - least) / width)) if width else 0.5
        return BucketMeans(tuple(low + place * (high - low) for low, high in spans), 1.0)


def _shares(counts: Sequence[float], num: int, rng: random.Random) -> list[int]:
    """Bucket of each of `num` draws, in random order. Systematic: no bucket is off its share by one draw or more."""
    ends = list(accumulate(counts))
    start = rng.random()
    found = [min(bisect_right(ends, ends[-1] * (number + start) / num), len(ends) - 1) for number in range(num)]
    rng.shuffle(found)
    return found


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

    def columns(self, most: int, factor: float = 1.0, *, least: int = 0) -> dict[str, list[float] | list[int]]:
        """Requests as the simulator takes them, of the newest intervals with at most `most` of them together.

        `factor`: times as many as came. Where fewer than `least` came, the intervals come again: p95 of few is chance.
        """
        kept: list[float] = []
        left = float(most)
        for count in reversed(self.arrivals):
            left -= count * factor
            if left < 0 and kept:
                break
            kept.append(count * factor)
        if 0 < (num := sum(kept)) < least:
            kept *= max(1, min(math.ceil(least / num), int(most / num)))
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
