"""Functions that reduce each series' window to one number: the *_over_time family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from alerts.arrays import Floats, sorted_unique
from alerts.promql.kahan import each, kahan_means, kahan_sums, quantile, variance
from alerts.promql.values import CallArgs, EvalContext, Function, Matrix, Vector, empty_vector


def _each(reduce: Callable[[Sequence[float]], float], context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[-1])
    return matrix.to_vector(each(reduce, matrix.values, matrix.firsts, matrix.counts))


def _whole(
    reduce: Callable[[Matrix], Floats], context: EvalContext, args: CallArgs, *, keep_name: bool = False
) -> Vector:
    matrix = context.matrix(args[0])
    return matrix.to_vector(reduce(matrix), keep_name=keep_name) if len(matrix) else empty_vector()


def _quantile(context: EvalContext, args: CallArgs) -> Vector:
    q = context.scalar(args[0])
    matrix = context.matrix(args[-1])
    if not 0 <= q <= 1 or not np.isfinite(matrix.values).all():
        return matrix.to_vector(each(partial(quantile, q), matrix.values, matrix.firsts, matrix.counts))
    # All windows of one length are sorted together.
    counts, results = matrix.counts, np.empty(len(matrix))
    for count in sorted_unique(counts).tolist():
        own = np.flatnonzero(counts == count)
        ordered = np.sort(matrix.values[matrix.firsts[own][:, np.newaxis] + np.arange(count)], axis=1)
        rank = q * (count - 1)
        lower = max(0, math.floor(rank))
        weight = rank - math.floor(rank)
        results[own] = ordered[:, lower] * (1 - weight) + ordered[:, min(count - 1, lower + 1)] * weight
    return matrix.to_vector(results)


def _median_deviation(window: Sequence[float]) -> float:
    if any(value != value for value in window):
        return math.nan
    median = quantile(0.5, window)
    return quantile(0.5, [abs(value - median) for value in window])


def _time_of(pick: Callable[[Floats], int], context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[0])
    times = [
        matrix.times[low + pick(matrix.values[low:high])] / 1000.0
        for low, high in zip(matrix.starts[:-1], matrix.starts[1:], strict=True)
    ]
    return matrix.to_vector(np.array(times, dtype=np.float64))


def _last_extreme(sign: float, window: Floats) -> int:
    """Index of the last of the largest (sign 1) or smallest (sign -1) values; a number beats NaN."""
    best = 0
    for index, value in enumerate(window.tolist()):
        current = float(window[best])
        if sign * value >= sign * current or current != current:
            best = index
    return best


OVER_TIME_FUNCTIONS: dict[str, Function] = {
    "sum_over_time": partial(_whole, lambda m: kahan_sums(m.values, m.firsts, m.counts)),
    "avg_over_time": partial(_whole, lambda m: kahan_means(m.values, m.firsts, m.counts)),
    "stdvar_over_time": partial(_each, variance),
    "stddev_over_time": partial(_each, lambda window: float(np.sqrt(max(variance(window), 0.0)))),
    "quantile_over_time": _quantile,
    "mad_over_time": partial(_each, _median_deviation),
    "min_over_time": partial(_whole, lambda m: np.fmin.reduceat(m.values, m.firsts)),
    "max_over_time": partial(_whole, lambda m: np.fmax.reduceat(m.values, m.firsts)),
    "count_over_time": partial(_whole, lambda m: m.counts.astype(np.float64)),
    "present_over_time": partial(_whole, lambda m: np.ones(len(m))),
    "last_over_time": partial(_whole, lambda m: m.values[m.lasts], keep_name=True),
    "first_over_time": partial(_whole, lambda m: m.values[m.firsts], keep_name=True),
    "ts_of_first_over_time": partial(_time_of, lambda window: 0),
    "ts_of_last_over_time": partial(_time_of, lambda window: len(window) - 1),
    "ts_of_min_over_time": partial(_time_of, partial(_last_extreme, -1.0)),
    "ts_of_max_over_time": partial(_time_of, partial(_last_extreme, 1.0)),
}
