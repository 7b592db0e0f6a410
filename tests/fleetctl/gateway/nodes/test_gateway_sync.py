from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fleetctl.gateway.nodes import sync as sync_module
from fleetctl.gateway.nodes.sync import TableSync
from fleetctl.gateway.nodes.table import FILE_NAME, Routing, Table, load_table, store_table
from fleetctl.wire.routing import RoutingTable
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
            status = served.gateway.pages.status()
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
        nodes_now = served.gateway.pages.status()["nodes"]
        assert nodes_now == {
            idle.name: {"inflight": 0, "state": "active", "phase": None, "out": None},
            busy.name: {"inflight": 1, "state": "removed", "phase": None, "out": None},
        }
        for node in nodes:
            node.gate.set()
        assert (await task).is_done
        assert served.gateway.pages.status()["nodes"] == {
            idle.name: {"inflight": 0, "state": "active", "phase": None, "out": None}
        }


# The loop alone: a controller that answers from a list, pauses that are noted instead of waited for.


class Content:
    """A body that comes in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    async def read(self, limit: int) -> bytes:
        return self.pieces.pop(0)

    async def readany(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def at_eof(self) -> bool:
        return not self.pieces


class Controller:
    """Stands in for a client session. After the last answer the loop is cancelled."""

    def __init__(self, *answers: tuple[int, bytes] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    @asynccontextmanager
    async def get(self, url: str, **options: Any) -> AsyncIterator[SimpleNamespace]:
        self.asked.append({"url": url, **options})
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        half = len(body) // 2
        yield SimpleNamespace(status=status, content=Content(body[:half], body[half:]))


class Rig:
    """A sync loop on a clock that a request to the controller moves on by a second."""

    def __init__(self, run_dir: Path, controller: Controller, **options: Any) -> None:
        self.controller = controller
        self.routing = Routing()
        self.tables: list[Table] = []
        self.path = run_dir / FILE_NAME
        options = {"controller_url": "http://c:1/", "controller_token": "t", **options}
        self.sync = TableSync(
            controller,  # type: ignore[arg-type]
            self.routing,
            run_dir=run_dir,
            on_table=self.tables.append,
            now=lambda: 1000.0 + len(controller.asked),
            **options,
        )

    async def follow(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The pauses of the loop until the controller has no more answers."""
        pauses: list[float] = []

        async def note(seconds: float) -> None:
            pauses.append(seconds)

        monkeypatch.setattr(sync_module, "asyncio", SimpleNamespace(sleep=note, to_thread=asyncio.to_thread))
        with pytest.raises(asyncio.CancelledError):
            await self.sync.run_forever()
        return pauses


def table_json(version: int, *nodes: str) -> bytes:
    routes = [{"node": node, "url": f"http://{node}:1", "state": "active", "model": "demo"} for node in nodes]
    return json.dumps({"version": version, "routes": routes}).encode()


LOST = aiohttp.ClientConnectionError("gone")


async def test_of_two_controllers_the_one_that_leads_is_found_and_an_older_epochs_table_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(epoch: int, state_id: str = "s") -> tuple[int, bytes]:
        return 200, json.dumps(
            {**json.loads(table_json(epoch + 5, "a")), "epoch": epoch, "state_id": state_id}
        ).encode()

    answers = [(307, b""), told(2), LOST, told(1), told(3), told(1, "another state")]
    rig = Rig(tmp_path, Controller(*answers), controller_url="http://c:1 http://d:2")
    await rig.follow(monkeypatch)
    hosts = [asked["url"][7] for asked in rig.controller.asked]
    assert hosts == ["c", "d", "d", "c", "d", "d", "d"]
    assert [(table.epoch, table.state_id) for table in rig.tables] == [(2, "s"), (3, "s"), (1, "another state")]
    assert rig.controller.asked[0]["timeout"].total < 10


async def test_each_poll_names_the_table_in_use_and_how_long_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, Controller((200, table_json(7, "a")), (204, b"")), wait_s=20.0)
    assert await rig.follow(monkeypatch) == []
    assert [asked["url"] for asked in rig.controller.asked] == ["http://c:1/v1/routing"] * 3
    assert [asked["params"] for asked in rig.controller.asked] == [{}, *[{"after": "7", "wait_s": "20"}] * 2]
    for asked in rig.controller.asked:
        assert asked["headers"] == {"Authorization": "Bearer t"}
        assert (asked["timeout"].total, asked["timeout"].sock_connect) == (30.0, 2)
    await Rig(tmp_path, bare := Controller(), controller_token=None).follow(monkeypatch)
    assert bare.asked[0]["headers"] == {}
    assert bare.asked[0]["timeout"].total == 30.0


async def test_a_table_that_still_holds_is_confirmed_and_not_adopted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [(200, table_json(1, "a")), (204, b""), (200, table_json(1, "a")), (200, table_json(2, "a", "b"))]
    rig = Rig(tmp_path, Controller(*answers[:1]))
    await rig.follow(monkeypatch)
    assert (rig.routing.confirmed_at, rig.routing.controller_is_reachable) == (1001.0, True)
    assert load_table(rig.path) == (rig.routing.table, 1001.0)
    for held in (2, 3):
        rig = Rig(tmp_path, Controller(*answers[:held]))
        await rig.follow(monkeypatch)
        assert rig.routing.confirmed_at == 1000.0 + held
        assert [table.version for table in rig.tables] == [1]
    rig = Rig(tmp_path, Controller(*answers))
    await rig.follow(monkeypatch)
    assert [table.version for table in rig.tables] == [1, 2]
    assert rig.routing.table == rig.tables[1]
    assert load_table(rig.path) == (rig.tables[1], 1004.0)


async def test_a_table_that_could_not_be_stored_is_in_force_and_stored_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    num_full = 2

    def store(path: Path, table: Table, now: float) -> None:
        if len(failed) < num_full:
            raise OSError(28, "No space left on device")
        store_table(path, table, now)

    monkeypatch.setattr(sync_module, "store_table", store)
    answers = [(200, table_json(1, "a")), *[(204, b"")] * 3]
    rig = Rig(tmp_path, Controller(*answers), on_not_stored=lambda: failed.append(1))
    await rig.follow(monkeypatch)
    assert rig.routing.table is not None
    assert len(failed) == num_full
    assert load_table(rig.path) == (rig.routing.table, 1003.0), "and not again once it is"


async def test_pauses_double_up_to_five_seconds_and_begin_anew_after_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "random", SimpleNamespace(uniform=lambda low, high: (low + high) / 2))
    answers = [*[LOST] * 7, (200, table_json(1, "a")), LOST, (200, table_json(1, "a"))]
    pauses = await Rig(tmp_path, Controller(*answers)).follow(monkeypatch)
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2])


async def test_pauses_of_gateways_that_lost_their_controller_together_spread_by_a_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        spreads.append((low, high))
        return low

    monkeypatch.setattr(sync_module, "random", SimpleNamespace(uniform=uniform))
    pauses = await Rig(tmp_path, Controller(LOST)).follow(monkeypatch)
    assert spreads == [(0.7, 1.3)]
    assert pauses == pytest.approx([0.14])


@pytest.mark.parametrize(
    "failure",
    [LOST, TimeoutError(), OSError("no route"), (500, b""), (203, table_json(1, "b")), (200, b"{}"), (200, b"[")],
    ids=repr,
)
async def test_after_a_failure_the_controller_is_asked_for_whatever_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    rig = Rig(tmp_path, Controller((200, table_json(9, "a")), failure))
    pauses = await rig.follow(monkeypatch)
    assert len(pauses) == 1
    assert rig.controller.asked[2]["params"] == {}
    assert not rig.routing.controller_is_reachable
    assert [table.version for table in rig.tables] == [9]
    assert rig.routing.confirmed_at == 1001.0


async def test_a_controller_without_any_table_is_asked_again_after_a_quarter_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, Controller((204, b""), (204, b""), (200, table_json(1, "a"))))
    assert await rig.follow(monkeypatch) == [0.25, 0.25]
    assert [asked["params"] for asked in rig.controller.asked[:3]] == [{}, {}, {}]
    assert rig.routing.controller_is_reachable
    assert rig.routing.confirmed_at == 1003.0


async def test_a_table_beyond_the_limit_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = table_json(1, "a")
    for limit, versions in ((len(body), [1]), (len(body) - 1, [])):
        monkeypatch.setattr(sync_module, "MAX_TABLE_BYTES", limit)
        rig = Rig(tmp_path, Controller((200, body)))
        await rig.follow(monkeypatch)
        assert [table.version for table in rig.tables] == versions
        assert rig.routing.controller_is_reachable == bool(versions)


async def test_the_last_good_table_is_in_use_from_when_it_was_stored(tmp_path: Path) -> None:
    rig = Rig(tmp_path, Controller())
    rig.sync.load_last_good()
    assert (rig.routing.table, rig.tables) == (None, []), "there is none yet"
    table = Table.from_wire(RoutingTable.model_validate_json(table_json(3, "a")))
    store_table(rig.path, table, 77.0)
    rig.sync.load_last_good()
    assert (rig.routing.table, rig.routing.confirmed_at, rig.tables) == (table, 77.0, [table])
    assert not rig.routing.controller_is_reachable
