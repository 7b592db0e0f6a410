from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.controller.controller import open_controller
from fleetctl.controller.nodes.fleet import judge_phase
from fleetctl.controller.nodes.node_answers import NodeDrain, NodeHealth
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent
from fleetctl.providers.local import LocalProvider
from fleetctl.providers.provider import ObservedInstance
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import (
    fleet_ready,
    kill,
    make_config,
    make_provider,
    make_spec,
    running_fleet,
    stop_all,
    tell_node,
    until,
)

ROW = NodeRow(make_spec("node-1"), True, True, RouteIntent.ACTIVE, Role.MEMBER, "http://x", None, 0.0, 0.0)
CORDONED = replace(ROW, route=RouteIntent.CORDONED)
STOPPED = replace(ROW, wanted=False)
RESTARTING = replace(ROW, restart={"state": "begun", "instance": "a"})
READY = NodeHealth(True, True, "ready")
SILENT = NodeHealth(False, False, "no answer")


@pytest.mark.parametrize(
    ("row", "running", "health", "drain", "was_ready", "phase"),
    [
        pytest.param(ROW, True, READY, None, True, NodePhase.READY, id="ready"),
        pytest.param(CORDONED, True, READY, None, True, NodePhase.CORDONED, id="cordoned"),
        pytest.param(ROW, True, NodeHealth(True, False, "loading"), None, False, NodePhase.STARTING, id="loading"),
        pytest.param(ROW, True, NodeHealth(True, False, "core_stuck"), None, True, NodePhase.NOT_READY, id="stuck"),
        pytest.param(ROW, True, NodeHealth(True, False, "core_dead"), None, False, NodePhase.NOT_READY, id="dead core"),
        pytest.param(ROW, True, SILENT, None, True, NodePhase.UNREACHABLE, id="silent"),
        pytest.param(ROW, True, SILENT, None, False, NodePhase.STARTING, id="not there yet"),
        pytest.param(ROW, False, None, None, True, NodePhase.UNREACHABLE, id="died"),
        pytest.param(replace(ROW, started=False), False, None, None, False, NodePhase.STARTING, id="to be started"),
        pytest.param(RESTARTING, False, None, None, True, NodePhase.STARTING, id="restarting"),
        pytest.param(STOPPED, False, None, None, True, NodePhase.STOPPED, id="stopped"),
        pytest.param(
            CORDONED,
            True,
            NodeHealth(True, False, "draining"),
            NodeDrain("draining", 2, 1, {}),
            True,
            NodePhase.DRAINING,
            id="draining",
        ),
        pytest.param(
            CORDONED,
            True,
            NodeHealth(True, False, "draining"),
            NodeDrain("drained", 0, 0, {}),
            True,
            NodePhase.DRAINED,
            id="drained",
        ),
        pytest.param(CORDONED, True, NodeHealth(True, False, "draining"), None, True, NodePhase.DRAINING, id="unknown"),
    ],
)
def test_phase_follows_from_what_is_wanted_and_what_was_seen(
    row: NodeRow, running: bool, health: NodeHealth | None, drain: NodeDrain | None, was_ready: bool, phase: NodePhase
) -> None:
    assert judge_phase(row, running, health, drain, was_ready)[0] is phase


@pytest.mark.anyio
async def test_a_second_controller_adopts_running_nodes_and_keeps_their_routes(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as first:
            await first.effects.cordon("node-2")
            instances = {name: state.instance for name, state in first.fleet.nodes.items()}
            routes = [(route.node, route.url, route.state) for route in first.routing.table.routes]
        async with open_controller(make_config(tmp_path), make_provider(tmp_path)) as second:
            await second.loops.run_turn("fleet")
            assert {name: state.instance for name, state in second.fleet.nodes.items()} == instances
            assert [(route.node, route.url, route.state) for route in second.routing.table.routes] == routes
            assert second.database.epoch == 2
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_a_node_that_died_is_not_started_behind_the_operators_back(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as controller:
            kill(tmp_path, "node-1")
            controller.effects.provider.stop("node-1", 1.0)  # waits until it is gone
            for _ in range(2):
                await controller.loops.run_turn("fleet")
            assert controller.fleet.nodes["node-1"].phase is NodePhase.UNREACHABLE
            assert not controller.effects.provider.observe("node-1").running
            kinds = [(entry.kind, entry.node) for entry in await controller.timeline.read()]
            assert kinds.count(("node.unreachable", "node-1")) == 1
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_a_controller_that_starts_again_starts_what_is_wanted_and_does_not_run(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as first:
            await first.effects.drain("node-2", deadline_s=0.1)
            await first.effects.stop_node("node-2", grace_s=1)
        stop_all(tmp_path)
        async with open_controller(make_config(tmp_path), make_provider(tmp_path)) as second:
            await fleet_ready(second)
            assert [route.node for route in second.routing.table.routes] == ["node-1"]
            assert not second.effects.provider.observe("node-2").running
            told = [(one.kind, one.text) for one in await second.timeline.read() if one.node == "node-1"]
            again = told[[kind for kind, _ in told].index("node.ended") :]
            ended = "node-1: its process ended while no controller looked"
            assert again[0][1].startswith(ended)
            assert again[0][1].endswith("; it is started again")
            assert "node.unreachable" not in dict(again), "a process of its own that loads is no failure"
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_a_controller_that_nobody_asked_starts_no_node(tmp_path: Path) -> None:
    unasked = make_config(tmp_path, start_nodes=False)
    try:
        async with open_controller(unasked, make_provider(tmp_path)) as empty:
            await empty.loops.run_turn("fleet")
            assert empty.fleet.nodes == {}
            assert empty.effects.provider.list_instances() == []
        async with running_fleet(make_config(tmp_path)):
            kill(tmp_path, "node-2")
        async with open_controller(unasked, make_provider(tmp_path)) as second:
            for _ in range(2):
                await second.loops.run_turn("fleet")
            dead = second.fleet.nodes["node-2"]
            assert (dead.phase, dead.reason) == (NodePhase.UNREACHABLE, "its process ended: killed by SIGKILL")
            assert second.fleet.nodes["node-1"].is_serving
            assert [one.name for one in second.effects.provider.list_instances()] == ["node-1"]
            (ended,) = [one.text for one in await second.timeline.read() if one.kind == "node.ended"]
            words = "its process ended while no controller looked (killed by SIGKILL); nobody asked to start it"
            assert ended == f"node-2: {words}"
            receipt = await second.effects.restart_node("node-2", wait_s=60)
            assert receipt["node"] == "node-2"
            assert second.fleet.nodes["node-2"].is_serving, "asked for, it comes back"
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_one_node_that_can_not_be_started_does_not_hide_the_others(tmp_path: Path) -> None:
    try:
        specs = (make_spec("node-1", "--fail-at-start"), make_spec("node-2"))
        async with open_controller(make_config(tmp_path, node_specs=specs), make_provider(tmp_path)) as controller:

            async def second_serves() -> bool:
                await controller.loops.run_turn("fleet")
                return controller.fleet.nodes["node-2"].is_serving

            await until(second_serves, "node-2 serves")
            assert controller.fleet.nodes["node-1"].phase in (NodePhase.STARTING, NodePhase.UNREACHABLE)
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_guards_could_not_look_before_the_first_look_and_after_looks_stopped(tmp_path: Path) -> None:
    try:
        async with open_controller(make_config(tmp_path, stale_after_s=600), make_provider(tmp_path)) as controller:
            assert await controller.lookup.serving_nodes() is None
            await fleet_ready(controller)
            assert await controller.lookup.serving_nodes() == ["node-1", "node-2"]
            object.__setattr__(controller.fleet, "looked_at", controller.clock.now() - 601.0)
            assert await controller.lookup.serving_nodes() is None
            assert [node.name for node in await controller.lookup.nodes()] == ["node-1", "node-2"]
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_guards_know_of_a_cordon_before_the_next_look(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as controller:
            await controller.routing.change("node-1", route=RouteIntent.CORDONED)
            assert await controller.lookup.serving_nodes() == ["node-2"]
    finally:
        stop_all(tmp_path)


@pytest.mark.anyio
async def test_a_node_that_says_it_is_stuck_does_not_serve(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as controller:
            await tell_node(controller, "node-1", health="core_stuck")
            await controller.loops.run_turn("fleet")
            assert controller.fleet.nodes["node-1"].reason == "core_stuck"
            assert await controller.lookup.serving_nodes() == ["node-2"]
    finally:
        stop_all(tmp_path)


class SlowProvider:
    """Answers the first question only when told to; all others at once."""

    def __init__(self, inner: LocalProvider) -> None:
        self._inner = inner
        self._is_first = True
        self.asked, self.go_on = threading.Event(), threading.Event()

    def observe(self, name: str) -> ObservedInstance:
        if self._is_first and name == "node-1":
            self._is_first = False
            self.asked.set()
            self.go_on.wait(60)
        return self._inner.observe(name)


@pytest.mark.anyio
async def test_a_look_that_is_overtaken_by_a_later_one_is_old_news(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as controller:
            slow = SlowProvider(make_provider(tmp_path))
            controller.fleet._provider = slow  # type: ignore[assignment]
            overtaken = asyncio.create_task(controller.fleet.observe_nodes())
            await asyncio.to_thread(slow.asked.wait, 60)
            await controller.effects.cordon("node-1")
            slow.go_on.set()
            await overtaken
            assert controller.fleet.nodes["node-1"].phase is NodePhase.CORDONED
    finally:
        stop_all(tmp_path)
