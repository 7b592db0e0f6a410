"""The gateway's own routes, and the life of its process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetctl.gateway.app import bind_listener
from fleetctl.kit.errors import BadInputError
from tests.fixtures.gateway import (
    Served,
    scripted_controller,
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


@pytest.mark.parametrize("host", ["256.1.1.1", "no such host", "203.0.113.7"])
async def test_a_host_that_is_not_ours_is_a_clear_error(host: str) -> None:
    with pytest.raises(BadInputError, match="cannot listen on"):
        bind_listener(host, 0)
