"""What happened, in order, for people: an append-only table that readers can wait on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
import structlog

from fleetctl.controller.database import Database, GroupCommit
from fleetctl.controller.tables import events
from fleetctl.kit.clock import Clock
from fleetctl.wire.timeline import TimelineEntry

log = structlog.get_logger()

MAX_READ = 1000
MAX_TEXT_CHARS = 4000
Listener = Callable[[str, float, str | None, Mapping[str, Any]], None]
"""Takes an entry's kind, time, node and data."""

MAX_NODE_CHARS = 63  # the column's; an alert from outside may name anything


class Timeline:
    """Appends are ordered and durable before a reader sees them.

    Threading: belongs to one event loop; call its methods there.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._changed = asyncio.Condition()
        self._last_seq = 0
        self._pending: set[asyncio.Task[None]] = set()
        self._entries = GroupCommit(database, insert_events)
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of each entry from now on, before it is stored where it is no part of a transaction."""
        self._listeners.append(listener)

    @classmethod
    async def opened(cls, database: Database, clock: Clock) -> Timeline:
        """The timeline as the database has it."""
        timeline = cls(database, clock)
        timeline._last_seq = await database.read(
            lambda c: c.execute(sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0))).scalar_one()
        )
        return timeline

    async def append(
        self,
        kind: str,
        text: str,
        *,
        incident_id: str | None = None,
        run_id: str | None = None,
        node: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Store one entry. Returns its sequence number."""
        values = self.entry(kind, text, incident_id=incident_id, run_id=run_id, node=node, data=data)
        self._hear(values)
        log.info(kind, text=text, incident_id=incident_id, node=node)
        seq = await self._entries.add(values)
        await self._wake(seq)
        return seq

    def append_soon(
        self,
        kind: str,
        text: str,
        *,
        incident_id: str | None = None,
        run_id: str | None = None,
        node: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """As `append`, from synchronous code on the event loop, and not logged; a failure is."""
        values = self.entry(kind, text, incident_id=incident_id, run_id=run_id, node=node, data=data)
        self._hear(values)
        task = asyncio.get_running_loop().create_task(self._finish(self._entries.add(values), kind))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def flush(self) -> None:
        """Wait until everything given to `append_soon` is stored."""
        while self._pending:
            await asyncio.gather(*self._pending)

    async def read(self, after: int = 0, incident_id: str | None = None, limit: int = MAX_READ) -> list[TimelineEntry]:
        """Entries with a higher sequence number, oldest first."""
        query = sa.select(events).where(events.c.seq > after).order_by(events.c.seq).limit(min(limit, MAX_READ + 1))
        if incident_id is not None:
            query = query.where(events.c.incident_id == incident_id)
        return await self._database.read(lambda c: [_decode(row._mapping) for row in c.execute(query)])

    async def read_all(self, incident_id: str) -> list[TimelineEntry]:
        """Every entry of one incident, oldest first."""
        found: list[TimelineEntry] = []
        while part := await self.read(found[-1].seq if found else 0, incident_id):
            found += part
        return found

    async def read_newest(
        self,
        limit: int = MAX_READ,
        *,
        kind: str | None = None,
        node: str | None = None,
        incident_id: str | None = None,
        run_id: str | None = None,
        since: float | None = None,
        before: tuple[Any, ...] | None = None,
    ) -> list[TimelineEntry]:
        """The newest entries, oldest first; only those of a kind, a node, an incident, a run, since a time (Unix
        seconds); `before`: an entry's number, and only what is older."""
        wanted = {"kind": kind, "node": node, "incident_id": incident_id, "run_id": run_id}
        query = sa.select(events).where(
            *(events.c[name] == value for name, value in wanted.items() if value is not None)
        )
        if since is not None:
            query = query.where(events.c.at >= since)
        if before is not None:
            query = query.where(events.c.seq < before[0])
        query = query.order_by(events.c.seq.desc()).limit(min(limit, MAX_READ + 1))  # one more tells that there is more
        return await self._database.read(lambda c: [_decode(row._mapping) for row in c.execute(query)][::-1])

    async def read_between(self, since: float, until: float, limit: int = MAX_READ) -> list[TimelineEntry]:
        """The newest entries in this time (Unix seconds) that belong to no incident, oldest first."""
        query = (
            sa.select(events)
            .where(events.c.at >= since, events.c.at <= until, events.c.incident_id.is_(None))
            .order_by(events.c.seq.desc())
            .limit(min(limit, MAX_READ))
        )
        found = await self._database.read(lambda c: [_decode(row._mapping) for row in c.execute(query)])
        return found[::-1]

    async def wait(
        self, after: int, wait_s: float, incident_id: str | None = None, limit: int = MAX_READ
    ) -> list[TimelineEntry]:
        """As `read`, but waits up to `wait_s` for the first such entry. May return an empty list."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while True:
            seen = self._last_seq
            if found := await self.read(after, incident_id, limit):
                return found
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return []
            try:
                async with asyncio.timeout(left), self._changed:
                    await self._changed.wait_for(lambda seen=seen: self._last_seq > seen)  # type: ignore[misc]
            except TimeoutError:
                return []

    async def _finish(self, future: asyncio.Future[int], kind: str) -> None:
        try:
            seq = await future
        except Exception as error:  # noqa: BLE001 - the entry is lost, what it tells of is not: say so and go on
            log.error("timeline.append_failed", kind=kind, error=str(error))
            return
        await self._wake(seq)

    async def announce(self, seq: int, entry: Mapping[str, Any]) -> None:
        """Tell of an entry that `insert_event` stored, in one transaction with what it tells of."""
        self._hear(entry)
        log.info(entry["kind"], text=entry["text"], incident_id=entry["incident_id"], node=entry["node"])
        await self._wake(seq)

    def _hear(self, entry: Mapping[str, Any]) -> None:
        for listener in self._listeners:
            listener(entry["kind"], entry["at"], entry["node"], entry["data"])

    async def _wake(self, seq: int) -> None:
        async with self._changed:
            self._last_seq = max(self._last_seq, seq)
            self._changed.notify_all()

    def entry(
        self,
        kind: str,
        text: str,
        *,
        incident_id: str | None = None,
        run_id: str | None = None,
        node: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """An entry of now, for `insert_event`: stored with what it tells of, it is told when that is done."""
        return {
            "at": self._clock.now(),
            "kind": kind,
            "text": text[:MAX_TEXT_CHARS],
            "incident_id": incident_id,
            "run_id": run_id,
            "node": node and node[:MAX_NODE_CHARS],
            "data": dict(data or {}),
        }


def insert_events(connection: sa.Connection, entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """Store several entries. Returns their sequence numbers."""
    return [insert_event(connection, values) for values in entries]


def insert_event(connection: sa.Connection, values: Mapping[str, Any]) -> int:
    """Store one entry. Returns its sequence number."""
    result = connection.execute(sa.insert(events).values(**values))
    assert result.inserted_primary_key is not None
    seq: int = result.inserted_primary_key[0]
    return seq


def _decode(row: sa.RowMapping) -> TimelineEntry:
    return TimelineEntry.model_validate(dict(row))
