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
from diagnostics.grouping import group_alerts
from diagnostics.incident import Incident, fired_alert, has_alert, is_over, observe, resolve, with_diagnosis
from diagnostics.query import store_query
from diagnostics.record import IncidentRecord
from diagnostics.scope import Nodes
from diagnostics.tree import Tree, alert_kinds, tree_for_alert
from diagnostics.walker import walk

_ENGINE_SERIES = frozenset({"ALERTS", "ALERTS_FOR_STATE"})  # the rules write them anew
_SPARE_S = 3600.0  # retention beyond the window: rules look back


@dataclass(frozen=True, slots=True)
class Firing:
    """An alert that fired in the replay."""

    at: float
    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What rules and trees would have said."""

    firings: tuple[Firing, ...]
    incidents: tuple[Incident, ...]  # in the order of opening, each with its diagnosis

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
    *,
    step_s: float = 1.0,
    recompute: bool = False,
) -> ReplayResult:
    """What rules and trees would have said, second by second, over the window of the recording."""
    recorded = {one.labels.get(METRIC_NAME, "") for one in box.series}
    given = {rule.name for group in groups for rule in group.rules if isinstance(rule, RecordingRule)}
    dropped_series = _ENGINE_SERIES | (given if recompute else frozenset())
    dropped_rules = frozenset() if recompute else given & recorded
    store = SeriesStore(retention_s=box.until - box.since + _SPARE_S, max_points=1_000_000)
    engine = RuleEngine([_without(group, dropped_rules) for group in groups], store, default_interval_s=step_s)
    points = _in_time([one for one in box.series if one.labels.get(METRIC_NAME) not in dropped_series])
    pending = next(points, None)
    nodes = {one.labels["node"]: one.labels for one in box.series if one.labels.get("node") and one.labels.get("pool")}
    story = _Story(store, trees, nodes)
    for tick in range(int((box.until - box.since) / step_s) + 1):
        now = box.since + tick * step_s
        while pending is not None and pending[0] <= now:
            store.append(pending[1], pending[0], STALE_NAN if pending[2] is None else pending[2])
            pending = next(points, None)
        story.tick(engine, now)
    return ReplayResult(tuple(story.firings), tuple(story.incidents.values()))


class _Story:
    """What happens to incidents as alerts change: the controller's rules without its loops."""

    def __init__(self, store: SeriesStore, trees: Mapping[str, Tree], nodes: Nodes) -> None:
        self._store = store
        self._trees = trees
        self._kinds = alert_kinds(trees)
        self._nodes = nodes
        self.firings: list[Firing] = []
        self.incidents: dict[str, Incident] = {}

    def tick(self, engine: RuleEngine, now: float) -> None:
        changed = [fired_alert(change.alert) for change in engine.tick(now)]
        firing = [alert for alert in changed if alert.state == "firing"]
        self.firings += [Firing(now, alert.name, alert.labels) for alert in firing]
        for alert in changed:
            if alert.state != "firing":
                for key, incident in self.incidents.items():
                    self.incidents[key] = observe(incident, alert, now)
        before = {one.id: dict(one.scope) for one in self.incidents.values()}
        for key, incident in group_alerts(firing, self.incidents.values(), now, self._nodes, self._kinds).items():
            if incident.diagnosis is None or before.get(key) != dict(incident.scope):
                new = [alert.name for alert in firing if has_alert(incident, alert)]
                incident = self._diagnosed(incident, new, now)
            self.incidents[key] = incident
        for key, incident in self.incidents.items():
            if is_over(incident, now):
                self.incidents[key] = resolve(incident, now)

    def _diagnosed(self, incident: Incident, names: Sequence[str], now: float) -> Incident:
        tree = next((tree for name in names if (tree := tree_for_alert(self._trees, name)) is not None), None)
        if tree is None:
            return incident
        return with_diagnosis(
            incident, walk(tree, incident.scope, store_query(self._store, now), now, incident.onset_at)
        )


def _without(group: RuleGroup, names: Set[str]) -> RuleGroup:
    kept = tuple(rule for rule in group.rules if not (isinstance(rule, RecordingRule) and rule.name in names))
    return replace(group, rules=kept)


def _in_time(series: Sequence[RecordedSeries]) -> Iterator[tuple[float, Mapping[str, str], float | None]]:
    """All points of all series by time."""

    def points(one: RecordedSeries) -> Iterator[tuple[float, Mapping[str, str], float | None]]:
        for at, value in one.points:
            yield at, one.labels, value

    return heapq.merge(*(points(one) for one in series), key=lambda point: point[0])
