"""Binary operators: scalars, a vector with a scalar, two vectors matched by labels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from alerts.arrays import Floats, Index, sorted_unique
from alerts.errors import QueryError
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql.nodes import Matching
from alerts.promql.values import Vector, empty_vector
from alerts.series.label_column import LabelColumn, group_indices

ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARISON: dict[str, Callable[[Floats, Floats], np.ndarray]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def scalars(op: str, lhs: float, rhs: float) -> float:
    """A comparison of two scalars gives 0 or 1 (the grammar wants `bool` there)."""
    left, right = np.float64(lhs), np.float64(rhs)
    with np.errstate(all="ignore"):
        if op in COMPARISON:
            return float(COMPARISON[op](left, right))  # type: ignore[arg-type]
        return float(ARITHMETIC[op](left, right))  # type: ignore[arg-type]


def vector_and_scalar(op: str, vector: Vector, scalar: float, *, returns_bool: bool, scalar_first: bool) -> Vector:
    """A comparison keeps the vector's values whichever side the vector is on."""
    if not len(vector):
        return vector
    other = np.full(len(vector), scalar)
    left, right = (other, vector.values) if scalar_first else (vector.values, other)
    with np.errstate(all="ignore"):
        if op in ARITHMETIC:
            return vector.with_values(ARITHMETIC[op](left, right))
        holds = COMPARISON[op](left, right)
    if returns_bool:
        return vector.with_values(holds.astype(np.float64))
    return vector.where(holds)


def vector_and_vector(op: str, lhs: Vector, rhs: Vector, matching: Matching, returns_bool: bool) -> Vector:
    """Raises QueryError when several samples match where one was expected."""
    if not len(lhs):
        return rhs if op == "or" else empty_vector()
    if not len(rhs) and op != "and":
        return lhs if op in ("or", "unless") else empty_vector()
    if op in ("and", "or", "unless"):
        return _set_operation(op, lhs, rhs, matching)
    if matching.many == "right":
        return _matched(op, rhs, lhs, matching, returns_bool, swapped=True)
    return _matched(op, lhs, rhs, matching, returns_bool, swapped=False)


def match_keys(matching: Matching) -> tuple[bool, tuple[str, ...]]:
    """Whether the names are the labels that must agree, and the names."""
    return (True, matching.labels) if matching.on else (False, tuple(sorted({*matching.labels, METRIC_NAME})))


def _set_operation(op: str, lhs: Vector, rhs: Vector, matching: Matching) -> Vector:
    keys = match_keys(matching)
    if op == "or":
        present = group_indices(rhs.labels, lhs.labels, *keys) >= 0
        added = rhs.where(~present)
        labels = lhs.labels.remembered_with(added.labels, "or", lambda: LabelColumn((*lhs.labels, *added.labels)))
        return Vector(labels, np.concatenate((lhs.values, added.values)), np.concatenate((lhs.at_ms, added.at_ms)))
    group = group_indices(lhs.labels, rhs.labels, *keys)
    if op == "unless":
        return lhs.where(group < 0)
    if not len(rhs):
        return empty_vector()
    groups = rhs.labels.groups(*keys)
    newest = np.maximum.reduceat(rhs.at_ms[groups.order], groups.starts)[np.maximum(group, 0)]
    return Vector(lhs.labels, lhs.values, np.minimum(lhs.at_ms, newest)).where(group >= 0)


class _Pairs(NamedTuple):
    """Which series of the two sides meet, and the labels of what they give."""

    many: Index
    one: Index
    labels: LabelColumn


def _paired(many: LabelColumn, one: LabelColumn, matching: Matching, *, drops_name: bool, swapped: bool) -> _Pairs:
    keys = match_keys(matching)
    groups = one.groups(*keys)
    if not groups.is_one_each:
        group = int(np.flatnonzero(groups.sizes > 1)[0])
        first, second = groups.order[groups.starts[group] :][:2].tolist()
        raise QueryError(
            f"found duplicate series for the match group {groups.labels[group].as_matched()} on the "
            f"{'left' if swapped else 'right'} hand-side of the operation: "
            f"[{one[first].as_matched()}, {one[second].as_matched()}];"
            "many-to-many matching not allowed: matching labels must be unique on one side"
        )
    group_of = group_indices(many, one, *keys)
    of_many = np.flatnonzero(group_of >= 0)
    of_one = groups.order[group_of[of_many]]
    # Checked before a comparison filters: whether a rule fails must not depend on today's values.
    if matching.many == "none" and len(sorted_unique(of_one)) != len(of_one):
        raise QueryError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")
    labels = [
        result_labels(many[i], one[j], matching, drops_name)
        for i, j in zip(of_many.tolist(), of_one.tolist(), strict=True)
    ]
    return _Pairs(of_many, of_one, LabelColumn(labels))


def _matched(op: str, many: Vector, one: Vector, matching: Matching, returns_bool: bool, *, swapped: bool) -> Vector:
    drops_name = op in ARITHMETIC or returns_bool
    pairs = many.labels.remembered_with(
        one.labels,
        (matching, drops_name, swapped),
        lambda: _paired(many.labels, one.labels, matching, drops_name=drops_name, swapped=swapped),
    )
    if not len(pairs.labels):
        return empty_vector()
    left, right = many.values[pairs.many], one.values[pairs.one]
    if swapped:
        left, right = right, left
    at_ms = np.minimum(many.at_ms[pairs.many], one.at_ms[pairs.one])  # one stale side makes the answer stale
    with np.errstate(all="ignore"):
        if op in ARITHMETIC:
            result = Vector(pairs.labels, ARITHMETIC[op](left, right), at_ms)
        else:
            holds = COMPARISON[op](left, right)
            result = Vector(pairs.labels, holds.astype(np.float64) if returns_bool else left, at_ms)
            result = result if returns_bool else result.where(holds)
    if not result.labels.is_distinct:
        raise QueryError("multiple matches for labels: grouping labels must ensure unique matches")
    return result


def result_labels(many: LabelSet, one: LabelSet, matching: Matching, drops_name: bool) -> LabelSet:
    """The labels of what two matched series give."""
    result = many.without_name() if drops_name else many
    if matching.many == "none":
        result = result.keep(matching.labels) if matching.on else result.drop(matching.labels)
    if matching.include:
        result = result.having(tuple((name, one.get(name)) for name in matching.include))
    return result
