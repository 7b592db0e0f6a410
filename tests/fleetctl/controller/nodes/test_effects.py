"""Effects over real node processes: done once, found done when asked again, refused when it would lose requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.node_row import Role, RouteIntent, want_node
from fleetctl.controller.tables import nodes
from fleetctl.doctor.finding import Health
from fleetctl.doctor.node_tokens import judge_node_tokens
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteState
from runbooks.executor import Executor
from runbooks.ports import PermanentError, TemporaryError
from runbooks.run import RunStatus
from tests.fixtures.controller import (
    ask_drain,
    kill,
    make_config,
    make_provider,
    make_spec,
    running_fleet,
    stop_all,
    tell_node,
    until,
)
from tests.fixtures.gateway_stub import gateway_stub

pytestmark = pytest.mark.anyio


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    try:
        async with running_fleet(make_config(tmp_path)) as opened:
            yield opened
    finally:
        stop_all(tmp_path)


def routes(controller: Controller) -> dict[str, RouteState]:
    return {route.node: route.state for route in controller.routing.table.routes}


async def test_drain_waits_until_requests_finished_and_gives_their_counts(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=3)
    draining = asyncio.create_task(controller.effects.drain("node-1", deadline_s=60))
    await until(lambda: _is_phase(controller, "node-1", NodePhase.DRAINING), "node-1 drains")
    assert routes(controller)["node-1"] is RouteState.CORDONED
    assert not draining.done()
    await tell_node(controller, "node-1", held=0)
    receipt = await draining
    assert (receipt["in_flight"], receipt["finished"], receipt["moved"]) == (3, 3, 0)
    assert controller.fleet.nodes["node-1"].phase is NodePhase.DRAINED


async def test_drain_moves_what_is_left_at_the_deadline(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=2)
    receipt = await controller.effects.drain("node-1", deadline_s=0.2)
    assert (receipt["in_flight"], receipt["finished"], receipt["moved"]) == (2, 0, 2)


async def test_draining_a_drained_node_is_done_with_the_same_counts(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=2)
    first = await controller.effects.drain("node-1", deadline_s=0.1)
    second = await controller.effects.drain("node-1", deadline_s=0.1)
    assert {k: first[k] for k in ("in_flight", "moved", "state")} == {
        k: second[k] for k in ("in_flight", "moved", "state")
    }
    assert (await ask_drain(controller, "node-1"))["drains"] == 1


async def test_draining_a_stopped_node_is_done(controller: Controller) -> None:
    await controller.effects.drain("node-1", deadline_s=1)
    await controller.effects.stop_node("node-1", grace_s=2)
    assert (await controller.effects.drain("node-1", deadline_s=1))["state"] == "stopped"


async def test_draining_a_node_whose_process_died_says_that_it_is_gone(controller: Controller) -> None:
    controller.effects.provider.stop("node-1", 0.5)
    receipt = await controller.effects.drain("node-1", deadline_s=1)
    assert receipt["state"] == "gone"
    assert "in_flight" not in receipt


async def test_a_hung_node_is_cordoned_not_waited_for_and_stopped(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, silent_after_s=0.5)) as controller:
            await tell_node(controller, "node-1", held=3)
            kill(tmp_path, "node-1", signal.SIGSTOP)
            drained = await controller.effects.drain("node-1", deadline_s=30)
            assert drained["state"] == "unreachable"
            assert "in_flight" not in drained, "what it holds is not known"
            assert routes(controller)["node-1"] is RouteState.CORDONED
            stopped = await controller.effects.stop_node("node-1", grace_s=0.2)
            assert (stopped["held"], stopped["forced"]) == (None, False)
            assert not controller.effects.provider.observe("node-1").running
    finally:
        stop_all(tmp_path)


async def test_replacing_a_hung_node_leaves_three_healthy_ones(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, nodes=3, silent_after_s=0.5)) as controller:
            kill(tmp_path, "node-2", signal.SIGSTOP)
            page = controller.content.pages["replace-node"]
            assert page.verify is not None
            quick = replace(page, verify=replace(page.verify, settle_s=1.0))
            executor = Executor(
                controller.journal,
                {page.name: quick},
                controller.effects,
                controller.lookup,
                clock=controller.clock,
            )
            loops = asyncio.create_task(_turn(controller, "fleet", "scrape", "alerts"))
            inputs = {"node": "node-2", "replacement": "node-2b"}
            asked = await executor.propose(page.name, inputs, reason="hung", requested_by="ann", approve=True)
            run = await executor.drive(asked.id)
            loops.cancel()
            executor.close()
            assert run.status is RunStatus.SUCCEEDED, run.error
            assert routes(controller) == dict.fromkeys(("node-1", "node-3", "node-2b"), RouteState.ACTIVE)
            running = [one.name for one in controller.effects.provider.list_instances()]
            assert sorted(running) == ["node-1", "node-2b", "node-3"]
    finally:
        stop_all(tmp_path)


async def _turn(controller: Controller, *loops: str) -> None:
    while True:
        for name in loops:
            await controller.loops.run_turn(name)
        await asyncio.sleep(0.1)


async def test_drain_that_outlasts_deadline_and_grace_may_be_tried_again(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, drain_grace_s=0.3)) as controller:
            await tell_node(controller, "node-1", held=1, movable=False)
            with pytest.raises(TemporaryError, match="still holds 1 request"):
                await controller.effects.drain("node-1", deadline_s=0.1)
            first_ended_at = controller.clock.now()
            await tell_node(controller, "node-1", held=0)
            receipt = await controller.effects.drain("node-1", deadline_s=0.1)
            assert receipt["finished"] == 1
            assert (await ask_drain(controller, "node-1"))["drains"] == 1
            (signed,) = await controller.receipts.listing()
            assert signed.begun_at < first_ended_at < signed.ended_at, "both tries, and not the second one's time alone"
    finally:
        stop_all(tmp_path)


async def test_drain_waits_for_the_gateway_before_it_asks_the_node(tmp_path: Path) -> None:
    async with gateway_stub() as gateway:
        try:
            async with running_fleet(make_config(tmp_path, gateway_url=gateway.url, gateway_wait_s=20)) as controller:
                draining = asyncio.create_task(controller.effects.drain("node-1", deadline_s=1))
                version = await until(lambda: _cordoned_version(controller, "node-1"), "a new table")
                asked = gateway.asked
                await until(lambda: _more_than(gateway, asked + 2), "the gateway is asked")
                assert (await ask_drain(controller, "node-1"))["state"] == "serving"
                gateway.table_version = version
                receipt = await draining
                assert receipt["gateway"] == f"routes by table {version}"
        finally:
            stop_all(tmp_path)


async def test_drain_goes_on_without_a_gateway_and_says_so(tmp_path: Path) -> None:
    try:
        config = make_config(tmp_path, gateway_url="http://127.0.0.1:9", gateway_wait_s=0.1)
        async with running_fleet(config) as controller:
            receipt = await controller.effects.drain("node-1", deadline_s=1)
            assert "not known" in receipt["gateway"]
            assert receipt["state"] == "drained"
    finally:
        stop_all(tmp_path)


async def test_stop_refuses_while_the_node_holds_requests_and_leaves_its_route(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=1)
    with pytest.raises(PermanentError, match="holds 1 request"):
        await controller.effects.stop_node("node-1", grace_s=1)
    assert routes(controller)["node-1"] is RouteState.ACTIVE
    assert controller.effects.provider.observe("node-1").running


async def test_force_stops_a_node_that_holds_requests(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=1)
    receipt = await controller.effects.stop_node("node-1", grace_s=1, force=True)
    assert receipt["forced"]
    assert not controller.effects.provider.observe("node-1").running


async def test_stopping_twice_is_stopping_once(controller: Controller) -> None:
    assert (await controller.effects.stop_node("node-1", grace_s=1))["was_running"]
    assert not (await controller.effects.stop_node("node-1", grace_s=1))["was_running"]
    assert routes(controller) == {"node-2": RouteState.ACTIVE}
    assert controller.fleet.nodes["node-1"].phase is NodePhase.STOPPED


async def test_stop_does_not_guess_when_the_node_does_not_say_what_it_holds(controller: Controller) -> None:
    object.__setattr__(controller.effects.client, "_headers", {"Authorization": "Bearer wrong"})
    with pytest.raises(PermanentError, match="refuses the controller's token"):
        await controller.effects.stop_node("node-1", grace_s=1)
    assert controller.effects.provider.observe("node-1").running


async def test_a_node_that_refuses_our_token_drains_nothing_and_goes_on_serving(controller: Controller) -> None:
    """It stayed cordoned, idle, and counted as missing for every other action's floor."""
    object.__setattr__(controller.effects.client, "_headers", {"Authorization": "Bearer wrong"})
    with pytest.raises(PermanentError, match="refuses the controller's token"):
        await controller.effects.drain("node-1", deadline_s=1)
    assert routes(controller)["node-1"] is RouteState.ACTIVE
    (found,) = judge_node_tokens({"node-1": await controller.effects.engine.requests_view("node-1")})
    assert found.health is Health.bad, "and `fleetctl doctor` says so: its probes and scrapes go well"


async def test_a_stopped_node_is_forgotten_and_no_other(controller: Controller, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="stop it first"):
        await controller.effects.forget_node("node-1")
    await controller.effects.stop_node("node-1", grace_s=1)
    await controller.effects.forget_node("node-1")
    assert (await controller.effects.forget_node("node-1"))["note"] == "it was not known"
    await controller.loops.run_turn("fleet")
    assert list(controller.fleet.nodes) == ["node-2"]
    assert not (tmp_path / "run" / "node-1").exists()
    told = await controller.timeline.wait(0, 0.0, None)
    assert [entry.kind for entry in told if entry.node == "node-1"][-1] == "node.forgotten"
    past = [(change.name, change.wanted) for change in await controller.lookup.wanted_changes()]
    assert past[-1] == ("node-1", False), "floors still know that it was wanted"


async def test_a_node_that_was_stopped_long_ago_is_forgotten_by_itself(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, forget_stopped_after_s=3600.0)) as controller:
            await controller.effects.stop_node("node-2", grace_s=1)
            await controller.loops.run_turn("forget-nodes")
            assert set(controller.fleet.nodes) == {"node-1", "node-2"}
            ago = controller.clock.now() - 3601.0
            await controller.database.write(lambda c: c.execute(sa.update(nodes).values(updated_at=ago)))
            await controller.loops.run_turn("forget-nodes")
            await controller.loops.run_turn("fleet")
            assert set(controller.fleet.nodes) == {"node-1"}
    finally:
        stop_all(tmp_path)


async def test_start_copies_another_node_and_routes_it_when_ready(controller: Controller) -> None:
    receipt = await controller.effects.start_node("node-9", like="node-1", wait_s=60)
    assert routes(controller)["node-9"] is RouteState.ACTIVE
    assert controller.fleet.nodes["node-9"].row.spec == controller.fleet.nodes["node-1"].row.spec.named("node-9")
    again = await controller.effects.start_node("node-9", like="node-1", wait_s=60)
    assert again["instance"] == receipt["instance"]


async def test_start_goes_on_after_a_crash_between_the_row_and_the_process(controller: Controller) -> None:
    spec = make_spec("node-9")
    await controller.database.write(lambda c: want_node(c, spec, Role.REPLACEMENT, 1.0))
    await controller.effects.start_node("node-9", like="node-1", wait_s=60)
    assert routes(controller)["node-9"] is RouteState.ACTIVE


async def test_start_says_why_the_process_ended(controller: Controller) -> None:
    spec = make_spec("node-9", "--fail-at-start")
    await controller.database.write(lambda c: want_node(c, spec, Role.REPLACEMENT, 1.0))
    with pytest.raises(PermanentError, match="no such model directory"):
        await controller.effects.start_node("node-9", like=None, wait_s=60)
    assert "node-9" not in routes(controller)


async def test_start_that_is_not_ready_in_time_may_be_tried_again(controller: Controller) -> None:
    spec = make_spec("node-9", "--load-s", "600")
    await controller.database.write(lambda c: want_node(c, spec, Role.REPLACEMENT, 1.0))
    with pytest.raises(TemporaryError, match="not ready after"):
        await controller.effects.start_node("node-9", like=None, wait_s=0.5)
    assert "node-9" not in routes(controller)


@pytest.mark.parametrize("name", ["NODE", "node 9", "", "x" * 64])
async def test_start_refuses_a_name_that_is_none(controller: Controller, name: str) -> None:
    with pytest.raises(PermanentError):
        await controller.effects.start_node(name, like="node-1", wait_s=1)


async def test_effects_on_a_node_that_never_was_are_errors(controller: Controller) -> None:
    for effect in (
        controller.effects.drain("node-7", deadline_s=1),
        controller.effects.cordon("node-7"),
        controller.effects.uncordon("node-7"),
        controller.effects.stop_node("node-7", grace_s=1),
        controller.effects.restart_node("node-7", wait_s=1),
    ):
        with pytest.raises(PermanentError, match="no node named node-7"):
            await effect


async def test_uncordon_undoes_cordon_and_drain(controller: Controller) -> None:
    await controller.effects.cordon("node-1")
    await controller.effects.drain("node-2", deadline_s=0.1)
    for name in ("node-1", "node-2"):
        await controller.effects.uncordon(name)
        await controller.effects.uncordon(name)
    assert set(routes(controller).values()) == {RouteState.ACTIVE}
    assert (await ask_drain(controller, "node-2"))["state"] == "serving"


async def test_restart_gives_a_drained_node_a_new_process_and_its_route_back(controller: Controller) -> None:
    before = controller.fleet.nodes["node-1"].instance
    await controller.effects.drain("node-1", deadline_s=0.1)
    receipt = await controller.effects.restart_node("node-1", wait_s=60)
    assert receipt["replaced_instance"] == before != controller.fleet.nodes["node-1"].instance
    assert routes(controller)["node-1"] is RouteState.ACTIVE


async def test_restart_refuses_while_the_node_holds_requests(controller: Controller) -> None:
    await tell_node(controller, "node-1", held=1)
    with pytest.raises(PermanentError, match="holds 1 request"):
        await controller.effects.restart_node("node-1", wait_s=1)


@pytest.mark.parametrize("stopped", [False, True], ids=["before the stop", "after the stop"])
async def test_restart_that_a_crash_cut_off_goes_on(tmp_path: Path, stopped: bool) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as first:
            old = first.fleet.nodes["node-1"].instance
            mark = {"state": "begun", "instance": old, "epoch": first.database.epoch, "at": first.clock.now()}
            await first.routing.change("node-1", route=RouteIntent.CORDONED, restart=mark)
            if stopped:
                first.effects.provider.stop("node-1", 1.0)
        async with open_controller(make_config(tmp_path), make_provider(tmp_path)) as second:
            await second.loops.run_turn("fleet")
            assert second.effects.provider.observe("node-1").running is not stopped, "not the fleet's business"
            await second.effects.restart_node("node-1", wait_s=60)
            assert second.fleet.nodes["node-1"].instance not in (None, old)
    finally:
        stop_all(tmp_path)


async def test_restart_that_ended_before_the_crash_is_not_done_twice(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path)) as first:
            await first.effects.drain("node-1", deadline_s=0.1)
            await first.effects.restart_node("node-1", wait_s=60)
            instance = first.fleet.nodes["node-1"].instance
        async with open_controller(make_config(tmp_path), make_provider(tmp_path)) as second:
            receipt = await second.effects.restart_node("node-1", wait_s=60)
            assert "before the controller restarted" in receipt["note"]
            await second.loops.run_turn("fleet")
            assert second.fleet.nodes["node-1"].instance == instance
    finally:
        stop_all(tmp_path)


async def _allowed(_: str) -> None:
    """The guard says yes."""


async def test_scaling_out_starts_all_at_once_and_twice_is_once(controller: Controller) -> None:
    async def scale() -> dict[str, object]:
        return await controller.effects.scale_pool(
            "default",
            start=["node-3", "node-4"],
            stop=[],
            like="node-2",
            wait_s=60,
            deadline_s=1,
            before_removal=_allowed,
        )

    receipt = await scale()
    assert receipt == {"pool": "default", "started": ["node-3", "node-4"], "stopped": {}}
    assert routes(controller) == dict.fromkeys(("node-1", "node-2", "node-3", "node-4"), RouteState.ACTIVE)
    before = {name: state.instance for name, state in controller.fleet.nodes.items()}
    assert await scale() == receipt
    assert {name: state.instance for name, state in controller.fleet.nodes.items()} == before


async def test_scaling_in_asks_before_each_node_and_stops_where_the_answer_is_no(controller: Controller) -> None:
    asked: list[str] = []

    async def only_first(name: str) -> None:
        asked.append(name)
        if name != "node-2":
            raise TemporaryError("too few would be left")

    async def scale(before_removal: Callable[[str], Awaitable[None]]) -> dict[str, object]:
        return await controller.effects.scale_pool(
            "default",
            start=[],
            stop=["node-77", "node-2", "node-1"],
            like=None,
            wait_s=60,
            deadline_s=0.2,
            before_removal=before_removal,
        )

    await tell_node(controller, "node-2", held=2)
    with pytest.raises(TemporaryError, match="too few"):
        await scale(only_first)
    assert asked == ["node-2", "node-1"]
    assert routes(controller) == {"node-1": RouteState.ACTIVE}
    (pool,) = await controller.pools.views()
    assert (pool.wanted, pool.nodes) == (1, 1), "what broke off is not gone on with by anybody else"
    receipt = await scale(_allowed)
    assert receipt["stopped"] == {"node-77": "never started", "node-2": "stopped", "node-1": "drained"}
    assert routes(controller) == {}


async def test_guards_see_pools_loads_and_stopped_nodes(controller: Controller) -> None:
    await controller.effects.stop_node("node-2", grace_s=1)
    now = controller.clock.now()
    for name, value in (("llm:running", 2.0), ("llm:waiting", 1.0)):
        controller.store.append({"__name__": name, "node": "node-1"}, now, value)
    facts = {node.name: node for node in await controller.lookup.nodes()}
    assert (facts["node-1"].pool, facts["node-1"].model, facts["node-1"].held) == ("default", "demo", 3)
    assert (facts["node-1"].wanted, facts["node-2"].wanted, facts["node-2"].held) == (True, False, None)
    assert facts["node-1"].created_at > 0


async def _is_phase(controller: Controller, name: str, phase: NodePhase) -> bool:
    state = await controller.fleet.observe_node(name)
    return state is not None and state.phase is phase


async def _cordoned_version(controller: Controller, name: str) -> int | None:
    return controller.routing.table.version if routes(controller).get(name) is RouteState.CORDONED else None


async def _more_than(gateway: object, count: int) -> bool:
    return getattr(gateway, "asked", 0) > count


async def test_evidence_has_the_processes_and_python_stacks_of_a_node_of_this_machine(controller: Controller) -> None:
    receipt = await controller.effects.collect_evidence("node-1", incident_id=None, key="run-1-do-0")
    assert {"log", "health", "processes"} <= set(receipt["parts"])
    # Whether py-spy may look is the machine's to say (ptrace); that it was tried, ours.
    assert "stacks" in receipt["parts"] or receipt["missing"]["stacks"].startswith("py-spy: exit code")
