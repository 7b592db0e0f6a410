"""The shape of an expression against the units in it: thresholds out of reach, quantiles that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from alerts.evaluation.rules import Rule
from alerts.promql.nodes import (
    Aggregate,
    Binary,
    Call,
    Negate,
    Node,
    Number,
    RangeSelector,
    Selector,
    Subquery,
    children,
)
from alerts.review.catalog import Catalog
from alerts.review.finding import Problem
from alerts.review.lint_metrics import metric_of
from alerts.review.lint_rule import output_labels

_KEEPS_UNIT = frozenset({"max", "min", "avg", "quantile", "topk", "bottomk"})
_MORE_THAN_FULL = 1.5  # a ratio compared with more than this was meant as percent
_LONG_S = 1000.0  # no latency threshold is longer: it was meant as milliseconds
_COMPARISONS = (">", "<", ">=", "<=", "==", "!=")
_TAIL = 0.9
_SENTINEL = 1e15


def shape_problems(rule: Rule, catalog: Catalog) -> Iterator[Problem]:
    """Of the rule's expression and all that is in it."""
    yield from _walk(rule.query.root, catalog)


def _walk(node: Node, catalog: Catalog) -> Iterator[Problem]:
    match node:
        case Binary():
            yield from _binary(node, catalog)
        case Call(function="histogram_quantile"):
            yield from _quantile(node, catalog)
        case Aggregate():
            yield from _aggregate(node, catalog)
        case _:
            pass
    for child in children(node):
        yield from _walk(child, catalog)


def unit_of(node: Node, catalog: Catalog) -> str:
    """The unit of the values, "" when there is none or it cannot be told."""
    match node:
        case Selector():
            metric = metric_of(node, catalog)
            return metric.unit if metric is not None and not metric.is_counter and metric.part == "value" else ""
        case RangeSelector(selector=selector):
            return unit_of(selector, catalog)
        case Subquery(expr=expr) | Negate(expr=expr):
            return unit_of(expr, catalog)
        case Aggregate(op=op, expr=expr):
            return unit_of(expr, catalog) if op in _KEEPS_UNIT else ""
        case Call(function="histogram_quantile", args=args):
            buckets = [metric_of(s, catalog) for s in _selectors(args[-1])]
            return next((metric.unit for metric in buckets if metric is not None), "")
        case Call(function=function, args=args) if args:
            keeps = function.endswith("_over_time") and function not in ("count_over_time", "sum_over_time")
            keeps = keeps or function in (
                "clamp",
                "clamp_min",
                "clamp_max",
                "abs",
                "round",
                "ceil",
                "floor",
                "label_replace",
            )
            inner = args[-1] if function == "quantile_over_time" else args[0]
            return unit_of(inner, catalog) if keeps else ""
        case Binary():
            return _unit_of_binary(node, catalog)
        case _:
            return ""


_SCALED = {
    ("ratio", "*", 100.0): "percent",
    ("percent", "/", 100.0): "ratio",
    ("seconds", "*", 1000.0): "milliseconds",
    ("milliseconds", "/", 1000.0): "seconds",
}


def _unit_of_binary(node: Binary, catalog: Catalog) -> str:
    left, right = unit_of(node.lhs, catalog), unit_of(node.rhs, catalog)
    if node.op in ("and", "or", "unless") or node.op in _COMPARISONS:
        return left
    if isinstance(node.rhs, Number) and node.op in ("*", "/"):
        return _SCALED.get((left, node.op, node.rhs.value), "")
    if isinstance(node.lhs, Number) and node.op == "*":
        return _SCALED.get((right, "*", node.lhs.value), "")
    if node.op == "/":
        return _mean_unit(node, catalog)
    return left if node.op in ("+", "-") and left == right else ""


def _mean_unit(node: Binary, catalog: Catalog) -> str:
    """rate(x_sum) / rate(x_count) has x's unit; for any other quotient of counters it cannot be told."""
    tops = [metric_of(s, catalog) for s in _selectors(node.lhs)]
    bottoms = [metric_of(s, catalog) for s in _selectors(node.rhs)]
    top = tops[0] if len(tops) == 1 else None
    if top is None or top.part != "sum":
        return ""
    has_count = any(below is not None and below.family == top.family and below.part == "count" for below in bottoms)
    return top.unit if has_count else ""


def _binary(node: Binary, catalog: Catalog) -> Iterator[Problem]:
    if node.op in _COMPARISONS and isinstance(node.rhs, Number):
        yield from _threshold(node.lhs, node.op, node.rhs.value, catalog)
    if node.matching is not None and node.matching.on:
        for side, other in (("left", node.lhs), ("right", node.rhs)):
            labels = output_labels(other)
            missing = [] if labels is None else [name for name in node.matching.labels if name not in labels]
            if missing:
                yield Problem(
                    "error",
                    "aggregated-away",
                    f"matches on {', '.join(missing)}, which the {side} side has aggregated away",
                    f"add {', '.join(missing)} to its `by (...)`",
                )
    if node.op == "/":
        yield from _lifetime_mean(node, catalog)


def _lifetime_mean(node: Binary, catalog: Catalog) -> Iterator[Problem]:
    def bare(side: Node) -> Selector | None:
        while isinstance(side, Aggregate):
            side = side.expr
        return side if isinstance(side, Selector) else None

    top, bottom = bare(node.lhs), bare(node.rhs)
    if top is None or bottom is None:
        return
    above, below = metric_of(top, catalog), metric_of(bottom, catalog)
    if above is not None and below is not None and above.is_counter and below.is_counter:
        yield Problem(
            "error",
            "lifetime-mean",
            f"{above.family}: a ratio of counters is the mean since the process started, in which a bad hour drowns",
            "divide rate() by rate()",
        )


def _threshold(lhs: Node, op: str, limit: float, catalog: Catalog) -> Iterator[Problem]:
    unit = unit_of(lhs, catalog)
    if limit >= _SENTINEL:
        return  # `< 1e18` sorts out an exporter's "no value"
    never = "can never be true" if op in (">", ">=", "==") else "is always true"
    if unit == "ratio" and limit > _MORE_THAN_FULL:
        yield Problem(
            "error",
            "ratio-as-percent",
            f"a ratio (0 to 1) compared with {limit:g} {never}",
            f"compare with {limit / 100:g}",
        )
    elif unit == "percent" and 0 < limit <= 1:
        yield Problem(
            "error",
            "percent-as-ratio",
            f"percent (0 to 100) compared with {limit:g}: true at almost any load",
            f"compare with {limit * 100:g}",
        )
    elif unit == "seconds" and limit >= _LONG_S and op in (">", ">="):
        yield Problem(
            "error",
            "seconds-as-milliseconds",
            f"seconds compared with {limit:g}: that is {limit / 60:.0f} minutes",
            f"compare with {limit / 1000:g}",
        )
    elif unit in ("milliseconds", "microseconds") and 0 < limit < 30:
        yield Problem(
            "warning",
            "milliseconds-as-seconds",
            f"{unit} compared with {limit:g}: true for every request",
            f"compare with {limit * (1e3 if unit == 'milliseconds' else 1e6):g} if seconds were meant",
        )
    elif unit == "bits":
        yield Problem(
            "error",
            "bits-as-level",
            f"a mask of bits compared with {limit:g}: idle and power cap are bits too",
            "test one bit: `x % 128 >= 64` is hardware thermal slowdown",
        )
    elif unit == "mebibytes" and limit >= 1e8:
        yield Problem(
            "error", "mebibytes-as-bytes", f"MiB compared with {limit:g}", f"compare with {limit / 1048576:g}"
        )


def _quantile(node: Call, catalog: Catalog) -> Iterator[Problem]:
    q, inner = node.args[0], node.args[1]
    if isinstance(q, Number) and not 0 <= q.value <= 1:
        yield Problem("error", "quantile-range", f"quantile {q.value:g} is outside 0 to 1", f"use {q.value / 100:g}")
    labels = output_labels(inner)
    if labels is not None and "le" not in labels:
        yield Problem(
            "error",
            "no-le",
            "histogram_quantile() of a sum without `le`: there is no histogram left",
            "add le to `by (...)`",
        )
    elif not _aggregates(inner):
        yield Problem(
            "warning",
            "quantile-per-series",
            "one quantile for each series: every replica and rank fires by itself",
            "use histogram_quantile(q, sum by (le, ...) (rate(x_bucket[5m])))",
        )
    if isinstance(inner, Aggregate) and inner.without and "le" in inner.labels:
        yield Problem("error", "no-le", "histogram_quantile() of a sum `without (le)`", "keep le")
    if isinstance(inner, Aggregate) and inner.op != "sum":
        yield Problem(
            "warning", "quantile-of-averages", f"the {inner.op} of buckets is no histogram", "use sum by (le, ...)"
        )
    for selector in _selectors(inner):
        metric = metric_of(selector, catalog)
        if metric is not None and metric.part not in ("bucket", "rated_bucket"):
            yield Problem(
                "error",
                "no-le",
                f"histogram_quantile() of {metric.family}, which is no series of buckets",
                "read the series that ends in _bucket",
            )


def _aggregate(node: Aggregate, catalog: Catalog) -> Iterator[Problem]:
    inner = node.expr
    if node.op == "avg" and isinstance(inner, Call) and inner.function == "histogram_quantile":
        yield Problem(
            "warning",
            "quantile-of-averages",
            "an average of quantiles is no quantile of anything",
            "sum the buckets first: histogram_quantile(q, sum by (le) (rate(x_bucket[5m])))",
        )
    is_tail = node.op == "quantile" and isinstance(node.param, Number) and node.param.value >= _TAIL
    if is_tail and isinstance(inner, Binary) and _mean_unit(inner, catalog):
        yield Problem(
            "warning",
            "quantile-of-averages",
            "a high quantile of means hides the slow requests in each mean",
            "use histogram_quantile() of the buckets",
        )


def _aggregates(node: Node) -> bool:
    return isinstance(node, Aggregate) or any(_aggregates(child) for child in children(node))


def _selectors(node: Node) -> Iterator[Selector]:
    if isinstance(node, Selector):
        yield node
    for child in children(node):
        yield from _selectors(child)
