"""The table the gateway routes by: versioned, stored, and waited for by long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from fleetctl.controller.database import Database
from fleetctl.controller.nodes.node_row import change_node, is_published, list_nodes, routing_version
from fleetctl.kit.clock import Clock
from fleetctl.wire import Route, RouteState, RoutingTable


class Routing:
    """Owner of the current table. Every change of a node's desired state goes through `change`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._changed = asyncio.Condition()
        self.table = RoutingTable(version=0, routes=[])

    async def load(self) -> None:
        await self._publish(await self._database.read(_read_table))

    async def change(self, name: str, *, only_if: Mapping[str, Any] | None = None, **values: Any) -> int:
        """Set columns of a node (route, wanted, url...), if its columns are as `only_if` says when it is done.

        Returns the version of the table that shows it.
        """
        now = self._clock.now()

        def work(connection: sa.Connection) -> RoutingTable:
            change_node(connection, name, now, values, only_if)
            return _read_table(connection)

        await self._publish(await self._database.write(work))
        return self.table.version

    async def wait(self, after: int, wait_s: float) -> RoutingTable | None:
        """The table once its version differs from `after`; None when it doesn't within `wait_s`.

        "Differs", not "is newer": after the state was lost and rebuilt, versions start again, and a gateway that
        knows a higher one must still learn the table.
        """
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: self.table.version != after)
        except TimeoutError:
            return None
        return self.table

    async def _publish(self, table: RoutingTable) -> None:
        async with self._changed:
            self.table = table
            self._changed.notify_all()


def _read_table(connection: sa.Connection) -> RoutingTable:
    routes = [
        Route(
            node=row.name,
            url=row.url or "",
            state=RouteState(row.route.value),
            pool=row.spec.pool,
            model=row.spec.model,
        )
        for row in list_nodes(connection)
        if is_published(row)
    ]
    return RoutingTable(version=routing_version(connection), routes=routes)
