"""Walking the trees for open incidents: at once, often while the answer may get better, and again while it is open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import structlog

from alerts.series.store import SeriesStore
from diagnostics.course import Course, Pace
from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import Incident, nodes_of, told_elsewhere, with_diagnosis
from diagnostics.inquiry import diagnose_alerts
from diagnostics.scope import Nodes, node_scope, nodes_in_scope, scope_text
from diagnostics.splitting import CausePair, split_incident
from diagnostics.tree import alert_kinds
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.its_node import MAX_NODES_ASKED, is_of_a_later_one, named, those_with_it
from fleetctl.controller.records import Records
from fleetctl.settings.controller import IncidentSettings

log = structlog.get_logger()

LOCATE_EVERY_S = 30.0  # a node that could not be told apart is looked for again


class _Located(NamedTuple):
    """Which nodes have the cause that an incident of several was given. None: there are too many to ask."""

    cause: str | None
    nodes: tuple[str, ...] | None
    at: float

    @property
    def node(self) -> str:
        """The only one; "" where none has it, or several."""
        return self.nodes[0] if self.nodes is not None and len(self.nodes) == 1 else ""


class Diagnosing:
    """Walks an incident's trees when it opens, widens or gets another alert, and again for as long as it is open.

    While a run acts on it, nothing is asked again: what is done changes what is measured.
    """

    def __init__(
        self,
        content: ContentStore,
        store: SeriesStore,
        book: IncidentBook,
        automation: Automation,
        known_nodes: Callable[[], Nodes],
        records: Records,
        limits: IncidentSettings,
    ) -> None:
        """`known_nodes`: those that are wanted, and the places that each is in."""
        self._known_nodes = known_nodes
        self._content = content
        self._store = store
        self._book = book
        self._automation = automation
        self._timeline = records.timeline
        self._metrics = records.metrics
        self._clock = records.clock
        self._pace = Pace(limits.diagnose_every_s, limits.diagnose_for_s, limits.rediagnose_every_s)
        self._courses: dict[str, Course] = {}
        self._located: dict[str, _Located] = {}

    async def diagnose_incidents(self) -> None:
        """Walk the trees of every open incident that is due."""
        now = self._clock.now()
        incidents = self._book.open_incidents()
        for gone in self._courses.keys() - {incident.id for incident in incidents}:
            del self._courses[gone]
            self._located.pop(gone, None)
        content = self._content.current
        for incident in incidents:
            course = self._courses.setdefault(incident.id, Course.of(incident, now))
            why = course.why_due(incident, now, self._pace)
            if not why or not self._automation.may_diagnose(incident):
                continue
            course.note_walk(incident, now)
            node = incident.scope.get("node")  # a gateway's alert names the node alone
            found = diagnose_alerts(
                content.knowledge,
                content.trees,
                content.no_tree,
                incident.alerts,
                incident.scope if node is None else {**node_scope(node, self._known_nodes()), **incident.scope},
                self._store,
                now,
                incident.onset_at,
                told_elsewhere(incident, incidents),
            )
            if found.is_of_one:
                its = self._locate(incident, found, now)
                if self._is_anothers(incident, incidents, its):
                    continue
                if its.node:
                    title = named(found.title, its.node, scope_text(incident.scope))
                    found = replace(found, title=title, its_node=its.node)
            await self._consider(incident.id, found, course, why)
            await self._split(incident.id, course, now)

    def _locate(self, incident: Incident, found: Diagnosis, now: float) -> _Located:
        """Which node has what "a node of" a place has."""
        before, known = self._located.get(incident.id), self._known_nodes()
        if before is not None and before.node and before.node not in known:
            before = None  # it was taken out
        if before is None or before.cause != found.cause or (not before.node and now - before.at >= LOCATE_EVERY_S):
            inside = nodes_in_scope(incident.scope, known)
            suspects = inside if len(inside) <= MAX_NODES_ASKED else inside.intersection(nodes_of(incident))
            its = those_with_it(found, suspects, known, self._content.current, self._store, now)
            before = _Located(found.cause, None if its is None else tuple(its), now)
            self._located[incident.id] = before
        return before

    def _is_anothers(self, incident: Incident, others: Sequence[Incident], its: _Located) -> bool:
        """Whether a node's own incident, which began after this one, tells of what was found: what stands here
        is not replaced by it."""
        if incident.diagnosis is None or its.nodes is None:
            return False
        suspects = nodes_in_scope(incident.scope, self._known_nodes())
        return is_of_a_later_one(incident, others, suspects, its.nodes)

    async def _consider(self, incident_id: str, found: Diagnosis, course: Course, why: str) -> None:
        incident = self._book.get(incident_id)
        if incident is None:
            return
        its, known = incident.diagnosis.its_node if incident.diagnosis is not None else "", self._known_nodes()
        is_gone = bool(its and known) and its not in known  # none is known right after a start
        why = f"{its} was taken out" if is_gone else why
        considered = course.consider(incident, found, is_gone=is_gone)
        stands = considered.incident.diagnosis
        if stands is None or considered.incident is incident:
            return
        await self._book.change_incident(incident_id, lambda one: with_diagnosis(one, stands))
        if considered.is_news:
            await self._tell(incident, stands, incident.diagnosis, why)

    async def _split(self, incident_id: str, course: Course, now: float) -> None:
        """Make it two incidents, once it names two causes for long enough and its alerts tell which is whose."""
        incident, content = self._book.get(incident_id), self._content.current
        if incident is None or course.pair is None:
            return
        before = {one.id: one for one in self._book.recent()}
        kinds, known = alert_kinds(content.trees), self._known_nodes()
        found = split_incident(incident, course.pair, before.values(), now, known, kinds, content.knowledge.explains)
        if found is None:
            return
        left, parted = found
        pair = course.pair
        course.note_split(left)
        # All at once and without an await between: no tick of the rules may see an alert in none or in two.
        for one in (left, *parted.values()):
            self._book.hold_incident(one)
        await self._book.settle()
        left_by = {one.fingerprint for one in incident.alerts} - {one.fingerprint for one in left.alerts}
        for one in parted.values():
            names = ", ".join(sorted({alert.name for alert in one.alerts if alert.fingerprint in left_by}))
            if one.id not in before:
                self._metrics.incidents.labels(severity=one.severity).inc()
            if names:
                await self._tell_split(left, one, names, pair, is_new=one.id not in before)

    async def _tell_split(self, left: Incident, parted: Incident, names: str, pair: CausePair, *, is_new: bool) -> None:
        data = {"cause": pair.cause, "also": pair.also, "incident": left.id, "parted": parted.id}
        await self._timeline.append(
            "incident.split",
            f"{pair.also} is another fault: {names} of {scope_text(parted.scope)} went to {parted.id}",
            incident_id=left.id,
            node=left.scope.get("node"),
            data=data,
        )
        await self._timeline.append(
            "incident.opened" if is_new else "incident.split",
            f"{parted.title}; split from {left.id}, where {pair.cause} is the cause",
            incident_id=parted.id,
            node=parted.scope.get("node"),
            data={**data, "severity": parted.severity, "scope": dict(parted.scope)},
        )

    async def _tell(self, incident: Incident, found: Diagnosis, before: Diagnosis | None, why: str) -> None:
        text = f"{found.title} ({found.cause}, {found.confidence})" if found.cause else found.title
        data: dict[str, Any] = {
            "cause": found.cause,
            "confidence": found.confidence,
            "title": found.title,
            "tree": found.tree,
            "evidence": [asdict(one) for one in found.evidence],
            "ruled_out": list(found.ruled_out),
            "not_known": list(found.not_known),
            "probability": found.probability,
            "also": found.also,
            "runner_up": found.runner_up,
            "runner_up_probability": found.runner_up_probability,
            "tells_apart": found.tells_apart,
            "why_not": dict(found.why_not),
            "onset": found.onset,
            "onset_early": found.onset_early,
            "onset_late": found.onset_late,
            "changes": list(found.changes),
        }
        kind = "diagnosis.named" if found.cause is not None else "diagnosis.open"
        if before is not None and before.cause is not None and before.cause != found.cause:
            kind = "diagnosis.replaced"
            said_at = datetime.fromtimestamp(before.said_since, UTC).strftime("%H:%M:%S")
            text += f"; in place of {before.cause} ({before.confidence}, {said_at} UTC): {why}"
            data |= {"was": asdict(before), "why": why}
            log.info("diagnosis.replaced", incident_id=incident.id, cause=found.cause, was=before.cause, why=why)
        await self._timeline.append(kind, text, incident_id=incident.id, node=incident.scope.get("node"), data=data)
