"""What nodes that others run say they are, asked of each now and then: engine, version and model that no label says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.discovery.probe import EngineFacts, probe_engine
from fleetctl.kit.clock import Clock
from fleetctl.kit.fetch import TextAnswer
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase

PROBE_AGAIN_S = 300.0  # what runs at an address changes with a deploy
PROBE_SOONER_S = 5.0  # while something is not known of it
MAX_PROBES = 20  # under way at once
KeyedGet = Callable[[str, str], Awaitable[TextAnswer]]
"""A GET of a URL with a key of this name; no answer is a value too."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A node that can be asked. `engine`, `model`: what somebody said; empty: nobody did."""

    name: str
    url: str
    engine: str
    model: str
    api_key: str = ""  # name of the key that it wants


@dataclass(frozen=True, slots=True)
class _Probed:
    url: str
    at: float
    facts: EngineFacts


class EngineProbes:
    """Keeps each node's last word on itself, by its name and address."""

    def __init__(self, fleet: Fleet, get: KeyedGet, clock: Clock) -> None:
        self._fleet, self._get, self._clock = fleet, get, clock
        self._probed: dict[str, _Probed] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    def ask_due(self, nodes: Mapping[str, Asked]) -> None:
        """Begin to ask those whose time has come; forget those that are not among these."""
        now = self._clock.now()
        for name in self._probed.keys() - nodes.keys():
            del self._probed[name]
        room = MAX_PROBES - len(self._probes)
        due = [node for node in nodes.values() if node.name not in self._probes and self._is_due(node, now)]
        for node in due[: max(0, room)]:
            task = asyncio.create_task(self._probe(node), name=f"probe-{node.name}")
            self._probes[node.name] = task

    def has_asked(self, names: Iterable[str]) -> bool:
        """Whether all of these were asked once, answered or not."""
        return set(names) <= self._probed.keys()

    def facts_of(self, name: str, url: str) -> EngineFacts | None:
        """What answers at this address said last; None: it was not asked."""
        probed = self._probed.get(name)
        return probed.facts if probed is not None and probed.url == url else None

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._probes.values():
            task.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    def _is_due(self, node: Asked, now: float) -> bool:
        probed = self._probed.get(node.name)
        if probed is None or probed.url != node.url:
            return True
        state = self._fleet.nodes.get(node.name)
        came_back = state is not None and state.phase is NodePhase.READY and (state.since or 0.0) > probed.at
        is_whole = all((node.engine or probed.facts.engine, node.model or probed.facts.model))
        return came_back or not 0 <= now - probed.at < (PROBE_AGAIN_S if is_whole else PROBE_SOONER_S)

    async def _probe(self, node: Asked) -> None:
        try:
            facts = await probe_engine(node.url, lambda url: self._get(url, node.api_key), engine=node.engine)
            before = self.facts_of(node.name, node.url)
            # Silence says nothing new: what it was is what it is as far as anybody knows.
            self._probed[node.name] = _Probed(node.url, self._clock.now(), facts or before or EngineFacts())
        finally:
            del self._probes[node.name]


def told(spec: NodeSpec, facts: EngineFacts | None) -> NodeSpec:
    """The node with what it says of itself: what labels say holds."""
    if facts is None:
        return spec
    version = {"version": facts.version} if facts.version else {}
    return replace(
        spec,
        engine=spec.engine or facts.engine,
        model=spec.model or facts.model,
        facts={**version, **spec.facts},
    )
