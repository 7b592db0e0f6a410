"""An incident read from a file: a record to look at, to write up and to run again. Nothing acts on it.

It is stored as resolved, is in no list of open or recent incidents, and its runs are in no journal. The file is from
anywhere: every field of it is checked before anything is stored.
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from pydantic import TypeAdapter, ValidationError

from diagnostics import blackbox
from diagnostics.incident import Incident, IncidentStatus
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.incident_report import IncidentReports, write_pages
from fleetctl.controller.incidents.incident_store import StoredIncident, get_incident, save_incident, set_imported
from fleetctl.controller.incidents.views import imported_view
from fleetctl.controller.records import Records
from fleetctl.kit.errors import BadInputError, RefusedError

log = structlog.get_logger()

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it names a folder here
_LAST_AT = 253_402_300_000.0  # the end of the year 9999
_INCIDENT = TypeAdapter(Incident)


class IncidentImport:
    """Takes incident files in. Threading: belongs to one event loop."""

    def __init__(self, reports: IncidentReports, book: IncidentBook, records: Records) -> None:
        self._reports = reports
        self._book = book
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock

    async def take(self, path: Path, by: str) -> StoredIncident:
        """Store the incident of the file, which is copied. Raises BadInputError where it is none, RefusedError where
        an incident of its id is here."""
        try:
            box = await asyncio.to_thread(blackbox.read, path, keeps=lambda labels: False)
        except blackbox.BadBlackBoxError as error:
            raise BadInputError(str(error).replace(str(path), "the file")) from error
        incident, imported = _checked(box, self._clock.now())
        known = await self._database.read(lambda c: get_incident(c, incident.id))
        if known is not None or self._book.get(incident.id) is not None:
            whose = "imported already" if known is not None and known.imported_from else "one of this fleet"
            raise RefusedError(f"{incident.id} is here: {whose}", remedy=f"fleetctl incident show {incident.id}")
        files = self._reports.files_of(incident.id)
        await asyncio.to_thread(_copy, path, files.blackbox)
        stored = StoredIncident(incident, str(files.postmortem), str(files.blackbox), imported)
        report = await self._reports.report_of(stored)
        await asyncio.to_thread(write_pages, files, report)

        def store(connection: sa.Connection) -> None:
            save_incident(connection, incident, (stored.postmortem, stored.blackbox))
            set_imported(connection, incident.id, imported)

        await self._database.write(store)
        log.info("incident.imported", incident_id=incident.id, software=box.software, by=by)
        text = f"{by} imported it, written by {box.software or 'an unnamed program'}; nothing acts on it"
        await self._timeline.append("incident.imported", text, incident_id=incident.id, data={"by": by})
        return stored


def _checked(box: blackbox.BlackBox, now: float) -> tuple[Incident, dict[str, Any]]:
    record = box.incident.model_dump(mode="json")
    if not _ID.fullmatch(box.incident.id) or ".." in box.incident.id:
        raise BadInputError(f"the file: incident.id: {box.incident.id[:40]!r} is no id of an incident")
    for place, at in [("header", box.since), ("header", box.until), *_times(record, "incident")]:
        if not math.isfinite(at) or not 0 <= at < _LAST_AT:
            raise BadInputError(f"the file: {place}: {at!r} is no time")
    try:
        incident = _INCIDENT.validate_python({**record, "status": "resolved"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"the file: incident.{where}: {first['msg']}") from error
    ended = box.incident.resolved_at if box.incident.resolved_at is not None else box.until
    incident = replace(incident, status=IncidentStatus.RESOLVED, resolved_at=ended)
    imported = {
        "software": box.software[:200],
        "at": now,
        "runs": record["runs"],
        "timeline": record["timeline"],
    }
    try:
        imported_view(StoredIncident(incident, imported=imported), ())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"the file: {where}: {first['msg']}") from error
    return incident, imported


def _times(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Every number that is a time by its name, with its place."""
    if isinstance(value, dict):
        for name, one in value.items():
            is_time = name == "at" or name.endswith("_at")
            if is_time and isinstance(one, int | float):
                yield f"{place}.{name}", float(one)
            else:
                yield from _times(one, f"{place}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _times(one, f"{place}[{index}]")


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copyfile(path, target)
    target.chmod(0o600)
