"""An alert as a whole: does it wait long enough, is it worth a page, do its texts name labels that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from alerts.evaluation.rules import AlertingRule, Rule
from alerts.labels import METRIC_NAME
from alerts.promql.nodes import Aggregate, Binary, Call, Node, Number, RangeSelector, Selector, Subquery, children
from alerts.review.finding import Problem

_LONG_WINDOW_MS = 5 * 60 * 1000
_PAGING = frozenset({"page", "critical"})
_LABEL_IN_TEXT = re.compile(r"(?:\$labels|\.Labels)\.(\w+)")
_COMPARISONS = (">", "<", ">=", "<=", "==", "!=")


def rule_problems(rule: Rule) -> Iterator[Problem]:
    """Of an alerting rule as a whole; a recording rule has none."""
    if not isinstance(rule, AlertingRule):
        return
    root = rule.query.root
    if rule.for_s == 0 and rule.keep_firing_for_s == 0 and not _holds_by_itself(root):
        yield Problem(
            "warning",
            "no-for",
            "fires on a single evaluation: one bad scrape is a page",
            "add `for:`, as long as the condition must hold before someone acts",
            is_about_expression=False,
        )
    if isinstance(root, Binary) and root.returns_bool:
        yield Problem(
            "error",
            "always-true",
            "`bool` gives 0 or 1 for every series, and an alert fires on any value",
            "leave `bool` out",
        )
    severity = next((template.text for name, template in rule.labels if name == "severity"), "")
    if severity in _PAGING:
        yield from _not_worth_a_page(root)
    yield from _texts(rule)


def _holds_by_itself(root: Node) -> bool:
    """The condition cannot be one odd sample: an age, a flag that stays, an event in a long window."""
    if not isinstance(root, Binary):
        return isinstance(root, Call) and root.function == "absent_over_time"
    if root.op == "or":
        return _holds_by_itself(root.lhs) and _holds_by_itself(root.rhs)
    if root.op in ("and", "unless"):
        return _holds_by_itself(root.lhs) or _holds_by_itself(root.rhs)
    if root.op not in _COMPARISONS:
        return False
    if _is_age(root.lhs) or _longest_window_ms(root.lhs) >= _LONG_WINDOW_MS:
        return True
    if isinstance(root.lhs, Selector) and isinstance(root.rhs, Number) and not _reads(root.lhs, "up"):
        return (root.op, root.rhs.value) in ((">", 0.0), ("==", 1.0), ("!=", 0.0), (">=", 1.0))
    return False


def _is_age(node: Node) -> bool:
    return isinstance(node, Binary) and node.op == "-" and isinstance(node.lhs, Call) and node.lhs.function == "time"


def _longest_window_ms(node: Node) -> int:
    own = node.range_ms if isinstance(node, RangeSelector | Subquery) else 0
    return max([own, *(_longest_window_ms(child) for child in children(node))])


def _reads(selector: Selector, *names: str) -> bool:
    return any(m.name == METRIC_NAME and m.op == "=" and m.value in names for group in selector.groups for m in group)


_KV = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "trtllm_kv_cache_utilization",
    "llm:kv_ratio",
)
_UTIL = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", "nv_gpu_utilization", "llm:gpu_utilization_ratio")


def _not_worth_a_page(root: Node) -> Iterator[Problem]:
    if not isinstance(root, Binary) or root.op not in (">", ">="):
        return
    selectors = list(_selectors(root.lhs))
    if selectors and all(_reads(selector, *_UTIL) for selector in selectors):
        yield Problem(
            "warning",
            "busy-is-healthy",
            "pages for a busy GPU: a healthy serving GPU is near full utilization",
            "page for what users feel, such as time to first token",
        )
    if selectors and all(_reads(selector, *_KV) for selector in selectors):
        yield Problem(
            "warning",
            "full-is-normal",
            "pages for a full KV cache alone, which is normal under load",
            "add `and` requests that wait for capacity, or preemptions",
        )


def _selectors(node: Node) -> Iterator[Selector]:
    if isinstance(node, Selector):
        yield node
    for child in children(node):
        yield from _selectors(child)


def output_labels(node: Node) -> tuple[str, ...] | None:
    """The only labels the result can have; None when that depends on the series."""
    match node:
        case Aggregate(without=False, op=op, labels=labels) if op not in ("topk", "bottomk", "count_values"):
            return labels
        case Binary(op=op, matching=matching, lhs=lhs, rhs=rhs):
            if matching is None:
                return output_labels(rhs if isinstance(lhs, Number) else lhs)
            if op in ("and", "unless"):
                return output_labels(lhs)
            if op == "or":
                left, right = output_labels(lhs), output_labels(rhs)
                return None if left is None or right is None else tuple({*left, *right})
            if matching.many == "none" and matching.on:
                return matching.labels
            if matching.many == "right":
                lhs = rhs
            base = output_labels(lhs)
            return None if base is None else (*base, *matching.include)
        case Call(function=function, args=args) if function.startswith("histogram_"):
            inner = output_labels(args[-1])
            return None if inner is None else tuple(label for label in inner if label != "le")
        case Call(function=function, args=(only,)) if function not in (
            "absent",
            "vector",
            "scalar",
            "absent_over_time",
        ):
            return output_labels(only)
        case _:
            return None


def _texts(rule: AlertingRule) -> Iterator[Problem]:
    labels = output_labels(rule.query.root)
    if labels is None:
        return
    known = {*labels, *(name for name, _ in rule.labels), "alertname"}
    used = {name for _, template in (*rule.annotations, *rule.labels) for name in _LABEL_IN_TEXT.findall(template.text)}
    for name in sorted(used - known):
        yield Problem(
            "warning",
            "lost-label",
            f"the texts name $labels.{name}, which is aggregated away: it is empty",
            f"add {name} to `by (...)`",
            is_about_expression=False,
        )
