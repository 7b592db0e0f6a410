"""Metrics in expressions: names that nobody emits, counters read raw, rates of gauges, labels that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

from alerts.labels import METRIC_NAME
from alerts.matcher import Matcher, compile_go
from alerts.native_name import native_name, spellings
from alerts.promql.nodes import Binary, Call, Node, Number, RangeSelector, Selector, children
from alerts.review.catalog import Catalog, Metric, Missing
from alerts.review.finding import Problem

_OF_COUNTERS = frozenset({"rate", "increase", "irate"})
_OF_CHANGE = _OF_COUNTERS | {"delta", "idelta", "deriv", "changes", "resets", "predict_linear"}
_OF_PRESENCE = frozenset({"absent", "absent_over_time", "timestamp", "present_over_time", "count_over_time"})


def name_matcher(selector: Selector) -> Matcher | None:
    """The selector's matcher for the metric name, None without one."""
    return next((matcher for group in selector.groups for matcher in group if matcher.name == METRIC_NAME), None)


def metric_of(selector: Selector, catalog: Catalog) -> Metric | None:
    """What the selector reads, as far as the catalogue knows it and it still exists."""
    matcher = name_matcher(selector)
    if matcher is None:
        return None
    if matcher.op == "=":
        found = catalog.find(matcher.value)
        return found if isinstance(found, Metric) else None
    if matcher.op == "=~":
        for name in catalog.matching(compile_go(matcher.value)):
            found = catalog.find(name)
            if isinstance(found, Metric):
                return found
    return None


def metric_problems(root: Node, catalog: Catalog, recorded: set[str], *, is_alert: bool) -> Iterator[Problem]:
    """`recorded`: names that rules under review write themselves."""
    yield from _names(root, catalog, recorded, in_or=False, is_alert=is_alert)
    yield from _raw_counters(root, catalog, is_safe=False)
    yield from _calls(root, catalog)


def dead_metrics(node: Node, catalog: Catalog, recorded: set[str]) -> Iterator[Problem]:
    """Names with an engine's prefix that no version of it emits."""
    if isinstance(node, Selector):
        matcher = name_matcher(node)
        if matcher is not None and matcher.op == "=" and matcher.value not in recorded:
            found = catalog.find(matcher.value)
            if isinstance(found, Missing):
                yield Problem(
                    "error",
                    "dead-metric",
                    f"{matcher.value}: no {found.program} ({found.versions}) emits this, so the rule can never be true",
                    f"did you mean {found.closest}?" if found.closest else "look the name up: fleetctl alerts coverage",
                )
    for child in children(node):
        yield from dead_metrics(child, catalog, recorded)


def _names(node: Node, catalog: Catalog, recorded: set[str], *, in_or: bool, is_alert: bool) -> Iterator[Problem]:
    """A name that is gone is fine as one alternative of several (`new or old`): then it serves older versions."""
    if isinstance(node, Selector):
        yield from _selected(node, catalog, recorded, in_or=in_or, is_alert=is_alert)
    for child in children(node):
        below = in_or or (isinstance(node, Binary) and node.op == "or")
        yield from _names(child, catalog, recorded, in_or=below, is_alert=is_alert)


def _selected(
    selector: Selector, catalog: Catalog, recorded: set[str], *, in_or: bool, is_alert: bool
) -> Iterator[Problem]:
    matcher = name_matcher(selector)
    if matcher is None or matcher.op not in ("=", "=~") or matcher.value in recorded:
        return
    if matcher.op == "=~":
        return
    found = catalog.find(matcher.value)
    if not isinstance(found, Metric):
        return
    if found.removed_in and not in_or:
        remedy = f"use {found.instead}" if found.instead else "there is no successor"
        yield Problem("error", "removed-metric", f"{matcher.value}: gone since {found.removed_in}", remedy)
    if found.is_escaped:
        plain = native_name(matcher.value)
        yield Problem(
            "warning",
            "escaped-name",
            f"{matcher.value}: the engine says {plain}; only some scrapers, and Ray Serve, spell it otherwise",
            f'use {plain}, or {{__name__=~"{spellings(plain)}"}} for all',
        )
    if found.is_off_by_default and is_alert:
        yield Problem(
            "warning",
            "off-by-default",
            f"{matcher.value}: not in the exporter's default counter file, so the rule is silent until it is added",
            "add the field to the counter file",
        )
    yield from _labels(selector, found, catalog)


def _labels(selector: Selector, metric: Metric, catalog: Catalog) -> Iterator[Problem]:
    matchers = [matcher for group in selector.groups for matcher in group]
    matcher = name_matcher(selector)
    assert matcher is not None
    wrong = catalog.labels.get(matcher.value, {})
    for each in matchers:
        if each.name in wrong:
            yield Problem(
                "error", "wrong-label", f"{matcher.value} has no label {each.name}", f"the label is {wrong[each.name]}"
            )
        if metric.family.startswith("DCGM_") and each.name in ("Hostname", "hostname"):
            yield Problem(
                "warning",
                "renamed-label",
                f"label {each.name}: dcgm-exporter renamed Hostname to hostname, each version has only one",
                "use instance or a label of the target",
            )


def _raw_counters(node: Node, catalog: Catalog, *, is_safe: bool) -> Iterator[Problem]:
    """Counters whose value since the start of the process is used as if it were a level."""
    if isinstance(node, RangeSelector):
        return  # what is done with a window is judged by the function around it
    if isinstance(node, Selector):
        yield from [] if is_safe else _raw(node, catalog)
        return
    if isinstance(node, Call) and node.function in _OF_PRESENCE:
        return
    if isinstance(node, Binary):
        # The right side of and/unless only has to be there. `> 0` on a counter of errors asks "ever", which is meant.
        yield from _raw_counters(node.lhs, catalog, is_safe=is_safe or _asks_ever(node))
        if node.op not in ("and", "unless"):
            yield from _raw_counters(node.rhs, catalog, is_safe=is_safe)
        return
    if getattr(node, "op", None) in ("count", "group"):
        return
    for child in children(node):
        yield from _raw_counters(child, catalog, is_safe=is_safe)


def _asks_ever(node: Binary) -> bool:
    return node.op in (">", "!=") and isinstance(node.rhs, Number) and node.rhs.value == 0


def _raw(selector: Selector, catalog: Catalog) -> Iterator[Problem]:
    matcher = name_matcher(selector)
    metric = metric_of(selector, catalog)
    name = matcher.value if matcher is not None else ""
    if metric is None:
        if matcher is not None and matcher.op == "=" and name.endswith("_total"):
            yield Problem("warning", "raw-counter", _RAW.format(name=name), f"use rate({name}[5m]) or increase()")
        return
    if metric.is_counter and metric.type != "summary":
        part = {"sum": " and its _count", "count": "", "bucket": ""}.get(metric.part, "")
        yield Problem(
            "error",
            "raw-counter",
            _RAW.format(name=name),
            f"use rate({name}[5m]){part and ' over the rate of its _count'}",
        )


_RAW = "{name} is a counter: its value since the process started says nothing about now"


def _calls(node: Node, catalog: Catalog) -> Iterator[Problem]:
    if isinstance(node, Call) and node.function in _OF_CHANGE and node.args:
        window = node.args[0]
        if isinstance(window, RangeSelector):
            yield from _windowed(node.function, window.selector, catalog)
    if isinstance(node, Binary) and isinstance(node.lhs, Selector) and isinstance(node.rhs, Number):
        metric = metric_of(node.lhs, catalog)
        if metric is not None and metric.type == "last_code":
            yield Problem(
                "error",
                "xid-level",
                f"{metric.family} keeps the code of the last XID for ever, so this fires until the exporter restarts",
                "use DCGM_EXP_XID_ERRORS_COUNT, or the codes that ask for action after a change (signals/dcgm.yaml)",
            )
    for child in children(node):
        yield from _calls(child, catalog)


def _windowed(function: str, selector: Selector, catalog: Catalog) -> Iterator[Problem]:
    metric = metric_of(selector, catalog)
    if metric is None:
        return
    matcher = name_matcher(selector)
    name = matcher.value if matcher is not None else metric.family
    if metric.type == "last_code" and function != "changes":
        yield Problem(
            "error",
            "xid-change",
            f"{function}({name}) takes the last XID's code for a count: 13 to 31 counts 18, 79 twice nothing",
            "use DCGM_EXP_XID_ERRORS_COUNT, or changes() with the code",
        )
    elif metric.type == "gauge" and function in _OF_COUNTERS:
        yield Problem(
            "error",
            "rate-of-gauge",
            f"{function}({name}): this is a gauge, and every fall is taken for a restart",
            "use delta(), deriv() or avg_over_time()",
        )
    elif metric.is_counter and function in ("delta", "idelta", "deriv"):
        yield Problem(
            "warning",
            "delta-of-counter",
            f"{function}({name}): this is a counter, and a restart makes it fall",
            "use increase() or rate()",
        )
