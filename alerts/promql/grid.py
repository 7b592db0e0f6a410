"""Evaluate an expression at many steps at once: arrays of series by steps instead of one vector a step.

The answer is that of `InstantEvaluator` at each step; what has no array form here is evaluated step by step with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alerts.arrays import Bools, Floats, Times
from alerts.errors import QueryError
from alerts.labels import LabelSet
from alerts.promql import nodes as n
from alerts.promql.aggregation import aggregate
from alerts.promql.evaluator import LOOKBACK_MS, InstantEvaluator, PointBudget
from alerts.promql.functions import FUNCTIONS
from alerts.promql.functions_labels import relabelled
from alerts.promql.functions_math import PLAIN
from alerts.promql.grid_groups import GROUP_REDUCERS, bucket_quantiles, matched, reduce_groups
from alerts.promql.grid_values import Grid, concat_grids, empty_grid, merge_rows
from alerts.promql.grid_windows import WINDOW_FUNCTIONS, rows_of, windowed
from alerts.promql.operators import ARITHMETIC, COMPARISON
from alerts.promql.values import Value, Vector
from alerts.sample import STALE_NAN_BITS
from alerts.series.store import SeriesStore

GridValue = Grid | Floats | str
"""A vector at each step; a scalar at each step, shape (steps,); a string."""


@dataclass(frozen=True, slots=True)
class RangeEvaluator:
    """`steps` are Unix milliseconds, rising. `query_ms`: where the query around a subquery begins and ends."""

    store: SeriesStore
    steps: Times
    step_ms: int
    query_ms: tuple[int, int] | None = None
    budget: PointBudget | None = None

    def grid(self, node: n.Node) -> Grid:
        """The value of an expression that the grammar knows to be a vector."""
        value = self.evaluate(node)
        assert isinstance(value, Grid), "the grammar checked types"
        return value

    def evaluate(self, node: n.Node) -> GridValue:
        """Raises QueryError when at any step the data does not allow the operation."""
        if n.is_fixed_in_time(node):
            return self._once(node)
        match node:
            case n.Number(value=value):
                return np.full(len(self.steps), value)
            case n.Text(value=text):
                return text
            case n.Selector(at=None):
                return self._instant(node)
            case n.Negate(expr=expr):
                inner = self.evaluate(expr)
                return inner.renamed(-inner.values) if isinstance(inner, Grid) else -_floats(inner)
            case n.Call():
                return self._call(node)
            case n.Aggregate():
                return self._aggregate(node)
            case n.Binary():
                return self._binary(node)
            case _:
                return self._step_by_step(lambda step: self._evaluator(step).evaluate(node))

    def _evaluator(self, index: int) -> InstantEvaluator:
        first, last = self.query_ms or (int(self.steps[0]), int(self.steps[-1]))
        budget = self.budget or PointBudget()
        at_ms = int(self.steps[index])
        return InstantEvaluator(self.store, at_ms, first, last, self.step_ms, budget, at_steps=at_steps)

    def _once(self, node: n.Node) -> GridValue:
        """The same value at each step: a past that ends at one moment is read once."""
        value = self._evaluator(0).evaluate(node)
        if isinstance(value, float):
            return np.full(len(self.steps), value)
        assert isinstance(value, Vector), "a range of points has no value at a step"
        columns = np.repeat(value.values[:, np.newaxis], len(self.steps), axis=1)
        return Grid(list(value.labels), columns, np.ones(columns.shape, dtype=np.bool_))

    def _instant(self, node: n.Selector, *, stamps: bool = False) -> Grid:
        """`stamps`: the points' own times (Unix seconds) instead of their values."""
        at = self.steps - node.offset_ms
        parts: list[Grid] = []
        rows = rows_of(self.store, node, int(at[0]) - LOOKBACK_MS, int(at[-1]), keep_stale=True, budget=self.budget)
        for times, labels, values in rows:
            index = np.searchsorted(times, at, side="right") - 1
            safe = np.maximum(index, 0)
            fresh = (index >= 0) & (times[safe] > at - LOOKBACK_MS)
            found = values[:, safe]
            present = fresh & (found.view(np.int64) != STALE_NAN_BITS)
            parts.append(Grid(labels, np.tile(times[safe] / 1000.0, (len(found), 1)) if stamps else found, present))
        return concat_grids(parts, len(at))

    # -- functions ----------------------------------------------------------------------------------------------

    def _call(self, node: n.Call) -> GridValue:
        window = node.args[-1] if node.args else None
        if node.function in WINDOW_FUNCTIONS and isinstance(window, n.RangeSelector) and window.selector.at is None:
            parameter = self.evaluate(node.args[0]) if len(node.args) > 1 else None
            if parameter is None or isinstance(parameter, np.ndarray):
                found = windowed(node.function, self.store, window, self.steps, parameter, self.budget)
                if found is not None:
                    return found
        if node.function == "timestamp" and isinstance(node.args[0], n.Selector):  # a column has lost its points' times
            if node.args[0].at is not None:
                return self._step_by_step(lambda step: self._evaluator(step).evaluate(node))
            own = self._instant(node.args[0], stamps=True)
            return own.renamed(own.values)
        if node.function == "time":
            return self.steps / 1000.0
        if node.function in PLAIN:
            inner = self.evaluate(node.args[0])
            assert isinstance(inner, Grid), "the grammar checked types"
            with np.errstate(all="ignore"):
                return inner.renamed(PLAIN[node.function](inner.values))
        if node.function in ("clamp_min", "clamp_max"):
            inner, bound = self.evaluate(node.args[0]), _floats(self.evaluate(node.args[1]))
            assert isinstance(inner, Grid), "the grammar checked types"
            return inner.renamed((np.maximum if node.function == "clamp_min" else np.minimum)(bound, inner.values))
        if node.function in ("label_replace", "label_join"):
            inner = self.evaluate(node.args[0])
            assert isinstance(inner, Grid), "the grammar checked types"
            return merge_rows(relabelled(node.function, inner.labels, node.args), inner.values, inner.present)
        if node.function == "histogram_quantile":
            q, buckets = self.evaluate(node.args[0]), self.evaluate(node.args[1])
            assert isinstance(buckets, Grid), "the grammar checked types"
            found = bucket_quantiles(_floats(q), buckets)
            if found is not None:
                return found
        return self._function_by_step(node)

    def _function_by_step(self, node: n.Call) -> GridValue:
        """The evaluator's own function at each step, over arguments that are evaluated as arrays."""
        known = {id(arg): self.evaluate(arg) for arg in node.args if not isinstance(arg, n.RangeSelector | n.Subquery)}

        def one(step: int) -> Value:
            return FUNCTIONS[node.function](_StepContext(self._evaluator(step), known, step), node.args)

        return self._step_by_step(one)

    def _step_by_step(self, evaluate: Callable[[int], Value]) -> GridValue:
        rows: dict[LabelSet, int] = {}
        values: list[tuple[list[int], Floats]] = []
        scalars: list[float] = []
        for step in range(len(self.steps)):
            value = evaluate(step)
            if isinstance(value, float):
                scalars.append(value)
                continue
            assert isinstance(value, Vector), "the grammar checked types"
            values.append(([rows.setdefault(labels, len(rows)) for labels in value.labels], value.values))
        if scalars:
            return np.array(scalars)
        grid = empty_grid(len(self.steps), list(rows))
        for step, (index, column) in enumerate(values):
            grid.values[index, step] = column
            grid.present[index, step] = True
        return grid

    # -- operators ----------------------------------------------------------------------------------------------

    def _aggregate(self, node: n.Aggregate) -> GridValue:
        inner = self.evaluate(node.expr)
        assert isinstance(inner, Grid), "the grammar checked types"
        parameter = None if node.param is None else self.evaluate(node.param)
        if node.op in GROUP_REDUCERS or node.op == "quantile":
            found = reduce_groups(node, inner, parameter)
            if found is not None:
                return found

        def one(step: int) -> Value:
            own = parameter if parameter is None or isinstance(parameter, str) else float(_floats(parameter)[step])
            return aggregate(node, inner.at(step, int(self.steps[step])), own)

        return self._step_by_step(one)

    def _binary(self, node: n.Binary) -> GridValue:
        lhs, rhs = self.evaluate(node.lhs), self.evaluate(node.rhs)
        if isinstance(lhs, Grid) and isinstance(rhs, Grid):
            assert node.matching is not None
            return matched(node, lhs, rhs, self.steps)
        if isinstance(lhs, Grid):
            return _with_scalar(node, lhs, lhs.values, _floats(rhs))
        if isinstance(rhs, Grid):
            return _with_scalar(node, rhs, _floats(lhs), rhs.values)
        with np.errstate(all="ignore"):
            operation = ARITHMETIC.get(node.op) or COMPARISON[node.op]
            result: Floats = np.asarray(operation(_floats(lhs), _floats(rhs)), dtype=np.float64)
        return result


def _with_scalar(node: n.Binary, vector: Grid, left: Floats, right: Floats) -> Grid:
    with np.errstate(all="ignore"):
        if node.op in ARITHMETIC:
            return vector.renamed(ARITHMETIC[node.op](left, right))
        holds: Bools = COMPARISON[node.op](left, right)
    if node.returns_bool:
        return vector.renamed(holds.astype(np.float64))
    return Grid(vector.labels, vector.values, vector.present & holds).trimmed()


def _floats(value: GridValue) -> Floats:
    assert isinstance(value, np.ndarray), "the grammar checked types"
    return value


class _StepContext:
    """What a function of the evaluator is given: arguments known as arrays, read at one step."""

    def __init__(self, evaluator: InstantEvaluator, known: dict[int, GridValue], step: int) -> None:
        self._evaluator, self._known, self._step = evaluator, known, step
        self.at_ms, self.start_ms, self.end_ms = evaluator.at_ms, evaluator.start_ms, evaluator.end_ms
        self.step_ms = evaluator.step_ms

    def evaluate(self, node: n.Node) -> Value:
        known = self._known.get(id(node))
        if known is None:
            return self._evaluator.evaluate(node)
        if isinstance(known, Grid):
            return known.at(self._step, self.at_ms)
        return known if isinstance(known, str) else float(known[self._step])

    def vector(self, node: n.Node) -> Vector:
        value = self.evaluate(node)
        assert isinstance(value, Vector), "the grammar checked types"
        return value

    def matrix(self, node: n.Node):  # type: ignore[no-untyped-def]
        return self._evaluator.matrix(node)

    def scalar(self, node: n.Node) -> float:
        value = self.evaluate(node)
        assert isinstance(value, float), "the grammar checked types"
        return value


def at_steps(evaluator: InstantEvaluator, node: n.Node, steps: Times) -> tuple[Sequence[LabelSet], Floats, Bools]:
    """As `evaluator.AtSteps`: what a subquery reads, each series once for all its steps."""
    within = (evaluator.start_ms, evaluator.end_ms)
    grid = RangeEvaluator(evaluator.store, steps, evaluator.step_ms, within, evaluator.budget).grid(node).trimmed()
    return grid.labels, grid.values, grid.present


def evaluate_grid(root: n.Node, store: SeriesStore, steps: Times, step_ms: int) -> Grid:
    """The expression at every step; a scalar is one series without labels. Raises QueryError."""
    value = RangeEvaluator(store, steps, step_ms).evaluate(root)
    if isinstance(value, Grid):
        return value
    if isinstance(value, str):
        raise QueryError("the expression gives a string")
    present: NDArray[np.bool_] = np.ones((1, len(steps)), dtype=np.bool_)
    return Grid([LabelSet.of({})], value[np.newaxis, :], present)
