"""Aggregations: many series of a group to one, or to the k highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from alerts.errors import QueryError
from alerts.promql.kahan import kahan_mean, kahan_sum, quantile, variance
from alerts.promql.nodes import Aggregate
from alerts.promql.values import Vector, empty_vector
from alerts.sample import NAME, LabelSet


def _max(values: Sequence[float]) -> float:
    return max((value for value in values if value == value), default=math.nan)


def _min(values: Sequence[float]) -> float:
    return min((value for value in values if value == value), default=math.nan)


_REDUCERS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": kahan_sum,
    "avg": kahan_mean,
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
    "max": _max,
    "min": _min,
    "stdvar": variance,
    "stddev": lambda values: float(np.sqrt(max(variance(values), 0.0))),
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
    groups = _group(node, vector)
    values = vector.values.tolist()
    if node.op == "quantile":
        assert isinstance(param, float)
        results = [quantile(param, [values[i] for i in members]) for members in groups.values()]
    else:
        reduce = _REDUCERS[node.op]
        results = [reduce([values[i] for i in members]) for members in groups.values()]
    newest = [vector.at_ms[members].max() for members in groups.values()]
    return Vector(list(groups), np.array(results, dtype=np.float64), np.array(newest, dtype=np.int64))


def _key(node: Aggregate, labels: LabelSet) -> LabelSet:
    if node.without:
        return labels.drop((*node.labels, NAME))
    return labels.keep(node.labels)


def _group(node: Aggregate, vector: Vector) -> dict[LabelSet, list[int]]:
    groups: dict[LabelSet, list[int]] = {}
    for index, labels in enumerate(vector.labels):
        groups.setdefault(_key(node, labels), []).append(index)
    return groups


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
    for members in _group(node, vector).values():
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
    members: dict[LabelSet, list[int]] = {}
    for index, (labels, value) in enumerate(zip(vector.labels, vector.values.tolist(), strict=True)):
        key = _key(node, labels).having(((label, format_plain(value)),))
        members.setdefault(key, []).append(index)
    newest = [vector.at_ms[group].max() for group in members.values()]
    counts = [float(len(group)) for group in members.values()]
    return Vector(list(members), np.array(counts, dtype=np.float64), np.array(newest, dtype=np.int64))


def format_plain(value: float) -> str:
    """The shortest decimal without exponent that reads back as the same number, as Go's format 'f'."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return np.format_float_positional(value, trim="-")
