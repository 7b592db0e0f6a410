"""absent() and absent_over_time(): one sample of value 1 when nothing is there."""

from __future__ import annotations

from alerts.promql import nodes as n
from alerts.promql.signature import CallArgs, EvalContext
from alerts.promql.values import Vector, empty_vector, single
from alerts.sample import METRIC_NAME, LabelSet


def absent(context: EvalContext, args: CallArgs) -> Vector:
    if len(context.vector(args[0])):
        return empty_vector()
    return single(_labels_of(args[0]), 1.0, context.at_ms)


def absent_over_time(context: EvalContext, args: CallArgs) -> Vector:
    if len(context.matrix(args[0])):
        return empty_vector()
    return single(_labels_of(args[0]), 1.0, context.at_ms)


def _labels_of(node: n.Node) -> LabelSet:
    """Labels that the selector fixes by one equality; none for anything but a plain selector."""
    selector = node.selector if isinstance(node, n.RangeSelector) else node
    if not isinstance(selector, n.Selector) or len(selector.groups) != 1:
        return LabelSet.of({})
    labels: dict[str, str] = {}
    seen: set[str] = set()
    for matcher in selector.groups[0]:
        if matcher.name == METRIC_NAME:
            continue
        if matcher.op == "=" and matcher.name not in seen:
            labels[matcher.name] = matcher.value
            seen.add(matcher.name)
        else:
            labels.pop(matcher.name, None)
    return LabelSet.of(labels)
