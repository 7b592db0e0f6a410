"""What rules would have said in the past: when each alert would have fired, how often, and how early.

All rules are evaluated over stretches of time as arrays. Alert states are Prometheus': pending for `for`, firing,
kept for `keep_firing_for`; `unknown` is a matter of live targets and has no place here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from alerts.arrays import Bools, Times
from alerts.errors import QueryError
from alerts.evaluation.rules import AlertingRule, RecordingRule, Rule, RuleGroup
from alerts.evaluation.template import BadTemplateError, query_at
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql import Query
from alerts.promql.evaluator import InstantEvaluator
from alerts.promql.grid import evaluate_grid
from alerts.promql.grid_values import Grid, empty_grid, merge_rows
from alerts.promql.nodes import Node, RangeSelector, is_empty_without_series, metric_names, rebuilt
from alerts.promql.values import Vector
from alerts.sample import MISSING, MISSING_BITS, STALE_NAN
from alerts.series.appender import Appender
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

STEPS_AT_ONCE = 480
WEEK_S = 7 * 86400.0
MAX_STEPS = 2_000_000
EARLIEST_BEFORE_S = 3600.0  # an alert that began to fire longer before an incident is not about it


@dataclass(frozen=True, slots=True)
class Firing:
    """Times are Unix seconds; `resolved_at` None: still firing at the end."""

    alert: str
    severity: str
    labels: dict[str, str]
    summary: str
    value: float
    active_at: float
    fired_at: float
    resolved_at: float | None
    looks_back: str = ""  # its annotation of that name


@dataclass(frozen=True, slots=True)
class AlertReport:
    """`lead_s`: how long before the incident's marked start it fired; negative is after; None is not at all."""

    alert: str
    severity: str
    num_firings: int
    pages_per_week: float
    lead_s: float | None = None


@dataclass(frozen=True, slots=True)
class Backtest:
    """What the rules would have said between start and end (Unix seconds)."""

    start: float
    end: float
    step_s: float
    firings: tuple[Firing, ...]
    alerts: tuple[AlertReport, ...]
    errors: dict[str, str] = field(default_factory=dict)  # rule to the error it had in some evaluate_steps


@dataclass(slots=True)
class _InstanceState:
    """One alert instance between stretches. Times in milliseconds."""

    active_ms: int
    value: float
    source: LabelSet
    fired_ms: int | None = None
    missing_since_ms: int | None = None


@dataclass(slots=True)
class _Recorded:
    """What one recording rule has written: its series, and which of them had a value at the last step."""

    appender: Appender
    rows: dict[LabelSet, int] = field(default_factory=dict)
    labels: LabelColumn = field(default_factory=LabelColumn)
    was_there: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))


def needs_order(groups: Sequence[RuleGroup]) -> list[str]:
    """Rules that read what only they themselves or later ones record: they need its past value, step after step."""
    recorded: set[str] = set()
    later = {rule.name for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}
    late = []
    for group in groups:
        for rule in group.rules:
            if isinstance(rule, RecordingRule):
                read = metric_names(rule.query.root)
                if (read & later) - recorded or rule.name in read:
                    late.append(rule.name)
                recorded.add(rule.name)
            elif metric_names(rule.query.root) & (later - recorded | {"ALERTS", "ALERTS_FOR_STATE"}):
                late.append(rule.name)
    return late


def in_order(groups: Sequence[RuleGroup]) -> list[RuleGroup]:
    """Groups after those whose recorded series they read, else as they are. Live, groups have no order among them."""
    records = [{rule.name for rule in group.rules if isinstance(rule, RecordingRule)} for group in groups]
    reads = [{name for rule in group.rules for name in metric_names(rule.query.root)} for group in groups]
    left = list(range(len(groups)))
    ordered: list[RuleGroup] = []
    while left:
        free = [i for i in left if not any(reads[i] & records[other] for other in left if other != i)]
        for index in free or left:  # those that wait for each other stay as they are
            ordered.append(groups[index])
            left.remove(index)
            break
    return ordered


def alive_groups(groups: Iterable[RuleGroup], has_any: Callable[[set[str]], bool]) -> list[RuleGroup]:
    """Without rules of engines that this fleet does not have: in groups' order, what nobody writes gives nothing.

    `has_any`: whether there is a series of one of these metrics.
    """
    found = []
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    for group in groups:
        kept = tuple(
            rule
            for rule in group.rules
            if not is_empty_without_series(rule.query.root)
            or "" in (names := metric_names(rule.query.root))
            or names & recorded
            or has_any(names)
        )
        if kept:
            found.append(replace(group, rules=kept))
    return found


def widened(groups: Iterable[RuleGroup], at_least_s: float) -> list[RuleGroup]:
    """The groups with the windows of their recording rules at least this long.

    A rate needs several points in its window: signals are written for a 5 s scrape, a recording may have 15 s or 30 s.
    """
    at_least_ms = round(at_least_s * 1000)

    def widen(node: Node) -> Node:
        if isinstance(node, RangeSelector):
            return replace(node, range_ms=max(node.range_ms, at_least_ms))
        return rebuilt(node, widen)

    def of_rule(rule: Rule) -> Rule:
        if not isinstance(rule, RecordingRule):
            return rule
        return replace(rule, query=Query(rule.query.text, widen(rule.query.root)))

    return [replace(group, rules=tuple(of_rule(rule) for rule in group.rules)) for group in groups]


def run_backtest(
    groups: Sequence[RuleGroup],
    store: SeriesStore,
    start: float,
    end: float,
    *,
    step_s: float,
    incident: tuple[float, float] | None = None,
    steps: Times | None = None,
) -> Backtest:
    """Evaluates the groups at every step from start to end (Unix seconds). Recorded series are added to the store.

    A group with an interval longer than `step_s` is evaluated on its own slots. `steps`: at these times instead, in
    rising Unix milliseconds; where nothing happens they may be far apart.
    """
    runner = _Runner(groups, store, round(step_s * 1000))
    first_ms = -(-round(start * 1000) // runner.step_ms) * runner.step_ms
    if (round(end * 1000) - first_ms) // runner.step_ms >= MAX_STEPS:
        raise QueryError(f"more than {MAX_STEPS} steps: choose a longer --step")
    if steps is None:
        steps = np.arange(first_ms, round(end * 1000) + 1, runner.step_ms, dtype=np.int64)
    if not len(steps):
        steps = np.array([round(end * 1000)], dtype=np.int64)  # shorter than a step: what there is, is judged
    for at in range(0, len(steps), STEPS_AT_ONCE):
        runner.evaluate_steps(steps[at : at + STEPS_AT_ONCE])
    firings = tuple(sorted(runner.finished(), key=lambda firing: (firing.fired_at, firing.alert)))
    span_s = max(end - start, step_s)
    return Backtest(start, end, step_s, firings, _reports(groups, firings, span_s, incident), runner.errors)


class _Runner:
    def __init__(self, groups: Sequence[RuleGroup], store: SeriesStore, step_ms: int) -> None:
        self.step_ms = step_ms
        self.errors: dict[str, str] = {}
        self._groups, self._store = groups, store
        self._written: dict[tuple[int, int], _Recorded] = {}
        self._states: dict[tuple[int, int], dict[LabelSet, _InstanceState]] = {}
        self._firings: list[Firing] = []

    def evaluate_steps(self, steps: Times) -> None:
        for index, group in enumerate(self._groups):
            interval_ms = max(self.step_ms, round((group.interval_s or 0) * 1000))
            slots = steps // interval_ms
            own = steps[np.diff(slots, prepend=(steps[0] - self.step_ms) // interval_ms) > 0]
            if not len(own):
                continue
            for number, rule in enumerate(group.rules):
                key = (index, number)
                at = own - round(group.query_offset_s * 1000)
                grid = self._evaluate(rule, at)
                if isinstance(rule, RecordingRule):
                    if key not in self._written:
                        self._written[key] = _Recorded(self._store.appender())
                    self._record(self._written[key], rule, grid, at)
                else:
                    self._alert(self._states.setdefault(key, {}), rule, grid, own)

    def _evaluate(self, rule: RecordingRule | AlertingRule, steps: Times) -> Grid:
        root = rule.query.root
        try:
            return evaluate_grid(root, self._store, steps, self.step_ms)
        except QueryError as error:
            self.errors.setdefault(rule.name, str(error))
        # Some step fails: the others count, as they would have.
        rows: dict[LabelSet, list[tuple[int, float]]] = {}
        for step, at_ms in enumerate(steps.tolist()):
            try:
                value = InstantEvaluator(self._store, at_ms, at_ms, at_ms, 0).evaluate(root)
            except QueryError:
                continue
            if isinstance(value, Vector):
                for labels, number in zip(value.labels, value.values.tolist(), strict=True):
                    rows.setdefault(labels, []).append((step, number))
        grid = empty_grid(len(steps), list(rows))
        for index, points in enumerate(rows.values()):
            for step, value_then in points:
                grid.values[index, step], grid.present[index, step] = value_then, True
        return grid

    def _record(self, written: _Recorded, rule: RecordingRule, grid: Grid, steps: Times) -> None:
        added = ((METRIC_NAME, rule.name), *rule.labels)
        grid, named = self._merged(rule.name, [labels.having(added) for labels in grid.labels], grid)
        grown = [labels for labels in named if labels not in written.rows]
        if grown:
            for labels in grown:
                written.rows[labels] = len(written.rows)
            written.was_there = np.concatenate((written.was_there, np.zeros(len(grown), dtype=np.bool_)))
            written.labels = LabelColumn(written.rows)
        if not written.rows:
            return
        present = np.zeros((len(written.rows), len(steps)), dtype=np.bool_)
        values = np.full(present.shape, MISSING)
        to = [written.rows[labels] for labels in named]
        rows = list(named.values())
        present[to], values[to] = grid.present[rows], grid.values[rows]
        before = np.concatenate((written.was_there[:, np.newaxis], present[:, :-1]), axis=1)
        values[~present] = MISSING
        values[before & ~present] = STALE_NAN
        written.was_there = present[:, -1].copy()
        kept = (values.view(np.int64) != MISSING_BITS).any(axis=0)
        if kept.any():
            written.appender.set_series(written.labels, lambda: written.labels)
            written.appender.append_range(steps[kept], values[:, kept])

    def _merged(self, name: str, labels: list[LabelSet], grid: Grid) -> tuple[Grid, dict[LabelSet, int]]:
        """The grid under these labels, and each label set's row. What follows itself in time is one row.

        Two of one at the same step are an error of the rule, as they are live; the first one is taken then.
        """
        try:
            merged = merge_rows(labels, grid.values, grid.present)
        except QueryError as error:
            self.errors.setdefault(name, str(error))
            firsts = {entry: row for row, entry in reversed(list(enumerate(labels)))}
            merged = Grid(list(firsts), grid.values[list(firsts.values())], grid.present[list(firsts.values())])
        return merged, {entry: row for row, entry in enumerate(merged.labels)}

    def _alert(self, states: dict[LabelSet, _InstanceState], rule: AlertingRule, grid: Grid, steps: Times) -> None:
        grid = grid.trimmed()
        firsts = np.argmax(grid.present, axis=1).tolist() if grid.labels else []
        named = [_labels(rule, grid.labels[row], float(grid.values[row, at])) for row, at in enumerate(firsts)]
        sources = dict(zip(reversed(named), reversed(grid.labels), strict=True))
        grid, rows = self._merged(rule.name, named, grid)
        for labels in [*states, *(labels for labels in rows if labels not in states)]:
            row = rows.get(labels)
            there = grid.present[row] if row is not None else np.zeros(len(steps), dtype=np.bool_)
            borders = np.flatnonzero(np.diff(there)) + 1
            for low, high in zip([0, *borders.tolist()], [*borders.tolist(), len(steps)], strict=True):
                if there[low]:
                    assert row is not None
                    self._present(states, labels, sources[labels], rule, grid, row, steps, low, high)
                else:
                    self._absent(states, labels, rule, int(steps[low]), int(steps[high - 1]))

    def _present(
        self,
        states: dict[LabelSet, _InstanceState],
        labels: LabelSet,
        source: LabelSet,
        rule: AlertingRule,
        grid: Grid,
        row: int,
        steps: Times,
        low: int,
        high: int,
    ) -> None:
        """The expression gives a value at steps [low, high)."""
        state = states.get(labels)
        if state is None:
            state = states[labels] = _InstanceState(int(steps[low]), float(grid.values[row, low]), source)
        state.missing_since_ms = None
        if state.fired_ms is None:
            due = low + int(np.searchsorted(steps[low:high], state.active_ms + round(rule.for_s * 1000)))
            if due < high:
                state.fired_ms = int(steps[due])
                state.value = float(grid.values[row, due])

    def _absent(
        self, states: dict[LabelSet, _InstanceState], labels: LabelSet, rule: AlertingRule, first_ms: int, last_ms: int
    ) -> None:
        state = states.get(labels)
        if state is None:
            return
        if state.fired_ms is None:
            del states[labels]
            return
        if state.missing_since_ms is None:
            state.missing_since_ms = first_ms
        ends_ms = state.missing_since_ms + round(rule.keep_firing_for_s * 1000)
        if ends_ms <= last_ms:
            self._firings.append(_firing(rule, labels, state, max(ends_ms, first_ms), self._store))
            del states[labels]

    def finished(self) -> list[Firing]:
        for (index, number), states in self._states.items():
            rule = self._groups[index].rules[number]
            assert isinstance(rule, AlertingRule)
            self._firings.extend(
                _firing(rule, labels, state, None, self._store)
                for labels, state in states.items()
                if state.fired_ms is not None
            )
        return self._firings


def _labels(rule: AlertingRule, source: LabelSet, value: float) -> LabelSet:
    plain = source.as_dict()
    added = []
    for name, template in rule.labels:
        try:
            added.append((name, template.render(plain, value)))
        except BadTemplateError:
            added.append((name, "<error expanding template>"))
    return source.without_name().having((*added, ("alertname", rule.name)))


def _firing(
    rule: AlertingRule, labels: LabelSet, state: _InstanceState, resolved_ms: int | None, store: SeriesStore
) -> Firing:
    assert state.fired_ms is not None
    source, at = state.source.as_dict(), state.fired_ms / 1000
    texts = {}
    for name, template in rule.annotations:
        if name in ("summary", "looks_back"):
            try:
                texts[name] = template.render(source, state.value, lambda text: query_at(text, store, at), at)
            except BadTemplateError as error:
                texts[name] = f"<error expanding template: {error}>"
    plain = {name: value for name, value in labels.as_dict().items() if name != "alertname"}
    return Firing(
        alert=rule.name,
        severity=labels.get("severity"),
        labels=plain,
        summary=texts.get("summary", ""),
        value=state.value,
        active_at=state.active_ms / 1000,
        fired_at=state.fired_ms / 1000,
        resolved_at=None if resolved_ms is None else resolved_ms / 1000,
        looks_back=texts.get("looks_back", ""),
    )


def _reports(
    groups: Sequence[RuleGroup], firings: Sequence[Firing], span_s: float, incident: tuple[float, float] | None
) -> tuple[AlertReport, ...]:
    found: dict[tuple[str, str], AlertReport] = {}
    for group in groups:
        for rule in group.rules:
            if not isinstance(rule, AlertingRule):
                continue
            severity = next((template.text for name, template in rule.labels if name == "severity"), "")
            own = [f for f in firings if f.alert == rule.name and (f.severity == severity or "{{" in severity)]
            lead_s = None
            if incident is not None:
                about = [f.fired_at for f in own if incident[0] - EARLIEST_BEFORE_S <= f.fired_at <= incident[1]]
                lead_s = incident[0] - min(about) if about else None
            found[rule.name, severity] = AlertReport(rule.name, severity, len(own), len(own) / span_s * WEEK_S, lead_s)
    return tuple(found.values())
