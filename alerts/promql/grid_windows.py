"""Functions of windows at many steps: each series' points are read once, and each step takes its slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from alerts.arrays import Floats, Index, Times
from alerts.labels import LabelSet
from alerts.promql.evaluator import PointBudget
from alerts.promql.grid_values import Grid, concat_grids
from alerts.promql.nodes import RangeSelector, Selector
from alerts.series.store import SeriesStore

_MAX_SORTED = 4_000_000  # numbers sorted at once for a quantile

# Window: times (points,), values (series, points), each step's window is [low, high).
_Reduce = Callable[[Times, Floats, Index, Index, Times, int], Floats]


def rows_of(
    store: SeriesStore,
    selector: Selector,
    after_ms: int,
    until_ms: int,
    *,
    keep_stale: bool,
    budget: PointBudget | None = None,
) -> Iterator[tuple[Times, list[LabelSet], Floats]]:
    """Points in (after_ms, until_ms] of the selected series: those with the same times as one (series, points)."""
    selected = store.select_any(selector.groups) if len(selector.groups) > 1 else store.select(selector.groups[0])
    for times, labels, values in selected.aligned(after_ms, until_ms, keep_stale=keep_stale):
        if budget is not None:
            budget.spend(values.size)
        yield times, labels, values


def windowed(
    function: str,
    store: SeriesStore,
    node: RangeSelector,
    steps: Times,
    parameter: Floats | None,
    budget: PointBudget | None = None,
) -> Grid | None:
    """The function over the window of each step; None when this data needs the evaluator (NaN in a quantile)."""
    at = steps - node.selector.offset_ms
    parts: list[Grid] = []
    needs, keeps_name = WINDOW_FUNCTIONS[function]
    after_ms, until_ms = int(at[0]) - node.range_ms, int(at[-1])
    for times, labels, values in rows_of(store, node.selector, after_ms, until_ms, keep_stale=False, budget=budget):
        low = np.searchsorted(times, at - node.range_ms, side="right")
        high = np.searchsorted(times, at, side="right")
        usable = high - low >= needs
        if not usable.any():
            continue
        out = np.zeros((len(labels), len(at)))
        steps_used = np.flatnonzero(usable)
        with np.errstate(all="ignore"):
            if function == "quantile_over_time":
                assert parameter is not None
                if np.isnan(values).any() or np.ptp(parameter) > 0 or not 0 <= parameter[0] <= 1:
                    return None
                out[:, steps_used] = _quantiles(values, low[usable], high[usable], float(parameter[0]))
            else:
                reduce = _REDUCERS[function]
                out[:, steps_used] = reduce(times, values, low[usable], high[usable], at[usable], node.range_ms)
        named = labels if keeps_name else [entry.without_name() for entry in labels]
        parts.append(Grid(named, out, np.broadcast_to(usable, out.shape).copy()))
    return concat_grids(parts, len(at))


def _extrapolated(*, is_counter: bool, is_rate: bool) -> _Reduce:
    """As functions_rate._extrapolated."""

    def reduce(times: Times, values: Floats, low: Index, high: Index, at: Times, range_ms: int) -> Floats:
        first, last = low, high - 1
        start = values[:, first]
        change = values[:, last] - start
        if is_counter and values.shape[1] > 1:
            fell = values[:, 1:] < values[:, :-1]
            if fell.any():
                lost = np.cumsum(np.where(fell, values[:, :-1], 0.0), axis=1)
                lost = np.concatenate((np.zeros((len(values), 1)), lost), axis=1)
                change = change + (lost[:, last] - lost[:, first])
        to_start = (times[first] - (at - range_ms)) / 1000.0
        to_end = (at - times[last]) / 1000.0
        sampled = (times[last] - times[first]) / 1000.0
        between = sampled / (high - low - 1)
        threshold = between * 1.1
        to_start = np.where(to_start >= threshold, between / 2, to_start)
        to_end = np.where(to_end >= threshold, between / 2, to_end)
        if is_counter:
            to_zero = np.where((change > 0) & (start >= 0), sampled * (start / change), to_start)
            to_start = np.minimum(to_start, to_zero)
        factor = (sampled + to_start + to_end) / sampled
        if is_rate:
            factor = factor / (range_ms / 1000.0)
        result: Floats = change * factor
        return result

    return reduce


def _reduceat(ufunc: np.ufunc) -> _Reduce:
    def reduce(times: Times, values: Floats, low: Index, high: Index, at: Times, range_ms: int) -> Floats:
        padded = np.concatenate((values, values[:, -1:]), axis=1)  # a border may lie one past the last point
        borders = np.stack((low, high), axis=1).ravel()
        result: Floats = ufunc.reduceat(padded, borders, axis=1)[:, ::2]
        return result

    return reduce


def _average(times: Times, values: Floats, low: Index, high: Index, at: Times, range_ms: int) -> Floats:
    result: Floats = _reduceat(np.add)(times, values, low, high, at, range_ms) / (high - low)
    return result


def _changes(*, only_falls: bool) -> _Reduce:
    def reduce(times: Times, values: Floats, low: Index, high: Index, at: Times, range_ms: int) -> Floats:
        before, after = values[:, :-1], values[:, 1:]
        stepped = after < before if only_falls else (after != before) & ~(np.isnan(after) & np.isnan(before))
        total = np.concatenate((np.zeros((len(values), 1)), np.cumsum(stepped, axis=1)), axis=1)
        result: Floats = total[:, high - 1] - total[:, low]
        return result

    return reduce


def _quantiles(values: Floats, low: Index, high: Index, q: float) -> Floats:
    out = np.empty((len(values), len(low)))
    counts = high - low
    for count in np.unique(counts).tolist():
        columns = np.flatnonzero(counts == count)
        rank = q * (count - 1)
        below, above = int(np.floor(rank)), min(count - 1, int(np.floor(rank)) + 1)
        weight = rank - np.floor(rank)
        at_once = max(1, _MAX_SORTED // (count * len(values)))
        for start in range(0, len(columns), at_once):
            part = columns[start : start + at_once]
            index = low[part][:, np.newaxis] + np.arange(count)
            ordered = np.sort(values[:, index], axis=2)
            out[:, part] = ordered[:, :, below] * (1 - weight) + ordered[:, :, above] * weight
    return out


def _slopes(times: Times, values: Floats, low: Index, high: Index, at: Times, range_ms: int) -> Floats:
    """Least squares through each window's points, per second, as functions_rate._fits."""
    out = np.empty((len(values), len(low)))
    counts = high - low
    for count in np.unique(counts).tolist():
        columns = np.flatnonzero(counts == count)
        at_once = max(1, _MAX_SORTED // (count * len(values)))
        for start in range(0, len(columns), at_once):
            part = columns[start : start + at_once]
            index = low[part][:, np.newaxis] + np.arange(count)
            xs = (times[index] - times[index[:, :1]]) / 1000.0
            ys = values[:, index]
            spread = (xs * xs).sum(axis=1) - xs.sum(axis=1) ** 2 / count
            slopes = ((xs * ys).sum(axis=2) - xs.sum(axis=1) * ys.sum(axis=2) / count) / spread
            first = ys[:, :, 0]
            is_constant = (ys == first[:, :, np.newaxis]).all(axis=2)
            out[:, part] = np.where(is_constant, np.where(np.isinf(first), np.nan, 0.0), slopes)
    return out


_REDUCERS: dict[str, _Reduce] = {
    "rate": _extrapolated(is_counter=True, is_rate=True),
    "increase": _extrapolated(is_counter=True, is_rate=False),
    "delta": _extrapolated(is_counter=False, is_rate=False),
    "sum_over_time": _reduceat(np.add),
    "avg_over_time": _average,
    "min_over_time": _reduceat(np.fmin),
    "max_over_time": _reduceat(np.fmax),
    "count_over_time": lambda times, values, low, high, at, range_ms: np.broadcast_to(
        (high - low).astype(np.float64), (len(values), len(low))
    ),
    "present_over_time": lambda times, values, low, high, at, range_ms: np.ones((len(values), len(low))),
    "last_over_time": lambda times, values, low, high, at, range_ms: values[:, high - 1],
    "changes": _changes(only_falls=False),
    "resets": _changes(only_falls=True),
    "deriv": _slopes,
}

WINDOW_FUNCTIONS: dict[str, tuple[int, bool]] = {
    name: (2 if name in ("rate", "increase", "delta", "deriv") else 1, name == "last_over_time")
    for name in (*_REDUCERS, "quantile_over_time")
}
"""Function to (points that a window must have, whether the metric's name stays)."""
