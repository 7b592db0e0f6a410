"""The open and recent incidents in memory, each change stored. Judgement about them is in `diagnostics.incident`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from diagnostics.incident import REOPEN_WITHIN_S, Incident, IncidentStatus, nodes_of
from fleetctl.controller.incidents.incident_store import list_recent, save_incident
from fleetctl.controller.records import Records

log = structlog.get_logger()


class IncidentBook:
    """Owner of incidents' state.

    Changes are applied to memory at once and in order, so that loops which run side by side never undo each other's;
    the database follows in the same order.
    """

    def __init__(self, records: Records) -> None:
        self._database = records.database
        self._clock = records.clock
        self._recent: dict[str, Incident] = {}
        self._storing: dict[str, Future[None]] = {}  # what the database has not confirmed

    @classmethod
    async def opened(cls, records: Records) -> IncidentBook:
        """With the open and recent incidents that the database has."""
        book = cls(records)
        since = records.clock.now() - REOPEN_WITHIN_S
        stored = await records.database.read(lambda c: list_recent(c, since))
        book._recent = {one.incident.id: one.incident for one in stored}
        return book

    def open_incidents(self) -> list[Incident]:
        """Not resolved, the oldest first."""
        found = [one for one in self._recent.values() if one.status is not IncidentStatus.RESOLVED]
        return sorted(found, key=lambda one: (one.opened_at, one.id))

    def recent(self) -> list[Incident]:
        """Open ones, and those resolved so lately that they may reopen."""
        return list(self._recent.values())

    def get(self, incident_id: str) -> Incident | None:
        """An open or recent incident."""
        return self._recent.get(incident_id)

    def cleared_at(self, incident_id: str) -> float | None:
        """Since when none of its alerts stands; None: one does, or the incident is not among these."""
        incident = self._recent.get(incident_id)
        return None if incident is None else incident.cleared_at

    def of_node(self, node: str) -> str | None:
        """The id of the open incident that covers the node."""
        for incident in self.open_incidents():
            if incident.scope.get("node") == node or node in nodes_of(incident):
                return incident.id
        return None

    def hold_incident(self, incident: Incident) -> None:
        """Hold this state of an incident, new or known, and begin to store it."""
        if self._recent.get(incident.id) == incident:
            return
        self._recent[incident.id] = incident
        self._storing[incident.id] = self._database.write_soon(lambda c: save_incident(c, incident))

    async def store_incident(self, incident: Incident) -> None:
        """As `hold_incident`, and wait until it is stored."""
        self.hold_incident(incident)
        await self.settle()

    async def change_incident(self, incident_id: str, change: Callable[[Incident], Incident]) -> Incident:
        """Apply `change` to the incident as it is now."""
        changed = change(self._recent[incident_id])
        await self.store_incident(changed)
        return changed

    async def settle(self) -> None:
        """Wait until all states are stored. One that the database did not take is tried again at the next call."""
        for incident_id, future in list(self._storing.items()):
            incident = self._recent.get(incident_id)
            if future.done() and future.exception() is not None and incident is not None:
                future = self._database.write_soon(lambda c, incident=incident: save_incident(c, incident))  # type: ignore[misc]
                self._storing[incident_id] = future
            await asyncio.wrap_future(future)
            if self._storing.get(incident_id) is future:
                del self._storing[incident_id]

    def drop_old(self) -> None:
        """Let go of incidents that can't reopen any more; they stay in the database."""
        since = self._clock.now() - REOPEN_WITHIN_S
        for incident in list(self._recent.values()):
            ended = incident.resolved_at
            if incident.status is IncidentStatus.RESOLVED and ended is not None and ended < since:
                del self._recent[incident.id]
