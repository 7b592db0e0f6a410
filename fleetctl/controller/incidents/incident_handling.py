"""What people say about an incident: that they have it, whose it is, how grave it is, and that its verdict is wrong.

Each word is stored with the incident, told on its timeline and answered with the incident as it is then. One that is
resolved, or was read from a file, takes words too: post-mortems are written after the night.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import sqlalchemy as sa
import structlog

from diagnostics.content_file import unknown
from diagnostics.diagnosis import Diagnosis
from diagnostics.handling import Correction
from diagnostics.incident import Incident, IncidentStatus
from diagnostics.severity import SEVERITIES, parse_severity, sev_level
from fleetctl.controller.alertmanager.silences import Silences
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_store import get_incident, save_incident
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.wire.incident import AssignRequest, IncidentNote, IncidentSilenceRequest, VerdictRequest
from fleetctl.wire.silence import Silence, SilenceMatcher, SilenceRequest

log = structlog.get_logger()

NO_CAUSE = "none"  # what a person says whose cause has no name here
_PLACES = ("node", "pool", "model", "zone", "revision")


class IncidentHandling:
    """`by` is who says it, as the audit names it. Raises BadInputError from every method: there is no such incident."""

    def __init__(self, book: IncidentBook, content: ContentStore, silences: Silences, records: Records) -> None:
        self._book = book
        self._content = content
        self._silences = silences
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock

    async def acknowledge(self, incident_id: str, note: IncidentNote, by: str) -> Incident:
        """Somebody has seen it, and has it unless it is assigned."""
        now = self._clock.now()
        changed = await self._change(incident_id, lambda one: replace(one, handling=one.handling.acknowledged(by, now)))
        first = changed.handling.acknowledged_by
        again = "" if first == by else f", as {first} has before"
        await self._tell(changed, "incident.acknowledged", f"{by} has seen it{again}{_because(note.comment)}", by)
        return changed

    async def assign(self, incident_id: str, request: AssignRequest, by: str) -> Incident:
        """It is somebody's from now on; with an empty name nobody's."""
        to = request.to.strip()
        changed = await self._change(incident_id, lambda one: replace(one, handling=replace(one.handling, assignee=to)))
        text = f"{by} assigned it to {to}" if to else f"{by} took it from whom it was assigned to"
        await self._tell(changed, "incident.assigned", f"{text}{_because(request.comment)}", by, assignee=to)
        return changed

    async def comment(self, incident_id: str, note: IncidentNote, by: str) -> Incident:
        """A line on its timeline, and in its post-mortem."""
        if not note.comment.strip():
            raise BadInputError("comment: say something")
        found = await self._change(incident_id, lambda one: one)
        await self._tell(found, "incident.commented", f"{by}: {note.comment.strip()}", by)
        return found

    async def set_severity(self, incident_id: str, text: str, note: IncidentNote, by: str) -> Incident:
        """How grave it is, whatever its alerts say from now on."""
        severity = parse_severity(text)
        if severity is None:
            levels = ", ".join(f"{sev_level(word).name} ({word})" for word in reversed(SEVERITIES))
            raise BadInputError(f"{text[:40]!r} is no severity; there are {levels}")
        before: list[str] = []

        def change(one: Incident) -> Incident:
            before.append(one.severity)
            return replace(one, severity=severity, handling=replace(one.handling, severity_by=by))

        changed = await self._change(incident_id, change)
        text = f"{by} set {sev_level(severity).name} ({severity}) in place of {before[-1]}{_because(note.comment)}"
        await self._tell(changed, "incident.severity_set", text, by, severity=severity, was=before[-1])
        return changed

    async def silence(self, incident_id: str, request: IncidentSilenceRequest, by: str) -> tuple[Incident, Silence]:
        """Silence its alerts where they are: nothing more is started for it, and none like it opens.

        Raises RefusedError when it is resolved: there is nothing to silence.
        """
        incident = self._book.get(incident_id)
        if incident is None or incident.status is IncidentStatus.RESOLVED:
            await self._change(incident_id, lambda one: one)
            raise RefusedError(f"{incident_id} is resolved: none of its alerts stands", remedy="fleetctl silence add")
        made = await self._silences.add(
            SilenceRequest(
                matchers=silence_matchers(incident),
                duration_s=request.for_s,
                comment=request.comment or f"silenced with {incident_id}",
                created_by=by[:200],
                local=request.local,
            )
        )
        changed = await self._change(
            incident_id,
            lambda one: replace(one, handling=replace(one.handling, silence_id=made.id, silenced_until=made.ends_at)),
        )
        text = f"{by} silenced its alerts for {request.for_s:.0f} s with {made.id}{_because(request.comment)}"
        await self._tell(changed, "incident.silenced", text, by, silence=made.id, until=made.ends_at)
        return changed, made

    async def correct_verdict(self, incident_id: str, request: VerdictRequest, by: str) -> Incident:
        """The cause is another one than was named: the verdict is replaced, and not judged again until it comes back.

        What it says is no more than likely to automation, which so starts nothing by itself for it.
        """
        causes = self._content.current.causes
        name = None if request.cause == NO_CAUSE else request.cause
        if name is not None and name not in causes:
            reason, remedy = unknown("cause", name, causes)
            raise BadInputError(reason, remedy=remedy or f"{NO_CAUSE}, with --comment, where it has no name here")
        if name is None and not request.comment.strip():
            raise BadInputError("comment: say what it was, where the cause has no name here")
        now = self._clock.now()
        before: list[Diagnosis | None] = []

        def change(one: Incident) -> Incident:
            standing = one.diagnosis
            if one.handling.correction is None and standing is not None and standing.cause == name:
                raise RefusedError(f"{incident_id}: {name or 'no cause'} is what the verdict says")
            before.append(standing)
            was = one.handling.correction.was if one.handling.correction else standing.cause if standing else None
            correction = Correction(name, by, now, request.comment.strip(), was)
            said = f"{causes[name].title}, says {by}" if name is not None else f"no known cause, says {by}"
            diagnosis = replace(
                standing or Diagnosis(tree="", cause=None),
                cause=name,
                title=said + (f": {correction.comment}" if correction.comment else ""),
                confidence="likely" if name is not None else "unknown",
                at=now,
                since=None,
                looked_at=None,
                then_found="",
                probability=None,  # that, and what was next best, belong to the verdict that was wrong
                also=None,
                runner_up=None,
                runner_up_probability=None,
                tells_apart="",
                awaits="",  # a person's word is witness enough
            )
            return replace(one, diagnosis=diagnosis, handling=replace(one.handling, correction=correction))

        changed = await self._change(incident_id, change)
        standing = before[-1]
        was = f"{standing.cause} ({standing.confidence})" if standing is not None and standing.cause else "no cause"
        text = f"{by}: the verdict {was} was wrong, it was {name or 'none that has a name here'}"
        data = {"cause": name, "was": asdict(standing) if standing is not None else None, "why": request.comment}
        await self._tell(changed, "diagnosis.corrected", text + _because(request.comment), by, **data)
        return changed

    async def _change(self, incident_id: str, change: Callable[[Incident], Incident]) -> Incident:
        if self._book.get(incident_id) is not None:
            return await self._book.change_incident(incident_id, change)

        def work(connection: sa.Connection) -> Incident:
            stored = get_incident(connection, incident_id)
            if stored is None:
                raise BadInputError(f"there is no incident {incident_id[:100]}", remedy="fleetctl incident list")
            changed = change(stored.incident)
            if changed != stored.incident:
                save_incident(connection, changed)
            return changed

        return await self._database.write(work)

    async def _tell(self, incident: Incident, kind: str, text: str, by: str, **data: Any) -> None:
        node = incident.scope.get("node")
        await self._timeline.append(kind, text, incident_id=incident.id, node=node, data={"by": by, **data})


def silence_matchers(incident: Incident) -> list[SilenceMatcher]:
    """What covers the incident's alerts in its place, and nothing elsewhere."""
    names = sorted({one.name for one in incident.alerts})
    if len(names) == 1:
        matchers = [SilenceMatcher(name="alertname", op="=", value=names[0])]
    else:
        matchers = [SilenceMatcher(name="alertname", op="=~", value="|".join(re.escape(name) for name in names))]
    places = ("node",) if incident.scope.get("node") else _PLACES
    return matchers + [
        SilenceMatcher(name=place, op="=", value=incident.scope[place]) for place in places if incident.scope.get(place)
    ]


def _because(comment: str) -> str:
    return f": {comment.strip()}" if comment.strip() else ""
