"""An expression as plain nodes: decided once when a rule is loaded, walked at every evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from alerts.matcher import Matcher
from alerts.sample import NAME

AtTime = int | Literal["start", "end"] | None
"""The @ modifier: Unix milliseconds, start() or end() of the query, None without one."""


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """`groups` are alternatives (`{a="1" or b="2"}`); usually one."""

    groups: tuple[tuple[Matcher, ...], ...]
    offset_ms: int
    at: AtTime


@dataclass(frozen=True, slots=True)
class RangeSelector:
    selector: Selector
    range_ms: int


@dataclass(frozen=True, slots=True)
class Subquery:
    expr: Node
    range_ms: int
    step_ms: int | None  # None: the evaluation interval
    offset_ms: int
    at: AtTime


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Negate:
    expr: Node


@dataclass(frozen=True, slots=True)
class Aggregate:
    op: str
    expr: Node
    param: Node | None
    without: bool
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    """How samples of two vectors find each other. `many`: the side that may have several of a group."""

    on: bool
    labels: tuple[str, ...]
    many: Literal["none", "left", "right", "both"]
    include: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    lhs: Node
    rhs: Node
    returns_bool: bool
    matching: Matching | None  # None when a side is a scalar


Node = Number | Text | Selector | RangeSelector | Subquery | Call | Negate | Aggregate | Binary


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    match node:
        case Number() | Text() | Selector():
            return ()
        case RangeSelector(selector=selector):
            return (selector,)
        case Subquery(expr=expr) | Negate(expr=expr):
            return (expr,)
        case Call(args=args):
            return args
        case Aggregate(expr=expr, param=param):
            return (expr,) if param is None else (param, expr)
        case Binary(lhs=lhs, rhs=rhs):
            return (lhs, rhs)


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` made to each node directly below; a range selector has none."""
    match node:
        case Number() | Text() | Selector() | RangeSelector():
            return node
        case Subquery(expr=expr) | Negate(expr=expr):
            return replace(node, expr=change(expr))
        case Call(args=args):
            return replace(node, args=tuple(change(arg) for arg in args))
        case Aggregate(expr=expr, param=param):
            return replace(node, expr=change(expr), param=None if param is None else change(param))
        case Binary(lhs=lhs, rhs=rhs):
            return replace(node, lhs=change(lhs), rhs=change(rhs))


def metric_names(node: Node) -> set[str]:
    """Names that the expression's selectors read; "" for a selector without one exact name."""
    if isinstance(node, Selector):
        return {next((m.value for m in group if m.name == NAME and m.op == "="), "") for group in node.groups}
    return {name for child in children(node) for name in metric_names(child)}
