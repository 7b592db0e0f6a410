"""Rule files: Prometheus' YAML to checked rules, with errors that name file, group and rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from alerts.duration import parse_duration_s
from alerts.errors import AlertsError, BadRuleError
from alerts.evaluation.rule_shape import BadShapeError, read_group, read_groups, read_rule
from alerts.evaluation.template import Template, parse_template
from alerts.evaluation.yaml_file import read_yaml, shown_path
from alerts.promql import Query, parse
from alerts.promql.nodes import RangeSelector, Subquery, Text, lookback_ms_by_metric

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """Writes the result of `query` as the series `name`, with `labels` set."""

    name: str
    query: Query
    labels: tuple[tuple[str, str], ...]
    kind: Literal["record"] = "record"


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """Each series of the result of `query` is an alert instance; labels and annotations are templates."""

    name: str
    query: Query
    for_s: float
    keep_firing_for_s: float
    labels: tuple[tuple[str, Template], ...]
    annotations: tuple[tuple[str, Template], ...]
    kind: Literal["alert"] = "alert"


Rule = RecordingRule | AlertingRule


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated together, in order. `interval_s` None: the engine's own interval."""

    name: str
    file: str
    interval_s: float | None
    query_offset_s: float
    limit: int
    rules: tuple[Rule, ...]


def load_rule_files(paths: Iterable[Path]) -> list[RuleGroup]:
    """All groups of the files, in order. Raises BadRuleError naming file, group and rule."""
    return [group for path in paths for group in load_rule_file(path)]


def load_rule_file(path: Path) -> list[RuleGroup]:
    """The file's groups, in order. Raises BadRuleError."""
    file = shown_path(path)
    groups: list[RuleGroup] = []
    for number, raw in enumerate(raw_groups(read_yaml(path).content, file), 1):
        group = load_group(raw, number, file)
        if group.name in {other.name for other in groups}:
            raise BadRuleError(f"{file}: group {group.name}: a second group of this name")
        groups.append(group)
    return groups


def raw_groups(content: Any, file: str) -> list[Any]:
    """What stands under `groups` in a rule file, unchecked. Raises BadRuleError when it is no rule file."""
    if isinstance(content, dict) and "tests" in content:
        raise BadRuleError(f"{file}: unit tests, no rules: fleetctl alerts test {file}")
    if isinstance(content, dict) and content.get("kind") == "PrometheusRule":
        raise BadRuleError(f"{file}: a Kubernetes PrometheusRule: take what stands under its `spec` (`yq .spec`)")
    if content is not None and not (isinstance(content, dict) and "groups" in content):
        raise BadRuleError(f"{file}: no rule file: it has no list `groups`")
    try:
        return read_groups({} if content is None else content)
    except BadShapeError as error:
        raise BadRuleError(f"{file}: {error}") from None


def load_group(raw: Any, number: int, file: str) -> RuleGroup:
    """The group as YAML gives it, `number` counts from 1. Raises BadRuleError naming file, group and rule."""
    name = raw.get("name") if isinstance(raw, dict) else None
    where = f"{file}: group {name if isinstance(name, str) and name else number}"
    try:
        edge = read_group(raw)
    except BadShapeError as error:
        raise BadRuleError(f"{where}: {error}") from None
    labels = edge.labels or {}
    _check_label_names(labels, where)
    rules = []
    for count, one in enumerate(edge.rules or [], 1):
        called = (one.get("alert") or one.get("record")) if isinstance(one, dict) else None
        place = f"{where}, rule {count}" + (f" {called}" if isinstance(called, str) else "")
        rules.append(_rule(one, labels, place))
    interval_s = None if edge.interval is None else _duration_s(edge.interval, f"{where}: interval")
    return RuleGroup(
        name=edge.name,
        file=file,
        interval_s=interval_s or None,
        query_offset_s=_duration_s(edge.query_offset, f"{where}: query_offset"),
        limit=edge.limit,
        rules=tuple(rules),
    )


def _rule(raw: Any, group_labels: dict[str, str], where: str) -> Rule:
    try:
        edge = read_rule(raw)
    except BadShapeError as error:
        raise BadRuleError(f"{where}: {error}") from None
    if (edge.record is None) == (edge.alert is None):
        raise BadRuleError(f"{where}: needs one of record and alert")
    try:
        query = parse(edge.expr)
    except AlertsError as error:
        raise BadRuleError(f"{where}: {error}") from None
    if isinstance(query.root, RangeSelector | Subquery | Text):
        raise BadRuleError(f"{where}: the expression gives no single value per series")
    labels = {**group_labels, **(edge.labels or {})}
    _check_label_names(labels, where)
    if edge.record is not None:
        if not _METRIC_NAME.fullmatch(edge.record):
            raise BadRuleError(f"{where}: {edge.record!r} is not a metric name")
        if edge.for_ is not None or edge.keep_firing_for is not None or edge.annotations:
            raise BadRuleError(f"{where}: for, keep_firing_for and annotations belong to alerts only")
        return RecordingRule(edge.record, query, tuple(sorted(labels.items())))
    assert edge.alert is not None
    if not edge.alert.strip():
        raise BadRuleError(f"{where}: alert needs a name")
    annotations = edge.annotations or {}
    _check_label_names(annotations, where)
    return AlertingRule(
        name=edge.alert,
        query=query,
        for_s=_duration_s(edge.for_, f"{where}: for"),
        keep_firing_for_s=_duration_s(edge.keep_firing_for, f"{where}: keep_firing_for"),
        labels=_templates(labels, f"{where}: label"),
        annotations=_templates(annotations, f"{where}: annotation"),
    )


def load_rule(raw: Any, group_labels: Mapping[str, str]) -> Rule:
    """One rule as YAML gives it. Raises BadRuleError with the reason alone: the caller knows the place."""
    try:
        return _rule(raw, dict(group_labels), "rule")
    except BadRuleError as error:
        raise BadRuleError(str(error).removeprefix("rule: ")) from None


def _templates(texts: dict[str, str], where: str) -> tuple[tuple[str, Template], ...]:
    found = []
    for name, text in sorted(texts.items()):
        try:
            found.append((name, parse_template(text)))
        except AlertsError as error:
            raise BadRuleError(f"{where} {name}: {error}") from None
    return tuple(found)


def _check_label_names(labels: Iterable[str], where: str) -> None:
    for name in labels:
        if not _LABEL_NAME.fullmatch(name) or name == "__name__":
            raise BadRuleError(f"{where}: {name!r} is not a label name")


def _duration_s(text: str | None, where: str) -> float:
    """Seconds; 0 where nothing is written."""
    if text is None:
        return 0.0
    try:
        return parse_duration_s(text)
    except AlertsError as error:
        raise BadRuleError(f"{where}: {error}") from None


def lookback_s_by_metric(groups: Iterable[RuleGroup]) -> dict[str, float]:
    """How many seconds back the rules read each metric, by name; "" for selectors without an exact name."""
    found: dict[str, float] = {}
    for group in groups:
        for rule in group.rules:
            for name, reach_ms in lookback_ms_by_metric(rule.query.root).items():
                reach_s = reach_ms / 1000 + max(0.0, group.query_offset_s)
                found[name] = max(reach_s, found.get(name, 0.0))
    return found
