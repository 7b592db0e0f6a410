"""Evaluate rule groups on their slots: recorded series go into the store, alerts change state."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import structlog

from alerts.arrays import Floats
from alerts.errors import AlertsError, QueryError
from alerts.evaluation.alert import ActiveAlert, AlertChange, AlertSample, advance
from alerts.evaluation.rules import AlertingRule, RecordingRule, Rule, RuleGroup, lookback_s_by_metric
from alerts.evaluation.snapshot import alert_from_json, alert_to_json, check_version, restored
from alerts.evaluation.target_liveness import CLEAR_AFTER_S, Liveness, TargetLiveness
from alerts.evaluation.template import BadTemplateError, Template, query_at
from alerts.evaluation.worsening import Way, agreed, worsens
from alerts.labels import EMPTY, METRIC_NAME, LabelSet
from alerts.promql import evaluate_vector
from alerts.promql.evaluator import LOOKBACK_MS
from alerts.promql.nodes import Node, is_empty_without_series, metric_names
from alerts.promql.shared_results import SharedResults
from alerts.promql.values import SAME_LABELS, Vector, empty_vector, single
from alerts.sample import to_ms
from alerts.series.appender import Appender
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore

log = structlog.get_logger()

SNAPSHOT_VERSION = 1
_SCRAPE_NAMES = {"up", "llm:up"}
_SHOWN_STATES = ("pending", "firing", "unknown")
ALERT_NAMES = ("ALERTS", "ALERTS_FOR_STATE")
DEFAULT_INTERVAL_S = 1.0
HALF_A_WINDOW_S = 10.0  # of the signal rules, which look 20 s back


@dataclass(slots=True)
class _RuleState:
    """What one rule remembers between evaluations."""

    key: str
    rule: Rule
    appender: Appender  # of the series that it records, or of ALERTS
    writes: tuple[str, ...]  # their names
    needs: frozenset[str] = frozenset()  # without a series of one of these metrics it gives nothing; empty: not sure
    found_none_at: int | None = None  # names_version of the store at which there was none
    active: dict[LabelSet, ActiveAlert] = field(default_factory=dict)
    error: str | None = None
    clear_after_s: float = CLEAR_AFTER_S  # how long a target must have been scraped before silence counts as clear
    _shown: list[tuple[LabelSet, str]] = field(default_factory=list)
    _shown_column: LabelColumn = field(default_factory=LabelColumn)

    def shown_column(self, shown: list[tuple[LabelSet, str]]) -> LabelColumn:
        """ALERTS and ALERTS_FOR_STATE of these alerts, in turn; the same column as long as they are the same."""
        if shown != self._shown:
            self._shown = shown
            self._shown_column = LabelColumn(
                entry
                for labels, alert_state in shown
                for entry in (
                    labels.having(((METRIC_NAME, "ALERTS"), ("alertstate", alert_state))),
                    labels.having(((METRIC_NAME, "ALERTS_FOR_STATE"),)),
                )
            )
        return self._shown_column


class RuleEngine:
    """Owns alert state. Not thread-safe: ticks and store writes come from one thread."""

    def __init__(
        self,
        groups: Sequence[RuleGroup],
        store: SeriesStore,
        *,
        default_interval_s: float = DEFAULT_INTERVAL_S,
        clear_after_s: float = CLEAR_AFTER_S,
    ) -> None:
        """`clear_after_s`: how long a target must have been scraped before silence counts as clear."""
        self._store = store
        self._default_interval_s = default_interval_s
        self._clear_after_s = clear_after_s
        self._groups = list(groups)
        reaches = lookback_s_by_metric(groups)
        self._states: list[list[_RuleState]] = [_states_of(group, store, reaches, clear_after_s) for group in groups]
        self._last_slot: list[int | None] = [None] * len(self._groups)
        self._watched_since = -math.inf  # without a stall
        self._taken_out: list[AlertChange] = []  # alerts whose rule is gone, until a tick has told of them
        self._shared = SharedResults(rule.query.root for group in groups for rule in group.rules)
        self._worsens: dict[str, Way] = {}  # by alert, as it is asked
        self._liveness_by_wait: dict[
            float, TargetLiveness
        ] = {}  # of this tick, by how long a target must have been scraped

    def tick(self, now: float) -> list[AlertChange]:
        """Evaluates every group whose slot has come, in order; what changed.

        A rule that fails leaves its alerts and series as they are: see `failures`.
        """
        changes, self._taken_out = self._taken_out, []
        self._liveness_by_wait = {}
        self._shared.clear()
        for index, group in enumerate(self._groups):
            interval_s = group.interval_s or self._default_interval_s
            slot = math.floor(now / interval_s + 1e-9)
            last = self._last_slot[index]
            if last is not None and last - 1 <= slot <= last:
                continue  # the same slot; one back is clock jitter, more is a clock set back
            self._last_slot[index] = slot
            for state in self._states[index]:
                changes.extend(self._evaluate(group, state, now))
        self._shared.clear()
        return changes

    def replace_groups(self, groups: Sequence[RuleGroup], now: float) -> None:
        """Evaluates these groups from the next tick on, with the state of what is still there.

        As Prometheus does on a reload, an alerting rule keeps its pending and firing alerts as long as a rule of its
        name is there, whatever else changed; the next tick judges them anew. What a recording rule of the same group
        and name wrote goes on. Series of rules that are gone become stale; that tick tells their alerts as resolved.
        """
        reaches = lookback_s_by_metric(groups)
        states = [_states_of(group, self._store, reaches, self._clear_after_s) for group in groups]
        left = {id(state): state for old in self._states for state in old}
        known = {_identity(state): state for state in reversed(left.values())}
        for state in (state for new in states for state in new):
            before = known.pop(_identity(state), None)
            if before is not None:
                del left[id(before)]
                before.appender.keep_at_least(reaches.get(state.rule.name, 0.0) + LOOKBACK_MS / 1000)
                state.appender, state.active, state.error = before.appender, before.active, before.error
        slots = {group.name: slot for group, slot in zip(self._groups, self._last_slot, strict=True)}
        for state in left.values():
            state.appender.mark_stale()
            for alert in state.active.values():
                if alert.state != "resolved":
                    self._taken_out.append(AlertChange(replace(alert, state="resolved", resolved_at=now), alert.state))
        self._groups, self._states, self._worsens = list(groups), states, {}
        self._last_slot = [slots.get(group.name) for group in groups]
        self._shared = SharedResults(rule.query.root for group in groups for rule in group.rules)

    def worsens(self, name: str) -> Way:
        """Which way the value of an alert of this name gets worse."""
        found = self._worsens.get(name)
        if found is None:
            rules = [rule for group in self._groups for rule in group.rules]
            records: dict[str, list[Node]] = defaultdict(list)
            for rule in rules:
                if rule.kind == "record":
                    records[rule.name].append(rule.query.root)
            alerts = [rule.query.root for rule in rules if rule.kind == "alert" and rule.name == name]
            found = self._worsens[name] = agreed(worsens(root, records) for root in alerts)
        return found

    def mark_all_unknown(self, now: float) -> list[AlertChange]:
        """No signals have come for too long to judge by them: every pending and firing alert is unknown."""
        changes: list[AlertChange] = []
        for states in self._states:
            for state in states:
                for labels, alert in state.active.items():
                    if alert.state in ("pending", "firing"):
                        unknown = replace(alert, state="unknown", unknown_since=now)
                        state.active[labels] = unknown
                        changes.append(AlertChange(unknown, alert.state))
        return changes

    def discount_stall(self, blind_s: float, now: float) -> None:
        """Nobody watched for so many seconds up to `now`: they do not count for the `for` of what is pending. Half a
        window and more is missing from what is judged next: nothing clears by that."""
        if blind_s >= HALF_A_WINDOW_S:
            self._watched_since = now
        for states in self._states:
            for state in states:
                for labels, alert in state.active.items():
                    if alert.fired_at is None:
                        state.active[labels] = replace(alert, active_at=alert.active_at + blind_s)

    def alerts(self) -> list[ActiveAlert]:
        """Pending, firing, unknown and recently resolved alerts."""
        return [alert for states in self._states for state in states for alert in state.active.values()]

    def failures(self) -> dict[str, str]:
        """The last error of each rule whose last evaluation failed, by `group/rule`."""
        return {state.key: state.error for states in self._states for state in states if state.error}

    def snapshot(self) -> dict[str, Any]:
        """Alert state as plain JSON, to be restored after a restart."""
        return {
            "version": SNAPSHOT_VERSION,
            "alerts": [
                {"rule": state.key, **alert_to_json(alert)}
                for states in self._states
                for state in states
                for alert in state.active.values()
            ],
            "taken_at": self._newest_evaluation(),
        }

    def restore(self, snapshot: Mapping[str, Any], now: float) -> None:
        """Takes alert state over. Time nobody watched does not count for `for`; rules that are gone are dropped.

        Raises ValueError when the snapshot is not one of ours.
        """
        check_version(snapshot, SNAPSHOT_VERSION)
        by_key = {state.key: state for states in self._states for state in states}
        taken_at = snapshot.get("taken_at")
        for raw in snapshot["alerts"]:
            state = by_key.get(raw["rule"])
            alert = restored(alert_from_json(raw), taken_at, now)
            if state is None or not isinstance(state.rule, AlertingRule) or alert is None:
                log.warning("alert.not_restored", rule=raw["rule"], labels=raw["labels"])
                continue
            state.active[LabelSet.of(alert.labels)] = alert

    def _newest_evaluation(self) -> float | None:
        times = [
            slot * (group.interval_s or self._default_interval_s)
            for group, slot in zip(self._groups, self._last_slot, strict=True)
            if slot is not None
        ]
        return max(times, default=None)

    # -- one rule -----------------------------------------------------------------------------------------------

    def _evaluate(self, group: RuleGroup, state: _RuleState, now: float) -> list[AlertChange]:
        at = now - group.query_offset_s
        try:
            value: Vector | float = empty_vector()
            if not self._is_idle(state):
                value = evaluate_vector(state.rule.query, self._store, at, shared=self._shared)
            result = single(EMPTY, value, to_ms(at)) if isinstance(value, float) else value
            if isinstance(state.rule, RecordingRule):
                self._check_limit(group, state, len(result))
                self._record(state, state.rule, result, to_ms(at))
                changes = []
            else:
                found = _alert_samples(state.rule, result, self._store, at)
                self._check_limit(group, state, len(found))
                changes = self._alert(state, state.rule, found, now, to_ms(at))
        except AlertsError as error:
            if state.error != str(error):
                log.error("rule.failed", rule=state.key, reason=str(error))
            state.error = str(error)
            return []
        state.error = None
        return changes

    def _is_idle(self, state: _RuleState) -> bool:
        """Whether no metric that the rule reads exists: rules for engines that this fleet does not have."""
        version = self._store.names_version
        if state.found_none_at != version:
            is_idle = bool(state.needs) and not self._store.has_any(state.needs)
            state.found_none_at = version if is_idle else None
        return state.found_none_at is not None

    def _check_limit(self, group: RuleGroup, state: _RuleState, count: int) -> None:
        if group.limit and count > group.limit:
            state.active.clear()  # as Prometheus: too many is treated as a broken rule, not as that many alerts
            raise QueryError(f"exceeded limit of {group.limit} with {count} results")

    def _record(self, state: _RuleState, rule: RecordingRule, result: Vector, at_ms: int) -> None:
        if not len(result) and not state.appender.series:
            return
        labels = result.labels.having(((METRIC_NAME, rule.name), *rule.labels))
        if not labels.is_distinct:
            raise QueryError(SAME_LABELS)
        self._write(state, labels, result.values, at_ms)

    def _write(self, state: _RuleState, labels: LabelColumn, values: Floats, at_ms: int) -> None:
        """Stores this evaluation's points and ends the series that it no longer gives."""
        state.appender.set_series(labels, lambda: labels)
        self._store.append_column(state.appender, at_ms, values)
        for name in state.writes:
            self._shared.note_write(name)

    def _liveness_of(self, alert: ActiveAlert, now: float, clear_after_s: float) -> Liveness:
        if clear_after_s and now - self._watched_since < clear_after_s:
            return Liveness.LOST
        liveness = self._liveness_by_wait.get(clear_after_s)
        if liveness is None:
            liveness = self._liveness_by_wait[clear_after_s] = TargetLiveness(self._store, now, clear_after_s)
        return liveness.of_alert(alert.labels)

    def _alert(
        self, state: _RuleState, rule: AlertingRule, found: Mapping[LabelSet, AlertSample], now: float, at_ms: int
    ) -> list[AlertChange]:
        state.active, changes = advance(
            rule.name,
            state.active,
            found,
            now,
            for_s=rule.for_s,
            keep_firing_for_s=rule.keep_firing_for_s,
            liveness_of=lambda alert: self._liveness_of(alert, now, state.clear_after_s),
        )
        shown = [(labels, alert) for labels, alert in state.active.items() if alert.state in _SHOWN_STATES]
        if shown or state.appender.series:
            column = state.shown_column([(labels, alert.state) for labels, alert in shown])
            values = np.array([[1.0, alert.active_at] for _, alert in shown], dtype=np.float64)
            self._write(state, column, values.ravel(), at_ms)
        return changes


def _identity(state: _RuleState) -> tuple[str, str]:
    """What makes a rule the same one after a reload: an alert's name wherever it stands, a record's group and name."""
    return (state.rule.kind, state.rule.name if state.rule.kind == "alert" else state.key)


def _states_of(
    group: RuleGroup, store: SeriesStore, reaches: Mapping[str, float], clear_after_s: float
) -> list[_RuleState]:
    """Keys are stable as long as the group's rules of one name keep their order."""
    seen: dict[str, int] = {}
    states = []
    for rule in group.rules:
        number = seen[rule.name] = seen.get(rule.name, 0) + 1
        key = f"{group.name}/{rule.name}" + (f"#{number}" if number > 1 else "")
        # `up` is written by every scrape, failed or not: a rule on it alone has no window that must fill first.
        appender = store.appender(keep_s=reaches.get(rule.name, 0.0) + LOOKBACK_MS / 1000)
        names = metric_names(rule.query.root)
        waits = not names <= _SCRAPE_NAMES
        can_idle = "" not in names and is_empty_without_series(rule.query.root)
        needs = frozenset(names) if can_idle else frozenset()
        writes = ALERT_NAMES if isinstance(rule, AlertingRule) else (rule.name,)
        states.append(_RuleState(key, rule, appender, writes, needs, clear_after_s=clear_after_s if waits else 0.0))
    return states


def _alert_samples(rule: AlertingRule, result: Vector, store: SeriesStore, at: float) -> dict[LabelSet, AlertSample]:
    """Raises QueryError when two samples give the same alert."""
    if not len(result):
        return {}
    found: dict[LabelSet, AlertSample] = {}
    fixed = (*((name, template.text) for name, template in rule.labels if _is_fixed(template)),)
    moving = [(name, template) for name, template in rule.labels if name != "alertname" and not _is_fixed(template)]
    bare = result.labels.without_names()
    alerts: Iterable[LabelSet] = bare.having((*fixed, ("alertname", rule.name)))
    if moving:
        alerts = [
            entry.having_now(
                tuple((name, _text(template, source.as_dict(), value, store, at)) for name, template in moving)
            )
            for entry, source, value in zip(alerts, result.labels, result.values.tolist(), strict=True)
        ]
    for labels, entry, value in zip(alerts, result.labels, result.values.tolist(), strict=True):
        if labels in found:
            raise QueryError("vector contains metrics with the same labelset after applying alert labels")
        source = entry.as_dict()
        found[labels] = AlertSample(
            value, {name: _text(template, source, value, store, at) for name, template in rule.annotations}
        )
    return found


def _is_fixed(template: Template) -> bool:
    """Whether it says the same of every sample."""
    return "{{" not in template.text


def _text(template: Template, labels: dict[str, str], value: float, store: SeriesStore, at: float) -> str:
    if _is_fixed(template):
        return template.text
    try:
        return template.render(labels, value, lambda text: query_at(text, store, at), at)
    except BadTemplateError as error:
        return f"<error expanding template: {error}>"


__all__ = ["ActiveAlert", "AlertChange", "RuleEngine"]
