"""Binary operators: scalars, a vector with a scalar, two vectors matched by labels."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from alerts.errors import QueryError
from alerts.promql.nodes import Matching
from alerts.promql.values import Floats, Vector, empty_vector
from alerts.sample import NAME, LabelSet

ARITHMETIC: dict[str, Callable[[Floats, Floats], Floats]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
    "%": np.fmod, "^": np.power, "atan2": np.arctan2,
}  # fmt: skip
COMPARISON: dict[str, Callable[[Floats, Floats], np.ndarray]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip


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
    names = matching.labels if matching.on else tuple(sorted({*matching.labels, NAME}))

    def groups(vector: Vector) -> list[LabelSet]:
        if matching.on:
            return [labels.keep(names) for labels in vector.labels]
        return [labels.drop(names) for labels in vector.labels]

    if not len(lhs):
        return rhs if op == "or" else empty_vector()
    if not len(rhs) and op != "and":
        return lhs if op in ("or", "unless") else empty_vector()
    if op in ("and", "unless"):
        newest: dict[LabelSet, int] = {}
        for group, at in zip(groups(rhs), rhs.at_ms.tolist(), strict=True):
            newest[group] = max(at, newest.get(group, at))
        own = groups(lhs)
        keep = np.array([(group in newest) is (op == "and") for group in own], dtype=np.bool_)
        if op == "unless":
            return lhs.where(keep)
        times = [newest.get(group, 0) for group in own]
        return Vector(lhs.labels, lhs.values, np.minimum(lhs.at_ms, np.array(times, dtype=np.int64))).where(keep)
    if op == "or":
        present = set(groups(lhs))
        added = rhs.where(np.array([group not in present for group in groups(rhs)], dtype=np.bool_))
        return Vector(
            [*lhs.labels, *added.labels],
            np.concatenate((lhs.values, added.values)),
            np.concatenate((lhs.at_ms, added.at_ms)),
        )
    if matching.many == "right":
        return _matched(op, rhs, lhs, groups(rhs), groups(lhs), matching, returns_bool, swapped=True)
    return _matched(op, lhs, rhs, groups(lhs), groups(rhs), matching, returns_bool, swapped=False)


def _matched(
    op: str,
    many: Vector,
    one: Vector,
    many_groups: list[LabelSet],
    one_groups: list[LabelSet],
    matching: Matching,
    returns_bool: bool,
    *,
    swapped: bool,
) -> Vector:
    index_of: dict[LabelSet, int] = {}
    for index, group in enumerate(one_groups):
        other = index_of.setdefault(group, index)
        if other != index:
            raise QueryError(
                f"found duplicate series for the match group {group.as_matched()} on the "
                f"{'left' if swapped else 'right'} hand-side of the operation: "
                f"[{one.labels[other].as_matched()}, {one.labels[index].as_matched()}];"
                "many-to-many matching not allowed: matching labels must be unique on one side"
            )
    pairs = [(i, index_of[group]) for i, group in enumerate(many_groups) if group in index_of]
    if not pairs:
        return empty_vector()
    # Checked before a comparison filters: whether a rule fails must not depend on today's values.
    if matching.many == "none" and len({j for _, j in pairs}) != len(pairs):
        raise QueryError("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")
    many_index, one_index = np.array(pairs, dtype=np.intp).T
    left, right = many.values[many_index], one.values[one_index]
    if swapped:
        left, right = right, left
    with np.errstate(all="ignore"):
        if op in ARITHMETIC:
            values, keep = ARITHMETIC[op](left, right), np.ones(len(pairs), dtype=np.bool_)
        else:
            holds = COMPARISON[op](left, right)
            values, keep = (holds.astype(np.float64), np.ones_like(holds)) if returns_bool else (left, holds)
    drops_name = op in ARITHMETIC or returns_bool
    kept = np.flatnonzero(keep).tolist()
    labels: list[LabelSet] = []
    seen: set[LabelSet] = set()
    for position in kept:
        i, j = pairs[position]
        result = result_labels(many.labels[i], one.labels[j], matching, drops_name)
        if result in seen:
            raise QueryError("multiple matches for labels: grouping labels must ensure unique matches")
        seen.add(result)
        labels.append(result)
    at_ms = np.minimum(many.at_ms[many_index], one.at_ms[one_index])  # one stale side makes the answer stale
    return Vector(labels, values[kept], at_ms[kept])


def result_labels(many: LabelSet, one: LabelSet, matching: Matching, drops_name: bool) -> LabelSet:
    result = many.without_name() if drops_name else many
    if matching.many == "none":
        result = result.keep(matching.labels) if matching.on else result.drop(matching.labels)
    if matching.include:
        result = result.having(tuple((name, one.get(name)) for name in matching.include))
    return result
