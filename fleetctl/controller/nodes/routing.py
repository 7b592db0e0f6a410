"""The table the gateway routes by: what is wanted of each node (stored), the phase it was last seen in, traffic rules.

Versioned, waited for by long polls; and whether the gateway follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa

from fleetctl.controller.database import GroupCommit, put_meta
from fleetctl.controller.nodes.gateways import address_of
from fleetctl.controller.nodes.node_answers import NoAnswerError, NotAllowedError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import change_node, list_published, routing_version
from fleetctl.controller.nodes.rule_row import list_rules
from fleetctl.controller.records import Records
from fleetctl.kit.clock import Clock
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import Route, RouteState, RoutingTable

GATEWAY_POLL_S = 0.1
T = TypeVar("T")


class _Change(NamedTuple):
    name: str
    at: float
    values: Mapping[str, Any]
    only_if: Mapping[str, Any] | None


class Routing:
    """Owner of the current table. Every change of a node's desired state goes through `change`.

    What was seen of nodes comes in through `publish_phases`, and is not stored: a new controller looks anew.
    """

    def __init__(self, records: Records) -> None:
        self._database = records.database
        self._clock = records.clock
        self._changed = asyncio.Condition()
        self._changes = GroupCommit(records.database, self._write_changes)
        self._phases: Mapping[str, NodePhase] = {}
        self._num_gateways = 1
        self.table = RoutingTable(version=0, routes=[])

    @classmethod
    async def opened(cls, records: Records) -> Routing:
        """With the table that the database has."""
        routing = cls(records)
        await routing._publish(await records.database.read(routing._read))
        return routing

    async def change(self, name: str, *, only_if: Mapping[str, Any] | None = None, **values: Any) -> int:
        """Set columns of a node (route, wanted, url...), if its columns are as `only_if` says when it is done.

        Returns the version of the table that shows it.
        """
        await self._publish(await self._changes.add(_Change(name, self._clock.now(), values, only_if)))
        return self.table.version

    async def publish_phases(self, phases: Mapping[str, NodePhase]) -> None:
        """Make the table say in which phase each node was seen. A new version only when that differs for a route."""
        self._phases = dict(phases)
        if all(route.phase is phases.get(route.node) for route in self.table.routes):
            return

        await self.publish_change(lambda connection: None)

    async def publish_num_gateways(self, num: int) -> None:
        """Make the table say how many gateways share the tenants' limits; a new version only when that differs."""
        self._num_gateways = max(1, num)
        if self.table.num_gateways != self._num_gateways and self.table.version != 0:
            await self.publish_change(lambda connection: None)

    async def publish_change(self, work: Callable[[sa.Connection], T]) -> T:
        """Store what `work` changes and publish the table as a new version. Returns what `work` returned.

        A `work` that raises changes nothing.
        """

        def change(connection: sa.Connection) -> tuple[T, RoutingTable]:
            result = work(connection)
            # Version 0 says that nothing was routed yet: rules alone are no table to replace a gateway's last good one.
            if version := routing_version(connection):
                put_meta(connection, "routing_version", version + 1)
            return result, self._read(connection)

        result, table = await self._database.write(change)
        await self._publish(table)
        return result

    def _read(self, connection: sa.Connection) -> RoutingTable:
        routes = [
            Route(
                node=row.name,
                url=row.url or "",
                state=RouteState(row.route.value),
                pool=row.spec.pool,
                model=row.spec.model,
                phase=self._phases.get(row.name),
                engine=row.spec.engine,
                revision=row.spec.revision,
                api_key=row.spec.api_key,
            )
            for row in list_published(connection)
        ]
        return RoutingTable(
            version=routing_version(connection),
            epoch=self._database.epoch,
            state_id=self._database.state_id,
            routes=routes,
            rules=list_rules(connection),
            num_gateways=self._num_gateways,
        )

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

    def _write_changes(self, connection: sa.Connection, changes: Sequence[_Change]) -> list[RoutingTable]:
        standing = self.table
        for change in changes:
            change_node(connection, change.name, change.at, change.values, change.only_if)
        if routing_version(connection) == standing.version:
            return [standing] * len(changes)  # a large fleet is read only when it has something new
        return [self._read(connection)] * len(changes)

    async def _publish(self, table: RoutingTable) -> None:
        if table is self.table or table.version < self.table.version:
            return  # another change of the same transaction, or of a later one, has published it
        async with self._changed:
            self.table = table
            self._changed.notify_all()


class GatewayWatch:
    """Asks the gateways, after each change that an effect depends on, by which table they route."""

    def __init__(self, client: NodeClient, urls: Sequence[str], clock: Clock, wait_s: float) -> None:
        self._client = client
        self._urls = urls
        self._clock = clock
        self._wait_s = wait_s

    async def follow(self, version: int) -> str:
        """Wait until every gateway routes by `version` or a newer one. Returns what was seen, for the receipt.

        A gateway that can't be asked is waited for a few seconds and then not any more: its long poll may work all
        the same, and a node that is drained refuses new requests itself.
        """
        if not self._urls:
            return "no gateway is configured"
        said = await asyncio.gather(*(self._follow_one(url, version) for url in self._urls))
        if len(said) == 1:
            return said[0]
        return "; ".join(f"{address_of(url)}: {one}" for url, one in zip(self._urls, said, strict=True))

    async def _follow_one(self, url: str, version: int) -> str:
        started = self._clock.now()
        while True:
            try:
                seen = await self._client.gateway_table_version(url)
            except (NoAnswerError, NotAllowedError) as error:
                problem = f"not known: {error}"
            else:
                if seen >= version:
                    return f"routes by table {seen}"
                problem = f"still routes by table {seen}"
            if self._clock.now() - started > self._wait_s:
                return f"{problem}; went on after {self._wait_s:.0f} s"
            await self._clock.sleep(GATEWAY_POLL_S)
