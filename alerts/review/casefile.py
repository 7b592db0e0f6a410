"""Run promtool's unit-test files through our own rule engine: the same file, the same verdict."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from alerts.duration import parse_duration_s
from alerts.errors import AlertsError, BadCaseError, BadRuleError
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, load_rule_file
from alerts.evaluation.yaml_file import read_yaml, reason_of, shown_path
from alerts.labels import LabelSet
from alerts.promql import evaluate, parse
from alerts.promql.nodes import Node, Selector, Subquery, children
from alerts.review.series_notation import parse_series, parse_values
from alerts.sample import to_ms
from alerts.series.store import SeriesStore

MAX_EVALUATIONS = 100_000


@dataclass(frozen=True, slots=True)
class CaseReport:
    """`failures` says for each expectation that did not hold what was wanted and what came."""

    file: str
    num_checks: int
    failures: tuple[str, ...]


class _Edge(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _yaml_float(value: Any) -> Any:
    """`.inf` and `.nan` are YAML's, scalars of the file are text."""
    text = str(value).lower().removeprefix("+")
    return float(text.replace(".", "")) if text in (".inf", "-.inf", ".nan") else value


class _SeriesEdge(_Edge):
    series: str
    values: str


class _AlertEdge(_Edge):
    exp_labels: dict[str, Any] | None = None
    exp_annotations: dict[str, Any] | None = None


class _AlertTestEdge(_Edge):
    eval_time: str
    alertname: str
    exp_alerts: list[_AlertEdge] | None = None


class _SampleEdge(_Edge):
    labels: str = "{}"
    value: Annotated[float, BeforeValidator(_yaml_float)] = 0.0
    histogram: str = ""


class _ExprTestEdge(_Edge):
    expr: str
    eval_time: str
    exp_samples: list[_SampleEdge] | None = None


class _TestEdge(_Edge):
    name: str = ""
    interval: str | None = None
    start_timestamp: str | None = None
    input_series: list[_SeriesEdge] = Field(default_factory=list)
    alert_rule_test: list[_AlertTestEdge] | None = None
    promql_expr_test: list[_ExprTestEdge] | None = None
    external_labels: dict[str, str] | None = None
    external_url: str = ""


class _FileEdge(_Edge):
    rule_files: list[str] = Field(default_factory=list)
    evaluation_interval: str = "1m"
    group_eval_order: list[str] = Field(default_factory=list)
    fuzzy_compare: bool = False
    tests: list[_TestEdge]


_E = TypeVar("_E", bound=_Edge)


def run_case_file(
    path: Path,
    *,
    rule_files: Sequence[Path] | None = None,
    rules: Sequence[RuleGroup] | None = None,
    with_annotations: bool = True,
) -> CaseReport:
    """Every test of the file; `rule_files`, or `rules` that are loaded already, replace the files it names.

    Without `with_annotations` only labels are compared: for tests that were written for rules without any.

    Raises BadCaseError when the file cannot be read, BadRuleError when its rules cannot.
    """
    file = shown_path(path)
    try:
        content = read_yaml(path).content
        if isinstance(content, dict) and "groups" in content and "tests" not in content:
            raise BadCaseError(f"{file}: rules, no unit tests: fleetctl alerts check {file}")
        edge = _FileEdge.model_validate(content)
    except ValidationError as error:
        raise BadCaseError(f"{file}: {reason_of(error)}") from None
    except BadRuleError as error:
        raise BadCaseError(str(error)) from None
    if rules is None:
        paths = rule_files if rule_files is not None else _rule_paths(path, edge.rule_files)
        rules = [group for each in paths for group in load_rule_file(each)]
    groups = _ordered(rules, edge.group_eval_order)
    failures: list[str] = []
    num_checks = 0
    for number, test in enumerate(edge.tests, 1):
        place = f"{file}: test {test.name or number}"
        try:
            every_s = parse_duration_s(edge.evaluation_interval)
            found = _run_test(test, groups, every_s, fuzzy=edge.fuzzy_compare, with_annotations=with_annotations)
        except AlertsError as error:
            raise BadCaseError(f"{place}: {error}") from None
        num_checks += len(test.alert_rule_test or []) + len(test.promql_expr_test or [])
        failures.extend(f"{place}: {failure}" for failure in found)
    return CaseReport(file, num_checks, tuple(failures))


def _rule_paths(path: Path, patterns: list[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        anchor = Path(pattern).anchor
        root, inside = (Path(anchor), str(Path(pattern).relative_to(anchor))) if anchor else (path.parent, pattern)
        found = [each for each in sorted(root.glob(inside)) if each.is_file()]
        if not found:
            raise BadCaseError(
                f"{shown_path(path)}: rule_files: no file matches {pattern};"
                " it is looked for beside the test file, or give the rules with --rules"
            )
        paths.extend(found)
    return paths


def _ordered(groups: Sequence[RuleGroup], order: list[str]) -> list[RuleGroup]:
    places = {name: index for index, name in enumerate(order)}
    return sorted(groups, key=lambda group: places.get(group.name, len(places)))


def _run_test(
    test: _TestEdge, groups: list[RuleGroup], every_s: float, *, fuzzy: bool, with_annotations: bool
) -> list[str]:
    """The expectations that did not hold."""
    if every_s <= 0:
        raise BadCaseError("evaluation_interval must be above zero")
    store = SeriesStore(retention_s=1e9, max_points=10_000_000)
    step_s = parse_duration_s(test.interval) if test.interval is not None else every_s
    start_s = _start_s(test.start_timestamp)
    points = _points(test.input_series, start_s, step_s)
    engine = RuleEngine([replace(group, interval_s=every_s) for group in groups], store)
    checks: list[tuple[float, _AlertTestEdge | _ExprTestEdge]] = []
    checks.extend((parse_duration_s(check.eval_time), check) for check in test.alert_rule_test or [])
    checks.extend((parse_duration_s(check.eval_time), check) for check in test.promql_expr_test or [])
    checks.sort(key=lambda item: item[0])
    last_s = checks[-1][0] if checks else 0.0
    if last_s / every_s > MAX_EVALUATIONS:
        raise BadCaseError(f"more than {MAX_EVALUATIONS} evaluations")
    asked = [parse(check.expr) for _, check in checks if isinstance(check, _ExprTestEdge)]
    ahead_s = every_s + max(
        [_looks_ahead_s(query.root) for query in (*asked, *(rule.query for group in groups for rule in group.rules))],
        default=0.0,
    )
    failures: list[str] = []
    for slot in range(math.floor(last_s / every_s) + 1):
        # Point after point, as a scraper would; only what looks ahead (a negative offset) needs them earlier.
        while points and points[-1][0] <= start_s + slot * every_s + ahead_s:
            at, labels, value = points.pop()
            store.append_at(labels, to_ms(at), value)
        engine.tick(start_s + slot * every_s)
        for name, error in engine.failures().items():
            raise BadCaseError(f"at {slot * every_s:g}s: rule {name} failed: {error}")
        while checks and checks[0][0] < (slot + 1) * every_s:
            at_s, check = checks.pop(0)
            if isinstance(check, _AlertTestEdge):
                failures.extend(_check_alert(check, engine, with_annotations=with_annotations))
            else:
                failures.extend(_check_expr(check, store, start_s + at_s, fuzzy))
    return failures


def _start_s(text: str | None) -> float:
    """Unix seconds, or a timestamp as RFC 3339 has it."""
    if text is None:
        return 0.0
    try:
        return float(text)
    except ValueError:
        pass
    try:
        timestamp = dt.datetime.fromisoformat(text)
    except ValueError:
        raise BadCaseError(f"start_timestamp: {text!r} is no timestamp such as 2026-11-20T10:00:00Z") from None
    return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)).timestamp()


def _points(series: list[_SeriesEdge], start_s: float, step_s: float) -> list[tuple[float, LabelSet, float]]:
    """All points, the latest first."""
    points: list[tuple[float, LabelSet, float]] = []
    for edge in series:
        labels, rest = parse_series(edge.series)
        if rest.strip():
            raise BadCaseError(f"unexpected {rest.strip()!r} after series {edge.series}")
        values = enumerate(parse_values(edge.values))
        points.extend((start_s + index * step_s, labels, value) for index, value in values if value is not None)
    points.sort(key=lambda point: -point[0])
    return points


def _looks_ahead_s(node: Node) -> float:
    """How far beyond the timestamp of its evaluation an expression reads."""
    match node:
        case Selector(offset_ms=offset_ms, at=at) | Subquery(offset_ms=offset_ms, at=at):
            own = math.inf if at is not None else -offset_ms / 1000
        case _:
            own = 0.0
    return max(0.0, own) + max([_looks_ahead_s(child) for child in children(node)], default=0.0)


def _check_alert(check: _AlertTestEdge, engine: RuleEngine, *, with_annotations: bool) -> list[str]:
    """As promtool: only firing alerts are compared, without `alertname`."""
    got = [
        ({k: v for k, v in alert.labels.items() if k != "alertname"}, alert.annotations)
        for alert in engine.alerts()
        if alert.name == check.alertname and alert.state == "firing"
    ]
    wanted = [
        (
            {k: str(v) for k, v in (edge.exp_labels or {}).items()},
            {k: str(v) for k, v in (edge.exp_annotations or {}).items()},
        )
        for edge in check.exp_alerts or []
    ]
    if sorted(map(repr, map(_sorted, got))) == sorted(map(repr, map(_sorted, wanted))):
        return []
    where = f"{check.alertname} at {check.eval_time}"
    if sorted(sorted(labels.items()) for labels, _ in got) != sorted(sorted(labels.items()) for labels, _ in wanted):
        return [f"{where}: wanted {wanted}, got {got}"]
    if not with_annotations:
        return []
    if not any(annotations for _, annotations in wanted):
        return [f"{where}: fires as wanted, but with annotations, and the test wants none (--ignore-annotations)"]
    return [f"{where}: the annotations differ: wanted {wanted}, got {got}"]


def _sorted(alert: tuple[dict[str, str], dict[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    return sorted(alert[0].items()), sorted(alert[1].items())


def _check_expr(check: _ExprTestEdge, store: SeriesStore, at: float, fuzzy: bool) -> list[str]:
    if any(edge.histogram for edge in check.exp_samples or []):
        raise BadCaseError(f"{check.expr}: native histograms are not supported")
    wanted = {parse_series(edge.labels or "{}")[0]: edge.value for edge in check.exp_samples or []}
    got = {LabelSet.of(sample.labels): sample.value for sample in evaluate(check.expr, store, at)}
    tolerance = 2**-40 if fuzzy else 0.0
    same = wanted.keys() == got.keys() and all(_same(got[key], wanted[key], tolerance) for key in wanted)
    return [] if same else [f"{check.expr} at {check.eval_time}: wanted {wanted}, got {got}"]


def _same(got: float, wanted: float, tolerance: float) -> bool:
    if math.isnan(got) or math.isnan(wanted):
        return math.isnan(got) and math.isnan(wanted)
    return got == wanted or math.isclose(got, wanted, rel_tol=tolerance, abs_tol=0.0)
