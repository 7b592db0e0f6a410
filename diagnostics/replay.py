"""A recorded incident run again: its series, given rules and trees, simulated time. An incident becomes a test case.

Rules that record a series which the box already holds are left out, and what was recorded then is used; with
`recompute` it is the other way round, so that edited signals can be tried on an old incident.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RecordingRule, RuleGroup
from alerts.labels import METRIC_NAME
from alerts.sample import STALE_NAN
from alerts.series.store import SeriesStore
from diagnostics.blackbox import BlackBox, RecordedSeries
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import Knowledge
from diagnostics.grouping import group_alerts
from diagnostics.incident import (
    Incident,
    IncidentStatus,
    fired_alert,
    is_over,
    observe,
    resolve,
    with_diagnosis,
)
from diagnostics.inquiry import diagnose_alerts
from diagnostics.record import IncidentRecord
from diagnostics.scope import Nodes, scope_text
from diagnostics.splitting import CausePair, note_pair, split_incident
from diagnostics.standing import is_outgrown, weigh
from diagnostics.tree import Tree, alert_kinds

_ENGINE_SERIES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})  # the rules write them anew
_SPARE_S = 3600.0  # retention beyond the window: rules look back

# As the controller's settings have them: how often it asks again.
OFTEN_S, OFTEN_FOR_S, SELDOM_S = 3.0, 60.0, 30.0


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
    engine = RuleEngine([_without(group, dropped_rules) for group in groups], store, default_interval_s=step_s)
    points = _in_time([one for one in box.series if one.labels.get(METRIC_NAME) not in dropped_series])
    pending = next(points, None)
    nodes = {one.labels["node"]: one.labels for one in box.series if one.labels.get("node") and one.labels.get("pool")}
    story = _Story(store, trees, knowledge or Knowledge({}, {}), no_tree or {}, nodes)
    begin = box.since if pending is None else max(box.since, pending[0])  # a young fleet has no whole hour before
    for tick in range(int((box.until - begin) / step_s) + 1):
        now = begin + tick * step_s
        while pending is not None and pending[0] <= now:
            store.append(pending[1], pending[0], STALE_NAN if pending[2] is None else pending[2])
            pending = next(points, None)
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
        self._judged_at: dict[str, float] = {}
        self._rivals: dict[str, Diagnosis] = {}  # what would take a confirmed verdict's place, since its `at`
        self._pairs: dict[str, CausePair | None] = {}  # the two causes that an incident's verdicts name together
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
        due = set()
        grouped = group_alerts(firing, self.incidents.values(), now, self._nodes, self._kinds, self._explains)
        for key, incident in grouped.items():
            before = self.incidents.get(key)
            if before is None or before.status is IncidentStatus.RESOLVED:
                self._tell(now, "incident", f"{key} {'opens' if before is None else 'opens again'}: {incident.title}")
            self.incidents[key] = incident
            due.add(key)
        for key, incident in list(self.incidents.items()):
            if incident.status is not IncidentStatus.RESOLVED and (key in due or self._is_due(incident, now)):
                self._judge(incident, now)
        for key, incident in self.incidents.items():
            if is_over(incident, now):
                self.incidents[key] = resolve(incident, now)
                self._tell(now, "incident", f"{key} is over")

    def _is_due(self, incident: Incident, now: float) -> bool:
        if incident.cleared_at is not None:
            return False
        is_young = now - incident.opened_at <= OFTEN_FOR_S or incident.id in self._rivals
        return now - self._judged_at.get(incident.id, now) >= (OFTEN_S if is_young else SELDOM_S)

    def _judge(self, incident: Incident, now: float) -> None:
        """Ask again; a verdict gives way to a surer one, a confirmed one to one that stays confirmed."""
        self._judged_at[incident.id] = now
        found = diagnose_alerts(
            self._knowledge,
            self._trees,
            self._no_tree,
            incident.alerts,
            incident.scope,
            self._store,
            now,
            incident.onset_at,
        )
        self._consider(incident, found, now)
        self._pairs[incident.id] = pair = note_pair(found, self._pairs.get(incident.id))
        incident = self.incidents[incident.id]
        others = self.incidents.values()
        if parts := split_incident(incident, pair, others, now, self._nodes, self._kinds, self._explains):
            left, parted = parts
            self.incidents |= {left.id: left, **parted}
            self._pairs[incident.id] = None
            for one in parted.values():
                self._tell(now, "incident", f"{one.id} is split from {left.id}: {one.title}")
                self._judge(one, now)

    def _consider(self, incident: Incident, found: Diagnosis, now: float) -> None:
        standing = incident.diagnosis
        if standing is not None and not is_outgrown(incident, standing):
            if (found.cause, found.confidence) == (standing.cause, standing.confidence):
                self._rivals.pop(incident.id, None)
                return
            replaces, rival = weigh(found, standing, self._rivals.get(incident.id))
            if not replaces:
                self._rivals.pop(incident.id, None)
                if rival is not None:
                    self._rivals[incident.id] = rival
                return
        self._rivals.pop(incident.id, None)
        self.incidents[incident.id] = with_diagnosis(incident, found)
        self._tell(now, "verdict", f"{found.cause or 'no cause'} ({found.confidence}): {found.title}")

    def _tell(self, at: float, kind: str, text: str) -> None:
        self.told.append(Told(at, kind, text))


def _without(group: RuleGroup, names: Set[str]) -> RuleGroup:
    kept = tuple(rule for rule in group.rules if not (isinstance(rule, RecordingRule) and rule.name in names))
    return replace(group, rules=kept)


def _in_time(series: Sequence[RecordedSeries]) -> Iterator[tuple[float, Mapping[str, str], float | None]]:
    """All points of all series by time."""

    def points(one: RecordedSeries) -> Iterator[tuple[float, Mapping[str, str], float | None]]:
        for at, value in one.points:
            yield at, one.labels, value

    return heapq.merge(*(points(one) for one in series), key=lambda point: point[0])
