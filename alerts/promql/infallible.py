"""Which expressions always have an answer, whatever the data: those need not be evaluated where it is not asked for.

An alert such as `a > 1 and b` mostly has nothing on its left. Its right side is skipped then, but only one that could
not have failed: whether a rule fails must not depend on today's values.
"""

from __future__ import annotations

from alerts.labels import METRIC_NAME
from alerts.promql import nodes as n
from alerts.promql.functions_math import PLAIN

_SET_OPS = frozenset({"and", "or", "unless"})
_AGGREGATIONS = frozenset({"sum", "avg", "count", "group", "max", "min", "stdvar", "stddev", "quantile"})
_FUNCTIONS = frozenset(
    {
        *PLAIN,
        "round",
        "clamp_min",
        "clamp_max",
        "time",
        "rate",
        "increase",
        "delta",
        "irate",
        "idelta",
        "deriv",
        "resets",
        "changes",
        *(
            f"{name}_over_time"
            for name in ("avg", "min", "max", "sum", "count", "last", "present", "quantile", "stddev")
        ),
    }
)


def is_infallible(node: n.Node) -> bool:
    """True when the expression can never fail. Its series then differ by more than the metric's name."""
    match node:
        case n.Number() | n.Text():
            return True
        case n.Selector(groups=groups):
            return len(groups) == 1 and any(matcher.name == METRIC_NAME and matcher.op == "=" for matcher in groups[0])
        case n.RangeSelector(selector=selector):
            return is_infallible(selector)
        case n.Negate(expr=expr):
            return is_infallible(expr)
        case n.Call(function=function, args=args):
            return function in _FUNCTIONS and all(map(is_infallible, args))
        case n.Aggregate(op=op, expr=expr, param=param, labels=labels, without=without):
            plain = op in _AGGREGATIONS and (param is None or isinstance(param, n.Number))
            return plain and (without or METRIC_NAME not in labels) and is_infallible(expr)
        case n.Binary(op=op, lhs=lhs, rhs=rhs, matching=matching):
            return _is_infallible_matching(op, matching) and is_infallible(lhs) and is_infallible(rhs)
        case _:
            return False


def _is_infallible_matching(op: str, matching: n.Matching | None) -> bool:
    """Sets always match; two sides of arithmetic or a comparison when each series has one partner at most."""
    if matching is None:
        return True
    if op in _SET_OPS:
        return METRIC_NAME not in matching.labels
    return not matching.on and not matching.labels and matching.many == "none"
