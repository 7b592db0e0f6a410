"""Nodes that are pods: they come and go as Kubernetes makes and deletes them, and the fleet's table follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import structlog

from fleetctl.controller.nodes.engine_probes import Asked, EngineProbes, KeyedGet, told
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.listed_nodes import ListedNodes, Listing
from fleetctl.controller.nodes.node_row import NodeRow, Role, list_nodes
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.provider import ObservedInstance
from fleetctl.providers.providers import KUBERNETES, Providers
from fleetctl.providers.spec import NodeSpec

log = structlog.get_logger()

ALL_AGAIN_S = 5.0  # machines, rows and what nodes say of themselves change without a pod's change


class PodProvider(Protocol):
    """What is asked of the Kubernetes provider here, beside what every provider does."""

    def version(self) -> object:
        """Another one whenever a pod or its workload changes. Raises UnreachableError when that may be old."""

    def specs(self) -> list[NodeSpec]:
        """Every node that is seen, as its labels describe it. Raises UnreachableError when that may be old."""

    def observe(self, name: str) -> ObservedInstance:
        """The node as it is now."""

    def cordon(self, name: str) -> None:
        """Say on the pod that it gets no requests."""

    def uncordon(self, name: str) -> None:
        """Say on the pod that it gets requests."""


class PodNodes:
    """Lists the pods that are nodes, once a turn, and tells each pod its cordon. Implements `ListWords`.

    No pod at all is believed at once: the API's list is whole, and one that may be old raises instead.
    """

    def __init__(
        self,
        records: Records,
        fleet: Fleet,
        routing: Routing,
        providers: Providers,
        get: KeyedGet,
        forget_signals: Callable[[str], None],
        pods: PodProvider,
    ) -> None:
        """`providers`: of the whole fleet, told whose node each is; `get`: asks a node what it is."""
        self._records, self._fleet = records, fleet
        self._listed = ListedNodes(records, routing, providers.learn, providers.forget, forget_signals)
        self._probes = EngineProbes(fleet, get, records.clock)
        self._providers, self._pods = providers, pods
        self._taken: object = None  # the version that was taken up last
        self._taken_at = 0.0

    async def take_up(self) -> None:
        """One look at all of them. Raises FleetctlError when the cluster can't be looked at: then nothing changes."""
        version, now = await asyncio.to_thread(self._pods.version), self._records.clock.now()
        if version == self._taken and 0 <= now - self._taken_at < ALL_AGAIN_S:
            return
        seen = {spec.name: spec for spec in await asyncio.to_thread(self._pods.specs)}
        rows = await self._records.database.read(list_nodes)
        own = [row for row in rows if row.spec.provider == KUBERNETES]
        for row in own:
            self._providers.learn(row.spec)
        kept = await asyncio.to_thread(self._kept, own, seen)
        specs = self._told(seen)
        await self._listed.follow(Listing(KUBERNETES, specs, kept), rows, self, now)
        self._taken, self._taken_at = version, now

    async def tell_cordons(self) -> None:
        """What the routing table says of each node, on its pod: nothing is asked where it says so already."""
        rows = await self._records.database.read(list_nodes)
        told = [row for row in rows if row.spec.provider == KUBERNETES and row.wanted and not row.is_restarting]
        await asyncio.to_thread(self._tell_cordons, told)  # one thread for all: a thousand hops take longer than a turn

    def found(self, spec: NodeSpec) -> str:
        """Its namespace and what owns it."""
        where = spec.options.get("workload") or f"pod/{spec.options.get('pod')}"
        return f"found in Kubernetes, namespace {spec.options['namespace']}, {where}"

    def gone(self, row: NodeRow) -> str:
        """Not by us: what fleetctl stops is not wanted before its pod goes."""
        return "Kubernetes has no pod for it any more, and nobody here took it away"

    async def stop(self) -> None:
        """Give up the probes that are under way."""
        await self._probes.stop()

    def _tell_cordons(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            tell = self._pods.cordon if row.is_cordoned else self._pods.uncordon
            try:
                self._records.lease.require()
                tell(row.name)
            except FleetctlError as error:
                log.warning("node.cordon_not_told", node=row.name, error=error.message)

    def _kept(self, rows: Iterable[NodeRow], seen: Collection[str]) -> set[str]:
        """Nodes that fleetctl starts, restarts or stops now, and those whose pod is on its way or being deleted."""
        return {
            row.name
            for row in rows
            if row.is_restarting
            or (row.wanted and (not row.started or row.role is not Role.MEMBER))
            or (row.name in seen and row.started and not row.wanted)
            or (row.name not in seen and row.started and self._pods.observe(row.name).running)
        }

    def _told(self, seen: Mapping[str, NodeSpec]) -> dict[str, NodeSpec]:
        """With what each node says of itself, where it has an address and some label is missing."""
        states = self._fleet.nodes
        urls = {name: state.url for name in seen if (state := states.get(name)) is not None and state.url is not None}
        silent = {name: seen[name] for name in urls if not (seen[name].engine and seen[name].model)}
        self._probes.ask_due(
            {name: Asked(name, urls[name], spec.engine, spec.model, spec.api_key) for name, spec in silent.items()}
        )
        return {
            name: told(spec, self._probes.facts_of(name, urls[name])) if name in silent else spec
            for name, spec in seen.items()
        }
