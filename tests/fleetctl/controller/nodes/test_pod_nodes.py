"""What the routing table says of nodes that are pods, told on their pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.controller.controller import open_controller
from fleetctl.controller.nodes.node_row import Role, RouteIntent, want_node
from fleetctl.controller.nodes.pod_nodes import PodNodes
from fleetctl.providers.provider import ObservedInstance
from fleetctl.providers.providers import LOCAL, Providers
from fleetctl.providers.spec import NodeSpec
from tests.fixtures.controller import NoProvider, make_config

pytestmark = pytest.mark.anyio


class ToldPods:
    """Pods that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def specs(self) -> list[NodeSpec]:
        return []

    def observe(self, name: str) -> ObservedInstance:
        return ObservedInstance(name, running=True)

    def cordon(self, name: str) -> None:
        self.told.append(("cordon", name))

    def uncordon(self, name: str) -> None:
        self.told.append(("uncordon", name))


@pytest.mark.parametrize(
    ("route", "told"),
    [
        (RouteIntent.ACTIVE, "uncordon"),
        (RouteIntent.CORDONED, "cordon"),
        (RouteIntent.LEAVING, "cordon"),
    ],
)
async def test_a_pod_gets_requests_only_while_its_node_does(tmp_path: Path, route: RouteIntent, told: str) -> None:
    """At the end of a drain a node leaves: were its pod uncordoned then, a Service would send it new requests."""
    config = make_config(tmp_path / "state", start_nodes=False)
    async with open_controller(config, NoProvider()) as controller:
        spec = NodeSpec("vllm-0", model="m", engine="vllm", provider="kubernetes")
        await controller.database.write(lambda c: want_node(c, spec, Role.MEMBER, 0.0))
        await controller.routing.change("vllm-0", started=True, route=route)
        pods = ToldPods()
        records, fleet, routing = controller.records, controller.fleet, controller.routing
        await PodNodes(records, fleet, routing, Providers({LOCAL: NoProvider()}), pods).tell_cordons()
        assert pods.told == [(told, "vllm-0")]
