"""The desired state of each pool, and every revision that a node ever had: stored, in the transactions of their nodes.

A pool's wanted size and its wanted nodes are two facts. What changes nodes by hand moves the size along; what changes
the size (`begin_scaling`) moves the nodes after it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.nodes.revision import Revision, is_ours, with_revision
from fleetctl.controller.tables import nodes, pools, revisions
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.providers.spec import NodeSpec
from runbooks.ports import PoolOwner


@dataclass(frozen=True, slots=True)
class StartBackoff:
    """A node of a pool that ended before it was ready, `failures` times in a row. `is_waiting`: not tried again yet."""

    node: str
    failures: int
    not_before: float
    is_waiting: bool
    error: str


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool as it should be. `revision` is what a new node of it gets; times are Unix seconds.

    `num_current`: so many of its nodes, at least, are to be of that revision; nodes of others make room for them.
    While a rollout is under way `num_stable` nodes of others stay, and one that is missing is of `stable_revision`.
    `override`: why what follows from this is held by no freeze and no budget.
    """

    name: str
    model: str
    wanted_size: int
    revision: str
    num_current: int
    owner: PoolOwner
    backoff: StartBackoff | None
    updated_at: float
    updated_by: str
    stable_revision: str = ""
    num_stable: int = 0
    override: str = ""


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


def note_node_wanted(connection: sa.Connection, spec: NodeSpec, now: float, *, grows: bool = True) -> None:
    """A node of this spec was stored as wanted: its pool and revision are known from now on.

    Wanted beyond the pool's size, it makes the pool larger, unless `grows` is false: then it is there for another one.
    """
    if is_ours(spec):
        store_revision(connection, Revision.of(spec), now)
    size = _count_wanted(connection, spec.pool)
    pool = get_pool(connection, spec.pool)
    if pool is None:
        row = {"name": spec.pool, "model": spec.model, "wanted_size": size, "revision": spec.revision}
        connection.execute(
            sa.insert(pools).values(**row, owner=PoolOwner.PERSON.value, updated_at=now, updated_by="node start")
        )
        return
    changed: dict[str, Any] = {}
    if grows and size > pool.wanted_size:
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
    if newest is not None and not pool.num_current and not _count_wanted(connection, spec.pool, pool.revision):
        changed["revision"] = newest  # none of it is left: what new nodes get follows those that stayed
    _update(connection, spec.pool, now, changed)


def begin_scaling(
    connection: sa.Connection, name: str, *, start: Collection[str], stop: Collection[str], by: str, now: float
) -> None:
    """Say that the pool has these nodes more, or fewer; the nodes follow. Twice is once.

    A person takes a pool over from the autoscaler. Raises RefusedError where the autoscaler meets a person's.
    """
    pool = get_pool(connection, name)
    if pool is None:
        return
    wanted = set(connection.execute(sa.select(nodes.c.name).where(nodes.c.wanted, nodes.c.pool == name)).scalars())
    size = len((wanted | set(start)) - set(stop))
    owner = PoolOwner.AUTOSCALER if by == PoolOwner.AUTOSCALER else PoolOwner.PERSON
    if size == pool.wanted_size and owner is pool.owner:
        return
    if owner is PoolOwner.AUTOSCALER and pool.owner is PoolOwner.PERSON:
        if size == pool.wanted_size:
            return
        raise RefusedError(
            f"pool {name} is a person's (its size is by {pool.updated_by}): the autoscaler leaves it alone",
            remedy=f"fleetctl pool owner {name} --to autoscaler",
        )
    changed = {"wanted_size": size, "owner": owner.value, "updated_by": by or "scale", "backoff": sa.null()}
    _update(connection, name, now, changed)


def end_scaling(connection: sa.Connection, name: str, now: float) -> None:
    """A scaling broke off: what is there is what is wanted, so that nothing goes on with it behind anybody's back."""
    pool = get_pool(connection, name)
    size = _count_wanted(connection, name)
    if pool is not None and size != pool.wanted_size:
        _update(connection, name, now, {"wanted_size": size})


def set_owner(connection: sa.Connection, name: str, owner: PoolOwner, by: str, now: float) -> PoolOwner:
    """Who may set the pool's size from now on. Returns who might before. Raises BadInputError."""
    pool = get_pool(connection, name)
    if pool is None:
        raise BadInputError(f"there is no pool {name}", remedy="fleetctl get pools")
    if owner is not pool.owner:
        _update(connection, name, now, {"owner": owner.value, "updated_by": by})
    return pool.owner


def want_revision(
    connection: sa.Connection,
    name: str,
    revision: str,
    num_current: int,
    by: str,
    now: float,
    *,
    stable: tuple[str, int] = ("", 0),
    override: str = "",
) -> None:
    """Say what the pool's new nodes get, and how many of its nodes, at least, are to have it. The nodes follow.

    `stable`: another revision, and how many of the nodes stay of others than the pool's. What is so already stays.
    """
    pool = get_pool(connection, name)
    if pool is None:
        return
    stable_revision, num_stable = stable
    wanted = (revision, num_current, stable_revision, num_stable, override)
    if wanted == (pool.revision, pool.num_current, pool.stable_revision, pool.num_stable, pool.override):
        return
    values: dict[str, Any] = {
        "revision": revision,
        "num_current": num_current,
        "stable_revision": stable_revision or None,
        "num_stable": num_stable,
        "override": override or None,
        "updated_by": by,
    }
    if revision != pool.revision:
        values["backoff"] = sa.null()
    _update(connection, name, now, values)


def store_backoff(connection: sa.Connection, name: str, backoff: StartBackoff | None) -> None:
    """Keep how a failing start of the pool stands; None: it does not fail."""
    value = sa.null() if backoff is None else asdict(backoff)
    connection.execute(sa.update(pools).where(pools.c.name == name).values(backoff=value))


def get_revision(connection: sa.Connection, revision_id: str) -> Revision | None:
    """One revision; None when no node ever had it."""
    row = connection.execute(sa.select(revisions).where(revisions.c.id == revision_id)).first()
    return None if row is None else Revision.from_json(row.document)


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
        store_revision(connection, Revision.of(spec), now)
    for row in reversed(rows):  # a new pool's revision is that of its newest node
        if row.wanted:
            note_node_wanted(connection, with_revision(NodeSpec.from_json(row.spec)), now)


def store_revision(connection: sa.Connection, revision: Revision, now: float) -> None:
    """Keep a revision; one that is known is left as it is."""
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
        num_current=row["num_current"] or 0,
        backoff=None if row["backoff"] is None else StartBackoff(**row["backoff"]),
        owner=PoolOwner(row["owner"]),
        updated_at=row["updated_at"],
        updated_by=row["updated_by"],
        stable_revision=row["stable_revision"] or "",
        num_stable=row["num_stable"] or 0,
        override=row["override"] or "",
    )
