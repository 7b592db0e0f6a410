from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from fleetctl.gateway.table import FILE_NAME, load_table
from tests.fixtures.gateway import scripted_controller, scripted_nodes, served_gateway, small_fleet, until

pytestmark = pytest.mark.anyio


async def test_follows_the_controllers_table_and_stores_it(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        routing = served.gateway.routing
        controller.set(nodes[0], cordoned=(nodes[1],))
        await until(lambda: routing.table is not None and routing.table.version == 2)
        assert routing.table is not None
        assert [e.node for e in routing.table.active] == ["a"]
        await until(lambda: (stored := load_table(tmp_path / FILE_NAME)) is not None and stored[0] == routing.table)
        assert any(poll.get("after") == "1" for poll in controller.polls), "long-polls with its version"


async def test_a_gateway_that_starts_without_a_controller_routes_by_the_last_good_table(tmp_path: Path) -> None:
    async with scripted_nodes("a") as nodes, scripted_controller() as controller:
        controller.set(*nodes)
        async with served_gateway(tmp_path, controller.url) as served:
            await until(lambda: (tmp_path / FILE_NAME).exists())
        await controller.stop()
        async with served_gateway(tmp_path, controller.url) as served:
            assert (await served.chat()).is_done
            status = served.gateway.status()
            assert status["controller"] == "unreachable"
            assert status["table_version"] == 1
            age_s = status["table_age_s"]
            assert isinstance(age_s, float)
            assert age_s > 0


async def test_keeps_the_table_while_the_controller_is_away_and_catches_up_when_it_returns(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        await controller.stop()
        await until(lambda: not served.gateway.routing.controller_is_reachable)
        assert (await served.chat()).is_done
        controller.set(nodes[0])
        await controller.start()
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        assert served.gateway.routing.controller_is_reachable


async def test_a_controller_that_starts_anew_with_lower_versions_is_believed(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        controller.set(*nodes, version=50)
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 50)
        await controller.stop()
        await until(lambda: not served.gateway.routing.controller_is_reachable)
        controller.set(nodes[1], version=1)
        await controller.start()
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 1)


async def test_a_controller_without_a_table_does_not_confirm_ours_and_is_followed_when_it_has_one(
    tmp_path: Path,
) -> None:
    async with scripted_nodes("a") as (node,), scripted_controller() as controller:
        controller.set(node, version=50)
        async with served_gateway(tmp_path, controller.url):
            await until(lambda: (tmp_path / FILE_NAME).exists())
        controller.version = 0  # it lost its state
        asked = len(controller.polls)
        async with served_gateway(tmp_path, controller.url) as served:
            await until(lambda: len(controller.polls) >= asked + 2)
            stored = load_table(tmp_path / FILE_NAME)
            assert stored is not None
            assert served.gateway.routing.confirmed_at == stored[1]
            assert (await served.chat()).is_done, "the last good table still holds"
            controller.set(node, version=1)
            await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 1)


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, "not json"), (200, '{"version": "x"}'), (500, "{}"), (401, "{}"), (200, '{"version": 3, "routes": [{}]}')],
)
async def test_a_bad_answer_never_replaces_a_good_table(tmp_path: Path, status: int, body: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, controller):
        controller.answer = web.Response(status=status, text=body)
        controller.set(*nodes)
        await until(lambda: not served.gateway.routing.controller_is_reachable)
        controller.answer = None
        assert served.gateway.routing.table is not None
        assert [e.node for e in served.gateway.routing.table.endpoints] == ["a"]
        await until(lambda: served.gateway.routing.controller_is_reachable)


async def test_a_damaged_stored_table_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"half')
    async with small_fleet(tmp_path, "a") as (served, _, _):
        assert (await served.chat()).is_done


async def test_a_run_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    async with small_fleet(blocked, "a") as (served, _, _):
        assert (await served.chat()).is_done


async def test_streams_in_flight_go_on_when_their_node_leaves_the_table(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        for node in nodes:
            node.gate.clear()
        task = asyncio.create_task(served.chat())
        await until(lambda: any(node.open for node in nodes))
        busy = next(node for node in nodes if node.open)
        idle = next(node for node in nodes if node is not busy)
        controller.set(idle)
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        nodes_now = served.gateway.status()["nodes"]
        assert nodes_now == {
            idle.name: {"inflight": 0, "state": "active"},
            busy.name: {"inflight": 1, "state": "removed"},
        }
        for node in nodes:
            node.gate.set()
        assert (await task).is_done
        assert served.gateway.status()["nodes"] == {idle.name: {"inflight": 0, "state": "active"}}
