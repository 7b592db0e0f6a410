"""Aggregations: many series of a group to one, or to the k highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from alerts.arrays import Floats, Index
from alerts.errors import QueryError
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql.kahan import each, kahan_means, kahan_sums, quantile, variance
from alerts.promql.nodes import Aggregate
from alerts.promql.values import Vector, empty_vector
from alerts.series.label_column import LabelColumn

_Reduce = Callable[[Floats, Index, Index], Floats]
"""From values, group by group, where each group starts, and how many it has."""


def _deviation(values: Sequence[float]) -> float:
    return float(np.sqrt(max(variance(values), 0.0)))


_REDUCERS: dict[str, _Reduce] = {
    "sum": kahan_sums,
    "avg": kahan_means,
    "count": lambda values, starts, sizes: sizes.astype(np.float64),
    "group": lambda values, starts, sizes: np.ones(len(sizes)),
    "max": lambda values, starts, sizes: np.fmax.reduceat(values, starts),  # NaN only where nothing else is
    "min": lambda values, starts, sizes: np.fmin.reduceat(values, starts),
    "stdvar": partial(each, variance),
    "stddev": partial(each, _deviation),
}


def aggregate(node: Aggregate, vector: Vector, param: float | str | None) -> Vector:
    """Raises QueryError for a parameter that Prometheus refuses."""
    if node.op in ("topk", "bottomk"):
        assert isinstance(param, float)
        return _ranked(node, vector, param)
    if node.op == "count_values":
        assert isinstance(param, str)
        return _count_values(node, vector, param)
    if not len(vector):
        return empty_vector()
    groups = vector.labels.groups(*_grouping(node))
    values, at_ms = vector.values[groups.order], vector.at_ms[groups.order]
    if node.op == "quantile":
        assert isinstance(param, float)
        reduce: _Reduce = partial(each, partial(quantile, param))
    else:
        reduce = _REDUCERS[node.op]
    newest = at_ms if groups.is_one_each else np.maximum.reduceat(at_ms, groups.starts)
    return Vector(groups.labels, reduce(values, groups.starts, groups.sizes), newest)


def _grouping(node: Aggregate) -> tuple[bool, tuple[str, ...]]:
    """Whether the names are the labels that stay, and the names."""
    return (False, (*node.labels, METRIC_NAME)) if node.without else (True, node.labels)


def _members(node: Aggregate, vector: Vector) -> list[list[int]]:
    """Indices of each group's series."""
    groups = vector.labels.groups(*_grouping(node))
    return [part.tolist() for part in np.split(groups.order, groups.starts[1:])]


def _ranked(node: Aggregate, vector: Vector, param: float) -> Vector:
    """The k highest or lowest of each group, best first, with their own labels; NaN is always last."""
    if math.isnan(param):
        raise QueryError("Parameter value is NaN")
    if abs(param) >= 2**63:
        raise QueryError(f"Scalar value {param} overflows int64")
    count = int(param)
    if count < 1 or not len(vector):
        return empty_vector()
    sign = -1.0 if node.op == "topk" else 1.0
    values = vector.values.tolist()
    picked: list[int] = []
    for members in _members(node, vector):
        members.sort(key=lambda i: (values[i] != values[i], sign * values[i] if values[i] == values[i] else 0.0))
        picked.extend(members[:count])
    return vector.take(picked)


def _count_values(node: Aggregate, vector: Vector, label: str) -> Vector:
    try:
        label.encode()
    except UnicodeEncodeError:
        raise QueryError(f"invalid label name {label!r}") from None
    if not label:
        raise QueryError('invalid label name ""')
    keys = vector.labels.having_only(*_grouping(node))
    members: dict[LabelSet, list[int]] = {}
    for index, (labels, value) in enumerate(zip(keys, vector.values.tolist(), strict=True)):
        key = labels.having(((label, format_plain(value)),))
        members.setdefault(key, []).append(index)
    newest = [vector.at_ms[group].max() for group in members.values()]
    counts = [float(len(group)) for group in members.values()]
    return Vector(LabelColumn(members), np.array(counts, dtype=np.float64), np.array(newest, dtype=np.int64))


def format_plain(value: float) -> str:
    """The shortest decimal without exponent that reads back as the same number, as Go's format 'f'."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
