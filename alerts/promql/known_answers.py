"""What is known already of the parts of an expression: the reads that several queries of one look have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from alerts.promql import nodes as n

if TYPE_CHECKING:
    from alerts.promql.values import Value


class KnownAnswers(Protocol):
    """Asked by the evaluator before it evaluates a part, and told after."""

    def shared_expr_of(self, node: n.Node) -> Any:
        """What the part is known by; None: it is not kept."""

    def cached(self, part: Any, at_ms: int, start_ms: int) -> Value | None:
        """Its result at this evaluation time, None when there is none."""

    def store_result(self, part: Any, at_ms: int, start_ms: int, value: Value) -> None:
        """Remembers a result."""


class Reads:
    """Each selector, and each function over a window, is read once for all queries that are asked of one store.

    Good for one look: who asks again later takes another one. Windows themselves are not kept: half an hour of a
    thousand nodes is 2 MB of points, what a function makes of it is one value for each series.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[n.Node, int, int], Value] = {}

    def shared_expr_of(self, node: n.Node) -> n.Node | None:
        """By what it says, for each query is parsed on its own."""
        match node:
            case n.Selector():
                return node
            case n.Call(args=(*_, n.RangeSelector() | n.Subquery())):
                return node
            case _:
                return None

    def cached(self, part: n.Node, at_ms: int, start_ms: int) -> Value | None:
        """None when nobody has read it at this time."""
        return self._known.get((part, at_ms, start_ms))

    def store_result(self, part: n.Node, at_ms: int, start_ms: int, value: Value) -> None:
        """Until the look is over."""
        self._known[part, at_ms, start_ms] = value
