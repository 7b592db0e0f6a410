"""What is old, or too much, goes: resolved incidents with their files, events, ended runs, and too long logs.

Never what belongs to an open incident, nor a run that has not ended.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
import structlog

from diagnostics.incident import IncidentStatus
from fleetctl.controller.failures.failure_store import prune_failures
from fleetctl.controller.notifications.notification_store import prune_notifications
from fleetctl.controller.records import Records
from fleetctl.controller.tables import events, incidents
from fleetctl.kit.whole_file import write_whole
from fleetctl.providers.process import ProcessTable
from fleetctl.settings.tree import Settings
from runbooks.journal import Journal

log = structlog.get_logger()

PRUNE_EVERY_S = 600.0
MAX_ROWS = 500  # in one transaction: others wait for it
MAX_CHUNKS = 400  # in one turn


class Pruning:
    """Keeps the state folder and the database within `incidents.keep_*`, `incidents.max_*` and `log.max_mb`."""

    def __init__(self, journal: Journal, records: Records, settings: Settings) -> None:
        self._journal = journal
        self._database = records.database
        self._clock = records.clock
        self._limits = settings.incidents
        self._folder = settings.incidents_dir
        self._exported = settings.exported_dir
        self._audit = records.audit
        self._processes = ProcessTable(settings.run_dir)
        self._max_log_bytes = settings.log.max_mb << 20

    async def prune(self) -> None:
        """One turn. What must not be lost is written to files before it goes."""
        limits = self._limits
        before = self._clock.now() - limits.keep_for_s
        gone = await in_chunks(lambda: self._prune_incidents(before))
        rows = await in_chunks(
            lambda: self._database.write(lambda c: prune_events(c, before, limits.max_events, MAX_ROWS))
        )
        known = await self._database.read(ids_by_status)
        runs = await in_chunks(
            lambda: self._database.call(
                lambda: self._journal.prune(
                    before, keep_incidents=known.open, max_runs=limits.max_runs, limit=MAX_ROWS // 5
                )
            )
        )
        folders, freed = await asyncio.to_thread(
            prune_files, self._folder, known.keep, known.open | known.corrected, before, limits.keep_mb << 20
        )
        if freed:
            await self._database.write(lambda c: _forget_blackboxes(c, freed))
        audit = await in_chunks(self._audit.prune)
        failed_before = self._clock.now() - limits.keep_failures_for_s
        failures = await in_chunks(lambda: self._database.write(lambda c: prune_failures(c, failed_before, MAX_ROWS)))
        told = await in_chunks(lambda: self._database.write(lambda c: prune_notifications(c, before, MAX_ROWS)))
        logs = await asyncio.to_thread(self._processes.trim_logs, self._max_log_bytes)
        if gone or rows or runs or folders or freed or audit or failures or told or logs:
            log.info(
                "state.pruned",
                incidents=gone,
                events=rows,
                runs=runs,
                audit=audit,
                failures=failures,
                notifications=told,
                folders=folders,
                blackboxes=len(freed),
                logs=logs,
            )

    async def _prune_incidents(self, before: float) -> int:
        """Export the oldest resolved incidents that are too old or too many, with their timelines, then remove them."""
        surplus = await self._database.read(
            lambda c: surplus_incidents(c, before, self._limits.max_incidents, MAX_ROWS // 10)
        )
        if not surplus:
            return 0
        ids = [row["id"] for row in surplus]
        path = self._exported / f"incidents-{int(surplus[0]['opened_at'])}-{ids[0]}.jsonl"
        text = "".join(json.dumps(row) + "\n" for row in surplus)
        await asyncio.to_thread(write_whole, path, text, is_durable=True)
        resolved = incidents.c.status == IncidentStatus.RESOLVED.value  # one may have been opened again since
        await self._database.write(lambda c: c.execute(sa.delete(incidents).where(incidents.c.id.in_(ids), resolved)))
        log.info("incidents.exported", path=str(path), incidents=len(ids))
        return len(ids)


async def in_chunks(remove: Callable[[], Awaitable[int]]) -> int:
    """Remove again and again, others in between, until nothing is left to remove; how many went."""
    total = 0
    for _ in range(MAX_CHUNKS):
        gone = await remove()
        total += gone
        if not gone:
            break
    return total


def surplus_incidents(connection: sa.Connection, before: float, max_incidents: int, limit: int) -> list[dict[str, Any]]:
    """The oldest resolved incidents that opened before that time, or beyond so many, each with its timeline."""
    is_resolved = incidents.c.status == IncidentStatus.RESOLVED.value
    is_own = sa.and_(is_resolved, incidents.c.imported.is_(None))
    newest = sa.select(incidents.c.opened_at).where(is_own).order_by(incidents.c.opened_at.desc())
    last_kept = connection.execute(newest.offset(max_incidents - 1).limit(1)).scalar()
    until = before if last_kept is None else max(before, last_kept)
    # What a person read from a file is as old as it is: that is no reason to drop it. It goes so long after it came.
    is_read_long_ago = sa.and_(is_resolved, incidents.c.imported["at"].as_float() < before)
    is_surplus = sa.or_(sa.and_(is_own, incidents.c.opened_at < until), is_read_long_ago)
    query = sa.select(incidents).where(is_surplus).order_by(incidents.c.opened_at)
    found = [dict(row) for row in connection.execute(query.limit(limit)).mappings()]
    told = sa.select(events).where(events.c.incident_id.in_([row["id"] for row in found])).order_by(events.c.seq)
    by_incident: dict[str, list[dict[str, Any]]] = {}
    for event in connection.execute(told).mappings() if found else ():
        by_incident.setdefault(event["incident_id"], []).append(dict(event))
    return [{**row, "timeline": by_incident.get(row["id"], [])} for row in found]


def prune_events(connection: sa.Connection, before: float, max_events: int, limit: int) -> int:
    """Remove the oldest events of no open incident that are older than that, or beyond so many; how many went."""
    is_open = sa.select(incidents.c.id).where(incidents.c.status != IncidentStatus.RESOLVED.value)
    newest = connection.execute(sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0))).scalar_one()
    is_free = sa.or_(events.c.incident_id.is_(None), events.c.incident_id.not_in(is_open))
    is_old = sa.or_(events.c.at < before, events.c.seq <= newest - max_events)
    # The newest one stays: readers go on after its number.
    seqs = sa.select(events.c.seq).where(is_free, is_old, events.c.seq < newest).order_by(events.c.seq).limit(limit)
    return connection.execute(sa.delete(events).where(events.c.seq.in_(seqs))).rowcount


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
    corrected: frozenset[str]  # their verdict was wrong: their files are regression cases


def ids_by_status(connection: sa.Connection) -> _Ids:
    """Every incident's id, and those whose files must stay."""
    is_corrected = incidents.c.document["handling"]["correction"]["by"].as_string().is_not(None)
    rows = connection.execute(sa.select(incidents.c.id, incidents.c.status)).all()
    corrected = connection.execute(sa.select(incidents.c.id).where(is_corrected)).scalars()
    return _Ids(
        frozenset(row.id for row in rows),
        frozenset(row.id for row in rows if row.status != IncidentStatus.RESOLVED.value),
        frozenset(corrected),
    )


def _forget_blackboxes(connection: sa.Connection, ids: Collection[str]) -> None:
    connection.execute(sa.update(incidents).where(incidents.c.id.in_(list(ids))).values(blackbox=None))
