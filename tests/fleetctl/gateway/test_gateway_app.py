"""The gateway's own routes, and the life of its process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetctl.gateway.app import Gateway
from fleetctl.gateway.http.listener import bind_listener
from fleetctl.gateway.life import run_gateway, serve_until_stopped
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.settings.gateway import GatewaySettings
from tests.fixtures.gateway import (
    CONTROLLER_TOKEN,
    NODE_TOKEN,
    Reply,
    ScriptedNode,
    Served,
    chat_text,
    scripted_controller,
    scripted_nodes,
    served_gateway,
    small_fleet,
    until,
)

pytestmark = pytest.mark.anyio


async def get(served: Served, path: str) -> tuple[int, str]:
    async with served.session.get(served.url + path) as response:
        return response.status, await response.text()


async def test_is_not_ready_before_it_has_a_table(tmp_path: Path) -> None:
    async with scripted_controller() as controller:
        controller.version = 0
        controller.answer = None
        await controller.stop()
        async with served_gateway(tmp_path, controller.url) as served:
            status, text = await get(served, "/health")
            assert (status, json.loads(text)) == (503, {"ready": False, "reason": "no routing table yet"})
            assert served.gateway.pages.status()["table_version"] is None
            reply = await served.chat()
            assert reply.status == 503
            _, metrics = await get(served, "/metrics")
            assert "gateway_table_age_seconds NaN" in metrics


async def test_is_ready_with_a_table(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        assert await get(served, "/health") == (200, '{"ready": true, "reason": "ready"}')


async def test_status_says_what_each_node_holds(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        task = asyncio.create_task(served.chat())
        await until(lambda: bool(nodes[0].open))
        status = json.loads((await get(served, "/gateway/status"))[1])
        assert status["nodes"] == {"a": {"inflight": 1, "state": "active", "phase": None, "out": None}}
        assert status["controller"] == "reachable"
        assert status["table_version"] == 1
        assert status["table_age_s"] >= 0
        nodes[0].gate.set()
        await task


async def test_metrics_tell_outcomes_by_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        await served.chat()
        await served.chat(max_tokens=0)
        _, text = await get(served, "/metrics")
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["gateway_requests_total", (("node", "a"), ("outcome", "finished"))] == 1
        assert samples["gateway_requests_total", (("node", "a"), ("outcome", "refused"))] == 1
        assert samples["gateway_inflight_requests", (("node", "a"),)] == 0
        assert samples["gateway_ttft_seconds_count", ()] == 1
        assert samples["gateway_table_version", ()] == 1
        assert samples["gateway_table_age_seconds", ()] >= 0
        assert samples["gateway_handoffs_total", (("result", "moved"),)] == 0
        assert "process_start_time_seconds" in text


async def test_nodes_that_left_leave_the_metrics(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        await asyncio.gather(*(served.chat(f"p{i}") for i in range(8)))
        controller.set(nodes[1])
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        _, text = await get(served, "/metrics")
        assert 'gateway_inflight_requests{node="a"}' not in text


@pytest.mark.parametrize(
    "path",
    ["/", "/v2/models", "/admin/drain", "/internal/continue", "/gateway/requests/none", "/gateway/other", "/v1"],
)
async def test_other_paths_are_404_in_openais_shape(tmp_path: Path, path: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        status, text = await get(served, path)
        assert status == 404
        assert json.loads(text)["error"]["type"] == "invalid_request_error"
        assert not nodes[0].seen


@pytest.mark.parametrize("path", ["/v1/../admin/drain", "/v1/%2e%2e/admin/drain", "/v1//internal/continue"])
async def test_no_path_leads_out_of_v1(tmp_path: Path, path: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        assert not nodes[0].seen


async def test_an_abort_tells_every_client(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].wait_at = 3
        nodes[0].gate.clear()
        begun = asyncio.create_task(served.chat())
        waiting = asyncio.create_task(served.chat(stream=False))
        await until(lambda: len(nodes[0].open) == 2)
        await until(lambda: served.gateway.fates.in_flight == 2)
        assert served.gateway.proxy is not None
        await until(lambda: served.gateway.metrics.registry.get_sample_value("gateway_ttft_seconds_count") == 1)
        assert served.gateway.proxy.abort_all() == 2
        stream, whole = await begun, await waiting
        assert stream.error is not None
        assert stream.error["code"] == "shutting_down"
        assert whole.status == 503


@pytest.mark.parametrize("host", ["256.1.1.1", "no such host", "203.0.113.7"])
async def test_a_host_that_is_not_ours_is_a_clear_error(host: str) -> None:
    with pytest.raises(BadInputError, match=f"cannot listen on {host}:0: (?!None)[^\\[]+$"):
        bind_listener(host, 0)


async def test_what_is_not_remembered_is_404_and_a_write_to_a_route_of_ours_too(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        for path, message in (
            ("/gateway/requests/none", "no such recent request"),
            ("/none", "no such path: /none"),
            ("/health", "no such path: /health"),
        ):
            method = "POST" if path == "/health" else "GET"
            async with served.session.request(method, served.url + path) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], error["message"]) == (404, "not_found", message)


async def test_status_counts_outcomes_and_metrics_name_what_they_are(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, controller):
        await served.chat()
        await controller.stop()
        await until(lambda: not served.gateway.routing.controller_is_reachable)
        status = json.loads((await get(served, "/gateway/status"))[1])
        assert (status["outcomes"], status["in_flight"]) == ({"finished": 1}, 0)
        assert status["controller"] == "unreachable"
        async with served.session.get(served.url + "/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = await response.text()
        assert "# HELP gateway_ttft_seconds From a streamed request's arrival" in text
        assert 'gateway_ttft_seconds_bucket{le="0.005"}' in text


async def test_bytes_and_headers_pass_to_the_node_as_the_client_sent_them(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.refuse = (200, {"Set-Cookie": "session=1; Path=/"})
        bare = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
        for _ in range(2):
            async with served.session.get(served.url + "/v1/models", skip_auto_headers=bare) as response:
                assert response.status == 200
            served.session.cookie_jar.clear()
        for seen in nodes[0].seen:
            assert not {*bare, "Cookie"} & set(seen["headers"]), "no word of ours, and no client's cookie for another"


async def test_a_port_that_another_process_holds_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(BadInputError) as caught:
            bind_listener("127.0.0.1", port)
    assert caught.value.message == f"gateway: cannot listen on 127.0.0.1:{port}: {os.strerror(98)}"
    assert caught.value.remedy == "stop the process that holds it, or choose another port"
    with pytest.raises(BadInputError) as caught:
        bind_listener("203.0.113.7", 0)
    assert caught.value.message == f"gateway: cannot listen on 203.0.113.7:0: {os.strerror(99)}"
    assert caught.value.remedy is None


async def test_a_port_is_taken_again_at_once_after_a_restart() -> None:
    with contextlib.closing(bind_listener("127.0.0.1", 0)) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert (listener.family, listener.type) == (socket.AF_INET, socket.SOCK_STREAM)
        assert listener.getsockname()[0] == "127.0.0.1"


def make_gateway(run_dir: Path, controller_url: str) -> Gateway:
    return Gateway(
        controller_url=controller_url, controller_token=CONTROLLER_TOKEN, node_token=NODE_TOKEN, run_dir=run_dir
    )


@asynccontextmanager
async def draining(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Gateway, ScriptedNode, Any, Any]]:
    """A gateway that serves until a signal comes, and a stream of it that waits at its third token."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda *_: None) for number in numbers}  # a broken drain ends no suite
    async with scripted_nodes("a") as (node,), scripted_controller() as controller, aiohttp.ClientSession() as session:
        controller.set(node)
        gateway = make_gateway(tmp_path, controller.url)
        listener = bind_listener("127.0.0.1", 0)
        served = Served(gateway, f"http://127.0.0.1:{listener.getsockname()[1]}", session, lambda: None)
        serving = asyncio.create_task(serve_until_stopped(gateway, listener, **options))
        await until(lambda: gateway.routing.table is not None or serving.done())
        node.wait_at = 2
        node.gate.clear()
        stream = asyncio.create_task(served.chat())
        ttft = "gateway_ttft_seconds_count"
        await until(lambda: gateway.metrics.registry.get_sample_value(ttft) == 1 or serving.done() or stream.done())
        try:
            yield gateway, node, serving, stream
            await asyncio.wait_for(serving, 60)
        finally:
            for number in numbers:
                asyncio.get_running_loop().remove_signal_handler(number)
                signal.signal(number, previous[number])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_streams_end_and_takes_nothing_new(tmp_path: Path, number: signal.Signals) -> None:
    async with draining(tmp_path) as (_, node, serving, stream):
        signal.raise_signal(number)
        await asyncio.sleep(0)
        assert not serving.done()
        node.gate.set()
        reply: Reply = await stream
        assert (reply.text, reply.is_done) == (chat_text(), True)


@pytest.mark.parametrize(("grace_s", "signals"), [(0.0, 1), (60.0, 2)], ids=["grace is over", "asked twice"])
async def test_a_drain_that_may_not_wait_ends_streams_with_an_error(
    tmp_path: Path, grace_s: float, signals: int
) -> None:
    async with draining(tmp_path, drain_grace_s=grace_s) as (gateway, _, _, stream):
        for _ in range(signals):
            signal.raise_signal(signal.SIGTERM)
        reply: Reply = await stream
        assert reply.error is not None
        assert reply.error["code"] == "shutting_down"
        assert gateway.fates.in_flight == 0


def test_a_gateway_in_the_foreground_serves_until_sigterm(tmp_path: Path) -> None:
    port = reserve_port()
    answers: list[str] = []

    def stop() -> None:
        try:
            for _ in range(6000):
                with contextlib.suppress(OSError):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/gateway/status", timeout=5) as response:
                        answers.append(response.read().decode())
                    break
                threading.Event().wait(0.01)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    threshold, previous = gc.get_threshold(), signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody drains"))
    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        run_gateway(
            GatewaySettings(port=port),
            controller_url="http://127.0.0.1:1",
            controller_token=None,
            node_token=NODE_TOKEN,
            run_dir=tmp_path,
        )
        assert gc.get_threshold()[0] > threshold[0], "collections are rare, as most objects are fates"
    finally:
        stopper.join()
        signal.signal(signal.SIGTERM, previous)
        gc.set_threshold(*threshold)
        gc.unfreeze()
    assert json.loads(answers[0])["controller"] == "unreachable"


async def test_a_choice_is_explained_without_sending_and_told_without_the_prompt(
    tmp_path: Path,
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, _, _):
        body = {"model": "demo", "messages": [{"role": "user", "content": "the secret word"}]}
        async with served.session.post(f"{served.url}/gateway/route/explain", json=body) as response:
            told = await response.json()
        assert response.status == 200
        assert {one["node"] for one in told["candidates"]} == {"a", "b"}
        assert told["node"] in ("a", "b")
        _, text = await get(served, "/gateway/decisions")
        assert json.loads(text)["decisions"] == [], "explaining is no decision"
        assert (await served.chat()).status == 200
        _, text = await get(served, "/gateway/decisions")
        (decision,) = json.loads(text)["decisions"]
        assert decision["node"] in ("a", "b")
        assert "secret" not in text
        async with served.session.post(f"{served.url}/gateway/route/explain", data=b"no json") as response:
            assert response.status == 400
