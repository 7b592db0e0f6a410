"""Walk the nodes of an expression at one moment over the series of a store."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from alerts.errors import QueryError
from alerts.promql import nodes as n
from alerts.promql.aggregation import aggregate
from alerts.promql.functions import FUNCTIONS
from alerts.promql.operators import scalars, vector_and_scalar, vector_and_vector
from alerts.promql.values import Matrix, Value, Vector
from alerts.sample import STALE_BITS, LabelSet
from alerts.series import Series
from alerts.store import SeriesStore

LOOKBACK_MS = 5 * 60 * 1000
DEFAULT_STEP_MS = 60 * 1000  # of a subquery that names none: Prometheus' default evaluation interval
MAX_POINTS = 20_000_000  # read by one evaluation; a query from outside cannot hold the controller longer
MAX_SUBQUERY_STEPS = 11_000


class Budget:
    """Counts the points that one evaluation has read."""

    __slots__ = ("left",)

    def __init__(self, points: int = MAX_POINTS) -> None:
        self.left = points

    def take(self, points: int) -> None:
        self.left -= points
        if self.left < 0:
            raise QueryError(f"the query reads more than {MAX_POINTS} points")


@dataclass(frozen=True, slots=True)
class Moment:
    """When an expression is evaluated; `start_ms` and `end_ms` differ only within a range query."""

    store: SeriesStore
    at_ms: int
    start_ms: int
    end_ms: int
    step_ms: int
    budget: Budget = field(default_factory=Budget)

    def evaluate(self, node: n.Node) -> Value:
        """Raises QueryError when the data does not allow the operation."""
        match node:
            case n.Number(value=value):
                return value
            case n.Text(value=text):
                return text
            case n.Selector():
                return self._instant(node)
            case n.RangeSelector():
                return self._window(node)
            case n.Subquery():
                return self._subquery(node)
            case n.Negate(expr=expr):
                inner = self.evaluate(expr)
                if isinstance(inner, Vector):
                    return inner.with_values(-inner.values)
                assert isinstance(inner, float)
                return -inner
            case n.Call(function=name, args=args):
                return FUNCTIONS[name](self, args)
            case n.Aggregate():
                return self._aggregate(node)
            case n.Binary():
                return self._binary(node)

    def moved_to(self, at_ms: int) -> Moment:
        """Another step of the same query, drawing on the same budget."""
        return replace(self, at_ms=at_ms)

    def vector(self, node: n.Node) -> Vector:
        value = self.evaluate(node)
        assert isinstance(value, Vector), "the grammar checked types"
        return value

    def matrix(self, node: n.Node) -> Matrix:
        value = self.evaluate(node)
        assert isinstance(value, Matrix), "the grammar checked types"
        return value

    def scalar(self, node: n.Node) -> float:
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
        labels: list[LabelSet] = []
        values: list[float] = []
        times: list[int] = []
        after_ms = at_ms - LOOKBACK_MS
        for series in self._select(node):
            point = series.newest(at_ms, after_ms)
            if point is not None:
                labels.append(series.labels)
                times.append(point[0])
                values.append(point[1])
        self.budget.take(len(values))
        return Vector(labels, np.array(values, dtype=np.float64), np.array(times, dtype=np.int64))

    def _select(self, node: n.Selector) -> list[Series]:
        if len(node.groups) == 1:
            return self.store.select(node.groups[0])
        found = {id(series): series for group in node.groups for series in self.store.select(group)}
        return list(found.values())

    def _window(self, node: n.RangeSelector) -> Matrix:
        until_ms = self._shifted(node.selector.at, node.selector.offset_ms)
        after_ms = until_ms - node.range_ms
        labels: list[LabelSet] = []
        times, values, starts = array("q"), array("d"), [0]
        for series in self._select(node.selector):
            low, high = series.window(after_ms, until_ms)
            if low < high:
                labels.append(series.labels)
                times.extend(series.times[low:high])
                values.extend(series.values[low:high])
                starts.append(len(times))
        self.budget.take(len(times))
        return _without_stale(labels, times, values, starts, after_ms, until_ms)

    def _subquery(self, node: n.Subquery) -> Matrix:
        until_ms = self._shifted(node.at, node.offset_ms)
        after_ms = until_ms - node.range_ms
        step_ms = node.step_ms or DEFAULT_STEP_MS
        first_ms = (after_ms // step_ms + 1) * step_ms  # steps are multiples of the step, left border excluded
        if node.range_ms // step_ms > MAX_SUBQUERY_STEPS:
            raise QueryError(f"a subquery of more than {MAX_SUBQUERY_STEPS} steps")
        points: dict[LabelSet, tuple[array[int], array[float]]] = {}
        for at_ms in range(first_ms, until_ms + 1, step_ms):
            value = self.moved_to(at_ms).evaluate(node.expr)
            if isinstance(value, float):
                value = Vector([LabelSet.of({})], np.array([value]), np.array([at_ms]))
            assert isinstance(value, Vector), "the grammar checked types"
            for labels, number in zip(value.labels, value.values.tolist(), strict=True):
                found = points.get(labels)
                if found is None:
                    found = points[labels] = (array("q"), array("d"))
                found[0].append(at_ms)
                found[1].append(number)
        times, values, starts = array("q"), array("d"), [0]
        for own_times, own_values in points.values():
            times.extend(own_times)
            values.extend(own_values)
            starts.append(len(times))
        self.budget.take(len(times))
        return _without_stale(list(points), times, values, starts, after_ms, until_ms)

    def _aggregate(self, node: n.Aggregate) -> Vector:
        param: float | str | None = None
        if node.param is not None:
            value = self.evaluate(node.param)
            assert isinstance(value, float | str), "the grammar checked types"
            param = value
        return aggregate(node, self.vector(node.expr), param)

    def _binary(self, node: n.Binary) -> float | Vector:
        lhs, rhs = self.evaluate(node.lhs), self.evaluate(node.rhs)
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


def _without_stale(
    labels: list[LabelSet],
    times: array[int],
    values: array[float],
    starts: list[int],
    after_ms: int,
    until_ms: int,
) -> Matrix:
    """The windows as a matrix, without the markers of ended series and the windows that held nothing else."""
    at = np.frombuffer(times, dtype=np.int64) if times else np.empty(0, dtype=np.int64)
    data = np.frombuffer(values, dtype=np.float64) if values else np.empty(0)
    borders = np.array(starts, dtype=np.intp)
    stale = data.view(np.int64) == STALE_BITS
    if stale.any():
        kept = np.concatenate(([0], np.cumsum(~stale)))[borders]
        occupied = np.diff(kept) > 0
        labels = [entry for entry, wanted in zip(labels, occupied.tolist(), strict=True) if wanted]
        borders = np.concatenate((kept[:-1][occupied], kept[-1:])).astype(np.intp)
        at, data = at[~stale], data[~stale]
    return Matrix(labels, at, data, borders, after_ms, until_ms)
