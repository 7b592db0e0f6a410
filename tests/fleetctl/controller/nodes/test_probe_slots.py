"""A large fleet: a node's phase comes from its own answer, never from how many others are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.provider import LogChunk, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import make_config, until

pytestmark = pytest.mark.anyio

NUM_HUNG = 110  # more than any pool of connections would have had
NUM_HEALTHY = 20
READY = json.dumps({"ready": True, "reason": "ready"}).encode()


class ServedNodes:
    """Nodes at paths of one server; those named in `blind` can't be looked at."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.blind: set[str] = set()

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        return ""

    def list_instances(self) -> Sequence[ObservedInstance]:
        return ()

    def attach(self, spec: NodeSpec) -> ObservedInstance:
        return self.observe(spec.name)

    def forget(self, name: str) -> None: ...

    def ensure_started(self, spec: NodeSpec) -> None: ...

    def stop(self, name: str, grace_s: float) -> None: ...

    def observe(self, name: str) -> ObservedInstance:
        if name in self.blind:
            raise FleetctlError("the platform does not answer")
        return ObservedInstance(name, True, "one", f"{self._url}/{name}")

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        return LogChunk((), "")


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ready; a node whose name begins with `hung` never answers."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"GET /hung"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(READY), READY))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


@asynccontextmanager
async def fleet_of(folder: Path, *names: str) -> AsyncIterator[tuple[Controller, ServedNodes]]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    provider = ServedNodes(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    config = make_config(folder, node_specs=[NodeSpec(name) for name in names])
    async with open_controller(config, provider) as controller:
        try:
            yield controller, provider
        finally:
            server.close()


async def test_hung_nodes_make_no_healthy_one_silent(tmp_path: Path) -> None:
    hung = [f"hung-{number}" for number in range(NUM_HUNG)]
    healthy = [f"ok-{number}" for number in range(NUM_HEALTHY)]
    async with fleet_of(tmp_path, *hung, *healthy) as (controller, _):

        async def looked() -> bool:
            await controller.fleet.observe_nodes()
            states = controller.fleet.nodes
            return all(name in states and states[name].phase is NodePhase.READY for name in healthy)

        await until(looked, "every healthy node is ready")
        assert not any(
            controller.fleet.nodes[name].phase is NodePhase.READY for name in hung if name in controller.fleet.nodes
        )


async def test_node_that_the_provider_cannot_look_at_keeps_its_phase_and_others_are_looked_at(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "ok-1", "ok-2") as (controller, provider):
        await controller.fleet.observe_nodes()
        await controller.fleet.observe_nodes()
        seen_at = controller.fleet.looked_at
        provider.blind = {"ok-1"}
        await controller.fleet.observe_nodes()
        assert controller.fleet.nodes["ok-1"].phase is NodePhase.READY
        assert controller.fleet.looked_at == seen_at  # and grows old: guards then say that it is not known
