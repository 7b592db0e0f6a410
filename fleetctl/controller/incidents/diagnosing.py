"""Walking the trees for open incidents: at once, and again while the answer may get better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import structlog

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, undiagnosed
from diagnostics.incident import SEVERITY_ORDER, Incident, gravest, with_diagnosis
from diagnostics.query import store_query
from diagnostics.tree import Tree, tree_for_alert
from diagnostics.walker import walk
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.controller import IncidentSettings

log = structlog.get_logger()

DEFAULT_TREE = "latency"
_RANK = {"unknown": 0, "likely": 1, "confirmed": 2}


class Diagnosing:
    """Walks an incident's tree when it opens or widens, and again for as long as the answer may get better."""

    def __init__(
        self,
        content: ContentStore,
        store: SeriesStore,
        book: IncidentBook,
        automation: Automation,
        records: Records,
        limits: IncidentSettings,
    ) -> None:
        self._content = content
        self._store = store
        self._book = book
        self._automation = automation
        self._timeline = records.timeline
        self._clock = records.clock
        self._limits = limits
        self._walked_at: dict[str, float] = {}

    async def diagnose_incidents(self) -> None:
        """Walk the tree of every open incident that is due."""
        now = self._clock.now()
        incidents = self._book.open_incidents()
        for gone in self._walked_at.keys() - {incident.id for incident in incidents}:
            del self._walked_at[gone]
        content = self._content.current
        for incident in incidents:
            if not self._is_due(incident, now) or not self._automation.may_diagnose(incident):
                continue
            self._walked_at[incident.id] = now
            tree = tree_for_incident(content.trees, incident)
            if tree is None:
                alert = gravest(incident.alerts).name
                await self._keep_better(incident.id, undiagnosed(alert, content.no_tree.get(alert)))
                continue
            await self._keep_better(incident.id, walk(tree, incident.scope, store_query(self._store, now), now))

    def diagnose(self, tree_name: str | None, scope: Mapping[str, str]) -> Diagnosis:
        """A walk now, stored nowhere; without a name, the tree that most pages lead to.

        Raises BadInputError when there is no such tree.
        """
        now = self._clock.now()
        trees = self._content.current.trees
        tree = trees.get(tree_name or DEFAULT_TREE)
        if tree is None:
            known = ", ".join(sorted(trees))
            raise BadInputError(f"there is no tree named {tree_name!r}", remedy=f"trees: {known}")
        return walk(tree, scope, store_query(self._store, now), now)

    def _is_due(self, incident: Incident, now: float) -> bool:
        if incident.diagnosis is not None and is_outgrown(incident, incident.diagnosis):
            return True
        if incident.diagnosis is not None and incident.diagnosis.confidence == "confirmed":
            return False
        walked = self._walked_at.get(incident.id)
        if walked is None and incident.diagnosis is None:
            return True  # at once, also when the incident opened while no controller ran
        if now - incident.opened_at > self._limits.diagnose_for_s:
            return False
        return walked is None or now - walked >= self._limits.diagnose_every_s

    async def _keep_better(self, incident_id: str, found: Diagnosis) -> None:
        incident = self._book.get(incident_id)
        if incident is None:
            return
        before = incident.diagnosis
        if before is not None and not is_better(found, before) and not is_outgrown(incident, before):
            return
        await self._book.change_incident(incident_id, lambda one: with_diagnosis(one, found))
        if before is not None and (before.cause, before.confidence) == (found.cause, found.confidence):
            return
        kind = "diagnosis.named" if found.cause is not None else "diagnosis.open"
        text = f"{found.title} ({found.cause}, {found.confidence})" if found.cause else found.title
        await self._timeline.append(
            kind,
            text,
            incident_id=incident_id,
            node=incident.scope.get("node"),
            data={
                "cause": found.cause,
                "confidence": found.confidence,
                "tree": found.tree,
                "evidence": [asdict(one) for one in found.evidence],
                "ruled_out": list(found.ruled_out),
                "not_known": list(found.not_known),
            },
        )


def is_outgrown(incident: Incident, standing: Diagnosis) -> bool:
    """Whether the incident became wider since: what explains one node need not explain them all."""
    return incident.widened_at is not None and standing.at < incident.widened_at


def is_better(found: Diagnosis, standing: Diagnosis) -> bool:
    """Whether a newer walk replaces the standing one: never a named cause by none, nor a surer one by a less sure."""
    if _RANK[found.confidence] != _RANK[standing.confidence]:
        return _RANK[found.confidence] > _RANK[standing.confidence]
    return found.cause is not None or standing.cause is None


def tree_for_incident(trees: Mapping[str, Tree], incident: Incident) -> Tree | None:
    """The tree of the gravest alert that has one; of equals, the first that fired. The names of alerts from outside are
    not ours to know: where none has a tree, the one that most pages lead to."""
    ranked = sorted(
        enumerate(incident.alerts),
        key=lambda pair: (-_severity(pair[1].severity), pair[0]),
    )
    for _, alert in ranked:
        if (tree := tree_for_alert(trees, alert.name)) is not None:
            return tree
    return trees.get(DEFAULT_TREE) if any(one.source != "rules" for one in incident.alerts) else None


def _severity(word: str) -> int:
    return SEVERITY_ORDER.index(word) if word in SEVERITY_ORDER else 0
