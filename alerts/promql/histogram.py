"""Quantiles and fractions of classic histograms: `_bucket` series with an `le` label each."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from alerts.arrays import Floats, Index
from alerts.labels import LabelSet
from alerts.promql.values import CallArgs, EvalContext, Function, Vector, drop_names, empty_vector
from alerts.series.head import MIN_TIME_MS
from alerts.series.label_column import LabelColumn

_SMALL_DIFFERENCE = 1e-12  # relative; below it a falling count is rounding, not a broken histogram
_LARGEST = 1.7976931348623157e308

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
        key = labels.drop(("le",))  # buckets of two metrics are two histograms
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
    return difference / min(total, _LARGEST) < _SMALL_DIFFERENCE


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
    """The share of observations between two values, linear inside a bucket; one without end has no inside."""
    rows = _repaired(buckets)
    if not math.isinf(rows[-1][0]):
        return math.nan
    observations = rows[-1][1]
    if observations == 0 or math.isnan(observations) or math.isnan(lower) or math.isnan(upper):
        return math.nan
    if lower >= upper:
        return 0.0
    return (_rank_of(upper, rows) - _rank_of(lower, rows)) / observations


def _rank_of(value: float, rows: Buckets) -> float:
    """How many observations are at or below the value. Where the first bucket has no lower end, all in it are taken to
    be below a finite value, as those in the last are taken to be above it."""
    start = 0.0 if rows[0][0] > 0 else -math.inf
    below = 0.0
    for bound, count in rows:
        if value <= start:
            return below
        if value < bound:
            if math.isinf(start):
                return count
            if math.isinf(bound):
                return below
            return below + (count - below) * (value - start) / (bound - start)
        start, below = bound, count
    return below


def quantiles(q: float, bounds: Floats, counts: Floats) -> Floats:
    """bucket_quantile of many histograms with the same bounds, which rise, for q from 0 to 1 and counts without NaN.

    Shapes: `counts` (bounds, histograms); one number a histogram.
    """
    num_histograms = counts.shape[1]
    if not np.isinf(bounds[-1]) or len(bounds) < 2:
        return np.full(num_histograms, np.nan)
    repaired = counts if _is_sound(counts) else _all_repaired(counts)
    total = repaired[-1]
    rank = q * total
    index = (repaired[:-1] < rank).sum(axis=0)  # bisect_left in each column
    columns = np.arange(num_histograms)
    safe = np.minimum(index, len(bounds) - 2)
    below = np.where(safe > 0, repaired[np.maximum(safe - 1, 0), columns], 0.0)
    start = np.where(safe > 0, bounds[np.maximum(safe - 1, 0)], 0.0)
    inside = repaired[safe, columns] - below
    with np.errstate(all="ignore"):
        result = start + (bounds[safe] - start) * ((rank - below) / inside)
    if bounds[0] <= 0:
        result = np.where(index == 0, bounds[0], result)
    result = np.where(index == len(bounds) - 1, bounds[-2], result)
    return np.where(total == 0, np.nan, result)


def _is_sound(counts: Floats) -> bool:
    """Whether there is nothing to repair: no count falls, none rises by what may be rounding. Shapes: as above."""
    with np.errstate(invalid="ignore"):
        steps = counts[1:] - counts[:-1]
    if not (steps >= 0).all():
        return False
    close = steps < _SMALL_DIFFERENCE * np.minimum(np.abs(counts[1:]) + np.abs(counts[:-1]), _LARGEST)
    return not (close & (steps > 0)).any()


def _all_repaired(counts: Floats) -> Floats:
    """As `_repaired`, of many histograms at once."""
    repaired = counts.copy()
    for row in range(1, len(counts)):
        before, here = repaired[row - 1], repaired[row]
        close = np.abs(here - before) < _SMALL_DIFFERENCE * np.minimum(np.abs(here) + np.abs(before), _LARGEST)
        repaired[row] = np.where((here < before) | (close & (before != 0) & (here != 0)), before, here)
    return repaired


class _Layout(NamedTuple):
    """Where the buckets of all histograms lie in a column of series.

    `even`: bounds, places of these histograms, rows of their buckets (bounds, histograms). `odd`: places of those with
    two buckets of one bound.
    """

    labels: LabelColumn
    group_of: Index  # of each series that is a bucket
    buckets: Index  # the series that are buckets
    even: list[tuple[Floats, Index, Index]]
    odd: Index


def _layout(labels: LabelColumn) -> _Layout:
    bounds = np.array([_number(text) for text in labels.values_of("le")], dtype=np.float64)
    buckets = np.flatnonzero(~np.isnan(bounds))
    kept = labels if len(buckets) == len(labels) else labels.take_rows(buckets)
    if not len(kept):
        return _Layout(kept, buckets, buckets, [], buckets)
    groups = kept.groups(False, ("le",))  # buckets of two metrics are two histograms
    by_bounds: dict[bytes, tuple[Floats, list[int], list[Index]]] = {}
    odd = []
    for place, rows in enumerate(np.split(buckets[groups.order], groups.starts[1:])):
        rows = rows[np.argsort(bounds[rows], kind="stable")]
        own = bounds[rows]
        if (own[1:] == own[:-1]).any():
            odd.append(place)
            continue
        same = by_bounds.setdefault(own.tobytes(), (own, [], []))
        same[1].append(place)
        same[2].append(rows)
    even = [(own, np.array(places), np.stack(rows, axis=1)) for own, places, rows in by_bounds.values()]
    return _Layout(drop_names(groups.labels), groups.group_of, buckets, even, np.array(odd, dtype=np.intp))


def _number(le: str) -> float:
    """NaN when `le` is no number: such a series is no bucket."""
    try:
        return float(le)
    except ValueError:
        return math.nan


def _histogram_quantile(context: EvalContext, args: CallArgs) -> Vector:
    q = context.scalar(args[0])
    vector = context.vector(args[1])
    if not len(vector):
        return empty_vector()
    layout = vector.labels.remembered("histograms", lambda: _layout(vector.labels))
    newest = np.full(len(layout.labels), MIN_TIME_MS, dtype=np.int64)
    np.maximum.at(newest, layout.group_of, vector.at_ms[layout.buckets])
    results = np.empty(len(layout.labels))
    one_by_one = layout.odd.tolist()
    for bounds, places, rows in layout.even:
        counts = vector.values[rows]
        plain = ~np.isnan(counts).any(axis=0) if 0 <= q <= 1 else np.zeros(len(places), dtype=np.bool_)
        results[places[plain]] = quantiles(q, bounds, counts[:, plain])
        one_by_one += places[~plain].tolist()
    for place in one_by_one:
        own = layout.buckets[layout.group_of == place]
        buckets = [(_number(vector.labels[i].get("le")), float(vector.values[i])) for i in own.tolist()]
        results[place] = bucket_quantile(q, buckets)
    return Vector(layout.labels, results, newest)


def _histogram_fraction(context: EvalContext, args: CallArgs) -> Vector:
    lower, upper = context.scalar(args[0]), context.scalar(args[1])
    found = _histograms(context.vector(args[2]))
    return _as_vector(found, [bucket_fraction(lower, upper, buckets) for buckets, _ in found.values()])


def _as_vector(found: dict[LabelSet, tuple[Buckets, int]], values: list[float]) -> Vector:
    labels = drop_names(LabelColumn(found))
    newest = np.array([at_ms for _, at_ms in found.values()], dtype=np.int64)
    return Vector(labels, np.array(values, dtype=np.float64), newest)


HISTOGRAM_FUNCTIONS: dict[str, Function] = {
    "histogram_quantile": _histogram_quantile,
    "histogram_fraction": _histogram_fraction,
}
