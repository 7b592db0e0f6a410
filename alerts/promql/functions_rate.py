"""Functions of change over a window: rate and its family, derivative, prediction, resets and changes."""

from __future__ import annotations

from functools import partial

import numpy as np

from alerts.arrays import Floats, Times
from alerts.promql import kahan
from alerts.promql.values import CallArgs, EvalContext, Function, Matrix, Vector, empty_vector


def _extrapolated(context: EvalContext, args: CallArgs, *, is_counter: bool, is_rate: bool) -> Vector:
    """Prometheus' rate, increase and delta: the change between first and last point, extrapolated to the window.

    Extrapolation stops half a sampling interval past the points when the window goes on much further, and a counter
    is never extrapolated below zero.
    """
    matrix = context.matrix(args[0]).at_least(2)
    if not len(matrix):
        return empty_vector()
    first, last = matrix.firsts, matrix.lasts
    with np.errstate(all="ignore"):
        change = matrix.values[last] - matrix.values[first]
        if is_counter:
            change = change + _lost_to_resets(matrix)
        to_start = (matrix.times[first] - matrix.after_ms) / 1000.0
        to_end = (matrix.until_ms - matrix.times[last]) / 1000.0
        sampled = (matrix.times[last] - matrix.times[first]) / 1000.0
        between = sampled / (matrix.counts - 1)
        threshold = between * 1.1
        to_start = np.where(to_start >= threshold, between / 2, to_start)
        if is_counter:
            start_value = matrix.values[first]
            to_zero = np.where((change > 0) & (start_value >= 0), sampled * (start_value / change), to_start)
            to_start = np.minimum(to_start, to_zero)
        to_end = np.where(to_end >= threshold, between / 2, to_end)
        factor = (sampled + to_start + to_end) / sampled
        if is_rate:
            factor = factor / ((matrix.until_ms - matrix.after_ms) / 1000.0)
        return matrix.to_vector(change * factor)


def _lost_to_resets(matrix: Matrix) -> Floats:
    """What each counter had counted before it fell: to be added to its change."""
    before = np.concatenate(([0.0], matrix.values[:-1]))
    fell = matrix.values < before
    fell[matrix.firsts] = False
    if not fell.any():
        return np.zeros(len(matrix))
    result: Floats = np.add.reduceat(np.where(fell, before, 0.0), matrix.firsts)
    return result


def _instantaneous(context: EvalContext, args: CallArgs, *, is_rate: bool) -> Vector:
    """From the last two points; after a counter's reset the last value is the change."""
    matrix = context.matrix(args[0]).at_least(2)
    last = matrix.lasts
    with np.errstate(all="ignore"):
        change = matrix.values[last] - matrix.values[last - 1]
        if is_rate:
            change = np.where(matrix.values[last] < matrix.values[last - 1], matrix.values[last], change)
            change = change / ((matrix.times[last] - matrix.times[last - 1]) / 1000.0)
    return matrix.to_vector(change)


def _fits(matrix: Matrix, zero_ms: Times) -> tuple[Floats, Floats]:
    """Least squares through each window's points: slopes per second, and values at `zero_ms`, one a window."""
    starts, sizes = matrix.firsts, matrix.counts
    points = matrix.values
    xs = (matrix.times - np.repeat(zero_ms, sizes)) / 1000.0
    with np.errstate(all="ignore"):
        sum_x, sum_y = kahan.kahan_sums(xs, starts, sizes), kahan.kahan_sums(points, starts, sizes)
        sum_xy, sum_xx = kahan.kahan_sums(xs * points, starts, sizes), kahan.kahan_sums(xs * xs, starts, sizes)
        covariance = sum_xy - sum_x * sum_y / sizes
        spread = sum_xx - sum_x * sum_x / sizes
        slopes = np.where(spread != 0, covariance / spread, np.nan)
        values = sum_y / sizes - slopes * sum_x / sizes
    first = points[starts]
    is_constant = np.logical_and.reduceat(points == np.repeat(first, sizes), starts)
    standing = np.where(np.isinf(first), np.nan, first)
    return np.where(is_constant, standing - standing, slopes), np.where(is_constant, standing, values)


def _deriv(context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[0]).at_least(2)
    if not len(matrix):
        return empty_vector()
    return matrix.to_vector(_fits(matrix, matrix.times[matrix.firsts])[0])


def _predict_linear(context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[0]).at_least(2)
    ahead_s = context.scalar(args[1])
    if not len(matrix):
        return empty_vector()
    slopes, values = _fits(matrix, np.full(len(matrix), context.at_ms, dtype=np.int64))
    with np.errstate(all="ignore"):
        return matrix.to_vector(slopes * ahead_s + values)


def _count_steps(context: EvalContext, args: CallArgs, *, only_falls: bool) -> Vector:
    matrix = context.matrix(args[0])
    if not len(matrix):
        return empty_vector()
    values = matrix.values
    before = np.concatenate(([0.0], values[:-1]))
    stepped = values < before if only_falls else (values != before) & ~(np.isnan(values) & np.isnan(before))
    stepped[matrix.firsts] = False
    return matrix.to_vector(np.add.reduceat(stepped.astype(np.float64), matrix.firsts))


def _smoothed(context: EvalContext, args: CallArgs) -> Vector:
    """Holt's double exponential smoothing."""
    matrix = context.matrix(args[0]).at_least(2)
    smoothing, trend_factor = context.scalar(args[1]), context.scalar(args[2])
    results = []
    for window in matrix.windows():
        before, level, trend = 0.0, window[0], window[1] - window[0]
        for index, value in enumerate(window[1:], 1):
            if index > 1:
                trend = trend_factor * (level - before) + (1 - trend_factor) * trend
            before, level = level, smoothing * value + (1 - smoothing) * (level + trend)
        results.append(level)
    return matrix.to_vector(np.array(results, dtype=np.float64))


RATE_FUNCTIONS: dict[str, Function] = {
    "rate": partial(_extrapolated, is_counter=True, is_rate=True),
    "increase": partial(_extrapolated, is_counter=True, is_rate=False),
    "delta": partial(_extrapolated, is_counter=False, is_rate=False),
    "irate": partial(_instantaneous, is_rate=True),
    "idelta": partial(_instantaneous, is_rate=False),
    "deriv": _deriv,
    "predict_linear": _predict_linear,
    "resets": partial(_count_steps, only_falls=True),
    "changes": partial(_count_steps, only_falls=False),
    "double_exponential_smoothing": _smoothed,
}
