"""The table of functions, name to what it does with its unevaluated arguments; absent() and absent_over_time()."""

from __future__ import annotations

from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql import nodes as n
from alerts.promql.functions_labels import LABEL_FUNCTIONS
from alerts.promql.functions_math import MATH_FUNCTIONS
from alerts.promql.functions_over_time import OVER_TIME_FUNCTIONS
from alerts.promql.functions_rate import RATE_FUNCTIONS
from alerts.promql.functions_time import TIME_FUNCTIONS
from alerts.promql.histogram import HISTOGRAM_FUNCTIONS
from alerts.promql.values import CallArgs, EvalContext, Function, Vector, empty_vector, single


def absent(context: EvalContext, args: CallArgs) -> Vector:
    """1 with the labels that the selector fixes when there is no sample, else nothing."""
    if len(context.vector(args[0])):
        return empty_vector()
    return single(_labels_of(args[0]), 1.0, context.at_ms)


def absent_over_time(context: EvalContext, args: CallArgs) -> Vector:
    """As absent(), of a window."""
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


FUNCTIONS: dict[str, Function] = {
    **RATE_FUNCTIONS,
    **OVER_TIME_FUNCTIONS,
    **MATH_FUNCTIONS,
    **TIME_FUNCTIONS,
    **LABEL_FUNCTIONS,
    **HISTOGRAM_FUNCTIONS,
    "absent": absent,
    "absent_over_time": absent_over_time,
}
