"""The gateway's own routes, and the life of its process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetctl.gateway.app import bind_listener
from fleetctl.kit.errors import BadInputError
from tests.fixtures.gateway import (
    CONTROLLER_TOKEN,
    DEADLINE_S,
    NODE_TOKEN,
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
            assert (status, json.loads(text)["ready"]) == (503, False)
            assert served.gateway.status()["table_version"] is None
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
        assert status["nodes"] == {"a": {"inflight": 1, "state": "active"}}
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


# The process.

PROGRAM = f"""
import sys
from pathlib import Path
from fleetctl.gateway.app import run_gateway
from fleetctl.kit.errors import FleetctlError
port, controller, run_dir = sys.argv[1:]
try:
    run_gateway(host="127.0.0.1", port=int(port), controller_url=controller, controller_token="{CONTROLLER_TOKEN}",
        node_token="{NODE_TOKEN}", run_dir=Path(run_dir))
except FleetctlError as error:
    print(error.message, file=sys.stderr)
    raise SystemExit(error.exit_code)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@asynccontextmanager
async def gateway_process(port: int, controller_url: str, run_dir: Path) -> AsyncIterator[Process]:
    arguments = [str(port), controller_url, str(run_dir)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url + "/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def until_health(session: aiohttp.ClientSession, url: str, is_up: bool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await answers(session, url) is not is_up:  # noqa: ASYNC110  # another process: there is no event
            await asyncio.sleep(0.02)


@pytest.mark.e2e
async def test_sigterm_lets_streams_finish_and_exits_with_zero(tmp_path: Path) -> None:
    async with scripted_nodes("a") as (node,), scripted_controller() as controller, aiohttp.ClientSession() as session:
        controller.set(node)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with gateway_process(port, controller.url, tmp_path) as process:
            await until_health(session, url, True)
            node.wait_at = 4
            node.gate.clear()
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "seed": 1, "stream": True}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                assert response.status == 200
                process.send_signal(signal.SIGTERM)
                await until_health(session, url, False)  # it takes nothing new: an idle gateway would be gone
                assert process.returncode is None
                node.gate.set()
                text = (await response.read()).decode()
            assert text.endswith("data: [DONE]\n\n")
            chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            assert "".join(c["choices"][0]["delta"]["content"] for c in chunks if c["choices"]) == chat_text()
            async with asyncio.timeout(DEADLINE_S):
                assert await process.wait() == 0


@pytest.mark.e2e
async def test_a_port_in_use_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with gateway_process(port, "http://127.0.0.1:1", tmp_path) as process:
            _, stderr = await asyncio.wait_for(process.communicate(), DEADLINE_S)
            assert process.returncode == 2
            assert stderr.decode() == f"gateway: cannot listen on 127.0.0.1:{port}: {os.strerror(98)}\n"


@pytest.mark.parametrize("host", ["256.1.1.1", "no such host", "203.0.113.7"])
async def test_a_host_that_is_not_ours_is_a_clear_error(host: str) -> None:
    with pytest.raises(BadInputError, match="cannot listen on"):
        bind_listener(host, 0)
