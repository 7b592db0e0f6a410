"""The open and recent incidents in memory, each change stored. Judgement about them is in `diagnostics.incident`."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from diagnostics.incident import REOPEN_WITHIN_S, Incident, IncidentStatus, nodes_of
from fleetctl.controller.database import Database
from fleetctl.controller.incident_store import list_recent, save_incident
from fleetctl.kit.clock import Clock

log = structlog.get_logger()


class IncidentBook:
    """Owner of incidents' state.

    Changes are applied to memory at once and in order, so that loops which run side by side never undo each other's;
    the database follows, and what it did not take is tried again by `save_pending`.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._recent: dict[str, Incident] = {}
        self._pending: set[str] = set()

    async def load(self) -> None:
        since = self._clock.now() - REOPEN_WITHIN_S
        stored = await self._database.read(lambda c: list_recent(c, since))
        self._recent = {one.incident.id: one.incident for one in stored}

    def open(self) -> list[Incident]:
        """Not resolved, the oldest first."""
        found = [one for one in self._recent.values() if one.status is not IncidentStatus.RESOLVED]
        return sorted(found, key=lambda one: (one.opened_at, one.id))

    def recent(self) -> list[Incident]:
        """Open ones, and those resolved so lately that they may reopen."""
        return list(self._recent.values())

    def get(self, incident_id: str) -> Incident | None:
        """An open or recent incident."""
        return self._recent.get(incident_id)

    def of_node(self, node: str) -> str | None:
        """The id of the open incident that covers the node."""
        for incident in self.open():
            if incident.scope.get("node") == node or node in nodes_of(incident):
                return incident.id
        return None

    async def put(self, incident: Incident) -> None:
        """Take this state of an incident, new or known."""
        if self._recent.get(incident.id) == incident:
            return
        self._recent[incident.id] = incident
        self._pending.add(incident.id)
        await self.save_pending()

    async def change(self, incident_id: str, change: Callable[[Incident], Incident]) -> Incident:
        """Apply `change` to the incident as it is now."""
        changed = change(self._recent[incident_id])
        await self.put(changed)
        return changed

    async def save_pending(self) -> None:
        for incident_id in list(self._pending):
            incident = self._recent.get(incident_id)
            if incident is not None:
                await self._database.write(lambda c, incident=incident: save_incident(c, incident))  # type: ignore[misc]
            if self._recent.get(incident_id) is incident:
                self._pending.discard(incident_id)

    def drop_old(self) -> None:
        """Let go of incidents that can't reopen any more; they stay in the database."""
        since = self._clock.now() - REOPEN_WITHIN_S
        for incident in list(self._recent.values()):
            ended = incident.resolved_at
            if incident.status is IncidentStatus.RESOLVED and ended is not None and ended < since:
                del self._recent[incident.id]
