"""Streams of other engines whose node ends without a word: they go on behind their text, or end honestly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.gateway.requests.text_account import continued_request, is_continuable
from fleetctl.settings.admission import AdmissionSettings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.response_cache import ResponseCacheSettings
from tests.fixtures.gateway import Reply, Served
from tests.fixtures.vllm_node import ANSWER, PROMPT, TEXT, VllmNode, vllm_fleet

pytestmark = pytest.mark.anyio

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USAGE = {"prompt_tokens": 2, "completion_tokens": 11, "total_tokens": 13}


def asked(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    return {"model": "demo", "max_tokens": 20, "temperature": 0, "seed": 7, "stream": True} | prompt | more


def text_of(reply: Reply) -> str:
    choices = [one for event in reply.events for one in event.get("choices", [])]
    return "".join(one["delta"].get("content", "") if "delta" in one else one["text"] for one in choices)


async def ended(served: Served, path: str, **more: Any) -> tuple[Reply, dict[str, Any]]:
    reply = await served.send(asked(path, **more), path=path)
    return reply, await served.fate(reply.headers["X-Request-Id"])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("cut_at", [1, 2, 3, 10])
async def test_a_stream_of_vllm_goes_on_behind_its_text(tmp_path: Path, path: str, cut_at: int) -> None:
    dying, other = VllmNode("a", cut_at=cut_at), VllmNode("b")
    async with vllm_fleet(tmp_path, dying, other) as (served, _):
        reply, fate = await ended(served, path, stream_options={"include_usage": True})
        assert (text_of(reply), reply.is_done, reply.error) == (TEXT, True, None)
        heads = {(event["id"], event["created"], event["model"]) for event in reply.events}
        assert heads == {("cmpl-a-1", 101, "demo")}
        roles = [one for event in reply.events for one in event["choices"] if "role" in one.get("delta", {})]
        assert len(roles) == (path == CHAT)
        assert [event["usage"] for event in reply.events if event["usage"]] == [USAGE]
        (move,) = fate["moves"]
        assert (move["from"], move["to"], move["how"], move["tokens"]) == ("a", "b", "by_text", cut_at)
        assert fate["fate"] == "finished"
        (rest,) = other.seen
        had = "".join(ANSWER[:cut_at]).rstrip()
        told = rest["prompt"].removeprefix(PROMPT) if path == COMPLETIONS else rest["messages"][-1]["content"]
        assert told == had
        num_told = cut_at - 1 if cut_at == 3 else cut_at  # the line break is left for the other node to say again
        assert (rest["max_tokens"], rest["seed"], rest["temperature"]) == (20 - num_told, 7, 0)
        labels = {"reason": "cut", "how": "by_text", "result": "moved"}
        assert served.gateway.metrics.registry.get_sample_value("gateway_stream_moves_total", labels) == 1


async def test_a_stream_moves_by_text_more_than_once_and_after_the_engines_own_error(tmp_path: Path) -> None:
    nodes = VllmNode("a", fails_at=1), VllmNode("b", cut_at=9), VllmNode("c", cut_at=9)
    limits = GatewaySettings(max_resends=2)  # a short answer ends both at about the same place, which is no poison here
    async with vllm_fleet(tmp_path, *nodes, limits=limits) as (served, _):
        reply, fate = await ended(served, COMPLETIONS, max_tokens=11)
        assert (text_of(reply), reply.is_done) == (TEXT, True)
        assert [move["reason"] for move in fate["moves"]] == ["node_error", "cut"]
        assert reply.events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("error", [("BadRequestError", 400), ("NotFoundError", 404)])
async def test_an_error_event_that_is_the_clients_own_is_told_and_held_against_no_node(
    tmp_path: Path, error: tuple[str, int]
) -> None:
    other = VllmNode("b")
    async with vllm_fleet(tmp_path, VllmNode("a", fails_at=2, error=error), other) as (served, _):
        reply, fate = await ended(served, COMPLETIONS)
        assert reply.error is not None
        assert (reply.error["code"], other.seen) == (error[1], [])
        assert (fate["fate"], fate["reason"], fate["deaths"]) == ("refused", f"status_{error[1]}", [])


VLLM_FULL = {"message": "The engine is currently busy", "type": "Service Unavailable", "param": None, "code": 503}
SGLANG_FULL = {"object": "error", "message": "The request queue is full.", "type": "abort", "param": None, "code": 503}
LLAMA_CPP_LOADS = {"code": 503, "message": "Loading model", "type": "unavailable_error"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [({"error": VLLM_FULL}, "overloaded"), (SGLANG_FULL, "overloaded"), ({"error": LLAMA_CPP_LOADS}, "not_ready")],
    ids=["vllm", "sglang", "llama.cpp"],
)
async def test_an_engine_that_has_no_room_is_not_ejected_and_its_requests_go_elsewhere(
    tmp_path: Path, body: dict[str, Any], reason: str
) -> None:
    nodes = VllmNode("a", refusal=(503, json.dumps(body))), VllmNode("b")
    limits = GatewaySettings(admission=AdmissionSettings(queue_limit_s=0))
    async with vllm_fleet(tmp_path, *nodes, limits=limits) as (served, _):
        for number in range(24):
            for node in nodes:
                served.gateway.loads.trust(node.name)
            message = [{"role": "user", "content": f"{number} or so"}]
            reply, _ = await ended(served, CHAT, messages=message)
            assert (reply.status, text_of(reply)) == (200, TEXT)
        told = served.gateway.metrics.registry.get_sample_value
        assert told("gateway_retries_total", {"reason": reason}) == len(nodes[0].seen) > 6
        assert told("gateway_ejections_total", {"reason": "server_error"}) == 0
        nodes[1].refusal = nodes[0].refusal
        served.gateway.loads.trust("a")
        reply, fate = await ended(served, COMPLETIONS)
        expected = (429, "overloaded") if reason == "overloaded" else (503, "no_node_available")
        assert (reply.status, fate["reason"], fate["fate"]) == (*expected, "refused")


async def test_what_stands_before_an_engine_and_says_503_is_a_failure_of_the_node(tmp_path: Path) -> None:
    nodes = VllmNode("a", refusal=(503, "no healthy upstream")), VllmNode("b")
    async with vllm_fleet(tmp_path, *nodes) as (served, _):
        await ended(served, COMPLETIONS)
        told = served.gateway.metrics.registry.get_sample_value
        assert told("gateway_retries_total", {"reason": "status_503"}) == 1


async def test_a_stream_whose_first_event_says_that_the_queue_is_full_goes_elsewhere_or_is_refused(
    tmp_path: Path,
) -> None:
    nodes = VllmNode("a", fails_at=0, error=("Service Unavailable", 503)), VllmNode("b")
    limits = GatewaySettings(admission=AdmissionSettings(queue_limit_s=0))
    async with vllm_fleet(tmp_path, *nodes, limits=limits) as (served, _):
        reply, fate = await ended(served, COMPLETIONS)
        assert (reply.status, fate["fate"], fate["reason"]) == (429, "refused", "overloaded"), "b is suspect"
        for node in nodes:
            served.gateway.loads.trust(node.name)
        for number in range(8):
            message = [{"role": "user", "content": f"{number} or so"}]
            reply, fate = await ended(served, COMPLETIONS if number % 2 else CHAT, messages=message)
            assert (text_of(reply), fate["deaths"], fate["nodes"]) == (TEXT, [], ["b"])


async def test_a_stream_whose_first_event_says_that_the_engine_died_goes_elsewhere(tmp_path: Path) -> None:
    async with vllm_fleet(tmp_path, VllmNode("a", fails_at=0), VllmNode("b")) as (served, _):
        served.gateway.loads.trust("b")
        for _ in range(4):
            reply, fate = await ended(served, COMPLETIONS)
            assert (text_of(reply), fate["nodes"], fate["deaths"]) == (TEXT, ["b"], [])


async def test_an_answer_that_went_on_by_text_is_not_kept_by_the_response_cache(tmp_path: Path) -> None:
    limits = GatewaySettings(response_cache=ResponseCacheSettings(max_bytes=1_000_000))
    dying = VllmNode("a", cut_at=4)
    async with vllm_fleet(tmp_path, dying, VllmNode("b"), limits=limits) as (served, _):
        for cached in ("miss", "miss", "hit"):
            reply, _ = await ended(served, COMPLETIONS)
            assert (text_of(reply), reply.headers["X-Fleet-Cache"]) == (TEXT, cached)
            dying.cut_at = None


async def test_a_stream_that_lacks_only_its_end_asks_nobody(tmp_path: Path) -> None:
    other = VllmNode("b")
    async with vllm_fleet(tmp_path, VllmNode("a", cut_before_usage=True), other) as (served, _):
        reply, fate = await ended(served, CHAT)
        assert (text_of(reply), reply.is_done, fate["fate"], other.seen) == (TEXT, True, "finished", [])


@pytest.mark.parametrize(
    ("more", "dying", "other"),
    [
        ({"logprobs": 1}, {}, {}),
        ({}, {"told": {"reasoning_content": "hm"}}, {}),
        ({}, {}, {"refuses": True}),
        ({}, {}, {"engine": "sglang"}),
        ({"limits": GatewaySettings(continue_by_text=False)}, {}, {}),
    ],
    ids=["counts more than text", "thinks", "refused", "another engine", "switched off"],
)
async def test_a_stream_that_cannot_go_on_by_text_ends_with_an_error_event(
    tmp_path: Path, more: dict[str, Any], dying: dict[str, Any], other: dict[str, Any]
) -> None:
    limits = more.pop("limits", None)
    nodes = VllmNode("a", cut_at=4, **dying), VllmNode("b", **other)
    async with vllm_fleet(tmp_path, *nodes, limits=limits) as (served, _):
        reply, fate = await ended(served, CHAT, **more)
        assert text_of(reply) == "".join(ANSWER[:4])
        assert reply.error is not None
        assert (fate["fate"], fate["reason"], fate["moves"]) == ("failed", "node_lost", [])


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        ({}, True),
        ({"n": 1, "echo": False, "presence_penalty": 0, "stop": ["x"], "logit_bias": None}, True),
        ({"n": 2}, False),
        ({"echo": True}, False),
        ({"logprobs": 0}, False),
        ({"suffix": "x"}, False),
        ({"presence_penalty": 0.5}, False),
        ({"guided_json": {}}, False),
        ({"prompt": [1, 2]}, False),
        ({"prompt": ["a", "b"]}, False),
    ],
)
def test_only_what_text_alone_tells_is_asked_for_by_text(changes: dict[str, Any], is_asked: bool) -> None:
    assert is_continuable(COMPLETIONS, "vllm", asked(COMPLETIONS) | changes) is is_asked


def test_chats_go_on_at_engines_that_take_an_unfinished_message_only() -> None:
    engines = ("vllm", "sglang", "llamacpp", "", "fleetctl")
    assert [is_continuable(CHAT, one, asked(CHAT)) for one in engines] == [True, True, False, False, False]
    assert [is_continuable(COMPLETIONS, one, asked(COMPLETIONS)) for one in engines] == [True, True, True, False, False]
    assert not is_continuable(CHAT, "vllm", asked(CHAT, tools=[{"type": "function"}]))
    assert not is_continuable(CHAT, "vllm", asked(CHAT, response_format={"type": "json_object"}))


def test_limits_count_the_text_so_far_and_the_default_is_the_engines() -> None:
    request = {"model": "m", "prompt": "p", "min_tokens": 5}
    assert continued_request(COMPLETIONS, request, " t", 7) == request | {
        "prompt": "p t",
        "max_tokens": 9,
        "min_tokens": 0,
    }
    rest = continued_request(CHAT, {"messages": [], "max_completion_tokens": 30}, "", 0)
    assert rest == {"messages": [], "max_completion_tokens": 30}, "nothing was said yet: begin anew"
