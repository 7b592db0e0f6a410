"""Nodes that run already, found where the settings say, as rows of the fleet: they come, change and go by discovery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
import structlog

from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import NodeRow, delete_stopped, list_nodes, place_found, remove_found
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.discovery.discovery import Discovery, Found
from fleetctl.discovery.found_node import FoundNode
from fleetctl.discovery.probe import EngineFacts, probe_engine
from fleetctl.providers.found import FOUND, GROUP, METRICS_URL, SOURCE, URL
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire import DiscoveryState, NodePhase

log = structlog.get_logger()

FORGET_AFTER_S = 600.0
"""A node that is gone is kept so long: names of pods never come back, and thousands a day would fill every list."""
PROBE_AGAIN_S = 300.0  # what runs at an address changes with a deploy
PROBE_SOONER_S = 5.0  # while something is not known of it
MAX_PROBES = 20  # under way at once
DEFAULT_POOL = "default"
MAX_TOLD = 100  # problems


@dataclass(frozen=True, slots=True)
class _Probed:
    url: str
    at: float
    facts: EngineFacts


class FoundFleet:
    """Compares what discovery says with the fleet's rows, once a turn, and stores what differs in one transaction."""

    def __init__(
        self,
        records: Records,
        discovery: Discovery,
        fleet: Fleet,
        routing: Routing,
        provider: NodeProvider,
        client: NodeClient,
        forget_signals: Callable[[str], None],
    ) -> None:
        self._database = records.database
        self._timeline = records.timeline
        self._metrics = records.metrics
        self._clock = records.clock
        self._discovery = discovery
        self._fleet = fleet
        self._routing = routing
        self._provider = provider
        self._client = client
        self._forget_signals = forget_signals
        self._probed: dict[str, _Probed] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._told: Mapping[str, str] = {}
        self._looked = False
        self._has_nothing = False  # no source, and no node of an earlier one
        self.found = Found({}, 0, {})

    async def look(self) -> None:
        """One turn."""
        if self._has_nothing:
            return
        now = self._clock.now()
        self.found = found = await self._discovery.look(now)
        self._tell_problems(found.problems)
        rows = await self._database.read(list_nodes)
        for name in self._probed.keys() - found.nodes.keys():
            del self._probed[name]
        self._begin_probes(found.nodes, now)
        self._has_nothing = self._discovery.is_empty and not any(row.spec.provider == FOUND for row in rows)
        placed, gone, old = differences(self._specs(found), rows, found.unread, now)
        await asyncio.to_thread(lambda: [self._provider.attach(spec) for spec in placed])  # before it is looked at
        if placed or gone or old:
            await self._store(placed, gone, old, {row.name: row for row in rows}, now)
        self._looked = True
        self._metrics.tell_discovery(
            {"found": len(found.nodes), "dropped": found.dropped}, len(found.problems), len(found.unread)
        )

    def state(self) -> DiscoveryState | None:
        """For people; None where no source is named."""
        if self._discovery.is_empty:
            return None
        problems = dict(list(self.found.problems.items())[:MAX_TOLD])
        return DiscoveryState(
            looked=self._looked and self.found.nodes.keys() <= self._probed.keys(),
            found=len(self.found.nodes),
            dropped=self.found.dropped,
            problems=problems,
            unread=sorted(self.found.unread),
        )

    async def stop(self) -> None:
        """Give up the probes that are under way."""
        for task in self._probes.values():
            task.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    def _specs(self, found: Found) -> dict[str, NodeSpec]:
        return {name: spec_of(node, self._facts_of(node)) for name, node in found.nodes.items()}

    def _facts_of(self, node: FoundNode) -> EngineFacts | None:
        probed = self._probed.get(node.name)
        return probed.facts if probed is not None and probed.url == node.url else None

    async def _store(
        self,
        placed: Sequence[NodeSpec],
        gone: Sequence[str],
        old: Sequence[str],
        rows: Mapping[str, NodeRow],
        now: float,
    ) -> None:
        def change(connection: sa.Connection) -> None:
            for spec in placed:
                place_found(connection, spec, now)
            for name in gone:
                remove_found(connection, name, now)
            for name in old:
                delete_stopped(connection, name)

        if placed or gone:
            await self._routing.publish_change(change)
        else:
            await self._database.write(change)
        for name in gone:
            self._forget_signals(name)
        for name in old:
            await asyncio.to_thread(self._provider.forget, name)
        for spec in placed:
            before = rows.get(spec.name)
            is_new = before is None or not before.wanted
            text = f"{spec.name}: found at {spec.facts[URL]}" if is_new else f"{spec.name}: {_changed(before, spec)}"
            data = {"pool": spec.pool, "engine": spec.engine, "source": spec.facts.get(SOURCE, "")}
            self._timeline.append_soon("node.found" if is_new else "node.changed", text, node=spec.name, data=data)
        for name in gone:
            source = rows[name].spec.facts.get(SOURCE, "")
            self._timeline.append_soon("node.gone", f"{name}: {source} names it no more", node=name)

    def _begin_probes(self, nodes: Mapping[str, FoundNode], now: float) -> None:
        room = MAX_PROBES - len(self._probes)
        due = [node for node in nodes.values() if node.name not in self._probes and self._is_due(node, now)]
        for node in due[: max(0, room)]:
            task = asyncio.create_task(self._probe(node), name=f"probe-{node.name}")
            self._probes[node.name] = task

    def _is_due(self, node: FoundNode, now: float) -> bool:
        probed = self._probed.get(node.name)
        if probed is None or probed.url != node.url:
            return True
        state = self._fleet.nodes.get(node.name)
        came_back = state is not None and state.phase is NodePhase.READY and (state.since or 0.0) > probed.at
        is_whole = all((node.engine or probed.facts.engine, node.model or probed.facts.model))
        return came_back or not 0 <= now - probed.at < (PROBE_AGAIN_S if is_whole else PROBE_SOONER_S)

    async def _probe(self, node: FoundNode) -> None:
        try:
            facts = await probe_engine(node.url, self._client.probe, engine=node.engine)
            before = self._facts_of(node)
            # Silence says nothing new: what it was is what it is as far as anybody knows.
            self._probed[node.name] = _Probed(node.url, self._clock.now(), facts or before or EngineFacts())
        finally:
            del self._probes[node.name]

    def _tell_problems(self, problems: Mapping[str, str]) -> None:
        for place, text in problems.items():
            if self._told.get(place) != text:
                log.warning("discovery.problem", place=place, problem=text)
        self._told = dict(problems)


def spec_of(node: FoundNode, told: EngineFacts | None) -> NodeSpec:
    """The node for the fleet: what the labels say holds, what they leave out is the engine's own word."""
    told = told or EngineFacts()
    version = {"version": told.version} if told.version else {}
    places = {URL: node.url, METRICS_URL: node.metrics_url, SOURCE: node.source, GROUP: node.group}
    return NodeSpec(
        name=node.name,
        pool=node.pool or DEFAULT_POOL,
        model=node.model or told.model,
        engine=node.engine or told.engine,
        zone=node.zone,
        revision=node.revision,
        provider=FOUND,
        facts={**version, **node.facts, **{key: value for key, value in places.items() if value}},
    )


def differences(
    specs: Mapping[str, NodeSpec], rows: Sequence[NodeRow], unread: frozenset[str], now: float
) -> tuple[list[NodeSpec], list[str], list[str]]:
    """What to place, what is gone, and what has been gone for so long that it is forgotten.

    What was never read since the start says nothing of the nodes that it named before.
    """
    found = {row.name: row for row in rows if row.spec.provider == FOUND}
    others = {row.name for row in rows if row.spec.provider != FOUND and row.wanted}
    placed = [
        known_as_before(spec, found.get(name))
        for name, spec in specs.items()
        if name not in others and not _stands(found.get(name), spec)
    ]
    missing = [row for name, row in found.items() if name not in specs]
    gone = [row.name for row in missing if row.wanted and row.spec.facts.get(SOURCE) not in unread]
    old = [row.name for row in missing if not row.wanted and now - row.updated_at > FORGET_AFTER_S]
    return placed, gone, old


def known_as_before(spec: NodeSpec, row: NodeRow | None) -> NodeSpec:
    """A node that did not say yet what it is, after our own restart, is what it was."""
    if row is None or row.spec.facts.get(URL) != spec.facts.get(URL):
        return spec
    before = row.spec
    version = {"version": before.facts["version"]} if "version" in before.facts else {}
    return replace(
        spec,
        engine=spec.engine or before.engine,
        model=spec.model or before.model,
        facts={**version, **spec.facts},
    )


def _stands(row: NodeRow | None, spec: NodeSpec) -> bool:
    return row is not None and row.wanted and row.spec == known_as_before(spec, row)


def _changed(before: NodeRow | None, spec: NodeSpec) -> str:
    """What is another one now, for people."""
    assert before is not None
    words = [
        f"{key} {getattr(spec, key) or '-'} (was {getattr(before.spec, key) or '-'})"
        for key in ("pool", "model", "engine", "zone", "revision")
        if getattr(spec, key) != getattr(before.spec, key)
    ]
    words += [
        f"{key} {spec.facts.get(key, '-')} (was {before.spec.facts.get(key, '-')})"
        for key in sorted(spec.facts.keys() | before.spec.facts.keys())
        if spec.facts.get(key) != before.spec.facts.get(key)
    ]
    return ", ".join(words)
