"""The gateway before real nodes (fake runner): a drain under load loses nothing, repeats nothing, changes nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fleetctl.load.client import LoadRun, LoadSettings
from fleetctl.load.shape import RequestShape
from fleetctl.settings.gateway import GatewaySettings
from tests.fixtures.engine import TOKEN, EngineNode, start_node
from tests.fixtures.gateway import ScriptedController, Served, scripted_controller, served_gateway, until

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

NUM_STREAMS = 20
OUTPUT_TOKENS = 150


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[EngineNode, EngineNode]]:
    with start_node(tmp_path) as first, start_node(tmp_path) as second:
        yield first, second


def route(controller: ScriptedController, **nodes: EngineNode) -> None:
    controller.version += 1
    controller.routes = [{"node": n, "url": e.url, "state": "active", "model": "tiny"} for n, e in nodes.items()]


def make_body(number: int, **changes: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"tell me about number {number}"}],
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 1.0,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    return body | changes


async def ask(
    session: aiohttp.ClientSession, url: str, number: int, **changes: Any
) -> tuple[str, list[int], bool, str]:
    """Text, token ids, whether it ended well, and its request id."""
    async with session.post(url + "/v1/chat/completions", json=make_body(number, **changes)) as response:
        body = (await response.read()).decode()
        assert response.status == 200, body
        request_id = response.headers["X-Request-Id"]
    if not changes.get("stream", True):
        (choice,) = json.loads(body)["choices"]
        return choice["message"]["content"], choice["token_ids"], True, request_id
    assert "fleet.handoff" not in body
    events = [frame[6:] for frame in body.split("\n\n") if frame.startswith("data: ")]
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    token_ids = [token for choice in choices for token in choice.get("token_ids", ())]
    return text, token_ids, events[-1] == "[DONE]", request_id


async def slow_down(node: EngineNode) -> None:
    """Its answers take some ten seconds: none ends before the node does, however busy the machine."""
    await asyncio.to_thread(node.http.post, "/admin/faults", json={"slow_steps": 40.0})


async def wait_busy(node: EngineNode, held: int, tokens_out: int = 0) -> None:
    """Until it has so many requests, and each of them so many tokens."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session, asyncio.timeout(60):
        while True:
            async with session.get(node.url + "/admin/requests") as response:
                rows = (await response.json())["requests"]
            if sum(row["tokens_out"] >= tokens_out for row in rows) >= held:
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_drain_with_no_time_moves_streams_without_a_trace(
    tmp_path: Path, nodes: tuple[EngineNode, EngineNode], stream: bool
) -> None:
    first, second = nodes
    async with scripted_controller() as controller:
        route(controller, a=first, b=second)
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN) as served:
            await until(lambda: served.gateway.routing.table is not None)
            await slow_down(first)
            session = served.session
            tasks = [asyncio.create_task(ask(session, served.url, n, stream=stream)) for n in range(NUM_STREAMS)]
            await wait_busy(first, 3)
            await asyncio.to_thread(first.drain, 0.0)
            answers = await asyncio.gather(*tasks)
            receipt = (await asyncio.to_thread(first.wait_drained))["receipt"]
            undisturbed = await asyncio.gather(
                *(ask(session, second.url, n, stream=stream) for n in range(NUM_STREAMS))
            )
            moved = [await is_moved(served, answer[3]) for answer in answers]
    assert [a[:3] for a in answers] == [u[:3] for u in undisturbed]
    assert all(len(answer[1]) == OUTPUT_TOKENS for answer in answers)
    assert sum(moved) == receipt["moved"] >= 1
    assert receipt["aborted"] == 0
    assert receipt["in_flight"] == receipt["moved"] + receipt["finished"]


async def is_moved(served: Served, request_id: str) -> bool:
    fate = await served.fate(request_id)
    assert fate["fate"] == "finished"
    return bool(fate["moved"])


async def test_the_books_of_a_load_run_agree_with_the_nodes_receipts(
    tmp_path: Path, nodes: tuple[EngineNode, EngineNode]
) -> None:
    first, second = nodes
    async with scripted_controller() as controller:
        route(controller, a=first, b=second)
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN) as served:
            await until(lambda: served.gateway.routing.table is not None)
            await slow_down(first)
            run = LoadRun(LoadSettings(url=served.url, model="tiny"))
            shapes = [RequestShape(0.0, 20, 200) for _ in range(NUM_STREAMS)]
            task = asyncio.create_task(run.send_all(shapes, asyncio.Event()))
            await wait_busy(first, 3)
            await asyncio.to_thread(first.drain, 0.0)
            report = await task
            receipt = (await asyncio.to_thread(first.wait_drained))["receipt"]
            assert (report.finished, report.lost, report.duplicated) == (NUM_STREAMS, 0, 0)
            assert report.moved == receipt["moved"] >= 1
            report = await run.verify_moved()
            assert (report.verified, report.unverified, report.finished) == (report.moved, 0, NUM_STREAMS)


async def test_a_killed_node_loses_nobody_a_request(tmp_path: Path, nodes: tuple[EngineNode, EngineNode]) -> None:
    first, second = nodes
    async with scripted_controller() as controller:
        route(controller, a=first, b=second)
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN) as served:
            await until(lambda: served.gateway.routing.table is not None)
            await slow_down(first)
            run = LoadRun(LoadSettings(url=served.url, model="tiny"))
            shapes = [RequestShape(0.0, 20, 300) for _ in range(NUM_STREAMS)]
            task = asyncio.create_task(run.send_all(shapes, asyncio.Event()))
            await wait_busy(first, 3, tokens_out=4)
            first.proc.send_signal(signal.SIGKILL)
            report = await task
            assert (report.finished, report.lost, report.duplicated) == (NUM_STREAMS, 0, 0)
            assert report.moved >= 1
            report = await run.verify_moved()
            assert (report.verified, report.unverified, report.finished) == (report.moved, 0, NUM_STREAMS)


async def test_a_stopped_node_costs_nobody_a_request_and_comes_back(
    tmp_path: Path, nodes: tuple[EngineNode, EngineNode]
) -> None:
    first, second = nodes
    # The other one answers in these on a busy machine too.
    limits = GatewaySettings(probe_after_s=0.5, probe_limit_s=4, connect_limit_s=20)
    async with scripted_controller() as controller:
        route(controller, a=first, b=second)
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN, limits=limits) as served:
            await until(lambda: served.gateway.routing.table is not None)
            url = served.url + "/v1/chat/completions"

            async def status(number: int) -> int:
                body = make_body(number, stream=number % 2 == 0, max_tokens=10)
                async with served.session.post(url, json=body) as response:
                    await response.read()
                    return response.status

            streams = [
                asyncio.create_task(served.session.post(url, json=make_body(n, max_tokens=5000))) for n in range(8)
            ]
            begun = await asyncio.gather(*streams)
            fates = [served.gateway.fates.get(one.headers["X-Request-Id"]) for one in begun]
            on_first = [fate for fate in fates if fate is not None and fate.last_node == "a"]
            first.proc.send_signal(signal.SIGSTOP)
            assert await asyncio.gather(*(status(n) for n in range(NUM_STREAMS))) == [200] * NUM_STREAMS
            await until(lambda: all(fate.moves for fate in on_first))
            assert {(fate.moves[0].target, fate.moves[0].reason) for fate in on_first} == {("b", "node_silent")}
            first.proc.send_signal(signal.SIGCONT)
            await until(lambda: served.gateway.watch.silent_nodes() == {})
            for one in begun:
                one.close()
