"""What a real vLLM answered, through the gateway: the same bytes, the right fate, and never the node's fault."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.gateway.requests.text_account import TextAccount
from fleetctl.settings.admission import AdmissionSettings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import RouteState
from tests.fixtures.gateway import Served, scripted_controller, served_gateway, until

pytestmark = pytest.mark.anyio

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "data/answers/vllm_0.32.0.json").read_text()
)
FULL = ("full queue", "full queue, told within a stream")
REFUSED = {
    "unknown model": "status_404",
    "stream of an unknown model": "status_404",
    "prompt too long": "status_400",
    "field of a wrong type": "status_400",
    "chat without messages": "status_400",
    "bad schema": "status_400",
    "stream with a bad schema": "status_400",
}


@asynccontextmanager
async def replaying(run_dir: Path) -> AsyncIterator[Served]:
    """A gateway before a node that gives the recorded answer which the request's `user` names."""

    async def answer(request: web.Request) -> web.Response:
        told = RECORDED[(await request.json())["user"]]
        return web.Response(
            status=told["status"], body=told["body"].encode(), headers={"Content-Type": told["content_type"]}
        )

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    limits = GatewaySettings(admission=AdmissionSettings(queue_limit_s=0))
    try:
        async with scripted_controller() as controller:
            controller.version = 1
            controller.routes = [{"node": "a", "url": url, "state": "active", "model": "demo", "engine": "vllm"}]
            async with served_gateway(run_dir, controller.url, limits=limits) as served:
                await until(lambda: served.gateway.routing.table is not None, "a table")
                yield served
    finally:
        await runner.cleanup()


async def test_recorded_answers_pass_as_they_are_and_end_in_the_right_fate(tmp_path: Path) -> None:
    async with replaying(tmp_path) as served:
        for name, told in RECORDED.items():
            if name in FULL:
                continue
            reply = await served.send({"model": "demo", "user": name}, path=told["path"])
            fate = await served.fate(reply.headers["X-Request-Id"])
            assert (reply.status, reply.body.decode()) == (told["status"], told["body"]), name
            assert reply.headers["Content-Type"] == told["content_type"], name
            expected = ("refused", REFUSED[name]) if name in REFUSED else ("finished", "")
            assert (fate["fate"], fate["reason"], fate["deaths"]) == (*expected, []), name
        told_by = served.gateway.metrics.registry.get_sample_value
        assert told_by("gateway_ejections_total", {"reason": "server_error"}) == 0


@pytest.mark.parametrize("name", FULL)
async def test_a_full_queue_is_told_as_an_overload_however_the_engine_says_it(tmp_path: Path, name: str) -> None:
    async with replaying(tmp_path) as served:
        reply = await served.send({"model": "demo", "user": name, "stream": True}, path=RECORDED[name]["path"])
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (reply.status, fate["fate"], fate["reason"]) == (429, "refused", "overloaded")
        assert reply.headers["Retry-After"] == "1"


ENDPOINT = Endpoint("a", "http://127.0.0.1:1", RouteState.ACTIVE, "default", "demo", engine="vllm")


def test_the_text_of_a_recorded_stream_is_what_another_node_would_be_told() -> None:
    request = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "stream": True}
    account = TextAccount("/v1/chat/completions", json.dumps(request).encode(), ENDPOINT)
    account.begin_part()
    events = RECORDED["chat stream with usage"]["body"].encode()
    begun = events[: events.index(b'" comput"')].rpartition(b"data: ")[0]
    assert account.follow(begun) == begun
    assert account.can_continue
    told = json.loads(account.body())
    assert told["messages"][-1] == {
        "role": "assistant",
        "content": " adds low promised goodld good while",
    }
    assert (told["continue_final_message"], told["add_generation_prompt"]) == (True, False)
    account.follow(events.removeprefix(begun))
    assert account.is_finished
    assert account.num_tokens == 12, "its last event says so, where two tokens came in one"
