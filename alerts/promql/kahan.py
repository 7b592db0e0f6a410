"""Sums as Prometheus makes them: compensated, and a mean that survives an overflow of the sum.

For many groups of numbers at once there is the same arithmetic over arrays: the first numbers of all groups, then the
second ones, and so on. The results are the same to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from alerts.arrays import Bools, Floats, Index

_WORTH_ARRAYS = 40  # numbers in a step from which on a step over arrays is cheaper than one number after another


def add(increment: float, total: float, lost: float) -> tuple[float, float]:
    """Neumaier's step: the new total and what rounding has lost so far."""
    new = total + increment
    if math.isinf(new):
        return new, 0.0
    if abs(total) >= abs(increment):
        return new, lost + ((total - new) + increment)
    return new, lost + ((increment - new) + total)


def kahan_sum(values: Iterable[float]) -> float:
    """The sum with Neumaier's compensation, as Prometheus sums."""
    total, lost = 0.0, 0.0
    for value in values:
        total, lost = add(value, total, lost)
    return total if math.isinf(total) else total + lost


def kahan_mean(values: Sequence[float]) -> float:
    """Of at least one value. Divides once at the end; as soon as the sum overflows, goes on value by value."""
    total, lost = values[0], 0.0
    mean = 0.0
    is_incremental = False
    for count, value in enumerate(values[1:], 2):
        if not is_incremental:
            new_total, new_lost = add(value, total, lost)
            if not math.isinf(new_total):
                total, lost = new_total, new_lost
                continue
            is_incremental = True
            mean = total / (count - 1)
            lost /= count - 1
        share = (count - 1) / count
        mean, lost = add(value / count, share * mean, share * lost)
    if is_incremental:
        return mean + lost
    return total / len(values) + lost / len(values)


def variance(values: Sequence[float]) -> float:
    """Population variance, Welford's way with compensated sums."""
    mean = mean_lost = total = lost = 0.0
    for count, value in enumerate(values, 1):
        delta = value - (mean + mean_lost)
        mean, mean_lost = add(delta / count, mean, mean_lost)
        total, lost = add(delta * (value - (mean + mean_lost)), total, lost)
    return (total + lost) / len(values)


def quantile(q: float, values: Sequence[float]) -> float:
    """Linear between ranks; NaN counts as the smallest value. -Inf or +Inf for q outside 0 to 1."""
    if not values or math.isnan(q):
        return math.nan
    if q < 0:
        return -math.inf
    if q > 1:
        return math.inf
    ordered = sorted(values, key=lambda value: (value == value, value if value == value else 0.0))
    rank = q * (len(ordered) - 1)
    lower = max(0, math.floor(rank))
    upper = min(len(ordered) - 1, lower + 1)
    weight = rank - math.floor(rank)
    return ordered[lower] * (1 - weight) + ordered[upper] * weight


def kahan_sums(values: Floats, starts: Index, sizes: Index) -> Floats:
    """kahan_sum of each group values[starts[g]:starts[g] + sizes[g]]."""
    if len(values) == len(starts):
        return values[starts] + 0.0  # as adding to nothing does: -0 becomes 0
    if not _pays(values, sizes):
        return each(kahan_sum, values, starts, sizes)
    together = _summed_together(values, starts, sizes, begin=0)
    if together is not None:
        return together[0] + together[1]
    total, lost = np.zeros(len(starts)), np.zeros(len(starts))
    for position in range(int(sizes.max(initial=0))):
        _add_one(values, starts, sizes, position, total, lost)
    return np.where(np.isinf(total), total, total + lost)


def kahan_means(values: Floats, starts: Index, sizes: Index) -> Floats:
    """kahan_mean of each group; none may be empty."""
    if len(values) == len(starts):
        return values[starts] + 0.0
    if not _pays(values, sizes):
        return each(kahan_mean, values, starts, sizes)
    together = _summed_together(values, starts, sizes, begin=1)
    if together is not None:
        return together[0] / sizes + together[1] / sizes
    total, lost = values[starts], np.zeros(len(starts))
    for position in range(1, int(sizes.max(initial=0))):
        _add_one(values, starts, sizes, position, total, lost)
    with np.errstate(all="ignore"):
        means = total / sizes + lost / sizes
    overflown: Bools = ~np.isfinite(total)
    if overflown.any():
        means[overflown] = each(kahan_mean, values, starts[overflown], sizes[overflown])
    return means


def each(reduce: Callable[[Sequence[float]], float], values: Floats, starts: Index, sizes: Index) -> Floats:
    """Group by group."""
    numbers = values.tolist()
    groups = zip(starts.tolist(), sizes.tolist(), strict=True)
    return np.array([reduce(numbers[start : start + size]) for start, size in groups], dtype=np.float64)


def _pays(values: Floats, sizes: Index) -> bool:
    return len(values) > _WORTH_ARRAYS * int(sizes.max(initial=0))


def _summed_together(values: Floats, starts: Index, sizes: Index, *, begin: int) -> tuple[Floats, Floats] | None:
    """Totals and what rounding has lost, for groups of one size end to end; None for others, and for an infinity.

    `begin`: 0 adds to nothing, 1 begins with the first number as it is. Without an infinity at the end there was none
    on the way, so no step has to look for one.
    """
    size = int(sizes[0])
    if len(values) != size * len(sizes) or not (sizes == size).all() or int(starts[0]):
        return None
    columns = np.ascontiguousarray(values.reshape(-1, size).T)
    total = columns[0].copy() if begin else np.zeros(len(sizes))
    lost = np.zeros(len(sizes))
    with np.errstate(all="ignore"):
        for increment in columns[begin:]:
            new = total + increment
            larger_first = np.abs(total) >= np.abs(increment)
            lost += np.where(larger_first, (total - new) + increment, (increment - new) + total)
            total = new
    return (total, lost) if np.isfinite(total).all() else None


def _add_one(values: Floats, starts: Index, sizes: Index, position: int, total: Floats, lost: Floats) -> None:
    """Neumaier's step for the number at this position of every group that is long enough, in place."""
    groups = np.flatnonzero(sizes > position)
    increment, before = values[starts[groups] + position], total[groups]
    with np.errstate(all="ignore"):
        new = before + increment
        larger_first = np.abs(before) >= np.abs(increment)
        error = np.where(larger_first, (before - new) + increment, (increment - new) + before)
        lost[groups] = np.where(np.isinf(new), 0.0, lost[groups] + error)
    total[groups] = new
