"""What a group of nodes tells as a whole: sums, weighted means, pooled quantiles. Pure.

A mean of means is weighted by what each of them is a mean of (tokens, requests, first tokens), and a quantile is that
of the pooled histogram: the mean of p95s is no p95. A node that does not tell a signal is counted as not known, never
as zero; one that has nothing to average (no tokens, no requests) is not asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alerts.promql.histogram import Buckets, bucket_quantile

Values = Mapping[str, float]
"""Node to what it told lately; who told nothing is not in it."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value over a group, and how many of its members it is made of. None: nobody told."""

    value: float | None
    known: int
    of: int
    at_least: bool = False  # the quantile lies above the highest bound: it is at least this


def total(members: Sequence[str], values: Values) -> Aggregate:
    """The sum over those that told: a lower bound while not all are known."""
    told = [values[name] for name in members if name in values]
    return Aggregate(math.fsum(told) if told else None, len(told), len(members))


def highest(members: Sequence[str], values: Values) -> Aggregate:
    """The largest value that was told."""
    told = [values[name] for name in members if name in values]
    return Aggregate(max(told) if told else None, len(told), len(members))


def mean(members: Sequence[str], values: Values) -> Aggregate:
    """The plain mean over nodes, of what has no other weight."""
    told = [values[name] for name in members if name in values]
    return Aggregate(math.fsum(told) / len(told) if told else None, len(told), len(members))


def weighted_mean(members: Sequence[str], values: Values, weights: Values) -> Aggregate:
    """The mean over what the nodes' means are over. A weight of zero: there is nothing to average."""
    asked = [name for name in members if weights.get(name) != 0.0]
    told = [name for name in asked if name in values and name in weights]
    weight = math.fsum(weights[name] for name in told)
    if not told or weight <= 0:
        return Aggregate(None, len(told), len(asked))
    value = math.fsum(values[name] * weights[name] for name in told) / weight
    return Aggregate(value, len(told), len(asked))


def pooled_quantile(q: float, members: Sequence[str], histograms: Iterable[Buckets], weights: Values) -> Aggregate:
    """The quantile of all observations of the group, from cumulative buckets that its nodes' series were summed to.

    `weights`: observations a second of each node, which say whose observations are in the histograms.
    """
    asked = [name for name in members if weights.get(name) != 0.0]
    known = sum(name in weights for name in asked)
    pooled = merged(histograms)
    value = bucket_quantile(q, pooled) if pooled else math.nan
    if not math.isfinite(value):
        return Aggregate(None, known, len(asked))
    is_over = q * pooled[-1][1] > pooled[-2][1]
    return Aggregate(value, known, len(asked), at_least=is_over)


def merged(histograms: Iterable[Buckets]) -> Buckets:
    """One histogram of all of them; empty when there is no observation.

    Engines have bounds of their own. At a bound that a histogram lacks its count is taken to grow evenly between its
    neighbours, as `histogram_quantile` does; what lies above a histogram's highest bound can't be placed, so that the
    result ends at the lowest of these.
    """
    rows = [one for one in map(_cumulative, histograms) if one and math.isinf(one[-1][0]) and one[-1][1] > 0]
    rows = [one for one in rows if len(one) > 1]
    ends = [one[-2][0] for one in rows if one[-1][1] > one[-2][1]]
    end = min(ends, default=math.inf)
    bounds = sorted({bound for one in rows for bound, _ in one if math.isfinite(bound) and bound <= end})
    if not rows or not bounds:
        return []
    found = [(bound, math.fsum(_count_at(bound, one) for one in rows)) for bound in bounds]
    return [*found, (math.inf, math.fsum(one[-1][1] for one in rows))]


def _cumulative(buckets: Buckets) -> Buckets:
    """By rising bound, counts never falling, without what is no number."""
    rows: Buckets = []
    for bound, count in sorted(one for one in buckets if not math.isnan(one[1])):
        if rows and rows[-1][0] == bound:
            rows[-1] = (bound, rows[-1][1] + count)
        else:
            rows.append((bound, max(count, rows[-1][1]) if rows else count))
    return rows


def _count_at(bound: float, rows: Buckets) -> float:
    """Observations up to a bound."""
    index = bisect_right(rows, (bound, math.inf)) - 1
    if index >= 0 and rows[index][0] == bound:
        return rows[index][1]
    low, below = rows[index] if index >= 0 else (0.0, 0.0)
    high, up_to = rows[index + 1]
    if math.isinf(high):
        return below  # all that is above the highest bound is there: else `merged` ends before
    return below + (up_to - below) * max(0.0, bound - low) / (high - low) if high > low else up_to
