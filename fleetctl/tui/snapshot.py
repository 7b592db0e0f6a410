"""What the cockpit knows at one moment, and the one reader that finds it out.

A snapshot is whole: all its parts were read in one turn. When the controller can't be reached, the last good parts
stay and the snapshot says since when it is cut off. Nothing here knows Textual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.wire import (
    ActionRequest,
    Alert,
    ApprovalRequest,
    Incident,
    IncidentStatus,
    Node,
    NodePhase,
    Pool,
    Run,
    RunbookInfo,
    RunStatus,
    Status,
)


class CockpitClient(Protocol):
    """The part of `fleetctl.client.ControllerClient` that the cockpit uses."""

    async def status(self) -> Status: ...
    async def nodes(self) -> list[Node]: ...
    async def pools(self) -> list[Pool]: ...
    async def alerts(self) -> list[Alert]: ...
    async def incidents(self, status: str | None = None) -> list[Incident]: ...
    async def incident(self, incident_id: str, /) -> Incident: ...
    async def runbook(self, name: str, /) -> RunbookInfo: ...
    async def act(self, request: ActionRequest, /) -> Run: ...
    async def decide(self, run_id: str, request: ApprovalRequest, /) -> Run: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown, as it was at one moment."""

    status: Status | None = None  # None: the controller never answered
    nodes: tuple[Node, ...] = ()
    pools: tuple[Pool, ...] = ()
    alerts: tuple[Alert, ...] = ()
    incidents: tuple[Incident, ...] = ()  # gravest first: open ones, then by time; without timeline and evidence
    focus: Incident | None = None  # the shown incident in full
    page: RunbookInfo | None = None  # the runbook of the focus' current run
    known_at: float | None = None  # Unix time of the last good answer; None: there was none
    cut_off_since: float | None = None  # None: the controller answers
    error: str = ""  # why it does not

    def age_s(self, now: float) -> float:
        """Seconds since the data was read: what to add to every age in it."""
        return 0.0 if self.known_at is None else max(0.0, now - self.known_at)


class SnapshotReader:
    """Reads snapshots from a controller, and keeps the last good one for when it is away."""

    def __init__(self, controller: CockpitClient, now: Callable[[], float]) -> None:
        self._controller = controller
        self._now = now
        self._last = Snapshot()
        self._pages: dict[str, RunbookInfo] = {}  # a page changes only when the controller restarts

    async def read(self, focus_id: str | None) -> Snapshot:
        """The state of now, with incident `focus_id` in full; without one, the gravest incident."""
        try:
            self._last = await self._read(focus_id)
        except FleetctlError as error:
            since = self._last.cut_off_since
            self._last = replace(self._last, cut_off_since=self._now() if since is None else since, error=error.message)
        return self._last

    async def _read(self, focus_id: str | None) -> Snapshot:
        controller = self._controller
        status, nodes, pools, alerts, incidents = await asyncio.gather(
            controller.status(), controller.nodes(), controller.pools(), controller.alerts(), controller.incidents()
        )
        if self._last.status is not None and status.started_at != self._last.status.started_at:
            self._pages.clear()
        ordered = tuple(sorted(incidents, key=lambda one: (_is_closed(one), -one.opened_at)))
        wanted = focus_id if focus_id is not None else (ordered[0].id if ordered else None)
        focus = await self._incident(wanted) if wanted is not None else None
        return Snapshot(
            status=status,
            nodes=tuple(sorted(nodes, key=_stopped_last)),
            pools=tuple(pools),
            alerts=tuple(alerts),
            incidents=ordered,
            focus=focus,
            page=await self._page(focus) if focus is not None else None,
            known_at=self._now(),
        )

    async def _incident(self, incident_id: str) -> Incident | None:
        try:
            return await self._controller.incident(incident_id)
        except BadInputError:  # it is gone (404): there is nothing to show, and the rest is good
            return None

    async def _page(self, incident: Incident) -> RunbookInfo | None:
        run = current_run(incident)
        if run is None:
            return None
        if run.runbook not in self._pages:
            try:
                self._pages[run.runbook] = await self._controller.runbook(run.runbook)
            except BadInputError:  # a one-step action has no page
                return None
        return self._pages[run.runbook]


def proposal(incident: Incident | None) -> Run | None:
    """The run that waits for a yes or no; None when none does."""
    if incident is None:
        return None
    return next((run for run in incident.runs if run.status is RunStatus.PROPOSED), None)


def asking(incident: Incident | None) -> Run | None:
    """The run that a person is to answer: a proposal, else one that acts and asks; None when none does."""
    waiting = proposal(incident)
    if waiting is not None or incident is None:
        return waiting
    return next((run for run in incident.runs if run.question and not run.status.is_terminal), None)


def current_run(incident: Incident) -> Run | None:
    """The run to look at: one that waits, else one that acts, else the newest. A dry run is none of them."""
    waiting = asking(incident)
    if waiting is not None:
        return waiting
    real = [run for run in incident.runs if not run.dry_run]
    acting = [run for run in real if not run.status.is_terminal]
    newest = sorted(acting or real, key=lambda run: run.created_at)
    return newest[-1] if newest else None


def _stopped_last(node: Node) -> tuple[bool, str, str]:
    return node.phase is NodePhase.STOPPED, node.pool, node.name


def _is_closed(incident: Incident) -> bool:
    return incident.status is IncidentStatus.RESOLVED
