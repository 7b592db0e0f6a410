"""Admission as clients see it: scripted nodes behind a real gateway on loopback."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.gateway.admission.tenants_file import add_key
from fleetctl.priority_class import PriorityClass
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.traffic_rule import ShedSpec, TrafficRule
from tests.fixtures.gateway import Script, small_fleet, until

pytestmark = pytest.mark.anyio


def with_key(tmp_path: Path, text: str = "tenants:\n") -> tuple[GatewaySettings, dict[str, str]]:
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    key = add_key(path, "shop", note="", made=dt.date(2026, 11, 22))
    node_key = tmp_path / "node.key"
    node_key.write_text("the-nodes-own-key\n")
    return GatewaySettings(tenants_file=path, node_key_file=node_key), {"Authorization": f"Bearer {key}"}


async def shown(served: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    async with served.session.get(served.url + "/gateway/tenants", headers=headers or {}) as response:
        assert response.status == 200
        body: dict[str, Any] = await response.json()
        return body


async def test_a_key_lets_in_is_kept_from_the_node_and_its_use_is_told(tmp_path: Path) -> None:
    limits, headers = with_key(tmp_path)
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        assert (await served.chat()).status == 401
        assert (await served.chat(headers={"Authorization": "Bearer wrong"})).status == 401
        assert not nodes[0].seen, "nothing of it reached a node"
        reply = await served.chat(headers=headers, max_tokens=20)
        assert reply.is_done
        assert nodes[0].seen[0]["headers"]["Authorization"] == "Bearer the-nodes-own-key"
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["tenant"], fate["class"], fate["queue_wait_s"]) == ("shop", "standard", 0.0)
        (row,) = (await shown(served))["tenants"]
        assert (row["tenant"], row["running"], row["admitted"]) == ("shop", 0, 1)
        assert row["tokens"]["output"] >= 20
        sample = served.gateway.metrics.registry.get_sample_value
        assert sample("gateway_tenant_requests_total", {"tenant": "shop", "result": "admitted"}) == 1
        assert sample("gateway_unauthenticated_requests_total", {"reason": "missing"}) == 1
        assert sample("gateway_unauthenticated_requests_total", {"reason": "unknown"}) == 1


async def test_who_is_not_on_this_machine_sees_its_own_row_only_and_nothing_without_a_key(tmp_path: Path) -> None:
    limits, headers = with_key(tmp_path, "tenants:\n  crawl:\n")
    async with small_fleet(tmp_path, "a", limits=limits) as (served, _, _):
        assert len((await shown(served))["tenants"]) == 2
        elsewhere = {"X-Forwarded-For": "203.0.113.9"}
        assert [row["tenant"] for row in (await shown(served, headers | elsewhere))["tenants"]] == ["shop"]
        async with served.session.get(served.url + "/gateway/tenants", headers=elsewhere) as response:
            assert response.status == 401


async def test_a_limit_that_is_reached_is_429_in_openais_shape(tmp_path: Path) -> None:
    text = "tenants:\n  shop:\n    limits: {requests_per_min: 1, max_output_tokens: 5}\n"
    limits, headers = with_key(tmp_path, text)
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        assert (await served.chat(headers=headers, max_tokens=None)).is_done
        assert nodes[0].seen[0]["body"]["max_tokens"] == 5, "who names no limit gets the tenant's"
        reply = await served.chat(headers=headers, max_tokens=5)
        assert (reply.status, reply.headers["X-Fleet-Limit"]) == (429, "tenant_requests")
        assert 1 <= int(reply.headers["Retry-After"]) <= 60
        assert reply.error is not None
        assert (reply.error["type"], reply.error["code"]) == ("rate_limit_error", "tenant_requests")
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["reason"], fate["tenant"]) == ("refused", "tenant_requests", "shop")


async def test_while_every_node_is_full_requests_wait_here_and_none_is_refused(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        for node in nodes:
            node.script = Script(refuse=(429, {"X-Fleet-Refused": "overloaded", "Retry-After": "1"}))
        tasks = [asyncio.create_task(served.chat(f"p{number}")) for number in range(6)]
        await until(lambda: served.gateway.admission.queue.num_waiting == 6, "six wait")
        asked = sum(len(node.seen) for node in nodes)
        assert asked <= 20, "an overload is not multiplied"
        tasks.pop().cancel()  # its client hangs up
        await until(lambda: served.gateway.admission.queue.num_waiting == 5, "it has left")
        for node in nodes:
            node.script = Script()
        replies = await asyncio.gather(*tasks)
        assert all(reply.is_done for reply in replies)
        fates = [await served.fate(reply.headers["X-Request-Id"]) for reply in replies]
        assert all(fate["queue_wait_s"] > 0 for fate in fates)
        served.gateway.admission.check_integrity()
        assert served.gateway.admission.accounts["anonymous"].running == 0
        sample = served.gateway.metrics.registry.get_sample_value
        assert sample("gateway_queue_wait_seconds_count", {"class": "standard"}) >= 6


async def test_a_stream_that_is_cut_short_by_its_client_is_charged_for_what_it_got(tmp_path: Path) -> None:
    limits, headers = with_key(tmp_path)
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        nodes[0].gate.clear()
        task = asyncio.create_task(served.chat(headers=headers))
        await until(lambda: bool(nodes[0].open), "the node has it")
        task.cancel()
        account = served.gateway.admission.accounts["shop"]
        await until(lambda: account.running == 0, "it was released")
        served.gateway.admission.check_integrity()


async def test_an_order_to_shed_holds_at_the_gateway_until_it_ends_and_not_for_what_runs(tmp_path: Path) -> None:
    limits, headers = with_key(tmp_path, "tenants:\n  shop:\n    class: batch\n")
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, controller):
        nodes[0].gate.clear()
        running = asyncio.create_task(served.chat(headers=headers))
        await until(lambda: bool(nodes[0].open), "the node has it")
        rule = TrafficRule(
            id="shed", spec=ShedSpec(below=PriorityClass.STANDARD), made_at=0.0, expires_at=time.time() + 1000
        )
        controller.order(rule)
        await until(lambda: bool(served.gateway.admission.orders), "the order")
        reply = await served.chat(headers=headers)
        assert (reply.status, reply.headers["X-Fleet-Limit"], reply.headers["Retry-After"]) == (429, "shed", "60")
        sample = served.gateway.metrics.registry.get_sample_value
        assert sample("gateway_shed_orders", {"below": "standard"}) == 1
        assert sample("gateway_tenant_requests_total", {"tenant": "shop", "result": "shed"}) == 1
        nodes[0].gate.set()
        assert (await running).is_done, "what runs goes on"
        controller.order()
        await until(lambda: not served.gateway.admission.orders, "no order")
        assert (await served.chat(headers=headers)).is_done
