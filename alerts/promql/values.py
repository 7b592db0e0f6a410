"""What an expression gives: a scalar, a vector (one value a series) or a matrix (a window a series).

And what a function is: from a context that evaluates, and unevaluated arguments, to such a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from alerts.arrays import Bools, Floats, Index, Times
from alerts.errors import QueryError
from alerts.labels import LabelSet
from alerts.promql.nodes import Node
from alerts.series.label_column import LabelColumn, as_column

SAME_LABELS = "vector cannot contain metrics with the same labelset"


@dataclass(frozen=True, slots=True)
class Vector:
    """Shapes: `labels`, `values`, `at_ms` have one entry a series; `at_ms` is when it was measured.

    That is the newest point of a window or of an aggregated group, and the older side of a binary operation.
    """

    labels: LabelColumn
    values: Floats
    at_ms: Times

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Index | Sequence[int]) -> Vector:
        """Those series, in that order."""
        picked = np.asarray(index, dtype=np.intp)
        return Vector(self.labels.take_rows(picked), self.values[picked], self.at_ms[picked])

    def where(self, keep: Bools) -> Vector:
        """The series where the mask is true."""
        if keep.all():
            return self
        return Vector(self.labels.where(keep), self.values[keep], self.at_ms[keep])

    def with_values(self, values: Floats) -> Vector:
        """New values under the labels without the metric's name, because they are no longer that metric."""
        return Vector(drop_names(self.labels), values, self.at_ms)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Windows of several series end to end: series i is [starts[i]:starts[i + 1]], never empty.

    `after_ms` and `until_ms` are the window's borders, the left one excluded.
    """

    labels: LabelColumn
    times: Times
    values: Floats
    starts: Index
    after_ms: int
    until_ms: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Index:
        """Points of each series."""
        return np.diff(self.starts)

    @property
    def firsts(self) -> Index:
        """Index of each series' first point."""
        return self.starts[:-1]

    @property
    def lasts(self) -> Index:
        """Index of each series' last point."""
        return self.starts[1:] - 1

    def windows(self) -> list[list[float]]:
        """The values of each series as a list."""
        values = self.values.tolist()
        return [values[low:high] for low, high in pairwise(self.starts.tolist())]

    def at_least(self, count: int) -> Matrix:
        """Only series with this many points."""
        if not len(self.labels):
            return self
        keep = self.counts >= count
        if keep.all():
            return self
        points = np.repeat(keep, self.counts)
        starts = np.concatenate(([0], np.cumsum(self.counts[keep])))
        return Matrix(
            self.labels.where(keep), self.times[points], self.values[points], starts, self.after_ms, self.until_ms
        )

    def to_vector(self, values: Floats, *, keep_name: bool = False) -> Vector:
        """One value a series, measured at the newest point of its window."""
        if not len(self.labels):
            return empty_vector()
        labels = self.labels if keep_name else drop_names(self.labels)
        return Vector(labels, values, self.times[self.lasts])


Value = float | str | Vector | Matrix


def drop_names(labels: LabelColumn) -> LabelColumn:
    """Labels without metric names. Raises QueryError when two series become the same."""
    dropped = labels.without_names()
    check_distinct(dropped)
    return dropped


def check_distinct(labels: Sequence[LabelSet]) -> None:
    """Raises QueryError when a label set appears twice."""
    if not as_column(labels).is_distinct:
        raise QueryError(SAME_LABELS)


_EMPTY = Vector(LabelColumn(), np.empty(0), np.empty(0, dtype=np.int64))


def empty_vector() -> Vector:
    """A vector without series."""
    return _EMPTY


def single(labels: LabelSet, value: float, at_ms: int) -> Vector:
    """A vector of one series."""
    return Vector(LabelColumn([labels]), np.array([value]), np.array([at_ms], dtype=np.int64))


class EvalContext(Protocol):
    """The part of evaluator.InstantEvaluator that functions use."""

    @property
    def at_ms(self) -> int:
        """The evaluation timestamp, Unix milliseconds."""

    @property
    def start_ms(self) -> int:
        """Of the range query; `at_ms` in an instant one."""

    @property
    def end_ms(self) -> int:
        """Of the range query; `at_ms` in an instant one."""

    @property
    def step_ms(self) -> int:
        """Of the range query; 0 in an instant one."""

    def evaluate(self, node: Node) -> Value:
        """Raises QueryError when the data does not allow the operation."""

    def vector(self, node: Node) -> Vector:
        """As `evaluate`, of an argument that is a vector."""

    def matrix(self, node: Node) -> Matrix:
        """As `evaluate`, of an argument that is a range vector."""

    def scalar(self, node: Node) -> float:
        """As `evaluate`, of an argument that is a scalar."""


CallArgs = tuple[Node, ...]
Function = Callable[[EvalContext, CallArgs], Value]
