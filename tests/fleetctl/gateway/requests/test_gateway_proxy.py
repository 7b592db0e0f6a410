"""The proxy, over real sockets: scripted nodes behind a real gateway on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fleetctl.gateway.compiled import is_in_use
from fleetctl.gateway.http import event_stream
from fleetctl.gateway.requests import proxy as proxy_module
from fleetctl.gateway.requests import relay as relay_module
from fleetctl.gateway.requests.fates import Outcome
from fleetctl.gateway.requests.place import Placer
from fleetctl.gateway.requests.proxy import Proxy
from fleetctl.settings.admission import AdmissionSettings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.gateway_http import GatewayHttpSettings
from tests.fixtures.gateway import (
    NODE_TOKEN,
    Script,
    ScriptedNode,
    chat_text,
    expected_text,
    served_gateway,
    small_fleet,
    until,
)

pytestmark = pytest.mark.anyio

DRAINING = (503, {"X-Fleet-Refused": "draining"})
OVERLOADED = (429, {"X-Fleet-Refused": "overloaded", "Retry-After": "7"})


def set_all(nodes: list[ScriptedNode], **changes: Any) -> None:
    for node in nodes:
        node.script = Script(**changes)


async def test_a_stream_passes_unchanged(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        reply = await served.chat(max_tokens=20)
        assert reply.status == 200
        assert reply.text == chat_text(max_tokens=20)
        assert reply.is_done
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["moved"], fate["nodes"], fate["status"]) == ("finished", 0, ["a"], 200)
        assert fate["ttft_s"] <= fate["duration_s"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
async def test_frames_split_over_reads_pass_unchanged(tmp_path: Path, newline: bytes) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        set_all(nodes, piece_bytes=5, newline=newline)
        reply = await served.chat()
        assert (reply.text, reply.is_done) == (chat_text(), True)


async def test_an_answer_that_is_not_a_stream_passes_unchanged(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        reply = await served.chat(stream=False)
        body = json.loads(reply.body)
        assert body["choices"][0]["message"]["content"] == chat_text()
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "finished"


async def test_the_node_gets_the_request_id_and_the_offer_to_move_but_no_words_of_ours(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        headers = {
            "X-Request-Id": "mine-1",
            "X-Fleet-Handoff": "lie",
            "X-Fleet-Extra": "x",
            "Authorization": "Bearer u",
        }
        reply = await served.chat(headers=headers)
        assert reply.headers["X-Request-Id"] == "mine-1"
        seen = nodes[0].seen[0]["headers"]
        assert seen["X-Request-Id"] == "mine-1"
        assert seen["X-Fleet-Handoff"] == "accept"
        assert seen["Authorization"] == "Bearer u"
        assert "X-Fleet-Extra" not in seen
        assert "Accept-Encoding" not in seen


@pytest.mark.parametrize("bad", ["has space", "", "x" * 200, "semi;colon", "-first"])
async def test_an_unusable_request_id_is_replaced(tmp_path: Path, bad: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        reply = await served.chat(headers={"X-Request-Id": bad})
        assert reply.headers["X-Request-Id"] != bad
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "finished"


async def test_a_second_request_of_an_id_in_flight_is_409_and_may_come_once_the_first_has_ended(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].gate.clear()
        first = asyncio.create_task(served.chat(headers={"X-Request-Id": "twice"}))
        await until(lambda: "twice" in nodes[0].open)
        second = await served.chat(headers={"X-Request-Id": "twice"})
        assert (second.status, json.loads(second.body)["error"]["code"]) == (409, "request_in_flight")
        assert second.headers["Retry-After"] == "1"
        nodes[0].gate.set()
        assert (await first).headers["X-Request-Id"] == "twice"
        assert (await served.fate("twice"))["fate"] == "finished", "the first one's fate is its own"
        assert (await served.chat(headers={"X-Request-Id": "twice"})).is_done


async def test_an_id_that_another_gateway_has_at_a_node_is_409_and_is_asked_of_no_other_node(tmp_path: Path) -> None:
    async with (
        small_fleet(tmp_path / "one", "a", "b") as (one, nodes, controller),
        served_gateway(tmp_path / "two", controller.url) as two,
    ):
        await until(lambda: two.gateway.routing.table is not None)
        for node in nodes:
            node.gate.clear()
        headers = {"X-Request-Id": "twice"}
        first = asyncio.create_task(one.chat(headers=headers))
        await until(lambda: any("twice" in node.open for node in nodes))
        second = await two.chat(headers=headers)
        assert (second.status, json.loads(second.body)["error"]["code"]) == (409, "request_in_flight")
        assert second.headers["Retry-After"] == "1"
        assert sorted(len(node.seen) for node in nodes) == [0, 2], "the first one's node was asked, and no other one"
        fate = await two.fate("twice")
        assert (fate["fate"], fate["reason"], fate["retries"]) == ("refused", "request_in_flight", 0)
        for node in nodes:
            node.gate.set()
        assert (await first).text == chat_text()
        assert (await two.chat(headers=headers)).text == chat_text()


# Before the first byte: other nodes are tried.


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (DRAINING, "draining"),
        ((503, {"X-Fleet-Refused": "not_ready"}), "not_ready"),
        ((503, {}), "status_503"),
        ((502, {}), "status_502"),
        (OVERLOADED, "overloaded"),
        ((503, {"X-Fleet-Refused": "any words a node says"}), "status_503"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_refusal_goes_to_another_node(tmp_path: Path, refusal: tuple[int, dict[str, str]], reason: str) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.refuse = refusal
        replies = [await served.chat(f"p{i}") for i in range(6)]
        assert all(reply.is_done for reply in replies)
        fates = [await served.fate(reply.headers["X-Request-Id"]) for reply in replies]
        assert {tuple(fate["nodes"]) for fate in fates} == {("b",)}
        assert served.gateway.metrics.registry.get_sample_value("gateway_retries_total", {"reason": reason}) >= 1


async def test_a_dead_node_costs_nobody_a_request_and_comes_back(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        dead = nodes[0]
        await dead.stop()
        replies = [await served.chat(f"p{i}") for i in range(8)]
        assert all(reply.is_done for reply in replies)
        retried = sum([(await served.fate(r.headers["X-Request-Id"]))["retries"] for r in replies])
        assert retried == 1, "after its first failure the node is tried last"
        await dead.start()
        served.gateway.loads.trust("a")  # the time of suspicion is over
        await asyncio.gather(*(served.chat(f"q{i}") for i in range(8)))
        assert dead.seen


async def test_a_dead_node_is_still_tried_when_it_is_the_last(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        await nodes[0].stop()
        assert (await served.chat()).status == 503
        await nodes[0].start()
        assert (await served.chat()).is_done


async def test_a_node_that_drops_the_connection_before_its_answer_is_replaced(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.drop_before_answer = True
        replies = [await served.chat(f"p{i}") for i in range(6)]
        assert all(reply.text == chat_text(f"p{i}") for i, reply in enumerate(replies))


async def test_a_request_that_kills_nodes_does_not_reach_all_of_them(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d", "e", "f") as (served, nodes, _):
        set_all(nodes, drop_before_answer=True)
        reply = await served.chat()
        assert (reply.status, reply.headers["X-Should-Retry"]) == (500, "false")
        assert reply.error is not None
        assert (reply.error["type"], reply.error["code"]) == ("server_error", "poison")
        assert sum(len(node.seen) for node in nodes) == 2
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["reason"]) == ("failed", "poison"), "it is lost, and not called refused"
        assert [death["reason"] for death in fate["deaths"]] == ["disconnected"] * 2


async def test_a_stream_cut_before_its_first_event_goes_to_another_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.cut_at = 0
        replies = [await served.chat(f"p{i}") for i in range(6)]
        assert all(reply.text == chat_text(f"p{i}") and reply.is_done for i, reply in enumerate(replies))
        assert served.gateway.metrics.registry.get_sample_value("gateway_retries_total", {"reason": "cut"}) >= 1


async def test_a_whole_answer_cut_in_the_middle_goes_to_another_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.cut_at = 0
        replies = [await served.chat(f"p{i}", stream=False) for i in range(6)]
        assert [r.status for r in replies] == [200] * 6


async def test_no_active_node_is_503_with_retry_after(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, controller):
        controller.set(cordoned=(nodes[0],))
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        reply = await served.chat()
        assert reply.status == 503
        assert int(reply.headers["Retry-After"]) >= 1
        assert reply.error is not None
        assert reply.error["code"] == "no_node_available"
        assert reply.error["message"] == "no node takes requests (no active node)"
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "refused"
        assert not nodes[0].seen


async def test_all_overloaded_is_429_with_the_nodes_retry_after(tmp_path: Path) -> None:
    nobody_waits = GatewaySettings(admission=AdmissionSettings(queue_limit_s=0))
    async with small_fleet(tmp_path, "a", "b", limits=nobody_waits) as (served, nodes, _):
        set_all(nodes, refuse=OVERLOADED)
        reply = await served.chat()
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
        assert reply.error is not None
        assert reply.error["type"] == "rate_limit_error"
        assert reply.error["message"] == "every node is overloaded (a: overloaded, b: overloaded)"
        assert all(len(node.seen) == 1 for node in nodes)


async def test_all_draining_is_503(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        set_all(nodes, refuse=DRAINING)
        reply = await served.chat()
        assert reply.status == 503
        assert reply.error is not None
        assert "a: draining, b: draining" in reply.error["message"]


async def test_a_nodes_own_error_is_passed_on_and_not_retried(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        reply = await served.chat(max_tokens=0)
        assert reply.status == 400
        assert reply.error == {"message": "max_tokens must be positive"}
        assert sum(len(node.seen) for node in nodes) == 1
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "refused"


# Hand-off.


@pytest.mark.parametrize("piece_bytes", [None, 3], ids=["whole", "split"])
async def test_a_stream_that_is_handed_off_reads_as_if_nothing_happened(
    tmp_path: Path, piece_bytes: int | None
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script = Script(hand_off_at=3, piece_bytes=piece_bytes)
        nodes[1].script = Script(piece_bytes=piece_bytes)
        replies = [await served.chat(f"p{i}") for i in range(8)]
        fates = [await served.fate(reply.headers["X-Request-Id"]) for reply in replies]
        moved = [fate for fate in fates if fate["moved"]]
        assert moved, "some prompts are at home on the draining node"
        assert all(fate["nodes"] == ["a", "b"] and fate["fate"] == "finished" for fate in moved)
        for number, reply in enumerate(replies):
            assert reply.text == chat_text(f"p{number}")
            assert reply.is_done
            assert b"handoff" not in reply.body
            assert len({event["id"] for event in reply.events}) == 1
        continued = [seen for seen in nodes[1].seen if seen["path"] == "/internal/continue"]
        assert len(continued) == len(moved)
        assert all(seen["headers"]["Authorization"] == f"Bearer {NODE_TOKEN}" for seen in continued)
        assert not nodes[0].hung_up, "the source's stream is read to its end"


async def test_several_handoffs_in_a_row_are_one_stream(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        for position, node in enumerate(nodes):
            node.script.hand_off_at = 2 * position + 2  # each hands on at its own place, whoever comes first
        nodes[2].script.hand_off_at = None
        for number in range(6):
            reply = await served.chat(f"p{number}", max_tokens=12)
            assert (reply.text, reply.is_done) == (chat_text(f"p{number}", max_tokens=12), True)
        counts = served.gateway.metrics.registry
        assert counts.get_sample_value("gateway_handoffs_total", {"result": "moved"}) >= 2
        assert counts.get_sample_value("gateway_handoffs_total", {"result": "failed"}) == 0


async def test_a_node_that_handed_off_sees_an_orderly_end_and_no_hang_up(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script = Script(hand_off_at=3, linger_s=0.02)
        replies = [await served.chat(f"p{i}") for i in range(6)]
        assert all(reply.is_done for reply in replies)
        assert any(seen["path"] == "/internal/continue" for seen in nodes[1].seen)
        assert not nodes[0].hung_up


@pytest.mark.parametrize("stream", [True, False])
async def test_nodes_that_hand_a_request_round_in_a_circle_come_to_an_end(tmp_path: Path, stream: bool) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        set_all(nodes, hand_off_at=0)
        reply = await served.chat(stream=stream)
        assert reply.status == 503
        assert sum(len(node.seen) for node in nodes) == 2


async def test_an_answer_that_is_not_a_stream_is_handed_off_too(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.hand_off_at = 3
        for number in range(6):
            reply = await served.chat(f"p{number}", stream=False)
            assert reply.status == 200
            assert json.loads(reply.body)["choices"][0]["message"]["content"] == chat_text(f"p{number}")
            assert "X-Fleet-Handoff" not in reply.headers


async def test_a_completion_is_handed_off_like_a_chat(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.hand_off_at = 1
        body = {"prompt": "once", "max_tokens": 5, "seed": 3, "stream": True}
        async with served.session.post(served.url + "/v1/completions", json=body) as response:
            lines = (await response.text()).split("\n\n")
        chunks = [json.loads(line[6:])["choices"] for line in lines if line.startswith("data: {")]
        assert "".join(c[0]["text"] for c in chunks if c) == expected_text("once", 3, 5)


@pytest.mark.parametrize(
    "script",
    [Script(refuse=DRAINING), Script(refuse=OVERLOADED), Script(fail_continue=500), Script(fail_continue=400)],
    ids=["draining", "overloaded", "500", "400"],
)
async def test_a_handoff_asks_every_node_until_one_continues(tmp_path: Path, script: Script) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script.hand_off_at = 2
        nodes[1].script = script
        for number in range(8):
            reply = await served.chat(f"p{number}")
            if reply.status != 200:
                continue  # the scripted node answered the first call itself
            assert (reply.text, reply.is_done) == (chat_text(f"p{number}"), True)


async def test_a_continuing_node_that_dies_before_its_first_event_is_replaced(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", move_patience_s=5) as (served, nodes, controller):
        controller.set(nodes[0])
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        nodes[0].script.hand_off_at = 3
        nodes[1].script.cut_at = 3
        nodes[0].gate.clear()
        task = asyncio.create_task(served.chat())
        await until(lambda: bool(nodes[0].open))
        controller.set(*nodes)
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 3)
        served.gateway.loads.suspect("c", 60)  # so that b is asked first
        nodes[0].gate.set()
        reply = await task
        assert (reply.text, reply.is_done) == (chat_text(), True)
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert fate["nodes"] == ["a", "b", "c"]
        assert fate["moved"] == 1


async def test_a_handoff_waits_a_while_for_a_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", move_patience_s=20) as (served, nodes, _):
        nodes[0].script.hand_off_at = 2
        nodes[1].script.refuse = DRAINING
        task = asyncio.create_task(served.chat())
        await until(lambda: len([s for s in nodes[1].seen if s["path"] == "/internal/continue"]) >= 2)
        nodes[1].script.refuse = None
        reply = await task
        assert (reply.text, reply.is_done) == (chat_text(), True)


async def test_a_handoff_that_nobody_takes_ends_with_an_error_event(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.hand_off_at = 3
        nodes[0].script.fail_continue = 503
        reply = await served.chat()
        assert reply.status == 200
        assert reply.text == chat_text(max_tokens=3)
        assert not reply.is_done
        assert reply.error is not None
        assert reply.error["code"] == "not_continued"
        assert reply.error["message"] == "no node could continue the request (no active node)"
        assert reply.frames[-1].startswith('data: {"error"')
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["reason"], fate["moved"]) == ("failed", "not_continued", 0)
        assert served.gateway.metrics.registry.get_sample_value("gateway_handoffs_total", {"result": "failed"}) == 1


async def test_a_whole_answer_that_nobody_continues_is_an_error_answer(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.hand_off_at = 3
        nodes[0].script.fail_continue = 503
        reply = await served.chat(stream=False)
        assert reply.status == 503
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "failed"


# After the first byte: no retry, and never a silent cut.


@pytest.mark.parametrize("script", [Script(cut_at=4), Script(end_at=4)], ids=["connection lost", "ended early"])
async def test_a_node_that_dies_mid_stream_is_told_to_the_client(tmp_path: Path, script: Script) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        for node in nodes:
            node.script = script
        reply = await served.chat()
        assert reply.status == 200
        assert chat_text().startswith(reply.text)
        assert reply.text
        assert reply.error is not None
        assert reply.error["code"] == "node_lost"
        assert not reply.is_done
        assert sum(len(node.seen) for node in nodes) == 1, "a stream that began is not started again"
        assert (await served.fate(reply.headers["X-Request-Id"]))["fate"] == "failed"


async def test_a_nodes_error_event_counts_as_failed(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.error_at = 2
        reply = await served.chat()
        assert reply.error is not None
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["reason"]) == ("failed", "node_error")


async def test_an_endless_event_ends_the_stream_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 20)
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.piece_bytes = 15
        reply = await served.chat()
        assert reply.status == 503 or reply.error is not None


# Clients.


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_stops_the_node_at_once(tmp_path: Path, stream: bool) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        node = nodes[0]
        node.wait_at = 2
        node.gate.clear()
        task = asyncio.create_task(served.chat(headers={"X-Request-Id": "gone"}, stream=stream))
        await until(lambda: "gone" in node.open, "the node has it")
        task.cancel()
        await until(lambda: node.hung_up == ["gone"], "the node saw the hang-up")
        await until(lambda: served.gateway.fates.in_flight == 0)
        assert (await served.fate("gone"))["fate"] == "client_gone"
        assert served.gateway.loads.inflight_requests() == {}


async def test_who_hung_up_and_asks_for_the_same_again_is_counted(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        node = nodes[0]
        node.wait_at = 2
        node.gate.clear()
        task = asyncio.create_task(served.chat("p", headers={"X-Request-Id": "gone"}))
        await until(lambda: "gone" in node.open, "the node has it")
        task.cancel()
        await until(lambda: served.gateway.fates.in_flight == 0)
        node.gate.set()

        def again() -> float | None:
            return served.gateway.metrics.registry.get_sample_value("gateway_asked_again_total")

        assert (await served.chat("another")).is_done
        assert again() == 0
        assert (await served.chat("p")).is_done
        assert again() == 1
        assert (await served.chat("p")).is_done
        assert again() == 1, "it has had its answer"


async def test_a_client_that_hangs_up_while_its_stream_moves_is_gone(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", move_patience_s=60) as (served, nodes, _):
        nodes[0].script = Script(hand_off_at=1, fail_continue=503)
        nodes[1].script.refuse = DRAINING
        task = asyncio.create_task(served.chat(headers={"X-Request-Id": "gone"}))
        await until(lambda: any(s["path"] == "/internal/continue" for s in nodes[1].seen))
        task.cancel()
        await until(lambda: served.gateway.fates.in_flight == 0)
        assert served.gateway.fates.counts == {Outcome.CLIENT_GONE: 1}


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        assert served.gateway.proxy is not None
        served.gateway.proxy._max_body_bytes = 1000
        reply = await served.chat("x" * 2000)
        assert reply.status == 413
        assert reply.error is not None
        assert (reply.error["code"], reply.error["message"]) == ("too_large", "the body is larger than 1000 bytes")

        async def pieces() -> Any:
            for _ in range(20):
                yield b"x" * 100

        async with served.session.post(served.url + "/v1/completions", data=pieces()) as response:
            assert response.status == 413, "also when its size was not announced"
        assert not nodes[0].seen


async def test_a_body_that_never_comes_is_refused(tmp_path: Path) -> None:
    limits = GatewaySettings(http=GatewayHttpSettings(body_limit_s=0.05))
    async with small_fleet(tmp_path, "a", limits=limits) as (served, _, _):
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n123")
        assert b" 408 " in await reader.readline()
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = [int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length:")]
        error = json.loads(await reader.readexactly(length))["error"]
        assert (error["code"], error["message"]) == ("timeout", "the body did not come")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("body", [b"{", b"[]", b""])
async def test_a_body_that_is_no_object_is_400_in_openais_shape(tmp_path: Path, body: bytes) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        async with served.session.post(served.url + "/v1/chat/completions", data=body) as response:
            assert response.status == 400
            error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
            assert "JSON" in error["message"]
            request_id = response.headers["X-Request-Id"]
        fate = await served.fate(request_id)
        assert (fate["fate"], fate["reason"], fate["status"]) == ("refused", "invalid_request", 400)
        assert not nodes[0].seen


async def test_models_come_from_any_node(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.refuse = DRAINING
        for _ in range(3):
            async with served.session.get(served.url + "/v1/models?x=1") as response:
                assert (await response.json())["data"][0]["id"] == "demo"


async def test_many_requests_over_failing_nodes_each_have_one_fate(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        nodes[0].script = Script(hand_off_at=4, piece_bytes=11)
        nodes[1].script = Script(cut_at=5)
        replies = await asyncio.gather(*(served.chat(f"p{i}", stream=i % 4 != 0) for i in range(60)))
        for number, reply in enumerate(replies):
            fate = (await served.fate(reply.headers["X-Request-Id"]))["fate"]
            whole = chat_text(f"p{number}")
            if number % 4 == 0:
                assert fate == ("finished" if reply.status == 200 else "failed")
            elif fate == "finished":
                assert (reply.text, reply.is_done) == (whole, True)
            else:
                assert fate == "failed"
                assert whole.startswith(reply.text)
                assert reply.error is not None
        assert sum(served.gateway.fates.counts.values()) == 60
        served.gateway.fates.check_integrity()


async def test_the_callers_trace_goes_to_the_node_and_to_the_one_that_continues(tmp_path: Path) -> None:
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        for position, node in enumerate(nodes):
            node.script.hand_off_at = 2 * position + 2
        nodes[2].script.hand_off_at = None
        for number in range(6):
            assert (await served.chat(f"p{number}", max_tokens=12, headers=trace)).is_done
        seen = [request for node in nodes for request in node.seen]
        assert sum(request["path"] == "/internal/continue" for request in seen) >= 2
        assert all(request["headers"].get(name) == value for request in seen for name, value in trace.items())


# Boundaries.


async def test_what_a_node_says_to_us_is_not_passed_on_and_all_else_is(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        said = {"X-Fleet-Secret": "1", "X-Other": "2", "X-Request-Id": "theirs", "Server": "node"}
        nodes[0].script.refuse = (404, said)
        async with served.session.get(served.url + "/v1/models", headers={"X-Request-Id": "mine"}) as response:
            assert response.status == 404
            assert response.headers.getall("X-Request-Id") == ["mine"]
            assert response.headers["X-Other"] == "2"
            assert "X-Fleet-Secret" not in response.headers
            assert "node" not in response.headers.getall("Server", [])
            assert response.headers["Content-Length"] == str(len(await response.read()))


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        (399, "finished", ""),
        (400, "refused", "status_400"),
        (499, "refused", "status_499"),
        (500, "failed", "status_500"),
    ],
)
async def test_a_nodes_status_decides_the_outcome(tmp_path: Path, status: int, outcome: str, reason: str) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        nodes[0].script.refuse = (status, {})
        async with served.session.get(served.url + "/v1/models", headers={"X-Request-Id": "r"}) as response:
            assert response.status == status
        fate = await served.fate("r")
        assert (fate["fate"], fate["reason"], fate["status"]) == (outcome, reason, status)
        assert (fate["retries"], fate["moved"], fate["ttft_s"]) == (0, 0, None)


async def test_a_body_of_exactly_the_limit_is_taken(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        assert served.gateway.proxy is not None
        body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
        served.gateway.proxy._max_body_bytes = len(body)
        for data, status in ((body, 200), (body + b" ", 413)):
            headers = {"Content-Type": "application/json"}
            async with served.session.post(served.url + "/v1/completions", data=data, headers=headers) as response:
                assert response.status == status


async def test_only_so_many_requests_are_held_at_once(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        assert served.gateway.proxy is not None
        served.gateway.proxy._max_in_flight = 1
        nodes[0].gate.clear()
        first = asyncio.create_task(served.chat())
        await until(lambda: bool(nodes[0].open))
        reply = await served.chat()
        assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        assert reply.error is not None
        assert (reply.error["code"], reply.error["message"]) == ("overloaded", "the gateway holds too many requests")
        nodes[0].gate.set()
        assert (await first).is_done, "one is within the limit"
        assert len(nodes[0].seen) == 1


async def test_a_read_of_another_path_is_not_offered_a_move_and_goes_without_a_body(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        async with served.session.get(served.url + "/v1/models") as response:
            assert response.status == 200
        (seen,) = nodes[0].seen
        assert "X-Fleet-Handoff" not in seen["headers"]
        assert "Content-Length" not in seen["headers"]


async def test_what_continues_a_request_is_told_its_id_and_the_clients_trace_and_nothing_else_of_it(
    tmp_path: Path,
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        controller.set(nodes[0])
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        nodes[0].script.hand_off_at = 2
        nodes[0].gate.clear()
        headers = {"X-Request-Id": "moving", "Authorization": "Bearer user", "Traceparent": "00-1-2-01", "X-More": "1"}
        task = asyncio.create_task(served.chat(headers=headers))
        await until(lambda: bool(nodes[0].open))
        controller.set(*nodes)
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 3)
        nodes[0].gate.set()
        reply = await task
        assert (reply.text, reply.headers["X-Request-Id"]) == (chat_text(), "moving")
        (seen,) = nodes[1].seen
        told = seen["headers"]
        assert (told["X-Request-Id"], told["Authorization"]) == ("moving", f"Bearer {NODE_TOKEN}")
        assert (told["X-Fleet-Handoff"], told["Content-Type"]) == ("accept", "application/json")
        assert told["Traceparent"] == "00-1-2-01"
        assert "X-More" not in told
        assert (await served.fate("moving"))["moved"] == 1


async def test_a_stream_cut_before_its_first_event_goes_to_one_other_node_at_most(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c", "d", "e") as (served, nodes, _):
        set_all(nodes, cut_at=0)
        reply = await served.chat(headers={"X-Request-Id": "cut"})
        assert reply.status == 500
        assert reply.error is not None
        assert reply.error["code"] == "poison"
        assert reply.error["message"].startswith("2 nodes ended with this request in hand (")
        assert sum(len(node.seen) for node in nodes) == 2
        fate = await served.fate("cut")
        assert (fate["fate"], fate["reason"], fate["retries"], fate["status"]) == ("failed", "poison", 1, 500)
        assert len(set(fate["nodes"])) == 2, "each at another node"
        assert served.gateway.metrics.registry.get_sample_value("gateway_retries_total", {"reason": "cut"}) == 1


@pytest.mark.parametrize(("at", "status"), [(1, 200), (0, 502)], ids=["mid-stream", "before the first byte"])
async def test_a_request_that_moves_too_often_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, status: int
) -> None:
    monkeypatch.setattr(proxy_module, "MAX_MOVES", 1)
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        for node in nodes:
            node.script.hand_off_at = at
        reply = await served.chat(headers={"X-Request-Id": "restless"})
        assert reply.status == status
        assert reply.error is not None
        assert (reply.error["code"], reply.error["message"]) == ("upstream_failed", "moved too often")
        fate = await served.fate("restless")
        assert (fate["fate"], fate["reason"], fate["moved"]) == ("failed", "moved_too_often", 1)
        assert fate["status"] == status
        assert sum(len(node.seen) for node in nodes) == 2


@pytest.mark.skipif(is_in_use(), reason="compiled code calls its own methods directly: none can be replaced")
async def test_an_error_of_our_own_is_told_to_the_client_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*_: Any) -> None:
        raise ZeroDivisionError

    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        with monkeypatch.context() as patched:
            patched.setattr(Placer, "place", crash)
            reply = await served.chat(headers={"X-Request-Id": "crashed"})
        assert reply.status == 500
        told = {"message": "gateway error", "type": "server_error", "param": None, "code": "internal"}
        assert reply.error == told
        assert reply.headers["X-Request-Id"] == "crashed"
        fate = await served.fate("crashed")
        assert (fate["fate"], fate["reason"], fate["status"]) == ("failed", "internal", 500)

        nodes[0].script.hand_off_at = 2
        with monkeypatch.context() as patched:
            patched.setattr(Proxy, "_move", crash)
            reply = await served.chat(headers={"X-Request-Id": "begun"})
        assert (reply.status, reply.text, reply.error) == (200, chat_text(max_tokens=2), told)
        assert (await served.fate("begun"))["reason"] == "internal"
        assert served.gateway.fates.counts == {Outcome.FAILED: 2}
        nodes[0].script.hand_off_at = None
        assert (await served.chat()).is_done, "the next request is served"


async def test_a_request_whose_task_is_cancelled_from_outside_has_failed(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        others = asyncio.all_tasks()
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: cancelled\r\nContent-Length: 9\r\n\r\n1"
        writer.write(head)
        await until(lambda: served.gateway.fates.is_in_flight("cancelled"))
        (task,) = [task for task in asyncio.all_tasks() - others if "ClientConnection" in repr(task)]
        task.cancel()
        await until(lambda: not served.gateway.fates.in_flight)
        fate = await served.fate("cancelled")
        assert (fate["fate"], fate["reason"], fate["status"]) == ("failed", "interrupted", None)
        assert b" 500 " in await reader.readline(), "its client is told all the same"
        writer.close()
        assert served.gateway.proxy is not None
        assert served.gateway.proxy.abort_all() == 0


async def test_a_client_that_leaves_within_its_body_has_no_answer_and_a_fate(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        host, port = served.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: left\r\nContent-Length: 9\r\n\r\n1")
        await until(lambda: served.gateway.fates.is_in_flight("left"))
        writer.close()
        await until(lambda: not served.gateway.fates.in_flight)
        assert (await served.fate("left"))["fate"] == "client_gone"
        assert not nodes[0].seen


async def test_an_answer_beyond_the_limit_is_cut_and_one_of_its_size_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with small_fleet(tmp_path, "a") as (served, _, _):
        size = len((await served.chat(stream=False, headers={"X-Request-Id": "r"})).body)
        for limit, status in ((size, 200), (size - 1, 503)):
            monkeypatch.setattr(relay_module, "MAX_ANSWER_BYTES", limit)
            assert (await served.chat(stream=False, headers={"X-Request-Id": "r"})).status == status
        fate = await served.fate("r")
        assert (fate["reason"], fate["retries"]) == ("not_continued", 1), "the cut answer is asked for once more"


async def test_a_post_to_another_path_and_a_read_of_a_generating_one_are_not_offered_a_move(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        async with served.session.post(served.url + "/v1/tokenize", data=b"no object") as response:
            assert response.status == 200, "its body is the node's to judge"
        (seen,) = nodes[0].seen
        assert "X-Fleet-Handoff" not in seen["headers"]
        async with served.session.get(served.url + "/v1/completions") as response:
            assert response.status == 405


async def test_a_node_is_told_where_the_client_connects_from_after_what_it_says_itself(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, _):
        await served.chat()
        await served.chat(headers={"X-Forwarded-For": "203.0.113.9"})
        told = [seen["headers"].getall("X-Forwarded-For") for seen in nodes[0].seen]
        assert told == [["127.0.0.1"], ["203.0.113.9, 127.0.0.1"]]


async def test_a_nodes_cookie_goes_to_its_client_and_to_no_other_request(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a") as (served, nodes, controller):
        controller.set(nodes[0])
        controller.routes[0]["url"] = nodes[0].url.replace("127.0.0.1", "localhost")  # addresses have no cookies
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        nodes[0].script.refuse = (404, {"Set-Cookie": "one=client"})
        async with served.session.get(served.url + "/v1/models") as response:
            assert response.headers["Set-Cookie"] == "one=client"
        served.session.cookie_jar.clear()
        async with served.session.get(served.url + "/v1/models"):
            assert "Cookie" not in nodes[0].seen[-1]["headers"]


async def test_a_continuation_that_a_node_does_not_understand_goes_to_the_next_and_is_no_death(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, controller):
        controller.set(nodes[0])
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        nodes[0].script.hand_off_at = 2
        nodes[1].script.fail_continue = 400
        nodes[0].gate.clear()
        task = asyncio.create_task(served.chat(headers={"X-Request-Id": "moving"}))
        await until(lambda: bool(nodes[0].open))
        controller.set(*nodes)
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        served.gateway.loads.suspect("c", 60)  # so that b is asked first
        nodes[0].gate.set()
        reply = await task
        assert (reply.text, reply.is_done) == (chat_text(), True)
        fate = await served.fate("moving")
        assert (fate["nodes"], fate["deaths"], fate["retries"]) == (["a", "c"], [], 1)
        counts = served.gateway.metrics.registry
        assert counts.get_sample_value("gateway_retries_total", {"reason": "not_continued"}) == 1


async def test_a_node_that_does_not_end_a_stream_it_handed_off_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "SETTLE_S", 0.05)
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        served.gateway.loads.suspect("b", 60)
        nodes[0].script = Script(hand_off_at=3, linger_s=600)
        async with asyncio.timeout(60):
            reply = await served.chat()
        assert (reply.text, reply.is_done) == (chat_text(), True)


async def test_a_node_that_takes_no_connection_costs_the_connect_limit(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        queued = [socket.socket() for _ in range(3)]
        for one in queued:
            one.setblocking(False)
            one.connect_ex(address)  # the queue is full: the kernel drops what comes after it
        limits = GatewaySettings(connect_limit_s=1.0, probe_after_s=300)
        async with small_fleet(tmp_path, "a", "b", limits=limits) as (served, nodes, controller):
            controller.set(*nodes)
            controller.routes[0]["url"] = f"http://127.0.0.1:{address[1]}"
            await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
            served.gateway.loads.suspect("b", 60)
            async with asyncio.timeout(60):
                reply = await served.chat(headers={"X-Request-Id": "r"})
            assert (reply.text, reply.is_done) == (chat_text(), True)
            counts = served.gateway.metrics.registry
            assert counts.get_sample_value("gateway_retries_total", {"reason": "connect"}) == 1
            assert (await served.fate("r"))["deaths"] == [], "it never had the request"
        for one in queued:
            one.close()
