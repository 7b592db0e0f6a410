"""The desired state of each node, stored: what should run, and whether traffic is sent to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.database import get_meta, put_meta
from fleetctl.controller.nodes.pool_row import forget_empty_pool, note_node_unwanted, note_node_wanted
from fleetctl.controller.nodes.revision import with_revision
from fleetctl.controller.nodes.wanted_history import note_wanted
from fleetctl.controller.tables import nodes
from fleetctl.providers.found import URL
from fleetctl.providers.spec import NodeSpec


class RouteIntent(StrEnum):
    """What the routing table is to say of a node."""

    NONE = "none"  # not in the routing table: not ready for the first time yet, or not wanted
    ACTIVE = "active"  # takes new requests
    CORDONED = "cordoned"  # takes no new requests by our will
    LEAVING = "leaving"  # cordoned, and gateways let what it holds go on elsewhere: the end of a drain


class Role(StrEnum):
    """Who admits a node to the routing table."""

    MEMBER = "member"  # admitted to the table by the fleet loop when ready
    REPLACEMENT = "replacement"  # admitted by the effect that starts it


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as it should be. `restart` is the mark of the last restart; times are Unix seconds."""

    spec: NodeSpec
    wanted: bool
    started: bool
    route: RouteIntent
    role: Role
    url: str | None
    restart: dict[str, Any] | None
    created_at: float
    updated_at: float

    @property
    def name(self) -> str:
        """The node's name."""
        return self.spec.name

    @property
    def is_cordoned(self) -> bool:
        """Whether it takes no new requests by our will."""
        return self.route in (RouteIntent.CORDONED, RouteIntent.LEAVING)

    @property
    def is_restarting(self) -> bool:
        """A restart began and its end was not stored: its process may be gone by our will."""
        return self.restart is not None and self.restart.get("state") != "done"


def list_nodes(connection: sa.Connection) -> list[NodeRow]:
    """All nodes ever wanted, in the order of their creation."""
    rows = connection.execute(sa.select(nodes).order_by(nodes.c.created_at, nodes.c.name))
    return [_decode(row._mapping) for row in rows]


def list_published(connection: sa.Connection) -> list[NodeRow]:
    """The nodes that the routing table has, in the order of their creation."""
    published = sa.and_(nodes.c.wanted, nodes.c.url.is_not(None), nodes.c.route != RouteIntent.NONE.value)
    rows = connection.execute(sa.select(nodes).where(published).order_by(nodes.c.created_at, nodes.c.name))
    return [_decode(row._mapping) for row in rows]


def get_node(connection: sa.Connection, name: str) -> NodeRow | None:
    """One node; None when it was never wanted."""
    row = connection.execute(sa.select(nodes).where(nodes.c.name == name)).first()
    return None if row is None else _decode(row._mapping)


def want_node(connection: sa.Connection, spec: NodeSpec, role: Role, now: float, *, grows_pool: bool = True) -> NodeRow:
    """Make the node wanted, stamped with its revision. One that is wanted already is left as it is; a stopped one is
    wanted anew. One beyond its pool's size makes the pool larger, unless `grows_pool` is false."""
    standing = get_node(connection, spec.name)
    if standing is not None and standing.wanted:
        return standing
    spec = with_revision(spec)
    values: dict[str, Any] = {
        "spec": spec.to_json(),
        "pool": spec.pool,
        "revision": spec.revision,
        "wanted": True,
        "started": False,
        "route": RouteIntent.NONE.value,
        "role": role.value,
        "url": None,
        "restart": sa.null(),
        "updated_at": now,
    }
    if standing is None:
        connection.execute(sa.insert(nodes).values(name=spec.name, created_at=now, **values))
    else:
        connection.execute(sa.update(nodes).where(nodes.c.name == spec.name).values(**values))
    note_wanted(connection, spec, True, now)
    note_node_wanted(connection, spec, now, grows=grows_pool)
    created = get_node(connection, spec.name)
    assert created is not None
    return created


def change_node(
    connection: sa.Connection,
    name: str,
    now: float,
    values: Mapping[str, Any],
    only_if: Mapping[str, Any] | None = None,
) -> int:
    """Set columns of one node, if its columns are as `only_if` says.

    Returns the routing table's version, which grows when the table changes by it.
    """
    before = get_node(connection, name)
    if before is None or any(getattr(before, key) != value for key, value in (only_if or {}).items()):
        return routing_version(connection)
    plain = {key: value.value if isinstance(value, StrEnum) else value for key, value in values.items()}
    # Column `restart` is JSON: without this, None would be stored as the JSON text null.
    plain = {key: sa.null() if value is None else value for key, value in plain.items()}
    connection.execute(sa.update(nodes).where(nodes.c.name == name).values(updated_at=now, **plain))
    after = get_node(connection, name)
    assert after is not None
    if after.wanted is not before.wanted:
        note_wanted(connection, after.spec, after.wanted, now)
        if after.wanted:
            note_node_wanted(connection, after.spec, now)
        else:
            note_node_unwanted(connection, after.spec, now)
    version = routing_version(connection)
    if _published(before) != _published(after):
        version += 1
        put_meta(connection, "routing_version", version)
    return version


def place_listed(connection: sa.Connection, spec: NodeSpec, now: float) -> None:
    """Make a node that others run wanted, or known as it is now. One that is cordoned stays so, also when it was gone
    for a while. A node of another provider stays whose it is. Part of a change that is published."""
    standing, url = get_node(connection, spec.name), spec.facts.get(URL)
    place = {} if url is None else {"url": url}  # of a pod it is known once it is looked at
    if standing is None or not standing.wanted:
        stays = standing is not None and standing.is_cordoned
        want_node(connection, spec, Role.MEMBER, now)
        route = RouteIntent.CORDONED if stays else RouteIntent.NONE
        change_node(connection, spec.name, now, {"started": True, "route": route, **place})
        return
    if standing.spec.provider != spec.provider or standing.spec == spec:
        return
    values = {"spec": spec.to_json(), "pool": spec.pool, "revision": spec.revision, "updated_at": now, **place}
    connection.execute(sa.update(nodes).where(nodes.c.name == spec.name).values(**values))
    if (standing.spec.pool, standing.spec.model) != (spec.pool, spec.model):
        note_wanted(connection, standing.spec, False, now)
        note_node_unwanted(connection, standing.spec, now)
        forget_empty_pool(connection, standing.spec.pool)
        note_wanted(connection, spec, True, now)
        note_node_wanted(connection, spec, now)


def remove_listed(connection: sa.Connection, name: str, now: float) -> None:
    """A node that others run is there no more: nobody asked for it is started. Its row stays for a while, cordoned if
    it was."""
    row = get_node(connection, name)
    if row is not None:
        route = RouteIntent.CORDONED if row.is_cordoned else RouteIntent.NONE
        change_node(connection, name, now, {"wanted": False, "started": False, "route": route})


def delete_stopped(connection: sa.Connection, name: str) -> bool:
    """Delete the node unless it is wanted (again). Whether it was there and is gone."""
    row = get_node(connection, name)
    if row is None or row.wanted:
        return False
    connection.execute(sa.delete(nodes).where(nodes.c.name == name))
    forget_empty_pool(connection, row.spec.pool)
    return True


def routing_version(connection: sa.Connection) -> int:
    """The routing table's version; 0 before the first table."""
    version = get_meta(connection, "routing_version")
    return version if isinstance(version, int) else 0


def is_published(row: NodeRow) -> bool:
    """Whether the routing table has the node; `list_published` asks the database the same."""
    return row.wanted and row.url is not None and row.route is not RouteIntent.NONE


def _published(row: NodeRow) -> tuple[str, str] | None:
    return (row.route.value, row.url or "") if is_published(row) else None


def _decode(row: sa.RowMapping) -> NodeRow:
    return NodeRow(
        spec=NodeSpec.from_json(row["spec"]),
        wanted=row["wanted"],
        started=row["started"],
        route=RouteIntent(row["route"]),
        role=Role(row["role"]),
        url=row["url"],
        restart=_restart_of(row["restart"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _restart_of(mark: dict[str, Any] | None) -> dict[str, Any] | None:
    """The stored mark of a restart. One that was begun before 0.2 names its instance by the process of that time."""
    if mark is None or "pid" not in mark:
        return mark
    rest = {key: value for key, value in mark.items() if key != "pid"}
    return {"instance": None if mark["pid"] is None else f"pid-{mark['pid']}", **rest}
