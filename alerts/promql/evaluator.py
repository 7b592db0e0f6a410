"""Walk the nodes of an expression at one timestamp over the series of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from alerts.arrays import Bools, Floats, Times
from alerts.errors import QueryError
from alerts.labels import LabelSet
from alerts.promql import nodes as n
from alerts.promql.aggregation import aggregate
from alerts.promql.functions import FUNCTIONS
from alerts.promql.known_answers import KnownAnswers
from alerts.promql.operators import scalars, vector_and_scalar, vector_and_vector
from alerts.promql.values import Matrix, Value, Vector, empty_vector
from alerts.series.label_column import LabelColumn
from alerts.series.selection import Selection
from alerts.series.store import SeriesStore

LOOKBACK_MS = 5 * 60 * 1000
DEFAULT_STEP_MS = 60 * 1000  # of a subquery that names none: Prometheus' default evaluation interval
MAX_POINTS = 20_000_000  # read by one evaluation; a query from outside cannot hold the controller longer
MAX_SUBQUERY_STEPS = 11_000

_NO_STARTS = np.zeros(1, dtype=np.intp)


AtSteps = Callable[["InstantEvaluator", n.Node, Times], tuple[Sequence[LabelSet], Floats, Bools]]
"""A vector expression at many moments (Unix milliseconds) of one query: labels; values, and where there is one.

Shapes: both (series, steps).
"""


class PointBudget:
    """Counts the points that one evaluation has read."""

    __slots__ = ("left", "points")

    def __init__(self, points: int = MAX_POINTS) -> None:
        self.points = self.left = points

    def spend(self, points: int) -> None:
        """Raises QueryError when more points are read than the query may."""
        self.left -= points
        if self.left < 0:
            raise QueryError(f"the query reads more than {self.points} points")


@dataclass(frozen=True, slots=True)
class InstantEvaluator:
    """When an expression is evaluated; `start_ms` and `end_ms` differ only within a range query.

    `shared`: what other expressions of the same rules, or of the same look, have found out. `at_steps`: how a
    subquery's steps are read at once; None: one after the other.
    """

    store: SeriesStore
    at_ms: int
    start_ms: int
    end_ms: int
    step_ms: int
    budget: PointBudget = field(default_factory=PointBudget)
    shared: KnownAnswers | None = None
    at_steps: AtSteps | None = None

    def evaluate(self, node: n.Node) -> Value:
        """Raises QueryError when the data does not allow the operation."""
        shared = self.shared
        part = None if shared is None else shared.shared_expr_of(node)
        if shared is None or part is None:
            return _BY_KIND[type(node)](self, node)
        found = shared.cached(part, self.at_ms, self.start_ms)
        if found is None:
            found = _BY_KIND[type(node)](self, node)
            shared.store_result(part, self.at_ms, self.start_ms, found)
        return found

    def at_step(self, at_ms: int) -> InstantEvaluator:
        """Another step of the same query, drawing on the same budget."""
        return replace(self, at_ms=at_ms)

    def vector(self, node: n.Node) -> Vector:
        """The value of an expression that the grammar knows to be a vector."""
        value = self.evaluate(node)
        assert isinstance(value, Vector), "the grammar checked types"
        return value

    def matrix(self, node: n.Node) -> Matrix:
        """The value of an expression that the grammar knows to be a range vector."""
        value = self.evaluate(node)
        assert isinstance(value, Matrix), "the grammar checked types"
        return value

    def scalar(self, node: n.Node) -> float:
        """The value of an expression that the grammar knows to be a scalar."""
        value = self.evaluate(node)
        assert isinstance(value, float), "the grammar checked types"
        return value

    def _shifted(self, at: n.AtTime, offset_ms: int) -> int:
        match at:
            case None:
                base = self.at_ms
            case "start":
                base = self.start_ms
            case "end":
                base = self.end_ms
            case _:
                base = at
        return base - offset_ms

    def _instant(self, node: n.Selector) -> Vector:
        at_ms = self._shifted(node.at, node.offset_ms)
        selection = self._select(node)
        if not len(selection):
            return empty_vector()
        present, values, times = selection.newest(at_ms, at_ms - LOOKBACK_MS)
        found = Vector(selection.labels, values, times).where(present)
        self.budget.spend(len(found))
        return found

    def _select(self, node: n.Selector) -> Selection:
        if len(node.groups) == 1:
            return self.store.select(node.groups[0])
        return self.store.select_any(node.groups)

    def _negated(self, node: n.Negate) -> float | Vector:
        inner = self.evaluate(node.expr)
        if isinstance(inner, Vector):
            return inner.with_values(-inner.values)
        assert isinstance(inner, float)
        return -inner

    def _window(self, node: n.RangeSelector) -> Matrix:
        until_ms = self._shifted(node.selector.at, node.selector.offset_ms)
        after_ms = until_ms - node.range_ms
        selection = self._select(node.selector)
        if not len(selection):
            none = empty_vector()
            return Matrix(none.labels, none.at_ms, none.values, _NO_STARTS, after_ms, until_ms)
        labels, times, values, starts = selection.windows(after_ms, until_ms)
        self.budget.spend(len(times))
        return Matrix(labels, times, values, starts, after_ms, until_ms)

    def _subquery(self, node: n.Subquery) -> Matrix:
        until_ms = self._shifted(node.at, node.offset_ms)
        after_ms = until_ms - node.range_ms
        step_ms = node.step_ms or DEFAULT_STEP_MS
        first_ms = (after_ms // step_ms + 1) * step_ms  # steps are multiples of the step, left border excluded
        if node.range_ms // step_ms > MAX_SUBQUERY_STEPS:
            raise QueryError(f"a subquery of more than {MAX_SUBQUERY_STEPS} steps")
        steps = np.arange(first_ms, until_ms + 1, step_ms, dtype=np.int64)
        if not len(steps):
            none = empty_vector()
            return Matrix(none.labels, none.at_ms, none.values, _NO_STARTS, after_ms, until_ms)
        read = self.at_steps or _step_by_step
        labels, values, present = read(self, node.expr, steps)
        starts = np.concatenate(([0], np.cumsum(present.sum(axis=1)))).astype(np.intp, copy=False)
        self.budget.spend(int(starts[-1]))
        at = np.broadcast_to(steps, values.shape)[present]
        return Matrix(LabelColumn(labels), at, values[present], starts, after_ms, until_ms)

    def _aggregate(self, node: n.Aggregate) -> Vector:
        param: float | str | None = None
        if node.param is not None:
            value = self.evaluate(node.param)
            assert isinstance(value, float | str), "the grammar checked types"
            param = value
        return aggregate(node, self.vector(node.expr), param)

    def _binary(self, node: n.Binary) -> float | Vector:
        lhs = self.evaluate(node.lhs)
        if node.may_skip_rhs and isinstance(lhs, Vector) and not len(lhs):
            return empty_vector()
        rhs = self.evaluate(node.rhs)
        if isinstance(lhs, Vector) and isinstance(rhs, Vector):
            assert node.matching is not None
            return vector_and_vector(node.op, lhs, rhs, node.matching, node.returns_bool)
        if isinstance(lhs, Vector):
            assert isinstance(rhs, float)
            return vector_and_scalar(node.op, lhs, rhs, returns_bool=node.returns_bool, scalar_first=False)
        if isinstance(rhs, Vector):
            assert isinstance(lhs, float)
            return vector_and_scalar(node.op, rhs, lhs, returns_bool=node.returns_bool, scalar_first=True)
        assert isinstance(lhs, float)
        assert isinstance(rhs, float)
        return scalars(node.op, lhs, rhs)


def _step_by_step(evaluator: InstantEvaluator, node: n.Node, steps: Times) -> tuple[Sequence[LabelSet], Floats, Bools]:
    rows: dict[LabelSet, dict[int, float]] = {}
    for step, at_ms in enumerate(steps.tolist()):
        vector = evaluator.at_step(at_ms).vector(node)
        for labels, number in zip(vector.labels, vector.values.tolist(), strict=True):
            rows.setdefault(labels, {})[step] = number
    values = np.zeros((len(rows), len(steps)))
    present = np.zeros(values.shape, dtype=np.bool_)
    for row, points in enumerate(rows.values()):
        index = list(points)
        values[row, index], present[row, index] = list(points.values()), True
    return list(rows), values, present


_BY_KIND: dict[type[n.Node], Callable[[InstantEvaluator, Any], Value]] = {
    n.Number: lambda evaluator, node: node.value,
    n.Text: lambda evaluator, node: node.value,
    n.Selector: InstantEvaluator._instant,
    n.RangeSelector: InstantEvaluator._window,
    n.Subquery: InstantEvaluator._subquery,
    n.Negate: InstantEvaluator._negated,
    n.Call: lambda evaluator, node: FUNCTIONS[node.function](evaluator, node.args),
    n.Aggregate: InstantEvaluator._aggregate,
    n.Binary: InstantEvaluator._binary,
}
