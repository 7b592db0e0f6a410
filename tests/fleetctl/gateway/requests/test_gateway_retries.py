"""Overload, nodes that fail fast and requests that end nodes, over real sockets: what nodes get and clients see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetctl.settings.admission import AdmissionSettings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.gateway_health import RetrySettings
from tests.fixtures.gateway import Script, small_fleet, until

pytestmark = pytest.mark.anyio

NOBODY_WAITS = AdmissionSettings(queue_limit_s=0)
OVERLOADED = (429, {"X-Fleet-Refused": "overloaded", "Retry-After": "7"})


async def test_an_overload_of_all_nodes_reaches_them_once_a_request(tmp_path: Path) -> None:
    limits = GatewaySettings(admission=NOBODY_WAITS)
    async with small_fleet(tmp_path, *"abcdefgh", limits=limits) as (served, nodes, _):
        for node in nodes:
            node.script.refuse = OVERLOADED
        for start in range(0, 200, 50):
            replies = await asyncio.gather(*(served.chat(f"p{i}", stream=False) for i in range(start, start + 50)))
            assert {reply.status for reply in replies} == {429}
            assert all(int(reply.headers["Retry-After"]) == 7 for reply in replies)
        assert sum(len(node.seen) for node in nodes) <= 200 * 1.3
        refused = served.gateway.metrics.registry.get_sample_value("gateway_retry_budget_exhausted_total")
        assert refused is not None


async def test_a_full_node_among_others_with_room_costs_its_clients_nothing(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.refuse = OVERLOADED
        replies = await asyncio.gather(*(served.chat(f"p{i}") for i in range(18)))
        assert [reply.status for reply in replies] == [200] * 18


async def test_without_a_budget_the_first_refusal_is_the_clients_answer_and_is_counted(tmp_path: Path) -> None:
    limits = GatewaySettings(retries=RetrySettings(budget_ratio=0, floor=0), admission=NOBODY_WAITS)
    async with small_fleet(tmp_path, "a", "b", limits=limits) as (served, nodes, _):
        for node in nodes:
            node.script.refuse = OVERLOADED
        assert (await served.chat()).status == 429
        assert sum(len(node.seen) for node in nodes) == 1
        assert served.gateway.metrics.registry.get_sample_value("gateway_retry_budget_exhausted_total") == 1


@pytest.mark.parametrize("num_clients", [4, 16, 48])
async def test_a_node_that_answers_500_at_once_is_ejected_and_costs_no_client_its_answer(
    tmp_path: Path, num_clients: int
) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.refuse = (500, {})

        async def client(number: int) -> list[int]:
            return [(await served.chat(f"{number} {i}", stream=False)).status for i in range(6)]

        found = await asyncio.gather(*(client(i) for i in range(num_clients)))
        assert {status for statuses in found for status in statuses} == {200}
        assert len(nodes[0].seen) <= 2 * num_clients


async def test_a_node_that_goes_on_failing_is_ejected_and_says_so(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.refuse = (500, {})
        for i in range(60):
            served.gateway.loads.trust("a")  # each time long enough after the last
            assert (await served.chat(f"more {i}", stream=False)).status == 200
        assert len(nodes[0].seen) in (5, 6), "five in a window that decays"
        status = served.gateway.pages.status()["nodes"]
        assert isinstance(status, dict)
        assert status["a"]["out"] == "ejected: server_error"
        async with served.session.get(served.url + "/metrics") as answer:
            text = await answer.text()
        assert 'gateway_node_ejected{node="a",reason="server_error"} 1.0' in text
        assert 'gateway_ejections_total{reason="server_error"} 1.0' in text


async def test_a_request_that_fails_everywhere_ejects_nobody_and_reaches_two_nodes(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d") as (served, nodes, _):
        for node in nodes:
            node.script.refuse = (500, {})
        for i in range(30):
            before = sum(len(node.seen) for node in nodes)
            assert (await served.chat(f"bad {i}", stream=False)).status == 500
            assert sum(len(node.seen) for node in nodes) - before <= 2
        assert not served.gateway.ejections.has_any


async def test_clients_bad_requests_eject_nobody(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.refuse = (400, {})
        for i in range(30):
            await served.chat(f"p{i}", stream=False)
        assert not served.gateway.ejections.has_any


async def test_a_body_that_ended_two_nodes_is_refused_when_it_comes_again_and_no_other_one(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d") as (served, nodes, _):
        for node in nodes:
            node.script.drop_before_answer = True
        first = await served.chat("evil", headers={"X-Request-Id": "first"})
        assert (first.status, first.headers["X-Should-Retry"]) == (500, "false")
        for node in nodes:
            node.script, node.seen = Script(), []
        again = await served.chat("evil")
        assert (again.status, again.headers["X-Should-Retry"]) == (500, "false")
        assert again.error is not None
        assert again.error["code"] == "poison"
        assert "request first" in again.error["message"]
        assert not any(node.seen for node in nodes)
        assert (await served.fate(again.headers["X-Request-Id"]))["fate"] == "refused"
        assert (await served.chat("good")).is_done
        values = served.gateway.metrics.registry.get_sample_value
        await until(lambda: values("gateway_poison_requests_total", {"result": "found"}) == 1)
        assert values("gateway_poison_requests_total", {"result": "refused"}) == 1


async def test_no_request_is_blamed_where_all_nodes_end_at_once(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d") as (served, nodes, _):
        for node in nodes:
            node.script.drop_before_answer = True
        replies = await asyncio.gather(*(served.chat(f"innocent {i}") for i in range(8)))
        assert {reply.status for reply in replies} <= {500, 503}
        for node in nodes:
            node.script = Script()

        replies = []
        async with asyncio.timeout(60):
            while {reply.status for reply in replies} != {200}:
                replies = [await served.chat(f"innocent {number}") for number in range(8)]
        found = served.gateway.metrics.registry.get_sample_value("gateway_poison_requests_total", {"result": "found"})
        assert not found


async def test_no_request_is_blamed_where_the_next_one_finds_the_other_nodes_gone(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        assert [(await served.chat(f"well {i}")).status for i in range(6)] == [200] * 6
        for node in nodes:
            node.script.drop_before_answer = True
        code: object = (await served.chat("innocent")).error
        for node in nodes:
            await node.stop()
        async with asyncio.timeout(60):
            while "poison" in str(code):
                await served.chat("another")
                code = (await served.chat("innocent")).error
        value = served.gateway.metrics.registry.get_sample_value
        assert not value("gateway_poison_requests_total", {"result": "found"})
        assert value("gateway_poison_requests_total", {"result": "refused"})


async def test_an_answer_that_is_no_answer_goes_to_another_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.refuse = (200, {"Content-Type": "text/html"})
        replies = [await served.chat(f"p{i}") for i in range(6)]
        assert all(reply.is_done for reply in replies)


async def test_a_query_hides_no_answer_that_is_none(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.refuse = (200, {"Content-Type": "text/html"})
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        replies = [await served.send(body | {"user": str(i)}, path="/v1/chat/completions?v=1") for i in range(6)]
        assert all(reply.is_done for reply in replies)
        assert nodes[0].seen, "it was asked, and what it said was kept from the client"
