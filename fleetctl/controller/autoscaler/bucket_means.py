"""Where in its bucket the lengths of a histogram lie: what intervals tell that the whole window does not. Pure.

An interval's sum is the sum of its observations; intervals with different shares of the buckets tell the buckets' means
apart. Bayesian linear regression: the prior is that observations lie evenly in their bucket, so that a bucket of
which little is told keeps to its middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BucketMeans:
    """The mean of each bucket, and how far observations lie from it: 0 all at the mean, 1 evenly in the bucket."""

    means: tuple[float, ...]
    spread: float


def span_of(bounds: Sequence[float]) -> list[tuple[float, float]]:
    """Lower and upper bound of each bucket; the last, without an upper one, ends at twice its lower."""
    lowers = (0.0, *bounds[:-1])
    return [(low, max(1.0, 2 * low) if math.isinf(high) else high) for low, high in zip(lowers, bounds, strict=True)]


def fit_bucket_means(bounds: Sequence[float], counts: Floats, sums: Floats) -> BucketMeans | None:
    """`counts`: observations by interval and bucket, not cumulated; `sums`: of each interval. None: no observation."""
    kept = counts.sum(axis=1) > 0
    counts, sums = counts[kept], sums[kept]
    if not len(counts):
        return None
    spans = np.array(span_of(bounds))
    low, width = spans[:, 0], spans[:, 1] - spans[:, 0]
    even = width**2 / 12.0
    noise = counts @ even
    prior = low + width / 2.0
    means, free = prior.copy(), counts.sum(axis=0) > 0
    # A mean outside of its bucket is held at the bound, and the others are fitted again.
    for _ in range(len(means)):
        rest = sums - counts[:, ~free] @ means[~free]
        rows = counts[:, free]
        precision = (rows / noise[:, np.newaxis]).T @ rows + np.diag(1.0 / even[free])
        target = (rows / noise[:, np.newaxis]).T @ rest + prior[free] / even[free]
        fitted = np.linalg.solve(precision, target)
        means[free] = np.clip(fitted, low[free], low[free] + width[free])
        held = free.copy()
        held[free] = (fitted < low[free]) | (fitted > low[free] + width[free])
        if not held.any() or held.sum() == free.sum():
            break
        free &= ~held
    left = sums - counts @ means
    spread = math.sqrt(float(np.mean(left**2 / noise)))
    return BucketMeans(tuple(float(mean) for mean in means), min(1.0, spread))
