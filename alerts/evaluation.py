"""Evaluate rule groups on their slots: recorded series go into the store, alerts change state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from alerts.alert import ActiveAlert, AlertChange, Finding, advance
from alerts.errors import AlertsError, QueryError
from alerts.presence import CLEAR_AFTER_S, presence
from alerts.promql import evaluate_vector
from alerts.promql.nodes import metric_names
from alerts.promql.values import SAME_LABELS, Vector, single
from alerts.rules import AlertingRule, RecordingRule, Rule, RuleGroup
from alerts.sample import EMPTY, NAME, LabelSet, to_ms
from alerts.snapshot import alert_from_json, alert_to_json, check_version, restored
from alerts.store import SeriesStore
from alerts.template import BadTemplateError

log = structlog.get_logger()

SNAPSHOT_VERSION = 1
_SCRAPE_NAMES = {"up", "llm:up"}
DEFAULT_INTERVAL_S = 1.0


@dataclass(slots=True)
class _RuleState:
    """What one rule remembers between evaluations."""

    key: str
    rule: Rule
    active: dict[LabelSet, ActiveAlert] = field(default_factory=dict)
    written: set[LabelSet] = field(default_factory=set)  # series of the last evaluation
    error: str | None = None
    clear_after_s: float = CLEAR_AFTER_S  # how long a target must have been scraped before silence counts as clear


class RuleEngine:
    """Owns alert state. Not thread-safe: ticks and store writes come from one thread."""

    def __init__(
        self,
        groups: Sequence[RuleGroup],
        store: SeriesStore,
        *,
        default_interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        self._store = store
        self._default_interval_s = default_interval_s
        self._groups = list(groups)
        self._states: list[list[_RuleState]] = [_states_of(group) for group in groups]
        self._last_slot: list[int | None] = [None] * len(self._groups)

    def tick(self, now: float) -> list[AlertChange]:
        """Evaluates every group whose slot has come, in order; what changed.

        A rule that fails leaves its alerts and series as they are: see `failures`.
        """
        changes: list[AlertChange] = []
        for index, group in enumerate(self._groups):
            interval_s = group.interval_s or self._default_interval_s
            slot = math.floor(now / interval_s + 1e-9)
            last = self._last_slot[index]
            if last is not None and last - 1 <= slot <= last:
                continue  # the same slot; one back is clock jitter, more is a clock set back
            self._last_slot[index] = slot
            for state in self._states[index]:
                changes.extend(self._evaluate(group, state, now))
        return changes

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
            value = evaluate_vector(state.rule.query, self._store, at)
            result = single(EMPTY, value, to_ms(at)) if isinstance(value, float) else value
            if isinstance(state.rule, RecordingRule):
                self._check_limit(group, state, len(result))
                self._record(state, state.rule, result, to_ms(at))
                changes = []
            else:
                found = _findings(state.rule, result)
                self._check_limit(group, state, len(found))
                changes = self._alert(state, state.rule, found, now, to_ms(at))
        except AlertsError as error:
            if state.error != str(error):
                log.error("rule.failed", rule=state.key, reason=str(error))
            state.error = str(error)
            return []
        state.error = None
        return changes

    def _check_limit(self, group: RuleGroup, state: _RuleState, count: int) -> None:
        if group.limit and count > group.limit:
            state.active.clear()  # as Prometheus: too many is treated as a broken rule, not as that many alerts
            raise QueryError(f"exceeded limit of {group.limit} with {count} results")

    def _record(self, state: _RuleState, rule: RecordingRule, result: Vector, at_ms: int) -> None:
        added = ((NAME, rule.name), *rule.labels)
        labels = [entry.having(added) for entry in result.labels]
        if len(set(labels)) != len(labels):
            raise QueryError(SAME_LABELS)
        self._write(state, dict(zip(labels, result.values.tolist(), strict=True)), at_ms)

    def _write(self, state: _RuleState, points: Mapping[LabelSet, float], at_ms: int) -> None:
        """Stores this evaluation's points and ends the series that it no longer gives."""
        for labels, value in points.items():
            self._store.append_at(labels, at_ms, value)
        for labels in state.written - points.keys():
            self._store.end(labels, at_ms)
        state.written = set(points)

    def _alert(
        self, state: _RuleState, rule: AlertingRule, found: Mapping[LabelSet, Finding], now: float, at_ms: int
    ) -> list[AlertChange]:
        state.active, changes = advance(
            rule.name,
            state.active,
            found,
            now,
            for_s=rule.for_s,
            keep_firing_for_s=rule.keep_firing_for_s,
            presence_of=lambda alert: presence(self._store, alert.labels, now, clear_after_s=state.clear_after_s),
        )
        points: dict[LabelSet, float] = {}
        for labels, alert in state.active.items():
            if alert.state in ("pending", "firing", "unknown"):
                points[labels.having(((NAME, "ALERTS"), ("alertstate", alert.state)))] = 1.0
                points[labels.having(((NAME, "ALERTS_FOR_STATE"),))] = alert.active_at
        self._write(state, points, at_ms)
        return changes


def _states_of(group: RuleGroup) -> list[_RuleState]:
    """Keys are stable as long as the group's rules of one name keep their order."""
    seen: dict[str, int] = {}
    states = []
    for rule in group.rules:
        number = seen[rule.name] = seen.get(rule.name, 0) + 1
        key = f"{group.name}/{rule.name}" + (f"#{number}" if number > 1 else "")
        # `up` is written by every scrape, failed or not: a rule on it alone has no window that must fill first.
        waits = not metric_names(rule.query.root) <= _SCRAPE_NAMES
        states.append(_RuleState(key, rule, clear_after_s=CLEAR_AFTER_S if waits else 0.0))
    return states


def _findings(rule: AlertingRule, result: Vector) -> dict[LabelSet, Finding]:
    """Raises QueryError when two samples give the same alert."""
    found: dict[LabelSet, Finding] = {}
    for entry, value in zip(result.labels, result.values.tolist(), strict=True):
        source = entry.without_name().as_dict()

        def text(template: Any, source: dict[str, str] = source, value: float = value) -> str:
            try:
                rendered: str = template.render(source, value)
            except BadTemplateError as error:
                return f"<error expanding template: {error}>"
            return rendered

        added = tuple((name, text(template)) for name, template in rule.labels)
        labels = entry.without_name().having((*added, ("alertname", rule.name)))
        if labels in found:
            raise QueryError("vector contains metrics with the same labelset after applying alert labels")
        annotations = {name: text(template) for name, template in rule.annotations}
        found[labels] = Finding(value, annotations)
    return found


__all__ = ["ActiveAlert", "AlertChange", "RuleEngine"]
