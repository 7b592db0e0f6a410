"""Diagnosis over a past that somebody else has recorded: a Prometheus, OpenMetrics files, a black box.

Nothing but series is known there: no controller's word, no gateway of ours, unless their series are among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alerts.evaluation.rules import RecordingRule, RuleGroup
from alerts.history.backtest import alive_groups, in_order, run_backtest, widened
from alerts.history.fleet_labels import FleetLabels
from alerts.history.prometheus_source import RangeSeries
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql import Query, parse
from alerts.promql.nodes import metric_names
from alerts.sample import MISSING, STALE_NAN, STALE_NAN_BITS
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.seen_changes import QUERIES as CHANGE_QUERIES
from diagnostics.incident import Incident, IncidentStatus, with_diagnosis
from diagnostics.inquiry import diagnose_incidents
from diagnostics.query import NO_DATA, sample_query
from diagnostics.retrospect import Retrospect
from diagnostics.scope import PLACES, is_wide, node_scope, scope_contains
from diagnostics.severity import severity_rank
from diagnostics.tree import Tree, alert_kinds

POINTS_PER_WINDOW = 4  # a rate over fewer is luck
STEP_S = 5.0  # between two evaluations of the rules; of a slower scrape: as long as that
_NONE = np.zeros(0, dtype=np.int64)
_SCRAPED = frozenset({"vllm", "sglang", "tgi", "trtllm", "triton", "fleetctl"})


@dataclass(frozen=True, slots=True)
class Said:
    """A verdict, and the incident that it is of; None: no alert stands there."""

    diagnosis: Diagnosis
    incident: Incident | None = None


@dataclass(frozen=True, slots=True)
class PastVerdict:
    """What is said at that time, the gravest first, and what these engines cannot tell."""

    said: tuple[Said, ...]
    nodes: Mapping[str, Mapping[str, str]]
    engines: tuple[str, ...]


def rows_of_store(
    store: SeriesStore,
    since: float = 0.0,
    until: float = float("inf"),
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[RangeSeries]:
    """The series of a recording between two Unix times, as a Prometheus would give them; `wanted`: of these metrics."""
    first, last = store.bounds() or (0.0, 0.0)
    is_wanted = lambda labels: wanted(labels.name)  # noqa: E731
    for labels, points in store.dump(max(since, first), min(until, last), wanted=is_wanted):
        times = np.array([round(at * 1000) for at, _ in points], dtype=np.int64)
        values = np.array([value for _, value in points], dtype=np.float64)
        is_kept = values.view(np.int64) != STALE_NAN_BITS
        if is_kept.any():
            yield RangeSeries(LabelSet.of(labels), times[is_kept], values[is_kept])


class Past:
    """A past under our labels, ready to be asked."""

    def __init__(
        self, rows: Sequence[RangeSeries], rules: Mapping[str, str] | None = None, like: Past | None = None
    ) -> None:
        """`rules`: labels that the reader states, see FleetLabels. `like`: another time of the same fleet."""
        rows = _joined(rows)
        up = [row for row in rows if row.labels.get(METRIC_NAME) == "up"]
        others = [row for row in rows if row.labels.get(METRIC_NAME) != "up"]
        self.store = SeriesStore(retention_s=10 * 366 * 86400.0, max_points=10_000_000, is_recording=True)
        self._rules = rules
        self._labels: FleetLabels = FleetLabels(rows, rules, None if like is None else like._labels)
        _write(self.store, up, others, self._labels)
        self.nodes: dict[str, dict[str, str]] = {}
        engines = set()
        for row in rows:
            labels = self._labels(row.labels)
            if labels.get("engine") in _SCRAPED and (node := labels.get("node")):
                engines.add(labels.get("engine"))
                self.nodes[node] = {place: value for place in PLACES if (value := labels.get(place))}
        self.engines = tuple(sorted(engines))

    def known_scope(self, scope: Mapping[str, str]) -> dict[str, str]:
        """The scope with what is known of its node; without any word, the only pool."""
        if node := scope.get("node"):
            return node_scope(node, self.nodes)
        pools = {places["pool"] for places in self.nodes.values() if "pool" in places}
        return dict(scope) if scope or len(pools) != 1 else {"pool": pools.pop()}

    def at_another_time(self, rows: Sequence[RangeSeries]) -> Past:
        """The same fleet by what was scraped then: a target has the labels that it has here."""
        return Past(rows, self._rules, like=self)

    def record(self, groups: Sequence[RuleGroup], start: float, end: float) -> None:
        """Adds what these rules record between two Unix times. Once only."""
        spacing_s = self._spacing_s()
        kept = alive_groups(widened(groups, POINTS_PER_WINDOW * spacing_s), self.store.has_any)
        run_backtest(in_order(kept), self.store, start, end, step_s=max(STEP_S, spacing_s))

    def diagnose(
        self,
        groups: Sequence[RuleGroup],
        knowledge: Knowledge,
        trees: Mapping[str, Tree],
        no_tree: Mapping[str, str],
        scope: Mapping[str, str],
        times: Sequence[float],
        last_s: float,
    ) -> list[PastVerdict]:
        """What would have been said at each of these rising Unix times, by the `last_s` seconds before the last.

        Once only: what rules record is added to the store.
        """
        spacing_s = self._spacing_s()
        past = Retrospect(
            self.store,
            widened(groups, POINTS_PER_WINDOW * spacing_s),
            self.nodes,
            times[-1] - last_s,
            times[-1],
            kinds=alert_kinds(trees),
            step_s=max(STEP_S, spacing_s),
        )
        where = self.known_scope(scope)
        found = []
        stands: dict[str, Diagnosis] = {}  # what was said last, by incident
        for at in times:
            opened = [one for one in past.incidents_at(at) if one.status is not IncidentStatus.RESOLVED]
            concerned = sorted((one for one in opened if not scope or _concerns(one, where)), key=_gravity)
            known = [with_diagnosis(one, stands[one.id]) if one.id in stands else one for one in concerned]
            judged = diagnose_incidents(knowledge, trees, no_tree, known, self.store, at)
            said = [Said(one.diagnosis, one) for one in judged if one.diagnosis is not None]
            stands |= {one.id: one.diagnosis for one in judged if one.diagnosis is not None}
            if not said:
                said = [Said(look_around(knowledge, trees, where, self.store, at))]
            found.append(PastVerdict(tuple(said), self.nodes, self.engines))
        return found

    def _spacing_s(self) -> float:
        return self.store.typical_spacing_s() or STEP_S


def _joined(rows: Sequence[RangeSeries]) -> list[RangeSeries]:
    """Each series once: a server is asked window by window, and gives a part of a series for each."""
    parts: dict[LabelSet, list[RangeSeries]] = {}
    for row in rows:
        parts.setdefault(row.labels, []).append(row)
    found = []
    for labels, own in parts.items():
        times, first = np.unique(np.concatenate([row.times for row in own]), return_index=True)
        found.append(RangeSeries(labels, times, np.concatenate([row.values for row in own])[first]))
    return found


def _write(
    store: SeriesStore,
    up: Sequence[RangeSeries],
    others: Sequence[RangeSeries],
    relabel: Callable[[LabelSet], LabelSet],
) -> None:
    """Target by target. A series ends at the first scrape that lacks it: a range query does not say where it did."""
    scraped: dict[tuple[str, str], list[RangeSeries]] = {}
    for row in (*up, *others):
        scraped.setdefault((row.labels.get("job"), row.labels.get("instance")), []).append(row)
    for rows in scraped.values():
        times = np.unique(np.concatenate([row.times for row in rows if row.labels.get(METRIC_NAME) == "up"] or [_NONE]))
        aligned = [row for row in rows if len(times) and np.isin(row.times, times).all()]
        values = np.full((len(aligned), len(times)), MISSING)
        for index, row in enumerate(aligned):
            values[index, np.searchsorted(times, row.times)] = row.values
            there = np.zeros(len(times), dtype=np.bool_)
            there[np.searchsorted(times, row.times)] = True
            values[index, 1:][there[:-1] & ~there[1:]] = STALE_NAN
        if aligned:
            store.append_matrix([relabel(row.labels) for row in aligned], times, values)
        known = {id(row) for row in aligned}
        for row in rows:
            if id(row) not in known:
                store.append_points(relabel(row.labels), row.times, row.values)


def reading_group(queries: Iterable[Query]) -> RuleGroup:
    """A group that only says what these queries read."""
    rules = tuple(RecordingRule("asked", one, ()) for one in queries)
    return RuleGroup("asked", "", None, 0.0, 0, rules)


def asked_of(knowledge: Knowledge) -> RuleGroup:
    """All that a verdict reads beside what rules record: an engine's word for its settings, a gateway's for tenants.

    For who fetches series before they are asked.
    """
    templates = [one for question in knowledge.questions.values() for one in (question.query, question.pool_query)]
    queries = [*(sample_query(one) for one in templates if one), *CHANGE_QUERIES]
    return reading_group(map(parse, queries))


def signals_asked(diagnosis: Diagnosis) -> frozenset[str]:
    """The `llm:` series of answers that are unknown for want of a series."""
    names: set[str] = set()
    for one in diagnosis.evidence:
        if one.answer == "unknown" and one.query and one.why_unknown.startswith(NO_DATA):
            names |= {name for name in metric_names(parse(one.query).root) if name.startswith("llm:")}
    return frozenset(names)


def _concerns(incident: Incident, where: Mapping[str, str]) -> bool:
    return scope_contains(where, incident.scope) or scope_contains(incident.scope, where)


def _gravity(incident: Incident) -> tuple[int, bool, float, str]:
    """The gravest first; of equals the wider one, then the older one."""
    return -severity_rank(incident.severity), not is_wide(incident.scope), incident.opened_at, incident.id
