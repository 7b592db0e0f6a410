"""Streams whose node ends without a word: the gateway goes on elsewhere with what it kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.settings.gateway import GatewaySettings
from tests.fixtures.gateway import NODE_TOKEN, Reply, Script, ScriptedNode, Served, chat_text, small_fleet, until

pytestmark = pytest.mark.anyio

NUM_CHATS = 6  # so many that each of two nodes has some


async def chat_all(served: Served, **more: Any) -> list[tuple[Reply, dict[str, Any]]]:
    """Each answer with its fate."""
    replies = [await served.chat(f"p{i}", max_tokens=8, **more) for i in range(NUM_CHATS)]
    return [(reply, await served.fate(reply.headers["X-Request-Id"])) for reply in replies]


def assert_undisturbed(told: list[tuple[Reply, dict[str, Any]]]) -> None:
    for number, (reply, fate) in enumerate(told):
        assert (reply.text, reply.is_done) == (chat_text(f"p{number}", max_tokens=8), True), fate
        assert b":p " not in reply.body
        assert not any(name.lower().startswith("x-fleet") for name in reply.headers)
        assert [event["usage"]["completion_tokens"] for event in reply.events if "usage" in event] == [8]
        assert fate["fate"] == "finished"


def continued(node: ScriptedNode) -> list[dict[str, Any]]:
    return [seen for seen in node.seen if seen["path"] == "/internal/continue"]


def counted(served: Served, name: str, **labels: str) -> float:
    return served.gateway.metrics.registry.get_sample_value(name, labels) or 0.0


def tell_all(nodes: list[ScriptedNode], **changes: Any) -> None:
    for node in nodes:
        node.script = Script(tells_progress=True, **changes)


@pytest.mark.parametrize("piece_bytes", [None, 5], ids=["whole", "split"])
@pytest.mark.parametrize("cut_at", [1, 4, 8])
async def test_a_stream_goes_on_elsewhere_when_its_node_dies(
    tmp_path: Path, cut_at: int, piece_bytes: int | None
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        tell_all(nodes, piece_bytes=piece_bytes)
        nodes[0].script.cut_at = min(cut_at, 7)
        if cut_at == 8:
            nodes[0].script = Script(tells_progress=True, cut_before_done=True)
        told = await chat_all(served)
        assert_undisturbed(told)
        moved = [fate for _, fate in told if fate["moves"]]
        assert bool(moved) == (cut_at < 8), "with everything but [DONE] sent, nobody is asked for it"
        assert len(continued(nodes[1])) == len(moved)
        for fate in moved:
            (move,) = fate["moves"]
            assert move.pop("pause_s") >= 0
            assert move == {"from": "a", "to": "b", "reason": "cut", "how": "exact", "tokens": cut_at}
            assert (fate["nodes"], fate["moved"]) == (["a", "b"], 1)
        assert counted(served, "gateway_stream_moves_total", reason="cut", how="exact", result="moved") == len(moved)
        assert counted(served, "gateway_stream_pause_seconds_count") == len(moved)
        assert counted(served, "gateway_handoffs_total", result="moved") == 0


async def test_the_next_node_gets_the_clients_own_words_and_no_node_the_token_in_a_clients_request(
    tmp_path: Path,
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        tell_all(nodes)
        nodes[0].script.cut_at = 2
        headers = {"traceparent": "00-1-2-01", "X-Fleet-Progress": "mine", "Authorization": "Bearer key"}
        assert_undisturbed(await chat_all(served, odd={"né": [1, "\n"]}, headers=headers))
        for seen in [seen for node in nodes for seen in node.seen]:
            is_continued = seen["path"] == "/internal/continue"
            assert (seen["headers"]["Authorization"] == f"Bearer {NODE_TOKEN}") == is_continued
            assert NODE_TOKEN not in seen["headers"]["X-Fleet-Progress"] != "mine"
            assert seen["headers"]["traceparent"] == "00-1-2-01"
        (first, *_) = continued(nodes[1])
        assert first["body"]["request"]["odd"] == {"né": [1, "\n"]}
        assert first["body"]["elapsed_s"] >= 0
        assert first["body"]["path"] == "/v1/chat/completions"


async def test_a_node_of_another_engine_never_gets_a_continuation_and_its_token(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, controller):
        tell_all(nodes)
        controller.set(*nodes)
        for route, engine in zip(controller.routes, ("fleetctl", "vllm", ""), strict=True):
            route["engine"] = engine
        await until(lambda: served.gateway.routing.table.version == controller.version)  # type: ignore[union-attr]
        assert [e.engine for e in served.gateway.routing.table.endpoints] == ["fleetctl", "vllm", ""]  # type: ignore[union-attr]
        nodes[0].script.cut_at = 2
        told = await chat_all(served)
        assert_undisturbed(told)
        assert [request["path"] for request in nodes[1].seen if request["path"] == "/internal/continue"] == []
        assert len(continued(nodes[2])) >= 1, "one whose engine is not said may be ours"


async def test_a_stream_moves_on_after_it_was_handed_off(tmp_path: Path) -> None:
    """What it was handed off with is not enough then: the second node's events are covered as well."""
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        tell_all(nodes)
        nodes[0].script.hand_off_at = 2
        nodes[1].script.cut_at = 5
        told = await chat_all(served)
        assert_undisturbed(told)
        reasons = [[move["reason"] for move in fate["moves"]] for _, fate in told]
        assert any("handoff" in reason for reason in reasons)
        assert any("cut" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("code", "is_moved"),
    [
        ("core_dead", True),
        ("engine_error", True),
        ("node_stopping", True),
        ("out_of_memory", True),
        ("aborted", False),
        ("deadline_exceeded", False),
        ("grammar_failed", False),
        (None, False),
    ],
)
async def test_a_nodes_own_trouble_moves_a_stream_and_anything_else_is_told(
    tmp_path: Path, code: str | None, is_moved: bool
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        tell_all(nodes)
        nodes[0].script.error_at, nodes[0].script.error_code = 3, code
        told = await chat_all(served)
        of_a = [(reply, fate) for reply, fate in told if fate["nodes"][0] == "a"]
        assert of_a
        if is_moved:
            assert_undisturbed(told)
            assert {fate["moves"][0]["reason"] for _, fate in of_a} == {code}
            return
        assert not continued(nodes[1])
        for reply, fate in of_a:
            assert reply.error is not None
            assert (reply.error["message"], reply.frames[-1]) == ("broken", "data: [DONE]")
            assert fate["reason"] == (code or "node_error")


@pytest.mark.parametrize(
    ("script", "reason", "said"),
    [
        (Script(tells_progress=True, cut_at=3), "node_lost", "no other one could continue it (b: status_503"),
        (Script(tells_progress=True, error_at=3, error_code="core_dead"), "core_dead", "broken"),
    ],
    ids=["cut", "core dead"],
)
async def test_a_stream_that_nobody_continues_ends_with_the_reason(
    tmp_path: Path, script: Script, reason: str, said: str
) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script = script
        nodes[1].script = Script(tells_progress=True, fail_continue=503)
        told = await chat_all(served)
        lost = [(reply, fate) for reply, fate in told if fate["fate"] == "failed"]
        assert lost
        for reply, fate in lost:
            assert (fate["reason"], fate["moves"]) == (reason, [])
            assert reply.error is not None
            assert said in reply.error["message"]
        result = "cut" if reason == "node_lost" else reason
        assert counted(served, "gateway_stream_moves_total", reason=result, how="exact", result="failed") == len(lost)


async def test_a_stream_that_ends_a_second_node_at_the_same_place_gets_no_third(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        tell_all(nodes, cut_at=3)
        nodes[1].script.cut_at = nodes[2].script.cut_at = 4
        reply = await served.chat(max_tokens=8)
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert (fate["fate"], fate["reason"], len(fate["deaths"])) == ("failed", "poison", 2)
        assert reply.error is not None
        assert sum(len(continued(node)) for node in nodes) == 1


async def test_two_deaths_far_apart_are_chance_however_many_events_came_at_once(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, _):
        tell_all(nodes, burst=30)
        reply = await served.chat(max_tokens=90)
        assert (reply.text, reply.is_done) == (chat_text(max_tokens=90), True)
        fate = await served.fate(reply.headers["X-Request-Id"])
        assert [death["at_event"] for death in fate["deaths"]] == [30, 60]


async def test_a_stream_of_another_engine_ends_with_an_error_when_its_node_dies(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, _):
        nodes[0].script.cut_at = 3
        told = await chat_all(served)
        lost = [(reply, fate) for reply, fate in told if fate["nodes"] == ["a"]]
        assert lost
        assert all(reply.error is not None and fate["reason"] == "node_lost" for reply, fate in lost)
        assert not continued(nodes[1])


async def test_a_stream_leaves_a_node_that_fell_silent_and_hears_nothing_of_it_any_more(tmp_path: Path) -> None:
    limits = GatewaySettings(probe_after_s=0.05, probe_limit_s=0.5, stream_silence_limit_s=3600)
    async with small_fleet(tmp_path, "a", "b", limits=limits) as (served, nodes, _):
        tell_all(nodes)
        served.gateway.loads.suspect("b", 3600)  # it is only the second choice
        nodes[0].gate.clear()
        nodes[0].wait_at = 4
        body = {"model": "demo", "messages": [{"role": "user", "content": "p0"}], "max_tokens": 8, "seed": 1}
        url = served.url + "/v1/chat/completions"
        async with served.session.post(url, json=body | {"stream": True}) as response:
            nodes[0].awake.clear()
            whole = (await response.read()).decode()
            request_id = response.headers["X-Request-Id"]
        texts = [json.loads(f[6:])["choices"] for f in whole.split("\n\n") if f.startswith("data: {")]
        assert "".join(c[0]["delta"]["content"] for c in texts if c) == chat_text("p0", max_tokens=8)
        fate = await served.fate(request_id)
        assert [(m["from"], m["to"], m["reason"]) for m in fate["moves"]] == [("a", "b", "node_silent")]
        nodes[0].awake.set()
        nodes[0].gate.set()
        await until(lambda: request_id in nodes[0].hung_up, "its connection is closed")


@pytest.mark.parametrize(("is_c_there", "target"), [(True, "c"), (False, "b")])
async def test_a_stream_goes_on_with_the_same_weights_where_there_are_any(
    tmp_path: Path, is_c_there: bool, target: str
) -> None:
    async with small_fleet(tmp_path, "a", "b", "c") as (served, nodes, controller):
        tell_all(nodes)
        nodes[0].script.cut_at = 3
        controller.set(*(nodes if is_c_there else nodes[:2]))
        for route in controller.routes:
            route["revision"] = "new" if route["node"] == "b" else "old"
        await until(lambda: served.gateway.routing.table is not None and served.gateway.routing.table.version == 2)
        fates = [fate for _, fate in await chat_all(served) if fate["moves"]]
        assert fates
        assert {fate["moves"][0]["to"] for fate in fates} == {target}
