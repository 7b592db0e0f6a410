"""Responses, vectors and scores while nodes leave: each is answered once, as if undisturbed, and its fate is known."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures.engine import TOKEN, EngineNode, start_node
from tests.fixtures.gateway import Served, scripted_controller, served_gateway, until

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

NUM_EACH = 6
RESPONSES = "/v1/responses"
VECTORS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "vectors", "input": ["one text " * 20, "another"]},
    "/v1/score": {"model": "vectors", "text_1": "a question " * 20, "text_2": ["one", "two"]},
    "/v1/rerank": {"model": "vectors", "query": "a question " * 20, "documents": ["one", "two", "three"]},
}


@pytest.fixture
def talking(tmp_path: Path) -> Iterator[tuple[EngineNode, EngineNode]]:
    args = ("--drain-timeout", "0.2")
    with start_node(tmp_path, extra_args=args) as first, start_node(tmp_path, extra_args=args) as second:
        yield first, second


@pytest.fixture
def embedding(tmp_path: Path) -> Iterator[tuple[EngineNode, EngineNode]]:
    args = ("--task", "embed", "--served-model-name", "vectors", "--drain-timeout", "0.2")
    with start_node(tmp_path, extra_args=args) as first, start_node(tmp_path, extra_args=args) as second:
        yield first, second


async def leave(node: EngineNode, how: str) -> None:
    match how:
        case "drain":
            await asyncio.to_thread(node.drain, 0.0)
        case "SIGTERM":
            node.proc.send_signal(signal.SIGTERM)
        case "SIGKILL":
            node.proc.send_signal(signal.SIGKILL)
        case "core killed":
            os.kill(node.core_pid(), signal.SIGKILL)


async def ask(session: aiohttp.ClientSession, url: str, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The answer, and its request id."""
    async with session.post(url + path, json=body) as response:
        text = await response.text()
        assert response.status == 200, text
        return text, response.headers["X-Request-Id"]


def response_body(number: int, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "tiny",
        "input": f"tell me about number {number}",
        "max_output_tokens": 150,
        "seed": number,
        "ignore_eos": True,
        "stream": stream,
    }


def response_of(text: str, *, stream: bool) -> tuple[str, str]:
    """Status and text. Every event comes once, in order, and what the deltas say is what the last one says."""
    if not stream:
        response = json.loads(text)
        return response["status"], said(response)
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == said(events[-1]["response"])
    assert ":p " not in text
    return events[-1]["response"]["status"], deltas


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def wait_busy(node: EngineNode, held: int, tokens_out: int = 0) -> None:
    """Until it has so many requests that the drain will account for, and a stream of them is so far."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session, asyncio.timeout(60):
        while True:
            async with session.get(node.url + "/admin/requests") as response:
                rows = (await response.json())["requests"]
            longest = max((row["tokens_out"] for row in rows if row["stream"]), default=0)
            if len(rows) >= held and longest >= tokens_out:
                return
            await asyncio.sleep(0.01)


async def slow_down(*nodes: EngineNode, times: float) -> None:
    for node in nodes:
        await asyncio.to_thread(node.http.post, "/admin/faults", json={"slow_steps": times})


async def fate_of(served: Served, request_id: str) -> dict[str, Any]:
    fate = await served.fate(request_id)
    assert fate["fate"] == "finished", fate
    return fate


@pytest.mark.parametrize("how", ["drain", "SIGTERM", "SIGKILL", "core killed"])
async def test_responses_go_on_where_their_node_left(
    tmp_path: Path, talking: tuple[EngineNode, EngineNode], how: str
) -> None:
    first, second = talking
    await slow_down(first, times=40)  # 12 s an answer: none ends before the node does
    await slow_down(second, times=4)
    async with scripted_controller() as controller:
        controller.version += 1
        controller.routes = [
            {"node": name, "url": node.url, "state": "active", "model": "tiny", "engine": "fleetctl"}
            for name, node in (("a", first), ("b", second))
        ]
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN) as served:
            await until(lambda: served.gateway.routing.table is not None)
            asked = [(number, stream) for number in range(NUM_EACH) for stream in (True, False)]
            tasks = [
                asyncio.create_task(ask(served.session, served.url, RESPONSES, response_body(n, stream=stream)))
                for n, stream in asked
            ]
            await wait_busy(first, 2, tokens_out=8)
            await leave(first, how)
            answers = await asyncio.gather(*tasks)
            fates = [await fate_of(served, request_id) for _, request_id in answers]
            bodies = [response_body(n, stream=stream) for n, stream in asked]
            alone = [await ask(served.session, second.url, RESPONSES, body) for body in bodies]
            served.gateway.fates.check_integrity()
    for (_, stream), (text, _), (undisturbed, _) in zip(asked, answers, alone, strict=True):
        assert response_of(text, stream=stream) == response_of(undisturbed, stream=stream)
    went_on = [fate for fate in fates if fate["moved"] or fate["retries"]]
    assert went_on
    assert any(fate["moved"] for (_, stream), fate in zip(asked, fates, strict=True) if stream)


@pytest.mark.parametrize("how", ["drain", "SIGTERM", "SIGKILL", "core killed"])
async def test_vectors_and_scores_are_answered_though_their_node_leaves(
    tmp_path: Path, embedding: tuple[EngineNode, EngineNode], how: str
) -> None:
    first, second = embedding
    await slow_down(first, second, times=100)
    async with scripted_controller() as controller:
        controller.version += 1
        controller.routes = [
            {"node": name, "url": node.url, "state": "active", "model": "vectors", "engine": "fleetctl"}
            for name, node in (("a", first), ("b", second))
        ]
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN) as served:
            await until(lambda: served.gateway.routing.table is not None)
            asked = [(path, body) for path, body in VECTORS.items() for _ in range(NUM_EACH)]
            tasks = [asyncio.create_task(ask(served.session, served.url, *one)) for one in asked]
            await wait_busy(first, 1)
            await leave(first, how)
            answers = await asyncio.gather(*tasks)
            for _, request_id in answers:
                await fate_of(served, request_id)
            alone = [await ask(served.session, second.url, *one) for one in asked]
            served.gateway.fates.check_integrity()
            if how == "drain":
                receipt = (await asyncio.to_thread(first.wait_drained))["receipt"]
                assert receipt["aborted"] == 0
    for (text, _), (undisturbed, _) in zip(answers, alone, strict=True):
        found, wanted = json.loads(text), json.loads(undisturbed)
        key = "results" if "results" in wanted else "data"
        assert found[key] == wanted[key]


async def test_a_response_that_nobody_can_go_on_with_is_counted_as_lost(
    tmp_path: Path, talking: tuple[EngineNode, EngineNode]
) -> None:
    """The only node's core dies: the client reads that it failed, and so says the gateway."""
    node, _ = talking
    await slow_down(node, times=40)
    async with scripted_controller() as controller:
        controller.version += 1
        controller.routes = [{"node": "a", "url": node.url, "state": "active", "model": "tiny", "engine": "fleetctl"}]
        async with served_gateway(tmp_path, controller.url, node_token=TOKEN, move_patience_s=0.3) as served:
            await until(lambda: served.gateway.routing.table is not None)
            body = response_body(1, stream=True)
            task = asyncio.create_task(ask(served.session, served.url, RESPONSES, body))
            await wait_busy(node, 1, tokens_out=8)
            await until(lambda: served.gateway.fates.in_flight == 1)
            os.kill(node.core_pid(), signal.SIGKILL)
            text, request_id = await task
            fate = await served.fate(request_id)
    last = json.loads([line for line in text.splitlines() if line.startswith("data: ")][-1].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert (fate["fate"], fate["reason"]) == ("failed", "core_dead")
