"""Failures and watched time in the database: functions of a connection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from fleetctl.controller.failures.failure_watch import Changes, FailureRecord, Placement, Stint
from fleetctl.controller.tables import node_failures, node_stints
from fleetctl.wire.failure import FailureKind

CHUNK = 500  # ids in one statement
MAX_VALUE_CHARS = 500


def store_changes(
    connection: sa.Connection, changes: Sequence[Changes], incident_of: Mapping[str, str | None], now: float
) -> None:
    """Store what looks changed. Done again after a crash, it stores nothing twice: what is there stays."""
    begun = [one for change in changes for one in change.begun]
    stints = [one for change in changes for one in change.stints_begun]
    known = set(_known(connection, node_failures, [one.id for one in begun]))
    known |= set(_known(connection, node_stints, [one.id for one in stints]))
    rows = [_failure_row(one, incident_of.get(one.place.node)) for one in begun if one.id not in known]
    if rows:
        connection.execute(sa.insert(node_failures), rows)
    rows = [
        {"id": one.id, "since": one.since, "until": one.until, **_place_row(one.place)}
        for one in stints
        if one.id not in known
    ]
    if rows:
        connection.execute(sa.insert(node_stints), rows)
    for change in changes:
        for failure_id, at in change.ended.items():
            connection.execute(sa.update(node_failures).where(node_failures.c.id == failure_id).values(ended_at=at))
        for stint_id, at in change.stints_ended.items():
            connection.execute(sa.update(node_stints).where(node_stints.c.id == stint_id).values(until=at))


def extend_stints(connection: sa.Connection, ids: Collection[str], now: float) -> None:
    """These go on until now."""
    for chunk in _chunks(list(ids)):
        connection.execute(sa.update(node_stints).where(node_stints.c.id.in_(chunk)).values(until=now))


def list_failures(connection: sa.Connection, since: float) -> list[tuple[FailureRecord, str | None]]:
    """Failures that began since then, or stand, the oldest first, each with its incident."""
    is_wanted = sa.or_(node_failures.c.at >= since, node_failures.c.ended_at.is_(None))
    rows = connection.execute(sa.select(node_failures).where(is_wanted).order_by(node_failures.c.at)).mappings()
    return [(_failure(row), row["incident_id"]) for row in rows]


def list_standing(connection: sa.Connection) -> list[FailureRecord]:
    """Failures that have not ended."""
    rows = connection.execute(sa.select(node_failures).where(node_failures.c.ended_at.is_(None))).mappings()
    return [_failure(row) for row in rows]


def list_stints(connection: sa.Connection, since: float) -> list[Stint]:
    """Stints that reach past `since`, cut off there."""
    rows = connection.execute(sa.select(node_stints).where(node_stints.c.until > since)).mappings()
    return [Stint(row["id"], _place(row), max(since, row["since"]), row["until"]) for row in rows]


def prune_failures(connection: sa.Connection, before: float, limit: int) -> int:
    """Remove what ended before then; how many rows went."""
    gone = 0
    for table, ended in ((node_failures, node_failures.c.ended_at), (node_stints, node_stints.c.until)):
        ids = sa.select(table.c.id).where(ended < before).limit(limit)
        gone += connection.execute(sa.delete(table).where(table.c.id.in_(ids))).rowcount
    return gone


def _known(connection: sa.Connection, table: sa.Table, ids: Sequence[str]) -> Iterator[str]:
    for chunk in _chunks(ids):
        yield from connection.execute(sa.select(table.c.id).where(table.c.id.in_(chunk))).scalars()


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for index in range(0, len(ids), CHUNK):
        yield ids[index : index + CHUNK]


def _failure_row(one: FailureRecord, incident_id: str | None) -> dict[str, object]:
    return {
        "id": one.id,
        "episode": one.episode,
        "kind": one.kind.value,
        "at": one.at,
        "ended_at": one.ended_at,
        "reason": one.reason[:MAX_VALUE_CHARS],
        "instance": one.instance[:MAX_VALUE_CHARS],
        "incident_id": incident_id,
        **_place_row(one.place),
    }


def _place_row(place: Placement) -> dict[str, str]:
    return {name: value[:MAX_VALUE_CHARS] for name, value in asdict(place).items()}


def _place(row: sa.RowMapping) -> Placement:
    return Placement(**{name: row[name] for name in Placement.__slots__})


def _failure(row: sa.RowMapping) -> FailureRecord:
    return FailureRecord(
        id=row["id"],
        episode=row["episode"],
        kind=FailureKind(row["kind"]),
        at=row["at"],
        place=_place(row),
        reason=row["reason"],
        instance=row["instance"],
        ended_at=row["ended_at"],
    )
