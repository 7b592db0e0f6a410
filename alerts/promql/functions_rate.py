"""Functions of change over a window: rate and its family, derivative, prediction, resets and changes."""

from __future__ import annotations

import math
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


def _fit(times_ms: Times, values: Floats, zero_ms: int) -> tuple[float, float]:
    """Least squares through the points: slope per second and value at `zero_ms`."""
    points = values.tolist()
    if all(value == points[0] for value in points):
        return (math.nan, math.nan) if math.isinf(points[0]) else (0.0, points[0])
    xs = ((times_ms - zero_ms) / 1000.0).tolist()
    count = float(len(points))
    sum_x, sum_y = kahan.kahan_sum(xs), kahan.kahan_sum(points)
    sum_xy = kahan.kahan_sum(x * y for x, y in zip(xs, points, strict=True))
    sum_xx = kahan.kahan_sum(x * x for x in xs)
    covariance = sum_xy - sum_x * sum_y / count
    spread = sum_xx - sum_x * sum_x / count
    slope = covariance / spread if spread else math.nan
    return slope, sum_y / count - slope * sum_x / count


def _deriv(context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[0]).at_least(2)
    slopes = [
        _fit(matrix.times[low:high], matrix.values[low:high], int(matrix.times[low]))[0]
        for low, high in zip(matrix.starts[:-1], matrix.starts[1:], strict=True)
    ]
    return matrix.to_vector(np.array(slopes, dtype=np.float64))


def _predict_linear(context: EvalContext, args: CallArgs) -> Vector:
    matrix = context.matrix(args[0]).at_least(2)
    ahead_s = context.scalar(args[1])
    predictions = []
    for low, high in zip(matrix.starts[:-1], matrix.starts[1:], strict=True):
        slope, value = _fit(matrix.times[low:high], matrix.values[low:high], context.at_ms)
        predictions.append(slope * ahead_s + value)
    return matrix.to_vector(np.array(predictions, dtype=np.float64))


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
