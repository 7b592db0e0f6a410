"""One id end to end, on real processes: what the logs of gateway, node and core say of a request can be joined."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fixtures.engine import TOKEN, EngineNode, start_node, wait_for
from tests.fixtures.gateway import CONTROLLER_TOKEN, ScriptedController, scripted_controller

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

PROGRAM = f"""
import sys
from pathlib import Path
from fleetctl.gateway.life import run_gateway
from fleetctl.kit.log import configure_logging
from fleetctl.settings.gateway import GatewaySettings
controller, run_dir = sys.argv[1:]
configure_logging("info", "json")
run_gateway(GatewaySettings(port=0), controller_url=controller, controller_token="{CONTROLLER_TOKEN}",
            node_token="{TOKEN}", run_dir=Path(run_dir))
"""


@dataclass
class Fleet:
    """A gateway process before two nodes of two processes each."""

    gateway_log: Path
    url: str
    nodes: tuple[EngineNode, EngineNode]
    session: aiohttp.ClientSession
    controller: ScriptedController

    async def complete(self, request_id: str | None, *, in_body: str | None = None, **body: Any) -> tuple[str, str]:
        """The whole answer, and the id in its header."""
        body |= {} if in_body is None else {"request_id": in_body}
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        body = {"model": "tiny", "prompt": "one id", "max_tokens": 4, "ignore_eos": True, **body}
        async with self.session.post(self.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.status == 200
            return await response.text(), response.headers["X-Request-Id"]

    async def lines_of(self, *ends: tuple[str, str, str]) -> dict[str, list[dict[str, Any]]]:
        """All lines by process, once each (process, event, request id) of `ends` was written."""

        def written() -> dict[str, list[dict[str, Any]]] | None:
            lines = self._lines()
            told = {(p, line["event"], line.get("request_id")) for p, found in lines.items() for line in found}
            return lines if set(ends) <= told else None

        found: dict[str, list[dict[str, Any]]] = await asyncio.to_thread(wait_for, written, f"lines of {ends}")
        return found

    def _lines(self) -> dict[str, list[dict[str, Any]]]:
        lines: dict[str, list[dict[str, Any]]] = {"gateway": _json_lines(self.gateway_log.read_text())}
        for name, node in zip("ab", self.nodes, strict=True):
            for line in _json_lines(node.log_text()):
                lines.setdefault(f"{'core' if line.get('process') == 'core' else 'node'} {name}", []).append(line)
        return lines


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def ids_in(lines: dict[str, list[dict[str, Any]]], process: str) -> set[str]:
    return {line["request_id"] for line in lines.get(process, ()) if "request_id" in line}


def seq_ids_in(lines: dict[str, list[dict[str, Any]]], process: str) -> set[str]:
    return {line["seq_id"] for line in lines.get(process, ()) if line["event"] == "sequence.finished"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[EngineNode, EngineNode]]:
    with start_node(tmp_path) as first, start_node(tmp_path) as second:
        yield first, second


@pytest.fixture
async def fleet(tmp_path: Path, nodes: tuple[EngineNode, EngineNode]) -> AsyncIterator[Fleet]:
    async with scripted_controller() as controller, aiohttp.ClientSession() as session:
        controller.version = 1
        controller.routes = [{"node": "a", "url": nodes[0].url, "state": "active", "model": "tiny"}]
        log_path = tmp_path / "gateway.log"
        command = [sys.executable, "-c", PROGRAM, controller.url, str(tmp_path / "gateway")]
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:

            def port() -> int | None:
                events = {line["event"]: line for line in _json_lines(log_path.read_text())}
                return events["gateway.started"]["port"] if "table.replaced" in events else None

            url = f"http://127.0.0.1:{await asyncio.to_thread(wait_for, port, 'the gateway and its table')}"
            yield Fleet(log_path, url, nodes, session, controller)
        finally:
            process.kill()
            await process.wait()


async def test_gateway_node_and_core_tell_of_a_request_under_its_one_id(fleet: Fleet) -> None:
    await fleet.complete("mine:1")
    _, ours = await fleet.complete(None, n=2)
    ends = [(p, "request.finished", i) for p in ("gateway", "node a") for i in ("mine:1", ours)]
    lines = await fleet.lines_of(*ends)
    for process in ("gateway", "node a", "core a"):
        assert ids_in(lines, process) == {"mine:1", ours}
    by_request = {i: {s for s in seq_ids_in(lines, "core a") if s.startswith(f"{i}/")} for i in ("mine:1", ours)}
    assert [len(seq_ids) for seq_ids in by_request.values()] == [1, 2], "a sequence for each choice"
    assert set().union(*by_request.values()) == seq_ids_in(lines, "core a"), "and no sequence of another id"
    for line in lines["core a"]:
        assert line.get("seq_id", "").startswith(line.get("request_id", "")), line


async def test_a_request_that_moves_keeps_its_id_on_the_node_that_continues(fleet: Fleet) -> None:
    first, second = fleet.nodes
    first.http.post("/admin/faults", json={"slow_steps": 40})  # 16 s: it is still there when its node is drained
    moving = asyncio.create_task(fleet.complete("moves", max_tokens=200, n=2, stream=True))

    def is_under_way() -> bool:
        held = first.http.get("/admin/requests").json()["requests"]
        return any(row["request_id"] == "moves" and row["tokens_out"] for row in held)

    await asyncio.to_thread(wait_for, is_under_way, "the first tokens")
    fleet.controller.routes.append({"node": "b", "url": second.url, "state": "active", "model": "tiny"})
    fleet.controller.version = 2
    fleet.controller.changed.set()
    await asyncio.to_thread(first.drain, 0.0)
    text, request_id = await moving
    assert request_id == "moves"
    assert text.endswith("data: [DONE]\n\n")
    lines = await fleet.lines_of(
        *((p, "request.finished", "moves") for p in ("gateway", "node a", "node b")),
        *((p, "sequence.finished", "moves") for p in ("core a", "core b")),
    )
    for process in ("gateway", "node a", "core a", "node b", "core b"):
        assert ids_in(lines, process) == {"moves"}
    states = {p: [ln["state"] for ln in lines[p] if ln["event"] == "request.finished"] for p in ("node a", "node b")}
    assert states == {"node a": ["moved"], "node b": ["finished"]}
    assert len(seq_ids_in(lines, "core a")) == len(seq_ids_in(lines, "core b")) == 2
    assert not seq_ids_in(lines, "core a") & seq_ids_in(lines, "core b"), "a new admission on another node"


async def test_two_requests_of_one_id_are_one_id_outside_and_separate_sequences_inside(fleet: Fleet) -> None:
    node = fleet.nodes[0]
    body = {"prompt": "twice", "max_tokens": 30, "ignore_eos": True, "seed": 1}

    async def post() -> list[int]:
        headers = {"X-Request-Id": "twice"}
        async with fleet.session.post(node.url + "/v1/completions", json=body, headers=headers) as response:
            assert response.headers["X-Request-Id"] == "twice"
            return list((await response.json())["usage"].values())[:2]

    answers = await asyncio.gather(post(), post())
    assert [completion_tokens for _, completion_tokens in answers] == [30, 30]
    lines = await fleet.lines_of(("core a", "sequence.finished", "twice"))
    assert ids_in(lines, "core a") == {"twice"}
    assert len(seq_ids_in(lines, "core a")) == 2


async def test_an_id_in_the_body_is_the_requests_id_everywhere(fleet: Fleet) -> None:
    _, shown = await fleet.complete(None, in_body="in-body:1")
    assert shown == "in-body:1"
    lines = await fleet.lines_of(*((p, "request.finished", "in-body:1") for p in ("gateway", "node a")))
    for process in ("gateway", "node a", "core a"):
        assert ids_in(lines, process) == {"in-body:1"}
    async with fleet.session.get(f"{fleet.url}/gateway/requests/in-body:1") as response:
        assert (await response.json())["fate"] == "finished"
    _, shown = await fleet.complete("in-head", in_body="in-body:2")
    assert shown == "in-head"
    async with fleet.session.get(f"{fleet.url}/gateway/requests/in-body:2") as response:
        assert response.status == 404


async def test_an_id_in_the_body_that_is_in_flight_is_refused(fleet: Fleet) -> None:
    fleet.nodes[0].http.post("/admin/faults", json={"slow_steps": 20})
    first = asyncio.create_task(fleet.complete(None, in_body="once", max_tokens=60))

    def is_under_way() -> bool:
        held = fleet.nodes[0].http.get("/admin/requests").json()["requests"]
        return [row["request_id"] for row in held] == ["once"]

    await asyncio.to_thread(wait_for, is_under_way, "the first one")
    body = {"model": "tiny", "prompt": "again", "max_tokens": 1, "request_id": "once"}
    async with fleet.session.post(fleet.url + "/v1/completions", json=body) as response:
        assert response.status == 409
        other = response.headers["X-Request-Id"]
    async with fleet.session.post(
        fleet.url + "/v1/completions", json=body, headers={"X-Request-Id": "once"}
    ) as response:
        assert response.status == 409
    assert other != "once"
    await first
    async with fleet.session.get(f"{fleet.url}/gateway/requests/{other}") as response:
        assert (await response.json())["fate"] == "refused"
    async with fleet.session.get(f"{fleet.url}/gateway/requests/once") as response:
        assert (await response.json())["fate"] == "finished"
