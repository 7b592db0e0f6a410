"""Nodes that are pods: they come and go as Kubernetes makes and deletes them, and the fleet's table follows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

import structlog

from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent, change_node, get_node, list_nodes, want_node
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.provider import ObservedInstance
from fleetctl.providers.providers import Providers
from fleetctl.providers.spec import NodeSpec

log = structlog.get_logger()


class PodProvider(Protocol):
    """What is asked of the Kubernetes provider here, beside what every provider does."""

    def specs(self) -> list[NodeSpec]:
        """Every node that is seen, as its labels describe it."""

    def observe(self, name: str) -> ObservedInstance:
        """The node as it is now."""

    def cordon(self, name: str) -> None:
        """Say on the pod that it gets no requests."""

    def uncordon(self, name: str) -> None:
        """Say on the pod that it gets requests."""


class PodNodes:
    """Takes up the pods that are nodes, lets go of those that Kubernetes took away, and tells each pod its cordon.

    A node that fleetctl starts or stops has its row before its pod changes: none of these is touched here.
    """

    def __init__(
        self, records: Records, fleet: Fleet, routing: Routing, providers: Providers, pods: PodProvider
    ) -> None:
        self._records, self._fleet, self._routing = records, fleet, routing
        self._providers, self._pods = providers, pods

    async def take_up(self) -> None:
        """One look at all of them. Raises FleetctlError when the cluster can't be looked at: then nothing changes."""
        seen = {spec.name: spec for spec in await asyncio.to_thread(self._pods.specs)}
        rows = {row.name: row for row in await self._records.database.read(list_nodes)}
        for spec in seen.values():
            row = rows.get(spec.name)
            if row is None:
                await self._want(spec)
            elif row.spec.provider == spec.provider:
                self._providers.learn(row.spec)
                await self._describe(row, spec)
        providers = {spec.provider for spec in seen.values()}
        for row in rows.values():
            if row.spec.provider in providers and row.name not in seen:
                self._providers.learn(row.spec)
                await self._let_go(row)

    async def tell_cordons(self) -> None:
        """What the routing table says of each node, on its pod: nothing is asked where it says so already."""
        for row in await self._records.database.read(list_nodes):
            if row.spec.provider != "kubernetes" or not row.wanted or row.is_restarting:
                continue
            tell = self._pods.cordon if row.is_cordoned else self._pods.uncordon
            try:
                self._records.lease.require()
                await asyncio.to_thread(tell, row.name)
            except FleetctlError as error:
                log.warning("node.cordon_not_told", node=row.name, error=error.message)

    async def _want(self, spec: NodeSpec) -> None:
        self._providers.learn(spec)
        now = self._records.clock.now()
        await self._records.database.write(lambda c: want_node(c, spec, Role.MEMBER, now))
        await self._routing.change(spec.name, started=True)
        where = spec.options.get("workload") or spec.options.get("pod")
        words = f"{spec.name}: found in Kubernetes, namespace {spec.options['namespace']}, {where}"
        await self._records.timeline.append("node.found", words, node=spec.name)

    async def _describe(self, row: NodeRow, spec: NodeSpec) -> None:
        """The pod's zone, revision and machine are known only once it is placed, and change with its successor."""
        now_so = replace(row.spec, zone=spec.zone, revision=spec.revision, facts=spec.facts)
        if now_so == row.spec:
            return

        now = self._records.clock.now()
        values = {"spec": now_so.to_json(), "revision": now_so.revision}
        await self._records.database.write(lambda c: change_node(c, row.name, now, values, {"wanted": row.wanted}))

    async def _let_go(self, row: NodeRow) -> None:
        """A pod that Kubernetes deleted, as in a rollout or a smaller workload, is no node that failed."""
        if row.is_restarting or not row.started or row.role is not Role.MEMBER:
            return
        if (await asyncio.to_thread(self._pods.observe, row.name)).running:
            return  # its pod is on its way, or being deleted
        if row.wanted:
            await self._routing.change(row.name, only_if={"wanted": True}, wanted=False, route=RouteIntent.NONE)
            words = f"{row.name}: its pod was deleted in Kubernetes, not by fleetctl"
            await self._records.timeline.append("node.gone", words, node=row.name)
        standing = await self._records.database.read(lambda c: get_node(c, row.name))
        if standing is not None and not standing.wanted:
            await self._fleet.forget(standing)
