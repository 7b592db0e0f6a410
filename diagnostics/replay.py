"""A recorded incident run again: its series, given rules and trees, simulated time. An incident becomes a test case.

Rules that record a series which the box already holds are left out, and what was recorded then is used; with
`recompute` it is the other way round, so that edited signals can be tried on an old incident.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from alerts.arrays import Floats
from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RecordingRule, RuleGroup
from alerts.history.backtest import alive_groups
from alerts.labels import METRIC_NAME, LabelSet
from alerts.sample import STALE_NAN, to_ms
from alerts.series.appender import Appender
from alerts.series.label_column import LabelColumn
from alerts.series.store import SeriesStore
from diagnostics.blackbox import BlackBox, RecordedSeries
from diagnostics.course import Course, Pace
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.grouping import group_alerts
from diagnostics.incident import (
    Incident,
    IncidentStatus,
    fired_alert,
    is_over,
    observe,
    resolve,
    told_elsewhere,
)
from diagnostics.inquiry import diagnose_alerts
from diagnostics.record import IncidentRecord
from diagnostics.scope import Nodes, scope_text
from diagnostics.splitting import split_incident
from diagnostics.tree import Tree, alert_kinds

_ENGINE_SERIES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})  # the rules write them anew
_SPARE_S = 3600.0  # retention beyond the window: rules look back

# As the controller's settings have them: how often it asks again.
PACE = Pace(often_s=3.0, often_for_s=60.0, seldom_s=30.0)


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that fired in the replay."""

    at: float
    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Told:
    """One line of what would have been said, at Unix time `at`."""

    at: float
    kind: str  # alert, incident, verdict
    text: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What rules, trees and causes would have said."""

    firings: tuple[Firing, ...]
    incidents: tuple[Incident, ...]  # in the order of opening, each with its last diagnosis
    told: tuple[Told, ...] = ()  # in time

    def diagnosis_for(self, record: IncidentRecord) -> Diagnosis | None:
        """The diagnosis of the replayed incident with the recorded scope; else of the first one; None: none."""
        diagnosed = [one for one in self.incidents if one.diagnosis is not None]
        for incident in diagnosed:
            if dict(incident.scope) == record.scope or dict(incident.first_scope) == record.scope:
                return incident.diagnosis
        return diagnosed[0].diagnosis if diagnosed else None


def replay(
    box: BlackBox,
    groups: Sequence[RuleGroup],
    trees: Mapping[str, Tree],
    knowledge: Knowledge | None = None,
    *,
    no_tree: Mapping[str, str] | None = None,
    step_s: float = 1.0,
    recompute: bool = False,
) -> ReplayResult:
    """What rules, trees and causes would have said, second by second, over the window of the recording.

    `knowledge`: questions and what causes expect of them, for trees that are judged by evidence.
    """
    recorded = {one.labels.get(METRIC_NAME, "") for one in box.series}
    given = {rule.name for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}
    dropped_series = _ENGINE_SERIES | (given if recompute else frozenset())
    dropped_rules = frozenset() if recompute else given & recorded
    store = SeriesStore(retention_s=box.until - box.since + _SPARE_S, max_points=1_000_000)
    kept = [one for one in box.series if one.labels.get(METRIC_NAME) not in dropped_series]
    names = {one.labels.get(METRIC_NAME, "") for one in kept}
    lively = alive_groups([_without(group, dropped_rules) for group in groups], lambda read: bool(read & names))
    engine = RuleEngine(lively, store, default_interval_s=step_s)
    columns = _in_time(kept, store)
    pending = next(columns, None)
    nodes = {one.labels["node"]: one.labels for one in box.series if one.labels.get("node") and one.labels.get("pool")}
    story = _Story(store, trees, knowledge or Knowledge({}, {}), no_tree or {}, nodes)
    begin = box.since if pending is None else max(box.since, pending.at_ms / 1000)  # a young fleet has no whole hour
    for tick in range(int((box.until - begin) / step_s) + 1):
        now = begin + tick * step_s
        while pending is not None and pending.at_ms <= to_ms(now):
            pending.append_to(store)
            pending = next(columns, None)
        story.tick(engine, now)
    return ReplayResult(tuple(story.firings), tuple(story.incidents.values()), tuple(story.told))


class _Story:
    """What happens to incidents as alerts change: the controller's rules without its loops."""

    def __init__(
        self,
        store: SeriesStore,
        trees: Mapping[str, Tree],
        knowledge: Knowledge,
        no_tree: Mapping[str, str],
        nodes: Nodes,
    ) -> None:
        self._store = store
        self._trees = trees
        self._knowledge = knowledge
        self._no_tree = no_tree
        self._kinds = alert_kinds(trees)
        self._explains = knowledge.explains
        self._nodes = nodes
        self._courses: dict[str, Course] = {}
        self.firings: list[Firing] = []
        self.incidents: dict[str, Incident] = {}
        self.told: list[Told] = []

    def tick(self, engine: RuleEngine, now: float) -> None:
        changed = [fired_alert(change.alert) for change in engine.tick(now)]
        firing = [alert for alert in changed if alert.state == "firing"]
        for alert in firing:
            self.firings.append(Firing(now, alert.name, alert.labels))
            self._tell(now, "alert", f"{alert.name} fires on {scope_text(alert.labels)}")
        for alert in changed:
            if alert.state != "firing":
                if alert.state == "resolved" and alert.fired_at is not None:
                    self._tell(now, "alert", f"{alert.name} is over on {scope_text(alert.labels)}")
                for key, incident in self.incidents.items():
                    self.incidents[key] = observe(incident, alert, now)
        grouped = group_alerts(firing, self.incidents.values(), now, self._nodes, self._kinds, self._explains)
        for key, incident in grouped.items():
            before = self.incidents.get(key)
            if before is None or before.status is IncidentStatus.RESOLVED:
                self._tell(now, "incident", f"{key} {'opens' if before is None else 'opens again'}: {incident.title}")
            self.incidents[key] = incident
        for incident in list(self.incidents.values()):
            if incident.status is not IncidentStatus.RESOLVED:
                self._judge(incident, now)
        for key, incident in self.incidents.items():
            if is_over(incident, now):
                self.incidents[key] = resolve(incident, now)
                self._courses.pop(key, None)  # one that is opened again is taken up anew
                self._tell(now, "incident", f"{key} is over")

    def _judge(self, incident: Incident, now: float) -> None:
        """Ask again, as the controller does, where it is due."""
        course = self._courses.setdefault(incident.id, Course.of(incident, now))
        if not course.why_due(incident, now, PACE):
            return
        course.note_walk(incident, now)
        found = diagnose_alerts(
            self._knowledge,
            self._trees,
            self._no_tree,
            incident.alerts,
            incident.scope,
            self._store,
            now,
            incident.onset_at,
            told_elsewhere(incident, self.incidents.values()),
        )
        incident, is_news = course.consider(incident, found)
        self.incidents[incident.id] = incident
        if is_news:
            self._tell(now, "verdict", f"{found.cause or 'no cause'} ({found.confidence}): {found.title}")
        others = self.incidents.values()
        if parts := split_incident(incident, course.pair, others, now, self._nodes, self._kinds, self._explains):
            left, parted = parts
            self.incidents |= {left.id: left, **parted}
            course.note_split(left)
            for one in parted.values():
                self._tell(now, "incident", f"{one.id} is split from {left.id}: {one.title}")
                self._judge(one, now)

    def _tell(self, at: float, kind: str, text: str) -> None:
        self.told.append(Told(at, kind, text))


def _without(group: RuleGroup, names: Set[str]) -> RuleGroup:
    kept = tuple(rule for rule in group.rules if not (isinstance(rule, RecordingRule) and rule.name in names))
    return replace(group, rules=kept)


class _Column(NamedTuple):
    """What series that were recorded at the same times had at one of them. Shapes: `values` (series,)."""

    at_ms: int
    appender: Appender
    labels: LabelColumn
    values: Floats

    def append_to(self, store: SeriesStore) -> None:
        """Its series are made with their first point: a store drops what has had none for long."""
        self.appender.set_series(self.labels, lambda: self.labels)
        store.append_column(self.appender, self.at_ms, self.values)


def _in_time(series: Sequence[RecordedSeries], store: SeriesStore) -> Iterator[_Column]:
    """All points of all series by time. Together, as a scrape appends them: one by one took most of a replay."""
    groups: dict[tuple[str, tuple[int, ...]], list[RecordedSeries]] = {}
    for one in series:
        if one.points:
            # As a live store has them, a rule's or a target's: of a group, each read unpacks what all of it had.
            name = one.labels.get(METRIC_NAME, "")
            writer = name if name.startswith("llm:") else one.labels.get("instance") or one.labels.get("node", "")
            groups.setdefault((writer, tuple(to_ms(at) for at, _ in one.points)), []).append(one)

    def columns(times: tuple[int, ...], own: list[RecordedSeries]) -> Iterator[_Column]:
        appender = store.appender()
        labels = LabelColumn([LabelSet.of(one.labels) for one in own])
        values = np.array([[STALE_NAN if value is None else value for _, value in one.points] for one in own])
        for index, at_ms in enumerate(times):
            yield _Column(at_ms, appender, labels, values[:, index])

    return heapq.merge(*(columns(times, own) for (_, times), own in groups.items()), key=lambda column: column.at_ms)
