"""Incidents in the database: the domain's document, and the paths of what was written about it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog
from pydantic import TypeAdapter, ValidationError

from diagnostics.incident import Incident, IncidentStatus
from fleetctl.controller.tables import incidents

log = structlog.get_logger()

_DOCUMENT = TypeAdapter(Incident)
MAX_LIST = 500


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """An incident and where its post-mortem and black box are."""

    incident: Incident
    postmortem: str | None = None
    blackbox: str | None = None
    imported: dict[str, Any] | None = None  # of one that was read from a file: `software`, `at`, `runs`, `timeline`

    @property
    def imported_from(self) -> str:
        """Which fleetctl wrote the file that it was read from; "": it is our own."""
        return "" if self.imported is None else str(self.imported.get("software") or "a file")


def save_incident(
    connection: sa.Connection, incident: Incident, paths: tuple[str | None, str | None] | None = None
) -> None:
    """Insert or replace the incident's document; `paths` (post-mortem, black box) too, when given."""
    values: dict[str, Any] = {
        "status": incident.status.value,
        "opened_at": incident.opened_at,
        "document": _DOCUMENT.dump_python(incident, mode="json"),
    }
    if paths is not None:
        values |= {"postmortem": paths[0], "blackbox": paths[1]}
    changed = connection.execute(sa.update(incidents).where(incidents.c.id == incident.id).values(**values))
    if changed.rowcount == 0:
        connection.execute(sa.insert(incidents).values(id=incident.id, **values))


def set_blackbox(connection: sa.Connection, incident_id: str, path: str) -> None:
    """Where the incident's black box is, once it is written."""
    connection.execute(sa.update(incidents).where(incidents.c.id == incident_id).values(blackbox=path))


def set_imported(connection: sa.Connection, incident_id: str, imported: dict[str, Any]) -> None:
    """The incident was read from a file: where that is from, and its runs and timeline."""
    connection.execute(sa.update(incidents).where(incidents.c.id == incident_id).values(imported=imported))


def get_incident(connection: sa.Connection, incident_id: str) -> StoredIncident | None:
    """One incident; None when there is none, or it can't be read."""
    row = connection.execute(sa.select(incidents).where(incidents.c.id == incident_id)).first()
    return None if row is None else _decode(row._mapping)


def list_incidents(
    connection: sa.Connection,
    status: str | None = None,
    *,
    limit: int = MAX_LIST,
    before: tuple[Any, ...] | None = None,
) -> list[StoredIncident]:
    """The newest first; `before`: those that come after the one with this `opened_at` and id."""
    query = sa.select(incidents).order_by(incidents.c.opened_at.desc(), incidents.c.id).limit(limit)
    if status is not None:
        query = query.where(incidents.c.status == status)
    if before is not None:
        opened_at, incident_id = before
        same_time = (incidents.c.opened_at == opened_at) & (incidents.c.id > incident_id)
        query = query.where((incidents.c.opened_at < opened_at) | same_time)
    return [found for row in connection.execute(query) if (found := _decode(row._mapping)) is not None]


def unknown_of(connection: sa.Connection, incident_ids: Collection[str]) -> set[str]:
    """Those of these ids that the database does not have."""
    stored = connection.execute(sa.select(incidents.c.id).where(incidents.c.id.in_(incident_ids))).scalars()
    return set(incident_ids) - set(stored)


def list_recent(connection: sa.Connection, resolved_after: float) -> list[StoredIncident]:
    """All that are not resolved, and those resolved since: what a new alert may join or reopen."""
    stored = [one for one in list_incidents(connection) if one.imported is None]  # nothing acts on those
    found = [one for one in stored if _is_recent(one.incident, resolved_after)]
    open_rows = sa.select(incidents).where(incidents.c.status != IncidentStatus.RESOLVED.value)
    known = {one.incident.id for one in found}
    older = [_decode(row._mapping) for row in connection.execute(open_rows) if row.id not in known]
    return found + [one for one in older if one is not None]


def _is_recent(incident: Incident, resolved_after: float) -> bool:
    return incident.status is not IncidentStatus.RESOLVED or (incident.resolved_at or 0.0) > resolved_after


def _decode(row: sa.RowMapping) -> StoredIncident | None:
    try:
        incident = _DOCUMENT.validate_python(row["document"])
    except ValidationError as error:
        # One unreadable incident must not hide the others, nor keep the controller from starting.
        log.error("incident.unreadable", incident_id=row["id"], error=str(error.errors()[0]["msg"]))
        return None
    return StoredIncident(incident, row["postmortem"], row["blackbox"], row["imported"])
