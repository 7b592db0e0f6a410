"""PromQL: parsed by promql-parser, evaluated here over a SeriesStore with Prometheus 3's semantics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alerts.arrays import Bools, Floats, Times
from alerts.errors import BadExpressionError
from alerts.labels import LabelSet
from alerts.promql import nodes
from alerts.promql.compile import compile_expression
from alerts.promql.evaluator import MAX_POINTS, InstantEvaluator, PointBudget
from alerts.promql.known_answers import KnownAnswers
from alerts.promql.values import Vector
from alerts.sample import Sample, to_ms
from alerts.series.store import SeriesStore


@dataclass(frozen=True, slots=True)
class Query:
    """A checked expression, ready to be evaluated any number of times."""

    text: str
    root: nodes.Node


def parse(expression: str) -> Query:
    """Raises BadExpressionError with a one-line reason, also for what Prometheus knows and we do not evaluate."""
    return Query(expression, compile_expression(expression))


def evaluate_vector(
    query: Query | str,
    store: SeriesStore,
    at: float,
    *,
    shared: KnownAnswers | None = None,
    points: int = MAX_POINTS,
) -> Vector | float:
    """The answer at `at` (Unix seconds) as arrays. Raises BadExpressionError and QueryError."""
    root = parse(query).root if isinstance(query, str) else query.root
    at_ms = to_ms(at)
    value = InstantEvaluator(
        store, at_ms, at_ms, at_ms, 0, PointBudget(points), shared=shared, at_steps=_at_steps
    ).evaluate(root)
    if not isinstance(value, Vector | float):
        kind = "a string" if isinstance(value, str) else "a range of points"
        raise BadExpressionError(f"the expression gives {kind}; wanted one value per series")
    return value


def _at_steps(evaluator: InstantEvaluator, node: nodes.Node, steps: Times) -> tuple[Sequence[LabelSet], Floats, Bools]:
    from alerts.promql.grid import at_steps  # as in `evaluate_series`

    return at_steps(evaluator, node, steps)


def evaluate(
    query: Query | str,
    store: SeriesStore,
    at: float,
    *,
    shared: KnownAnswers | None = None,
    points: int = MAX_POINTS,
) -> list[Sample]:
    """The answer at `at` (Unix seconds); a scalar is one sample without labels. `points`: that it may read.

    Raises BadExpressionError when the expression is wrong or gives no instant value, QueryError when the data does
    not allow it (many-to-many matches, duplicate label sets) or it reads too much.
    """
    value = evaluate_vector(query, store, at, shared=shared, points=points)
    if isinstance(value, float):
        return [Sample({}, value, to_ms(at) / 1000)]
    return [
        Sample(labels.as_dict(), number, at_ms / 1000)
        for labels, number, at_ms in zip(value.labels, value.values.tolist(), value.at_ms.tolist(), strict=True)
    ]


def evaluate_range(
    query: Query | str, store: SeriesStore, start: float, end: float, step: float
) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """The answer at every step from start to end (Unix seconds): labels and points of each series."""
    root = parse(query).root if isinstance(query, str) else query.root
    start_ms, end_ms, step_ms = to_ms(start), to_ms(end), to_ms(step)
    if step_ms <= 0 or end_ms < start_ms:
        raise BadExpressionError("a range query needs a step above zero and an end not before its start")
    found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    evaluator = InstantEvaluator(store, start_ms, start_ms, end_ms, step_ms, at_steps=_at_steps)
    for at_ms in range(start_ms, end_ms + 1, step_ms):
        value = evaluator.at_step(at_ms).evaluate(root)
        if isinstance(value, float):
            found.setdefault((), []).append((at_ms / 1000, value))
        elif isinstance(value, Vector):
            for labels, number in zip(value.labels, value.values.tolist(), strict=True):
                found.setdefault(labels.pairs, []).append((at_ms / 1000, number))
        else:
            raise BadExpressionError("a range query wants one value per series and step")
    return [(dict(pairs), points) for pairs, points in found.items()]


def evaluate_series(
    query: Query | str, store: SeriesStore, start: float, end: float, step: float
) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    """As `evaluate_range`, evaluated as arrays: much sooner for many steps."""
    from alerts.promql.grid import evaluate_grid  # numpy's larger half, that a controller without this needs not

    root = parse(query).root if isinstance(query, str) else query.root
    steps = np.arange(to_ms(start), to_ms(end) + 1, to_ms(step), dtype=np.int64)
    grid = evaluate_grid(root, store, steps, to_ms(step))
    found = []
    for labels, values, present in zip(grid.labels, grid.values, grid.present, strict=True):
        times = (steps[present] / 1000).tolist()
        if times:
            found.append((labels.as_dict(), list(zip(times, values[present].tolist(), strict=True))))
    return found


__all__ = ["Query", "evaluate", "evaluate_range", "evaluate_series", "evaluate_vector", "parse"]
