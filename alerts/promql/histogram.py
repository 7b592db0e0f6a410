"""Quantiles and fractions of classic histograms: `_bucket` series with an `le` label each."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from alerts.promql.signature import Args, At, Function
from alerts.promql.values import Vector, check_distinct
from alerts.sample import NAME, LabelSet

_SMALL_DIFFERENCE = 1e-12  # relative; below it a falling count is rounding, not a broken histogram

Buckets = list[tuple[float, float]]
"""(upper bound, cumulative count), by rising bound."""


def _histograms(vector: Vector) -> dict[LabelSet, tuple[Buckets, int]]:
    """Buckets of each histogram and the time of its newest point. Series without a readable `le` are left out."""
    found: dict[LabelSet, tuple[Buckets, int]] = {}
    for labels, value, at_ms in zip(vector.labels, vector.values.tolist(), vector.at_ms.tolist(), strict=True):
        try:
            bound = float(labels.get("le"))
        except ValueError:
            continue
        key = labels.drop((NAME, "le"))
        buckets, newest = found.get(key, ([], at_ms))
        buckets.append((bound, value))
        found[key] = (buckets, max(newest, at_ms))
    return found


def _repaired(buckets: Buckets) -> Buckets:
    """Sorted, equal bounds merged, counts never falling."""
    merged: Buckets = []
    for bound, count in sorted(buckets, key=lambda bucket: bucket[0]):
        if merged and merged[-1][0] == bound:
            merged[-1] = (bound, merged[-1][1] + count)
        else:
            merged.append((bound, count))
    previous = merged[0][1]
    for index, (bound, count) in enumerate(merged[1:], 1):
        if count < previous or _almost_equal(previous, count):
            merged[index] = (bound, previous)
        else:
            previous = count
    return merged


def _almost_equal(a: float, b: float) -> bool:
    if a == b:
        return True
    total, difference = abs(a) + abs(b), abs(a - b)
    if a == 0 or b == 0 or total < 2.2250738585072014e-308:
        return difference < _SMALL_DIFFERENCE * 2.2250738585072014e-308
    return difference / min(total, 1.7976931348623157e308) < _SMALL_DIFFERENCE


def bucket_quantile(q: float, buckets: Buckets) -> float:
    """Linear inside a bucket; NaN without observations or without a +Inf bucket."""
    if math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    rows = _repaired(buckets)
    if not math.isinf(rows[-1][0]) or len(rows) < 2:
        return math.nan
    observations = rows[-1][1]
    if observations == 0 or math.isnan(observations):
        return math.nan
    rank = q * observations
    index = bisect_left([count for _, count in rows[:-1]], rank)
    if index == len(rows) - 1:
        return rows[-2][0]
    if index == 0 and rows[0][0] <= 0:
        return rows[0][0]
    bound, count = rows[index]
    start = 0.0
    if index > 0:
        start = rows[index - 1][0]
        count -= rows[index - 1][1]
        rank -= rows[index - 1][1]
    return start + (bound - start) * (rank / count if count else math.nan)


def bucket_fraction(lower: float, upper: float, buckets: Buckets) -> float:
    """The share of observations between two values, linear inside a bucket."""
    rows = _repaired(buckets)
    if not math.isinf(rows[-1][0]) or len(rows) < 2:
        return math.nan
    observations = rows[-1][1]
    if observations == 0 or math.isnan(observations) or math.isnan(lower) or math.isnan(upper):
        return math.nan
    if lower >= upper:
        return 0.0
    return (_rank_of(upper, rows) - _rank_of(lower, rows)) / observations


def _rank_of(value: float, rows: Buckets) -> float:
    """How many observations are at or below the value."""
    start = 0.0 if rows[0][0] > 0 else -math.inf
    below = 0.0
    for bound, count in rows:
        if value <= start:
            return below
        if value < bound:
            if math.isinf(bound) or math.isinf(start):
                return below
            return below + (count - below) * (value - start) / (bound - start)
        start, below = bound, count
    return below


def _histogram_quantile(moment: At, args: Args) -> Vector:
    q = moment.scalar(args[0])
    found = _histograms(moment.vector(args[1]))
    values = [bucket_quantile(q, buckets) for buckets, _ in found.values()]
    return _as_vector(found, values)


def _histogram_fraction(moment: At, args: Args) -> Vector:
    lower, upper = moment.scalar(args[0]), moment.scalar(args[1])
    found = _histograms(moment.vector(args[2]))
    return _as_vector(found, [bucket_fraction(lower, upper, buckets) for buckets, _ in found.values()])


def _as_vector(found: dict[LabelSet, tuple[Buckets, int]], values: list[float]) -> Vector:
    labels = list(found)
    check_distinct(labels)
    newest = np.array([at_ms for _, at_ms in found.values()], dtype=np.int64)
    return Vector(labels, np.array(values, dtype=np.float64), newest)


HISTOGRAM_FUNCTIONS: dict[str, Function] = {
    "histogram_quantile": _histogram_quantile,
    "histogram_fraction": _histogram_fraction,
}
