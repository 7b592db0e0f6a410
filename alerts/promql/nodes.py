"""An expression as plain nodes: decided once when a rule is loaded, walked at every evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher

AtTime = int | Literal["start", "end"] | None
"""The @ modifier: Unix milliseconds, start() or end() of the query, None without one."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number literal."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """`groups` are alternatives (`{a="1" or b="2"}`); usually one."""

    groups: tuple[tuple[Matcher, ...], ...]
    offset_ms: int
    at: AtTime


@dataclass(frozen=True, slots=True)
class RangeSelector:
    """A selector with a window: `x[5m]`."""

    selector: Selector
    range_ms: int


@dataclass(frozen=True, slots=True)
class Subquery:
    """An expression evaluated at steps of a window: `x[5m:30s]`."""

    expr: Node
    range_ms: int
    step_ms: int | None  # None: the evaluation interval
    offset_ms: int
    at: AtTime


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its unevaluated arguments."""

    function: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Negate:
    """Unary minus."""

    expr: Node


@dataclass(frozen=True, slots=True)
class Aggregate:
    """An aggregation by, or without, `labels`; `param`: k of topk, q of quantile, label of count_values."""

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
    """A binary operator, comparisons and set operators included."""

    op: str
    lhs: Node
    rhs: Node
    returns_bool: bool
    matching: Matching | None  # None when a side is a scalar
    may_skip_rhs: bool = False  # without samples on the left nothing is lost by not evaluating the right


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


def selectors_of(node: Node) -> Iterator[Selector]:
    """The selectors of the expression, those of its windows too."""
    if isinstance(node, Selector):
        yield node
    for child in children(node):
        yield from selectors_of(child)


# Of the moment at which they are asked, whatever they are asked about.
_ASK_THE_TIME = frozenset({"time", "predict_linear"})


def is_fixed_in_time(node: Node) -> bool:
    """Whether the value is the same at each step of a query: all its selectors are pinned by `@`, and there is one."""
    return _is_pinned(node) and not isinstance(node, RangeSelector | Subquery) and any(selectors_of(node))


def _is_pinned(node: Node) -> bool:
    match node:
        case Selector(at=at) | Subquery(at=at):
            return at is not None
        case Call(function=function, args=args) if function in _ASK_THE_TIME or not args:
            return False
        case _:
            return all(_is_pinned(child) for child in children(node))


def windows_up_to_now(node: Node) -> Iterator[int]:
    """Lengths (ms) of the windows that end at the evaluation timestamp: without offset or fixed time."""
    match node:
        case RangeSelector(selector=Selector(offset_ms=0, at=None), range_ms=range_ms):
            yield range_ms
        case Subquery(expr=expr, range_ms=range_ms, offset_ms=0, at=None):
            yield range_ms
            yield from windows_up_to_now(expr)
        case Subquery() | RangeSelector():
            pass
        case _:
            for child in children(node):
                yield from windows_up_to_now(child)


def metric_names(node: Node) -> set[str]:
    """Names that the expression's selectors read; "" for a selector without one exact name."""
    if isinstance(node, Selector):
        return {next((m.value for m in group if m.name == METRIC_NAME and m.op == "="), "") for group in node.groups}
    return {name for child in children(node) for name in metric_names(child)}


def lookback_ms_by_metric(node: Node, back_ms: int = 0) -> dict[str, int]:
    """How far before the evaluation timestamp each metric (by name, "" for no exact one) is read, without lookback.

    A fixed time (@) is not counted: no retention can promise it.
    """
    match node:
        case Selector(offset_ms=offset_ms):
            return dict.fromkeys(metric_names(node), back_ms + max(0, offset_ms))
        case RangeSelector(selector=selector, range_ms=range_ms):
            return lookback_ms_by_metric(selector, back_ms + range_ms)
        case Subquery(expr=expr, range_ms=range_ms, offset_ms=offset_ms):
            return lookback_ms_by_metric(expr, back_ms + range_ms + max(0, offset_ms))
        case _:
            found: dict[str, int] = {}
            for child in children(node):
                for name, reach_ms in lookback_ms_by_metric(child, back_ms).items():
                    found[name] = max(reach_ms, found.get(name, 0))
            return found


def fixed_reach_ms(node: Node) -> int:
    """How far before its fixed times (@) the expression reads, without lookback; 0: it has none."""
    match node:
        case Selector(at=int(), offset_ms=offset_ms) | RangeSelector(selector=Selector(at=int(), offset_ms=offset_ms)):
            return max(0, offset_ms) + (node.range_ms if isinstance(node, RangeSelector) else 0)
        case Subquery(expr=expr, at=int(), range_ms=range_ms, offset_ms=offset_ms):
            inner_ms = max(lookback_ms_by_metric(expr).values(), default=0)
            return max(inner_ms + range_ms + max(0, offset_ms), fixed_reach_ms(expr))
        case _:
            return max((fixed_reach_ms(child) for child in children(node)), default=0)


# Functions that give a sample although no series is there; the date functions do without an argument.
_OUT_OF_NOTHING = frozenset({"absent", "absent_over_time", "scalar", "vector"})


def is_empty_without_series(node: Node) -> bool:
    """True when the expression gives no sample whenever its selectors find no series. False when that is not sure."""
    match node:
        case Selector() | RangeSelector():
            return True
        case Subquery(expr=expr) | Negate(expr=expr):
            return is_empty_without_series(expr)
        case Aggregate(expr=expr, param=param):
            return is_empty_without_series(expr) and (param is None or isinstance(param, Number | Text))
        case Call(function=function, args=args):
            return function not in _OUT_OF_NOTHING and any(is_empty_without_series(arg) for arg in args)
        case Binary(op=op, lhs=lhs, rhs=rhs):
            sides = is_empty_without_series(lhs), is_empty_without_series(rhs)
            return {"or": all(sides), "unless": sides[0]}.get(op, any(sides))
        case _:
            return False
