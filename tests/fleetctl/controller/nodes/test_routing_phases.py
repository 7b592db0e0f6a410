"""The routing table says what was seen of nodes, not only what is wanted of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.providers.provider import ObservedInstance
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState
from tests.fleetctl.controller.nodes.test_probe_slots import ServedNodes, fleet_of

pytestmark = pytest.mark.anyio


async def test_a_node_that_died_is_published_as_unreachable_at_the_next_look_and_as_ready_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_of(tmp_path, "ok-1", "ok-2") as (controller, _):

        async def published() -> dict[str, tuple[RouteState, NodePhase | None]]:
            await controller.fleet.observe_nodes()
            return {route.node: (route.state, route.phase) for route in controller.routing.table.routes}

        await published()
        active = (RouteState.ACTIVE, NodePhase.READY)
        assert await published() == {"ok-1": active, "ok-2": active}
        version = controller.routing.table.version
        await published()
        assert controller.routing.table.version == version, "nothing new was seen"

        waiting = asyncio.create_task(controller.routing.wait(version, 20))
        with monkeypatch.context() as patched:
            see = ServedNodes.observe
            patched.setattr(
                ServedNodes,
                "observe",
                lambda self, name: ObservedInstance(name, False) if name == "ok-1" else see(self, name),
            )
            table = await published()
            assert table == {"ok-1": (RouteState.ACTIVE, NodePhase.UNREACHABLE), "ok-2": active}
            told = await waiting
            assert told is not None, "gateways that wait for a newer table are told"
            assert told.version == version + 1
        assert (await published())["ok-1"] == active


async def test_a_change_of_what_is_wanted_keeps_what_was_seen(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "ok-1") as (controller, _):
        await controller.fleet.observe_nodes()
        await controller.fleet.observe_nodes()
        await controller.routing.change("ok-1", url="http://127.0.0.1:1")
        (route,) = controller.routing.table.routes
        assert (route.url, route.phase) == ("http://127.0.0.1:1", NodePhase.READY)
