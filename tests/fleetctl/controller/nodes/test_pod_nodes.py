"""Pods as nodes of the fleet: taken up, let go, kept while they are somebody's, and told whether they get requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent, get_node, want_node
from fleetctl.controller.nodes.pod_nodes import PodNodes
from fleetctl.kit.errors import UnreachableError
from fleetctl.kit.fetch import TextAnswer
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.providers.provider import ObservedInstance
from fleetctl.providers.providers import KUBERNETES, LOCAL, Providers
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import NoProvider, make_config, until
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio

WHERE = {"namespace": "llm", "workload": "deployment/engine"}
URL = "http://10.0.0.7:8000"


def pod(name: str, **changes: Any) -> NodeSpec:
    spec = NodeSpec(name, pool="chat", model="m", engine="vllm", zone="a", provider=KUBERNETES, options=WHERE)
    return replace(spec, **changes)


class SeenPods(NoProvider):
    """A cluster as a test says it is; it remembers what its pods were told."""

    def __init__(self, *specs: NodeSpec) -> None:
        self.active = {spec.name: spec for spec in specs}
        self.ending: set[str] = set()  # being deleted
        self.is_away = False
        self.told: list[tuple[str, str]] = []

    def version(self) -> object:
        if self.is_away:
            raise UnreachableError("could not look at pods in Kubernetes")
        return tuple(self.active.values()), tuple(sorted(self.ending))

    def specs(self) -> list[NodeSpec]:
        if self.is_away:
            raise UnreachableError("could not look at pods in Kubernetes")
        return list(self.active.values())

    def observe(self, name: str) -> ObservedInstance:
        return ObservedInstance(name, running=name in self.active or name in self.ending, url=URL)

    def forget(self, name: str) -> None: ...

    def cordon(self, name: str) -> None:
        self.told.append(("cordon", name))

    def uncordon(self, name: str) -> None:
        self.told.append(("uncordon", name))


async def answer(url: str, api_key: str = "") -> TextAnswer:
    """Every address is a vLLM that serves one model."""
    models = '{"data": [{"id": "llama", "owned_by": "vllm"}]}'
    return TextAnswer(200, models) if url.endswith("/v1/models") else TextAnswer(404)


class World:
    """A controller, and what it makes of the cluster."""

    def __init__(self, controller: Controller, clock: DrivenClock, pods: SeenPods) -> None:
        self.controller, self.clock, self.pods = controller, clock, pods
        self.forgotten: list[str] = []
        self.nodes = PodNodes(
            controller.records,
            controller.fleet,
            controller.routing,
            Providers({LOCAL: NoProvider(), KUBERNETES: pods}),
            answer,
            self.forgotten.append,
            pods,
        )

    async def row(self, name: str) -> NodeRow | None:
        return await self.controller.database.read(lambda c: get_node(c, name))

    async def wanted(self, name: str) -> bool:
        row = await self.row(name)
        return row is not None and row.wanted

    async def events(self, name: str) -> list[str]:
        return [one.kind for one in await self.controller.timeline.read_newest() if one.node == name]


@asynccontextmanager
async def seeing(tmp_path: Path, *specs: NodeSpec) -> AsyncIterator[World]:
    clock = DrivenClock()
    config = make_config(tmp_path / "state", start_nodes=False)
    async with open_controller(config, NoProvider(), clock) as controller:
        world = World(controller, clock, SeenPods(*specs))
        await world.nodes.take_up()
        yield world
        await world.nodes.stop()


async def test_a_pod_is_a_node_with_what_its_labels_say_now(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0")) as world:
        world.pods.active["vllm-0"] = pod("vllm-0", zone="b", facts={"host": "h1"})
        await world.nodes.take_up()
        row = await world.row("vllm-0")
        assert row is not None
        assert (row.spec.zone, row.spec.facts["host"], row.started) == ("b", "h1", True)
        assert await world.events("vllm-0") == ["node.found", "node.changed"]


async def test_no_pod_at_all_is_believed_and_an_api_that_is_away_is_not(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0"), pod("vllm-1")) as world:
        world.pods.active.clear()
        world.pods.is_away = True
        with pytest.raises(UnreachableError):
            await world.nodes.take_up()
        assert await world.wanted("vllm-0")
        world.pods.is_away = False
        await world.nodes.take_up()
        assert not await world.wanted("vllm-0")
        assert not await world.wanted("vllm-1")
        assert world.forgotten == ["vllm-0", "vllm-1"]
        assert await world.controller.pools.views() == [] or (await world.controller.pools.views())[0].wanted == 0


async def test_a_pod_that_is_being_deleted_is_a_node_until_it_is_gone(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0")) as world:
        del world.pods.active["vllm-0"]
        world.pods.ending.add("vllm-0")
        await world.nodes.take_up()
        assert await world.wanted("vllm-0")
        world.pods.ending.clear()
        await world.nodes.take_up()
        assert not await world.wanted("vllm-0")


async def test_a_node_that_is_gone_is_known_for_ten_minutes_and_then_forgotten(tmp_path: Path) -> None:
    """Until then its alerts are those of a node that was taken out, and `node start NAME` knows what to start."""
    async with seeing(tmp_path, pod("vllm-0"), pod("vllm-1")) as world:
        del world.pods.active["vllm-0"]
        await world.nodes.take_up()
        world.clock.move(590.0)
        await world.nodes.take_up()
        row = await world.row("vllm-0")
        assert row is not None
        assert row.spec.options == WHERE
        world.clock.move(20.0)
        await world.nodes.take_up()
        assert await world.row("vllm-0") is None
        assert await world.wanted("vllm-1")


async def test_a_node_that_fleetctl_stops_is_not_taken_up_again_while_its_pod_is_there(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0")) as world:
        await world.controller.routing.change("vllm-0", wanted=False, route=RouteIntent.NONE)
        world.clock.move(5.0)  # no pod changed
        await world.nodes.take_up()
        assert not await world.wanted("vllm-0")
        del world.pods.active["vllm-0"]
        await world.nodes.take_up()
        assert await world.events("vllm-0") == ["node.found"], "who stopped it has said so"
        world.pods.active["vllm-0"] = pod("vllm-0")  # somebody made the StatefulSet larger again
        await world.nodes.take_up()
        assert await world.wanted("vllm-0")


async def test_a_node_that_fleetctl_starts_is_not_let_go_before_its_pod_has_come(tmp_path: Path) -> None:
    async with seeing(tmp_path) as world:
        await world.controller.database.write(lambda c: want_node(c, pod("fresh"), Role.REPLACEMENT, 0.0))
        world.clock.move(5.0)  # no pod changed
        await world.nodes.take_up()
        assert await world.wanted("fresh")


async def test_a_cordoned_pod_that_comes_back_under_its_name_is_cordoned_still(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0")) as world:
        await world.controller.routing.change("vllm-0", route=RouteIntent.CORDONED)
        spec = world.pods.active.pop("vllm-0")
        await world.nodes.take_up()
        world.pods.active["vllm-0"] = spec
        await world.nodes.take_up()
        row = await world.row("vllm-0")
        assert row is not None
        assert (row.wanted, row.is_cordoned) == (True, True)


async def test_what_no_label_says_is_asked_of_the_node(tmp_path: Path) -> None:
    async with seeing(tmp_path, pod("vllm-0", model="", engine="")) as world:
        row = await world.row("vllm-0")
        assert row is not None
        ready = NodeState(row, NodePhase.READY, "", since=world.clock.now(), url=URL)
        world.controller.fleet.nodes["vllm-0"] = ready

        async def is_known() -> bool:
            world.clock.move(5.0)  # without a change of the pod it is looked at again after so long
            await world.nodes.take_up()
            row = await world.row("vllm-0")
            return row is not None and (row.spec.engine, row.spec.model) == ("vllm", "llama")

        await until(is_known, "it was asked")


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
    async with seeing(tmp_path, pod("vllm-0")) as world:
        await world.controller.routing.change("vllm-0", started=True, route=route)
        await world.nodes.tell_cordons()
        assert world.pods.told == [(told, "vllm-0")]


async def test_a_controller_begins_its_work_while_the_api_of_its_cluster_is_away(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: llm}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{reserve_port()}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""
    )
    config = make_config(
        tmp_path / "state",
        nodes=0,
        start_nodes=False,
        providers={"kubernetes": {"kubeconfig": str(kubeconfig), "stale_after_s": 1}},
    )
    for _ in range(2):
        async with open_controller(config, NoProvider()) as controller:
            for name in ("vllm-0", "vllm-1"):
                await controller.database.write(lambda c, name=name: want_node(c, pod(name), Role.MEMBER, 0.0))
                await controller.routing.change(name, url=URL, started=True, route=RouteIntent.ACTIVE)
            assert [route.node for route in controller.routing.table.routes] == ["vllm-0", "vllm-1"]
