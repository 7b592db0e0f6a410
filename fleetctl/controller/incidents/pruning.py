"""What is old goes: resolved incidents with their files, events, ended runs, and logs of processes that are too long.

Never what belongs to an open incident, nor a run that has not ended.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
import structlog

from diagnostics.incident import IncidentStatus
from fleetctl.controller.records import Records
from fleetctl.controller.tables import events, incidents
from fleetctl.providers.process import ProcessTable
from fleetctl.settings.tree import Settings
from runbooks.journal import Journal

log = structlog.get_logger()

PRUNE_EVERY_S = 600.0
MAX_RUNS = 500
MAX_ROWS = 5000  # in one transaction: others wait for it


class PrunedRows(NamedTuple):
    """How many rows went."""

    incidents: int
    events: int


class Pruning:
    """Keeps the state folder and the database within `incidents.keep_*` and `log.max_mb`."""

    def __init__(self, journal: Journal, records: Records, settings: Settings) -> None:
        self._journal = journal
        self._database = records.database
        self._clock = records.clock
        self._limits = settings.incidents
        self._folder = settings.incidents_dir
        self._audit = records.audit
        self._processes = ProcessTable(settings.run_dir)
        self._max_log_bytes = settings.log.max_mb << 20

    async def prune(self) -> None:
        """One turn."""
        before = self._clock.now() - self._limits.keep_for_s
        limits = self._limits
        rows = await self._database.write(lambda c: prune_rows(c, before, limits.max_events))
        known = await self._database.read(_ids_by_status)
        runs = await self._database.call(lambda: self._journal.prune(before, keep_incidents=known.open, limit=MAX_RUNS))
        folders, freed = await asyncio.to_thread(
            prune_files, self._folder, known.keep, known.open, before, limits.keep_mb << 20
        )
        if freed:
            await self._database.write(lambda c: _forget_blackboxes(c, freed))
        await self._audit.prune()
        logs = await asyncio.to_thread(self._processes.trim_logs, self._max_log_bytes)
        if rows.incidents or rows.events or runs or folders or freed or logs:
            log.info(
                "state.pruned",
                incidents=rows.incidents,
                events=rows.events,
                runs=runs,
                folders=folders,
                blackboxes=len(freed),
                logs=logs,
            )


def prune_rows(connection: sa.Connection, before: float, max_events: int) -> PrunedRows:
    """Remove resolved incidents that opened before that time, and events older than it or beyond so many."""
    is_open = sa.select(incidents.c.id).where(incidents.c.status != IncidentStatus.RESOLVED.value)
    old = (
        sa.select(incidents.c.id)
        .where(incidents.c.status == IncidentStatus.RESOLVED.value, incidents.c.opened_at < before)
        .limit(MAX_ROWS)
    )
    gone = connection.execute(sa.delete(incidents).where(incidents.c.id.in_(old))).rowcount
    newest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0))).scalar_one()
    is_free = sa.or_(events.c.incident_id.is_(None), events.c.incident_id.not_in(is_open))
    is_old = sa.or_(events.c.at < before, events.c.seq <= newest - max_events)
    # The newest one stays: readers go on after its number.
    seqs = sa.select(events.c.seq).where(is_free, is_old, events.c.seq < newest).order_by(events.c.seq).limit(MAX_ROWS)
    return PrunedRows(gone, connection.execute(sa.delete(events).where(events.c.seq.in_(seqs))).rowcount)


def prune_files(
    folder: Path, known: Collection[str], is_open: Collection[str], before: float, max_bytes: int
) -> tuple[int, list[str]]:
    """Remove folders of unknown incidents older than that, then the oldest black boxes beyond `max_bytes`.

    Returns how many folders went, and the ids of incidents whose black box went. Folders of open incidents stay.
    """
    folders = 0
    boxes: list[tuple[float, int, Path, str]] = []
    total = 0
    for own in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not own.is_dir() or own.is_symlink() or own.name in is_open:
            continue
        files = [(one, one.stat()) for one in own.iterdir() if one.is_file()]
        newest = max((status.st_mtime for _, status in files), default=own.stat().st_mtime)
        if own.name not in known and newest < before:
            shutil.rmtree(own, ignore_errors=True)
            folders += 1
            continue
        total += sum(status.st_size for _, status in files)
        boxes += [(s.st_mtime, s.st_size, one, own.name) for one, s in files if one.name.endswith(".jsonl.gz")]
    freed: list[str] = []
    for _, size, path, incident_id in sorted(boxes):
        if total <= max_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
        freed.append(incident_id)
    return folders, freed


class _Ids(NamedTuple):
    keep: frozenset[str]
    open: frozenset[str]


def _ids_by_status(connection: sa.Connection) -> _Ids:
    rows = connection.execute(sa.select(incidents.c.id, incidents.c.status)).all()
    return _Ids(
        frozenset(row.id for row in rows),
        frozenset(row.id for row in rows if row.status != IncidentStatus.RESOLVED.value),
    )


def _forget_blackboxes(connection: sa.Connection, ids: Collection[str]) -> None:
    connection.execute(sa.update(incidents).where(incidents.c.id.in_(list(ids))).values(blackbox=None))
