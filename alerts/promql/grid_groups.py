"""Series of one group at many steps: aggregated to one, matched with those of another vector, read as a histogram."""

from __future__ import annotations

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql.grid_values import Grid, concat_grids, empty_grid, merge_rows
from alerts.promql.histogram import quantiles
from alerts.promql.nodes import Aggregate, Binary, Matching
from alerts.promql.operators import ARITHMETIC, COMPARISON, result_labels, vector_and_vector
from alerts.series.label_column import LabelColumn

_FILL = {"sum": 0.0, "avg": 0.0, "count": 0.0, "group": 0.0, "max": -np.inf, "min": np.inf}
_CANCELS = 1e6
GROUP_REDUCERS = frozenset(_FILL)


def _groups(keys: list[LabelSet]) -> tuple[list[LabelSet], Index, Index]:
    """Distinct keys, the order that puts each group's series together, and where each group starts in it."""
    rows: dict[LabelSet, int] = {}
    index = np.array([rows.setdefault(key, len(rows)) for key in keys], dtype=np.intp)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(rows)))
    return list(rows), order, starts


def reduce_groups(node: Aggregate, inner: Grid, parameter: object) -> Grid | None:
    """The aggregation; None when NaN or a changing parameter needs the evaluator."""
    num_steps = inner.values.shape[1]
    if not inner.labels:
        return empty_grid(num_steps)
    if np.isnan(inner.values[inner.present]).any():
        return None
    names = (*node.labels, METRIC_NAME) if node.without else node.labels
    keys = [entry.drop(names) if node.without else entry.keep(names) for entry in inner.labels]
    labels, order, starts = _groups(keys)
    present, values = inner.present[order], inner.values[order]
    counts = np.add.reduceat(present, starts, axis=0, dtype=np.int64)
    there: Bools = counts > 0
    if node.op == "quantile":
        if not isinstance(parameter, np.ndarray) or np.ptp(parameter) > 0 or not 0 <= parameter[0] <= 1:
            return None
        result = _group_quantiles(values, present, counts, starts, float(parameter[0]))
        return Grid(labels, result, there)
    filled = np.where(present, values, _FILL[node.op])
    if node.op in ("max", "min"):
        ufunc = np.maximum if node.op == "max" else np.minimum
        result = ufunc.reduceat(filled, starts, axis=0)
    elif node.op == "count":
        result = counts.astype(np.float64)
    elif node.op == "group":
        result = np.ones(counts.shape)
    else:
        with np.errstate(all="ignore"):
            result = np.add.reduceat(filled, starts, axis=0)
            size = np.add.reduceat(np.abs(filled), starts, axis=0)
        if not np.isfinite(size).all() or (size > _CANCELS * np.abs(result)).any():
            return None  # overflow, or large numbers that cancel out: the evaluator sums with compensation
        if node.op == "avg":
            result = result / np.maximum(counts, 1)
    return Grid(labels, np.where(there, result, 0.0), there)


def _group_quantiles(values: Floats, present: Bools, counts: Times, starts: Index, q: float) -> Floats:
    filled = np.where(present, values, np.inf)
    out = np.zeros(counts.shape)
    for group, start in enumerate(starts.tolist()):
        end = starts[group + 1] if group + 1 < len(starts) else len(values)
        ordered = np.sort(filled[start:end], axis=0)
        rank = q * np.maximum(counts[group] - 1, 0)
        below = np.floor(rank).astype(np.intp)
        above = np.minimum(np.maximum(counts[group] - 1, 0), below + 1)
        columns = np.arange(counts.shape[1])
        weight = rank - np.floor(rank)
        low, high = ordered[below, columns], ordered[above, columns]
        # The same number twice stays itself: infinity times weight 0 would be NaN.
        out[group] = np.where(low == high, low, low * (1 - weight) + np.where(weight > 0, high, 0.0) * weight)
    return out


def matched(node: Binary, lhs: Grid, rhs: Grid, steps: Times) -> Grid:
    """A binary operation between two vectors. Raises QueryError as the evaluator does."""
    matching = node.matching
    assert matching is not None
    names = matching.labels if matching.on else tuple(sorted({*matching.labels, METRIC_NAME}))

    def keys(grid: Grid) -> list[LabelSet]:
        return [entry.keep(names) if matching.on else entry.drop(names) for entry in grid.labels]

    num_steps = len(steps)
    if node.op in ("and", "unless", "or"):
        return _set_operation(node.op, lhs, rhs, keys(lhs), keys(rhs), num_steps)
    if not lhs.labels or not rhs.labels:
        return empty_grid(num_steps)
    swapped = matching.many == "right"
    many, one = (rhs, lhs) if swapped else (lhs, rhs)
    many_keys, one_keys = keys(many), keys(one)
    is_single = len(set(one_keys)) == len(one_keys)
    if not is_single or (matching.many == "none" and len(set(many_keys)) != len(many_keys)):
        return _by_step(node, lhs, rhs, matching, steps)
    row_of = {key: row for row, key in enumerate(one_keys)}
    pairs = [(i, row_of[key]) for i, key in enumerate(many_keys) if key in row_of]
    if not pairs:
        return empty_grid(num_steps)
    many_index, one_index = np.array(pairs, dtype=np.intp).T
    left, right = many.values[many_index], one.values[one_index]
    if swapped:
        left, right = right, left
    present = many.present[many_index] & one.present[one_index]
    with np.errstate(all="ignore"):
        if node.op in ARITHMETIC:
            values = ARITHMETIC[node.op](left, right)
        else:
            holds = COMPARISON[node.op](left, right)
            values = holds.astype(np.float64) if node.returns_bool else left
            present = present if node.returns_bool else present & holds
    drops_name = node.op in ARITHMETIC or node.returns_bool
    labels = [result_labels(many.labels[i], one.labels[j], matching, drops_name) for i, j in pairs]
    return merge_rows(labels, values, present).trimmed()


def _by_step(node: Binary, lhs: Grid, rhs: Grid, matching: Matching, steps: Times) -> Grid:
    """Several series of one group, which may be there at different times: the evaluator decides step by step."""
    rows: dict[LabelSet, int] = {}
    found = []
    for step, at_ms in enumerate(steps.tolist()):
        vector = vector_and_vector(node.op, lhs.at(step, at_ms), rhs.at(step, at_ms), matching, node.returns_bool)
        found.append(([rows.setdefault(entry, len(rows)) for entry in vector.labels], vector.values))
    grid = empty_grid(len(steps), list(rows))
    for step, (index, values) in enumerate(found):
        grid.values[index, step] = values
        grid.present[index, step] = True
    return grid


def _set_operation(
    op: str, lhs: Grid, rhs: Grid, lhs_keys: list[LabelSet], rhs_keys: list[LabelSet], num_steps: int
) -> Grid:
    if op == "or":
        there = _presence(lhs_keys, lhs.present, rhs_keys, num_steps)
        return concat_grids([lhs, Grid(rhs.labels, rhs.values, rhs.present & ~there)], num_steps)
    there = _presence(rhs_keys, rhs.present, lhs_keys, num_steps)
    return Grid(lhs.labels, lhs.values, lhs.present & (there if op == "and" else ~there)).trimmed()


def _presence(keys: list[LabelSet], present: Bools, wanted: list[LabelSet], num_steps: int) -> Bools:
    """For each wanted key: at which steps any series of that key is there."""
    by_key: dict[LabelSet, Bools] = {}
    for key, row in zip(keys, present, strict=True):
        before = by_key.get(key)
        by_key[key] = row if before is None else before | row
    none = np.zeros(num_steps, dtype=np.bool_)
    return np.array([by_key.get(key, none) for key in wanted], dtype=np.bool_).reshape(len(wanted), num_steps)


def bucket_quantiles(q: Floats, buckets: Grid) -> Grid | None:
    """histogram_quantile(); None when buckets of one histogram come and go or hold NaN, or q is no plain quantile."""
    num_steps = len(q)
    if not (np.ptp(q) == 0 and 0 <= q[0] <= 1):  # written so that NaN at some step is no plain quantile
        return None
    histograms: dict[LabelSet, dict[float, int]] = {}
    for row, labels in enumerate(buckets.labels):
        try:
            bound = float(labels.get("le"))
        except ValueError:
            continue
        bounds = histograms.setdefault(labels.drop(("le",)), {})
        if bound in bounds:
            return None
        bounds[bound] = row
    out = empty_grid(num_steps, list(histograms))
    for index, bounds in enumerate(histograms.values()):
        order = sorted(bounds)
        rows = [bounds[bound] for bound in order]
        present = buckets.present[rows]
        if (present != present[0]).any():
            return None
        counts = np.where(present, buckets.values[rows], 0.0)
        if np.isnan(counts).any():
            return None
        out.present[index] = present[0]
        out.values[index] = quantiles(float(q[0]), np.array(order), counts)
    return merge_rows(list(LabelColumn(histograms).without_names()), out.values, out.present)
