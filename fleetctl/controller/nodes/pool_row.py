"""The desired state of each pool, and every revision that a node ever had: stored, in the transactions of their nodes.

A pool's wanted size and its wanted nodes are two facts. What changes nodes by hand moves the size along; what changes
the size (`begin_scaling`) moves the nodes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.nodes.revision import Revision, with_revision
from fleetctl.controller.tables import nodes, pools, revisions
from fleetctl.providers.spec import NodeSpec


class PoolOwner(StrEnum):
    """Who may set a pool's wanted size. One at a time."""

    PERSON = "person"
    AUTOSCALER = "autoscaler"


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool as it should be. `revision` is what a new node of it gets; times are Unix seconds."""

    name: str
    model: str
    wanted_size: int
    revision: str
    owner: PoolOwner
    updated_at: float
    updated_by: str


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """A stored revision and when a node first had it."""

    revision: Revision
    created_at: float


def list_pools(connection: sa.Connection) -> list[PoolRow]:
    """All pools by name: those that have a node, wanted or stopped."""
    return [_decode(row._mapping) for row in connection.execute(sa.select(pools).order_by(pools.c.name))]


def get_pool(connection: sa.Connection, name: str) -> PoolRow | None:
    """One pool; None when no node is in it."""
    row = connection.execute(sa.select(pools).where(pools.c.name == name)).first()
    return None if row is None else _decode(row._mapping)


def list_revisions(connection: sa.Connection) -> list[RevisionRow]:
    """All revisions, the newest first."""
    rows = connection.execute(sa.select(revisions).order_by(revisions.c.created_at.desc(), revisions.c.id))
    return [RevisionRow(Revision.from_json(row.document), row.created_at) for row in rows]


def note_node_wanted(connection: sa.Connection, spec: NodeSpec, now: float) -> None:
    """A node of this spec was stored as wanted: its pool and revision are known from now on.

    Wanted beyond the pool's size, it makes the pool larger.
    """
    _store_revision(connection, Revision.of(spec), now)
    size = _count_wanted(connection, spec.pool)
    pool = get_pool(connection, spec.pool)
    if pool is None:
        row = {"name": spec.pool, "model": spec.model, "wanted_size": size, "revision": spec.revision}
        connection.execute(
            sa.insert(pools).values(**row, owner=PoolOwner.PERSON.value, updated_at=now, updated_by="node start")
        )
        return
    changed: dict[str, Any] = {}
    if size > pool.wanted_size:
        changed |= {"wanted_size": size, "updated_by": "node start"}
    if size == 1 and pool.revision != spec.revision:
        changed |= {"revision": spec.revision, "model": spec.model}
    _update(connection, spec.pool, now, changed)


def note_node_unwanted(connection: sa.Connection, spec: NodeSpec, now: float) -> None:
    """A node of this spec is stored as not wanted any more. Unless its pool had one too many, the pool is smaller."""
    pool = get_pool(connection, spec.pool)
    if pool is None:
        return
    changed: dict[str, Any] = {}
    size = _count_wanted(connection, spec.pool)
    if size < pool.wanted_size:
        changed |= {"wanted_size": size, "updated_by": "node stop"}
    newest = _newest_revision(connection, spec.pool)
    if newest is not None and not _count_wanted(connection, spec.pool, pool.revision):
        changed["revision"] = newest  # none of it is left: what new nodes get follows those that stayed
    _update(connection, spec.pool, now, changed)


def forget_empty_pool(connection: sa.Connection, name: str) -> None:
    """Drop the pool once no node is left in it."""
    left = sa.select(nodes.c.name).where(nodes.c.pool == name).exists()
    connection.execute(sa.delete(pools).where(pools.c.name == name, ~left))


def note_unrecorded_pools(connection: sa.Connection, now: float) -> None:
    """Give the nodes of a state that was written before there were pools and revisions theirs: one pool for each name,
    its size the number of its wanted nodes."""
    rows = connection.execute(sa.select(nodes).where(nodes.c.pool.is_(None)).order_by(nodes.c.created_at)).all()
    for row in rows:
        spec = with_revision(NodeSpec.from_json(row.spec))
        values = {"spec": spec.to_json(), "pool": spec.pool, "revision": spec.revision}
        connection.execute(sa.update(nodes).where(nodes.c.name == row.name).values(**values))
        _store_revision(connection, Revision.of(spec), now)
    for row in reversed(rows):  # a new pool's revision is that of its newest node
        if row.wanted:
            note_node_wanted(connection, with_revision(NodeSpec.from_json(row.spec)), now)


def _store_revision(connection: sa.Connection, revision: Revision, now: float) -> None:
    known = connection.execute(sa.select(revisions.c.id).where(revisions.c.id == revision.id)).first()
    if known is None:
        values = {"id": revision.id, "document": revision.to_json(), "created_at": now}
        connection.execute(sa.insert(revisions).values(**values))


def _count_wanted(connection: sa.Connection, pool: str, revision: str | None = None) -> int:
    is_meant = nodes.c.wanted & (nodes.c.pool == pool)
    if revision is not None:
        is_meant &= nodes.c.revision == revision
    return int(connection.execute(sa.select(sa.func.count()).select_from(nodes).where(is_meant)).scalar_one())


def _newest_revision(connection: sa.Connection, pool: str) -> str | None:
    wanted = sa.select(nodes.c.revision).where(nodes.c.wanted, nodes.c.pool == pool)
    row = connection.execute(wanted.order_by(nodes.c.created_at.desc()).limit(1)).first()
    return None if row is None else str(row.revision)


def _update(connection: sa.Connection, name: str, now: float, values: dict[str, Any]) -> None:
    if values:
        connection.execute(sa.update(pools).where(pools.c.name == name).values(updated_at=now, **values))


def _decode(row: sa.RowMapping) -> PoolRow:
    return PoolRow(
        name=row["name"],
        model=row["model"],
        wanted_size=row["wanted_size"],
        revision=row["revision"],
        owner=PoolOwner(row["owner"]),
        updated_at=row["updated_at"],
        updated_by=row["updated_by"],
    )
