"""What a function is given: the moment of evaluation, which can evaluate its arguments, and the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from alerts.promql.nodes import Node
from alerts.promql.values import Matrix, Value, Vector


class EvalContext(Protocol):
    """The part of evaluator.InstantEvaluator that functions use."""

    @property
    def at_ms(self) -> int: ...
    @property
    def start_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...
    @property
    def step_ms(self) -> int: ...

    def evaluate(self, node: Node) -> Value: ...
    def vector(self, node: Node) -> Vector: ...
    def matrix(self, node: Node) -> Matrix: ...
    def scalar(self, node: Node) -> float: ...


CallArgs = tuple[Node, ...]
Function = Callable[[EvalContext, CallArgs], Value]
