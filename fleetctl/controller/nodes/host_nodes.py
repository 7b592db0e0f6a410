"""Nodes that are units of hosts: each place whose unit runs is one, and stays one when its unit ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fleetctl.controller.nodes.listed_nodes import ListedNodes, Listing
from fleetctl.controller.nodes.node_row import NodeRow, list_nodes
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.providers.hosts.provider import HOSTS, HostsProvider
from fleetctl.providers.providers import Providers
from fleetctl.providers.spec import NodeSpec


class HostNodes:
    """Takes up what runs on the hosts, once a turn. Implements `ListWords`.

    What was started and runs no more is a node that died, and no spare place: only our own stop, or the settings, take
    it away.
    """

    def __init__(
        self,
        records: Records,
        routing: Routing,
        providers: Providers,
        forget_signals: Callable[[str], None],
        hosts: HostsProvider,
    ) -> None:
        """`providers`: of the whole fleet, told whose node each is."""
        self._records, self._hosts, self._providers = records, hosts, providers
        self._listed = ListedNodes(records, routing, providers.learn, providers.forget, forget_signals)

    async def take_up(self) -> None:
        """One look at all places. Those of a host that can't be looked at stay as they are."""
        running, unknown = await asyncio.to_thread(self._hosts.specs)
        rows = await self._records.database.read(list_nodes)
        own = [row for row in rows if row.spec.provider == HOSTS]
        for row in own:
            self._providers.learn(row.spec)
        seen = {spec.name: spec for spec in running}
        kept = self._kept(own, set(seen)) | unknown
        await self._listed.follow(Listing(HOSTS, seen, kept), rows, self, self._records.clock.now())

    def found(self, spec: NodeSpec) -> str:
        """Which unit of which host."""
        place = self._hosts.places[spec.name]
        return f"runs as {place.unit} on {place.host}"

    def gone(self, row: NodeRow) -> str:
        """Only what left the settings is."""
        return "providers.hosts.nodes has it no more"

    def _kept(self, rows: Iterable[NodeRow], seen: set[str]) -> set[str]:
        """Nodes that we want though they do not run, and those that we stop while they still do."""
        places = self._hosts.places.keys()
        return {
            row.name
            for row in rows
            if (row.wanted and row.name in places) or (row.name in seen and row.started and not row.wanted)
        }
