"""Nodes that run already, found where the settings say: what discovery lists, as nodes of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from fleetctl.controller.nodes.engine_probes import Asked, EngineProbes, told
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.listed_nodes import ListedNodes, Listing
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.controller.nodes.node_row import NodeRow, list_nodes
from fleetctl.controller.nodes.routing import Routing
from fleetctl.controller.records import Records
from fleetctl.discovery.discovery import Discovery, Found, with_key_problems
from fleetctl.discovery.found_node import FoundNode
from fleetctl.providers.found import API_KEY, FOUND, GROUP, METRICS_URL, SOURCE, URL
from fleetctl.providers.provider import NodeProvider
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.discovery import DiscoveryState

log = structlog.get_logger()

DEFAULT_POOL = "default"
MAX_TOLD = 100  # problems


class FoundFleet:
    """Lists what discovery finds, once a turn, with what each node says of itself. Implements `ListWords`."""

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
        self._metrics = records.metrics
        self._clock = records.clock
        self._discovery = discovery
        self._keys = client.keys
        self._listed = ListedNodes(records, routing, provider.attach, provider.forget, forget_signals)
        self._probes = EngineProbes(fleet, client.probe, records.clock)
        self._told: Mapping[str, str] = {}
        self._looked = False
        self._has_nothing = False  # no source, and no node of an earlier one
        self._found = Found({}, 0, {})

    async def look(self) -> None:
        """One turn."""
        if self._has_nothing:
            return
        now = self._clock.now()
        rows = await self._database.read(list_nodes)
        found = with_key_problems(await self._discovery.look(now), self._keys)
        self._found = found = replace(found, problems={**found.problems, **name_problems(found.nodes, rows)})
        self._tell_problems(found.problems)
        own = [row for row in rows if row.spec.provider == FOUND]
        self._probes.ask_due(
            {name: Asked(name, one.url, one.engine, one.model, one.api_key) for name, one in found.nodes.items()}
        )
        self._has_nothing = self._discovery.is_empty and not own
        # What was never read since the start says nothing of the nodes that it named before.
        kept = {row.name for row in own if row.spec.facts.get(SOURCE) in found.unread and row.name not in found.nodes}
        specs = {name: self._spec_of(node) for name, node in found.nodes.items()}
        await self._listed.follow(Listing(FOUND, specs, kept), rows, self, now)
        self._looked = True
        self._metrics.tell_discovery(
            {"found": len(found.nodes), "dropped": found.dropped}, len(found.problems), len(found.unread)
        )

    def state(self) -> DiscoveryState | None:
        """For people; None where no source is named."""
        if self._discovery.is_empty:
            return None
        problems = dict(list(self._found.problems.items())[:MAX_TOLD])
        return DiscoveryState(
            looked=self._looked and self._probes.has_asked(self._found.nodes),
            found=len(self._found.nodes),
            dropped=self._found.dropped,
            problems=problems,
            unread=sorted(self._found.unread),
        )

    def found(self, spec: NodeSpec) -> str:
        """Where it answers."""
        return f"found at {spec.facts[URL]}"

    def gone(self, row: NodeRow) -> str:
        """Who named it."""
        return f"{row.spec.facts.get(SOURCE, '')} names it no more"

    async def stop(self) -> None:
        """Give up the probes that are under way."""
        await self._probes.stop()

    def _spec_of(self, node: FoundNode) -> NodeSpec:
        return told(spec_of(node), self._probes.facts_of(node.name, node.url))

    def _tell_problems(self, problems: Mapping[str, str]) -> None:
        for place, text in problems.items():
            if self._told.get(place) != text:
                log.warning("discovery.problem", place=place, problem=text)
        self._told = dict(problems)


def name_problems(nodes: Mapping[str, FoundNode], rows: Sequence[NodeRow]) -> dict[str, str]:
    """Those that are listed under the name of a node that was not found: they are not there."""
    others = {row.name: row.spec.provider for row in rows if row.spec.provider != FOUND and row.wanted}
    return {
        node.url: f"{node.url} ({node.source}) is named {name}, as a node of provider {others[name]}: only that one is"
        " there; set the label `node` by relabel_configs"
        for name, node in nodes.items()
        if name in others
    }


def spec_of(node: FoundNode) -> NodeSpec:
    """The node for the fleet, as its labels say it is."""
    places = {
        URL: node.url,
        METRICS_URL: node.metrics_url,
        SOURCE: node.source,
        GROUP: node.group,
        API_KEY: node.api_key,
    }
    return NodeSpec(
        name=node.name,
        pool=node.pool or DEFAULT_POOL,
        model=node.model,
        engine=node.engine,
        zone=node.zone,
        revision=node.revision,
        provider=FOUND,
        facts={**node.facts, **{key: value for key, value in places.items() if value}},
    )
