"""Rule files: Prometheus' YAML to checked rules, with errors that name file, group and rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from alerts.errors import AlertsError, BadRuleError
from alerts.notation import parse_duration_s
from alerts.promql import Query, parse
from alerts.promql.nodes import RangeSelector, Subquery, Text, reaches_ms
from alerts.template import Template, parse_template

MAX_FILE_BYTES = 4 * 1024 * 1024

_PACKAGE = Path(__file__).parent
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class RecordingRule:
    name: str
    query: Query
    labels: tuple[tuple[str, str], ...]
    kind: Literal["record"] = "record"


@dataclass(frozen=True, slots=True)
class AlertingRule:
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


def _to_text(value: Any) -> Any:
    """YAML reads `severity: 1` as a number; Prometheus takes it as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


_Text = Annotated[str, BeforeValidator(_to_text)]


class _Edge(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


_E = TypeVar("_E", bound=_Edge)


class _RuleEdge(_Edge):
    record: str | None = None
    alert: str | None = None
    expr: _Text
    for_: str | int | None = Field(default=None, alias="for")
    keep_firing_for: str | int | None = None
    labels: dict[str, _Text] | None = None
    annotations: dict[str, _Text] | None = None


class _GroupEdge(_Edge):
    name: str = Field(min_length=1)
    interval: str | int | None = None
    query_offset: str | int | None = None
    limit: int = 0
    labels: dict[str, _Text] | None = None
    rules: list[dict[str, Any]] | None = None  # checked one by one, so that an error can name its rule


class _FileEdge(_Edge):
    groups: list[dict[str, Any]] | None = None


class _UniqueKeyLoader(yaml.SafeLoader):
    """A key given twice is an error, not the last one wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            text = self.construct_object(key, deep=True)
            if isinstance(text, str) and text in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {text!r} is given twice", key.start_mark)
            if isinstance(text, str):
                seen.add(text)
        return super().construct_mapping(node, deep)


def shown_path(path: Path) -> str:
    """A path as an error names it: of our own files from the package on, of others as given."""
    try:
        return str(path.resolve().relative_to(_PACKAGE))
    except ValueError:
        return str(path)


def read_yaml(path: Path) -> Any:
    """The file's content. Raises BadRuleError naming the file, and the line where there is one."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadRuleError(f"{shown_path(path)}: larger than {MAX_FILE_BYTES} bytes")
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)  # noqa: S506  a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise BadRuleError(f"{shown_path(path)}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise BadRuleError(f"{shown_path(path)}{line}: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise BadRuleError(f"{shown_path(path)}: nested too deeply") from None


def load_rule_files(paths: Iterable[Path]) -> list[RuleGroup]:
    """All groups of the files, in order. Raises BadRuleError naming file, group and rule."""
    return [group for path in paths for group in load_rule_file(path)]


def load_rule_file(path: Path) -> list[RuleGroup]:
    """The file's groups, in order. Raises BadRuleError."""
    file = shown_path(path)
    content = read_yaml(path)
    edge = _checked(_FileEdge, {} if content is None else content, file)
    groups: list[RuleGroup] = []
    for number, raw in enumerate(edge.groups or [], 1):
        name = raw.get("name")
        where = f"{file}: group {name if isinstance(name, str) and name else number}"
        group = _group(_checked(_GroupEdge, raw, where), file, where)
        if group.name in {other.name for other in groups}:
            raise BadRuleError(f"{where}: a second group of this name")
        groups.append(group)
    return groups


def _checked(edge: type[_E], raw: Any, where: str) -> _E:
    """The raw YAML as its edge type; the first problem is named by its path."""
    try:
        return edge.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
        raise BadRuleError(f"{where}: {path + ': ' if path else ''}{reason}") from None


def _group(edge: _GroupEdge, file: str, where: str) -> RuleGroup:
    labels = edge.labels or {}
    _check_label_names(labels, where)
    rules = []
    for number, raw in enumerate(edge.rules or [], 1):
        place = f"{where}, rule {number}"
        rules.append(_rule(_checked(_RuleEdge, raw, place), labels, place))
    return RuleGroup(
        name=edge.name,
        file=file,
        interval_s=None if edge.interval is None else _duration_s(edge.interval, f"{where}: interval"),
        query_offset_s=_duration_s(edge.query_offset or 0, f"{where}: query_offset"),
        limit=edge.limit,
        rules=tuple(rules),
    )


def _rule(edge: _RuleEdge, group_labels: dict[str, str], where: str) -> Rule:
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
        for_s=_duration_s(edge.for_ or 0, f"{where}: for"),
        keep_firing_for_s=_duration_s(edge.keep_firing_for or 0, f"{where}: keep_firing_for"),
        labels=_templates(labels, f"{where}: label"),
        annotations=_templates(annotations, f"{where}: annotation"),
    )


def load_rule(raw: Any, group_labels: Mapping[str, str]) -> Rule:
    """One rule as YAML gives it. Raises BadRuleError with the reason alone: the caller knows the place."""
    try:
        return _rule(_checked(_RuleEdge, raw, "rule"), dict(group_labels), "rule")
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


def _duration_s(text: str | int, where: str) -> float:
    try:
        seconds = parse_duration_s(text)
    except AlertsError as error:
        raise BadRuleError(f"{where}: {error}") from None
    if seconds < 0:
        raise BadRuleError(f"{where}: {text!r} is negative")
    return seconds


def reaches_of(groups: Iterable[RuleGroup]) -> dict[str, float]:
    """How many seconds back the rules read each metric, by name; "" for selectors without an exact name."""
    found: dict[str, float] = {}
    for group in groups:
        for rule in group.rules:
            for name, reach_ms in reaches_ms(rule.query.root).items():
                reach_s = reach_ms / 1000 + max(0.0, group.query_offset_s)
                found[name] = max(reach_s, found.get(name, 0.0))
    return found
