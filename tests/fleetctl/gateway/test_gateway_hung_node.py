"""A node that takes connections and says nothing, as after SIGSTOP: nobody waits for it for long."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path

import pytest

from fleetctl.gateway.http.node_client import NodeClient
from fleetctl.gateway.nodes.node_watch import ProbeAnswer, ask_readiness
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.wire.routing import RouteState
from tests.fixtures.gateway import Script, chat_text, scripted_nodes, small_fleet, until

pytestmark = pytest.mark.anyio

QUICK = GatewaySettings(
    probe_after_s=0.1, probe_limit_s=0.5, stream_silence_limit_s=0.3, stream_idle_limit_s=5, first_byte_limit_s=60
)


@pytest.mark.parametrize("stream", [True, False])
async def test_requests_given_to_a_hung_node_are_answered_by_others_and_new_ones_never_see_it(
    tmp_path: Path, stream: bool
) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", limits=QUICK) as (served, nodes, _):
        hung = nodes[0]
        hung.awake.clear()
        replies = await asyncio.gather(*(served.chat(f"p{i}", stream=stream) for i in range(12)))
        assert [reply.status for reply in replies] == [200] * 12
        if stream:
            assert all(reply.text == chat_text(f"p{i}") and reply.is_done for i, reply in enumerate(replies))
        fates = [await served.fate(reply.headers["X-Request-Id"]) for reply in replies]
        deaths = [fate["deaths"] for fate in fates if fate["deaths"]]
        assert deaths
        told = [[(one["node"], one["reason"], one["at_event"]) for one in lost] for lost in deaths]
        assert all(one == [("a", "node_silent", 0)] for one in told)
        given = len(hung.seen)
        await asyncio.gather(*(served.chat(f"q{i}", stream=stream) for i in range(12)))
        assert len(hung.seen) == given
        assert served.gateway.pages.status()["nodes"]["a"]["out"] == "node_silent"  # type: ignore[index]
        metrics = served.gateway.metrics.registry
        assert metrics.get_sample_value("gateway_retries_total", {"reason": "node_silent"}) == len(deaths)
        async with served.session.get(served.url + "/metrics") as response:
            assert 'gateway_node_silent{node="a"} 1.0' in await response.text()
        hung.awake.set()
        await until(lambda: served.gateway.watch.silent_nodes() == {}, "it answers probes again")
        await asyncio.gather(*(served.chat(f"r{i}", stream=stream) for i in range(12)))
        assert len(hung.seen) > given


async def test_a_stream_of_a_node_that_hangs_ends_with_an_error_event(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", limits=QUICK) as (served, nodes, _):
        node = nodes[0]
        node.wait_at = 3
        node.gate.clear()
        task = asyncio.create_task(served.chat(headers={"X-Request-Id": "midway"}))
        await until(lambda: served.gateway.fates.get("midway") is not None)
        await until(lambda: served.gateway.fates.get("midway").ttft_s is not None)  # type: ignore[union-attr]
        node.awake.clear()
        node.gate.set()
        reply = await task
        assert (reply.status, reply.is_done) == (200, False)
        assert reply.error is not None
        assert (reply.error["type"], reply.error["code"]) == ("server_error", "node_silent")
        fate = await served.fate("midway")
        assert (fate["fate"], fate["reason"]) == ("failed", "node_silent")
        lost = served.gateway.metrics.registry.get_sample_value(
            "gateway_lost_requests_total", {"reason": "node_silent"}
        )
        assert lost == 1
        node.awake.set()


async def test_what_a_hung_node_did_not_begin_waits_for_another_that_answers_again(tmp_path: Path) -> None:
    """A machine stood still: one node was out, the next fell silent, and what it held failed at once."""
    async with small_fleet(tmp_path, "a", "b", limits=QUICK, move_patience_s=60) as (served, nodes, _):
        nodes[1].awake.clear()
        await asyncio.gather(*(served.chat(f"p{i}") for i in range(8)))
        assert list(served.gateway.watch.silent_nodes()) == ["b"]
        nodes[0].awake.clear()
        held = asyncio.create_task(served.chat(headers={"X-Request-Id": "held"}))
        await until(lambda: "a" in served.gateway.watch.silent_nodes(), "its node is silent too")
        nodes[1].awake.set()
        reply = await held
        assert (reply.status, reply.text, reply.is_done) == (200, chat_text(), True)
        fate = await served.fate("held")
        assert (fate["fate"], fate["nodes"], [one["node"] for one in fate["deaths"]]) == ("finished", ["b"], ["a"])
        nodes[0].awake.set()


async def test_a_hung_node_that_is_the_only_one_is_said_and_not_waited_for(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", limits=QUICK) as (served, nodes, _):
        nodes[0].awake.clear()
        first = await served.chat(headers={"X-Request-Id": "first"})
        assert (first.status, first.headers["Retry-After"]) == (503, "1")
        assert first.error is not None
        assert first.error["code"] == "node_silent"
        assert (await served.fate("first"))["fate"] == "failed", "it was given to the node"
        second = await served.chat(headers={"X-Request-Id": "second"})
        assert second.status == 503
        assert second.error is not None
        assert second.error["message"] == "no node takes requests (a: node_silent)"
        fate = await served.fate("second")
        assert (fate["fate"], fate["nodes"], len(nodes[0].seen)) == ("refused", [], 1)
        nodes[0].awake.set()


async def test_a_request_that_hangs_nodes_reaches_two_of_them(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d", limits=QUICK) as (served, nodes, _):
        for node in nodes:
            node.awake.clear()
        reply = await served.chat(headers={"X-Request-Id": "evil"})
        assert (reply.status, reply.headers["X-Should-Retry"]) == (500, "false")
        assert sum(len(node.seen) for node in nodes) == 2
        assert (await served.fate("evil"))["reason"] == "poison"
        for node in nodes:
            node.awake.set()


async def test_a_client_that_gives_up_on_a_hung_node_is_told_from_one_that_leaves(tmp_path: Path) -> None:
    slow = GatewaySettings(probe_after_s=0.1, probe_limit_s=30)
    async with small_fleet(tmp_path, "a", limits=slow) as (served, nodes, _):
        node = nodes[0]
        node.gate.clear()
        leaves = asyncio.create_task(served.chat(headers={"X-Request-Id": "leaves"}, stream=False))
        await until(
            lambda: bool(
                served.gateway.metrics.registry.get_sample_value("gateway_probes_total", {"result": "answered"})
            ),
            "a probe was answered",
        )
        leaves.cancel()
        await until(lambda: served.gateway.fates.in_flight == 0)
        fate = await served.fate("leaves")
        assert (fate["fate"], fate["reason"]) == ("client_gone", "before_first_byte")
        node.awake.clear()
        gives_up = asyncio.create_task(served.chat(headers={"X-Request-Id": "gives-up"}, stream=False))
        await until(lambda: served.gateway.loads.is_suspect("a"), "a probe stays open")
        gives_up.cancel()
        await until(lambda: served.gateway.fates.in_flight == 0)
        fate = await served.fate("gives-up")
        assert (fate["fate"], fate["reason"], fate["status"]) == ("gave_up", "node_silent", None)
        counted = served.gateway.metrics.registry.get_sample_value
        assert counted("gateway_requests_total", {"outcome": "gave_up", "node": "a"}) == 1
        assert counted("gateway_lost_requests_total", {"reason": "node_silent"}) == 1
        node.awake.set()
        node.gate.set()


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_dying_core_refuses_goes_to_another_node_once(tmp_path: Path, stream: bool) -> None:
    refusal = (503, {"X-Fleet-Refused": "core_dead", "Retry-After": "2"})
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.refuse = refusal
        replies = await asyncio.gather(*(served.chat(f"p{i}", stream=stream) for i in range(9)))
        assert [reply.status for reply in replies] == [200] * 9
        for node in nodes:
            node.script, node.seen = Script(refuse=refusal), []
        reply = await served.chat(headers={"X-Request-Id": "evil"}, stream=stream)
        assert (reply.status, reply.headers["X-Should-Retry"]) == (500, "false")
        assert sum(len(node.seen) for node in nodes) == 2
        fate = await served.fate("evil")
        assert (fate["fate"], fate["reason"]) == ("failed", "poison")


# The client's own limit.


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", ""])
async def test_a_deadline_that_is_no_positive_number_is_400(tmp_path: Path, text: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        reply = await served.chat(headers={"X-Fleet-Deadline-S": text})
        assert reply.status == 400
        assert reply.error is not None
        assert (reply.error["param"], reply.error["code"]) == ("X-Fleet-Deadline-S", "invalid_value")
        assert not nodes[0].seen


async def test_a_deadline_goes_to_the_node_less_the_time_that_has_passed(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", limits=QUICK) as (served, nodes, _):
        served.gateway.loads.suspect("b", 60)
        nodes[0].awake.clear()  # a part of the time is spent there
        started = time.monotonic()
        reply = await served.chat(headers={"X-Fleet-Deadline-S": "30"})
        spent_s = time.monotonic() - started
        assert reply.is_done
        told = [float(node.seen[0]["headers"]["X-Fleet-Deadline-S"]) for node in nodes]
        assert 30 - spent_s <= told[1] <= told[0] - 0.2
        assert told[0] <= 30
        reply = await served.chat("again", deadline_s=5)
        assert float(nodes[1].seen[-1]["headers"]["X-Fleet-Deadline-S"]) <= 5, "also one that the body states"
        nodes[0].awake.set()


async def test_a_deadline_that_no_node_keeps_is_kept_by_the_gateway(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        reply = await served.chat(headers={"X-Fleet-Deadline-S": "0.2", "X-Request-Id": "late"}, stream=False)
        assert reply.status == 504
        error = json.loads(reply.body)["error"]
        assert (error["code"], error["message"]) == ("deadline_exceeded", "the deadline passed")
        fate = await served.fate("late")
        assert (fate["fate"], fate["reason"]) == ("failed", "deadline_exceeded")
        nodes[0].gate.set()


async def test_an_answer_that_does_not_begin_within_the_limit_is_a_504_that_names_the_node(tmp_path: Path) -> None:
    limits = QUICK.model_copy(update={"first_byte_limit_s": 0.2})
    async with small_fleet(tmp_path, "a", limits=limits) as (served, nodes, _):
        nodes[0].gate.clear()
        reply = await served.chat(headers={"X-Request-Id": "slow"}, stream=False)
        assert reply.status == 504
        error = json.loads(reply.body)["error"]
        assert (error["code"], error["message"]) == ("first_byte_limit", "node a did not begin its answer in time")
        nodes[0].gate.set()


# What the controller sees.


async def test_a_node_that_the_controller_does_not_see_well_gets_nothing_while_another_is(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        controller.set(*nodes)
        controller.routes[0]["phase"] = "unreachable"
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        assert all(reply.is_done for reply in [await served.chat(f"p{i}") for i in range(8)])
        assert (len(nodes[0].seen), len(nodes[1].seen)) == (0, 8)
        assert served.gateway.pages.status()["nodes"]["a"]["phase"] == "unreachable"  # type: ignore[index]
        controller.set(*nodes)
        for route in controller.routes:
            route["phase"] = "unreachable"
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        assert all(reply.is_done for reply in [await served.chat(f"p{i}") for i in range(8)]), (
            "the controller is cut off"
        )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"ready": False, "reason": "core_stuck"}, "core_stuck"),
        ({"ready": False, "detail": "core_stuck"}, ""),
        ({"ready": False, "reason": 5}, ""),
        ({"ready": True, "reason": "core_stuck"}, "ready"),
    ],
)
async def test_a_probe_reads_the_nodes_reason_and_nothing_else(body: dict[str, object], reason: str) -> None:
    async with scripted_nodes("a") as (node,), aclosing(NodeClient(connect_limit_s=2.0)) as client:
        node.readiness = body
        endpoint = Endpoint("a", node.url, RouteState.ACTIVE, "default", "demo")
        assert await ask_readiness(client, endpoint, 5) == ProbeAnswer(reason)
        await node.stop()
        assert await ask_readiness(client, endpoint, 5) is None
