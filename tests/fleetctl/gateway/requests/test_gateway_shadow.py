"""Shadows: copies of requests are compared, and users notice nothing. Real gateway, scripted nodes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fleetctl.gateway.http.exchange import KeptBody
from fleetctl.gateway.requests.answer_text import AnswerReader, AnswerText
from fleetctl.gateway.requests.shadow import MAX_KEPT_BYTES, copy_body
from fleetctl.gateway.requests.shadow_report import ShadowReports, ShadowResult, compare_texts, joined_shadows
from fleetctl.gateway.routing.orders import share_position
from fleetctl.traffic_rule import ShadowSpec, TrafficRule
from tests.fixtures.gateway import ScriptedController, ScriptedNode, Served, chat_text, small_fleet, until

pytestmark = pytest.mark.anyio

R2 = ShadowSpec(revision="r2", share=1.0)


def rule(spec: ShadowSpec = R2, *, made_at: float | None = None, for_s: float = 60.0) -> TrafficRule:
    at = time.time() if made_at is None else made_at
    return TrafficRule(id=spec.default_id, spec=spec, made_by="alice", made_at=at, expires_at=at + for_s)


async def order(
    served: Served, controller: ScriptedController, spec: ShadowSpec = R2, *, users: str = "a", for_s: float = 60.0
) -> None:
    """The node `users` has r1 and takes users; the others have r2, and get copies."""
    for route in controller.routes:
        route["revision"] = "r1" if route["node"] == users else "r2"
    canary: dict[str, Any] = {"kind": "canary", "revisions": {"r2": 0.0}}
    keep_off = TrafficRule.model_validate({"id": "keep-off", "spec": canary, "made_at": time.time()})
    controller.order(rule(spec, for_s=for_s), keep_off)
    table = served.gateway.routing
    await until(lambda: table.table is not None and table.table.version == controller.version, "the rule")


async def report(served: Served) -> dict[str, Any]:
    async with served.session.get(f"{served.url}/gateway/shadow") as response:
        (found,) = (await response.json())["shadows"]
        return dict(found)


async def ended(served: Served, count: int) -> dict[str, Any]:
    """The report once so many copies have ended or were left out."""
    shadows = served.gateway.shadows
    assert shadows is not None

    def num_ended() -> int:
        (one,) = joined_shadows([shadows.reports.told(time.time())])["shadows"]
        return int(sum(one["results"].values()))

    await until(lambda: num_ended() >= count, f"{count} copies")
    return await report(served)


def copies(node: ScriptedNode) -> list[dict[str, Any]]:
    return [seen for seen in node.seen if "X-Fleet-Shadow" in seen["headers"]]


async def test_copies_are_compared_and_users_get_their_own_answers(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (a, b), controller):
        await order(served, controller)
        b.script.change_at = 6
        stream = await served.chat("hello", max_tokens=8, headers={"X-Request-Id": "streamed"})
        assert (stream.text, stream.is_done) == (chat_text("hello", max_tokens=8), True)
        found = await ended(served, 1)
        assert (found["requests"], found["compared"], found["exact"], found["errors"]) == (1, 1, 0, 0)
        assert 0.5 < found["mean_agreement"] < 1
        assert found["differing"] == ["streamed"]
        assert found["mean_tokens"] == {"user": 8, "shadow": 8}
        assert found["ttft_p50_s"]["user"] > 0
        assert found["ttft_p50_s"]["shadow"] > 0
        assert (found["made_by"], found["in_force"]) == ("alice", True)
        b.script.change_at = None
        whole = await served.chat("hello", stream=False, headers={"X-Request-Id": "whole"})
        assert whole.status == 200
        found = await ended(served, 2)
        assert (found["compared"], found["exact"]) == (2, 1)
        assert "hello" not in json.dumps(found)
        # marked, with an id of its own, and nothing by which a stream moves
        assert [seen["headers"]["X-Request-Id"] for seen in copies(b)] == ["shadow-streamed", "shadow-whole"]
        assert [seen["headers"]["X-Fleet-Shadow"] for seen in copies(b)] == ["streamed", "whole"]
        assert not any(
            {"x-fleet-handoff", "x-fleet-progress"} & {name.lower() for name in seen["headers"]} for seen in copies(b)
        )
        assert not copies(a)
        # not among users' requests
        assert sum(served.gateway.fates.counts.values()) == 2
        async with served.session.get(f"{served.url}/metrics") as response:
            metrics = await response.text()
        assert 'gateway_requests_total{node="b",outcome="finished"}' not in metrics
        assert 'gateway_shadow_requests_total{result="compared"} 2.0' in metrics
        assert "gateway_shadow_agreement_ratio_count 2.0" in metrics


async def test_words_that_are_drawn_at_random_are_not_compared(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        await order(served, controller)
        b.script.change_at = 0
        await served.chat(seed=None, temperature=0.7)
        found = await ended(served, 1)
        assert (found["measured_only"], found["compared"], found["mean_agreement"]) == (1, 0, None)
        assert found["differing"] == []
        assert found["mean_tokens"] == {"user": 8, "shadow": 8}


async def test_a_request_is_not_compared_with_itself(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, nodes, controller):
        await order(served, controller, ShadowSpec(revision="r1", share=1.0))
        assert (await served.chat()).is_done
        found = await ended(served, 1)
        assert (found["results"]["same_nodes"], found["requests"]) == (1, 0)
        assert not any(copies(node) for node in nodes)


async def test_a_shadow_that_hangs_holds_no_user_and_a_full_one_drops_copies(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        await order(served, controller, ShadowSpec(revision="r2", share=1.0, cap=2))
        b.awake.clear()
        for number in range(5):
            assert (await served.chat(headers={"X-Request-Id": f"user-{number}"})).is_done
        found = await report(served)
        assert found["results"]["dropped"] == 3
        assert len(b.open) == 2
        b.awake.set()
        found = await ended(served, 5)
        assert (found["compared"], found["exact"]) == (2, 2)
        assert (await served.chat()).is_done
        assert (await ended(served, 6))["compared"] == 3  # there is room again


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ({"refuse": (429, {"Retry-After": "9"})}, "refused"),
        ({"refuse": (503, {"X-Fleet-Refused": "draining"})}, "refused"),
        ({"refuse": (500, {})}, "failed"),
        ({"drop_before_answer": True}, "failed"),
        ({"cut_at": 3}, "failed"),
        ({"error_at": 3}, "failed"),
        ({"end_at": 3}, "failed"),
    ],
)
async def test_what_a_shadow_meets_is_held_against_no_node(tmp_path: Path, script: dict[str, Any], result: str) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        await order(served, controller)
        for name, value in script.items():
            setattr(b.script, name, value)
        for _ in range(3):
            assert (await served.chat()).text == chat_text()
        found = await ended(served, 3)
        assert found["results"][result] == found["errors"] == 3
        assert not served.gateway.loads.is_suspect("b")
        assert not served.gateway.ejections.has_any
        assert served.gateway.metrics.retries.labels("connect")._value.get() == 0
        assert served.gateway.loads.inflight_requests() == {}


async def test_a_share_is_by_request_id(tmp_path: Path) -> None:
    ids = [f"request-{number}" for number in range(24)]
    chosen = [request_id for request_id in ids if share_position("shadow", request_id) < 0.25]
    assert 2 <= len(chosen) <= 12
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        await order(served, controller, ShadowSpec(revision="r2", share=0.25))
        for request_id in ids:
            await served.chat(max_tokens=1, headers={"X-Request-Id": request_id})
        await ended(served, len(chosen))
        assert sorted(one["headers"]["X-Fleet-Shadow"] for one in copies(b)) == sorted(chosen)


async def test_a_user_who_hangs_up_ends_the_copy(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (a, b), controller):
        await order(served, controller)
        a.gate.clear()
        a.wait_at = b.wait_at = 2
        b.gate.clear()
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True, "seed": 1}
        async with served.session.post(f"{served.url}/v1/chat/completions", json=body) as response:
            await response.content.readany()
            await until(lambda: bool(b.open), "the copy")
        found = await ended(served, 1)
        assert found["results"]["user_ended"] == 1
        await until(lambda: not b.open, "the copy's end at its node")


async def test_a_rule_that_has_expired_or_was_removed_copies_nothing_and_keeps_its_report(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        await order(served, controller, for_s=-1)
        await served.chat()
        assert (await report(served))["in_force"] is False
        await order(served, controller)
        await served.chat()
        await ended(served, 1)
        controller.order()
        await until(lambda: served.gateway.routing.table is not None and not served.gateway.routing.table.rules)
        await served.chat()
        found = await report(served)
        assert (found["in_force"], found["compared"]) == (False, 1)
        assert len(copies(b)) == 1


async def test_a_pool_of_another_model_is_asked_by_its_own_name(tmp_path: Path) -> None:
    async with small_fleet(tmp_path, "a", "b") as (served, (_, b), controller):
        controller.routes[1] |= {"model": "demo-2", "pool": "next"}
        controller.order(rule(ShadowSpec(pool="next", model="demo", share=1.0)))
        await until(lambda: served.gateway.routing.table is not None and bool(served.gateway.routing.table.rules))
        assert (await served.chat()).is_done
        assert (await ended(served, 1))["exact"] == 1
        (copy,) = copies(b)
        assert copy["body"]["model"] == "demo-2"


def read(data: bytes, *, is_stream: bool, size: int = 7) -> AnswerText:
    reader = AnswerReader(is_stream=is_stream)
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.finish()


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_an_answer_is_read_in_parts_of_any_size(newline: bytes) -> None:
    events = [
        {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"content": "größe "}}, {"index": 1, "delta": {"content": "b"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]},
        {"choices": [], "usage": {"completion_tokens": 9}},
    ]
    lines = [b"data: " + json.dumps(event, ensure_ascii=False).encode() for event in events]
    data = b": hello" + newline * 2 + b"".join(line + newline * 2 for line in [*lines, b"data: [DONE]"])
    assert read(data, is_stream=True) == AnswerText(("größe f{}", "b"), 9, True, False)
    assert read(data, is_stream=True, size=10_000) == read(data, is_stream=True)
    cut = read(data[:-20], is_stream=True)
    assert not cut.is_whole


def test_a_whole_answer_is_read() -> None:
    whole = {"choices": [{"index": 0, "text": "abc"}], "usage": {"completion_tokens": 3}}
    assert read(json.dumps(whole).encode(), is_stream=False) == AnswerText(("abc",), 3, True, False)
    assert read(b'{"choices": [', is_stream=False).has_error
    assert read(b'{"error": {"message": "no"}}', is_stream=False).has_error
    assert read(b'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', is_stream=True).is_whole is False


@pytest.mark.parametrize(
    ("users", "shadows", "agreement", "is_exact"),
    [
        (["abcd"], ["abcd"], 1.0, True),
        (["abcd"], ["abxx"], 0.5, False),
        (["abcd"], ["ab"], 0.5, False),
        (["ab"], ["abcd"], 0.5, False),
        (["abcd"], ["xbcd"], 0.0, False),
        (["abcd"], [], 0.0, False),
        ([], [], 1.0, True),
        (["ab", "cd"], ["ab", "xx"], 0.5, False),
        (["ab"], ["ab", "cd"], 0.5, False),
    ],
)
def test_agreement_is_the_common_beginning(
    users: list[str], shadows: list[str], agreement: float, is_exact: bool
) -> None:
    assert compare_texts(users, shadows) == (agreement, is_exact)


@pytest.mark.parametrize(
    ("given", "is_seeded_by_id", "is_repeatable"),
    [
        ({"temperature": 0}, False, True),
        ({"temperature": 0.7, "seed": 5}, False, True),
        ({"temperature": 0.7}, False, False),
        ({}, False, False),
        ({}, True, True),
        ({"temperature": "hot"}, False, False),
    ],
)
def test_only_repeatable_requests_are_compared_by_their_words(
    given: dict[str, Any], is_seeded_by_id: bool, is_repeatable: bool
) -> None:
    body = json.dumps({"model": "a", "prompt": "x", **given}).encode()
    assert copy_body(body, None, is_seeded_by_id=is_seeded_by_id) == (body, is_repeatable)
    renamed = copy_body(body, "b", is_seeded_by_id=is_seeded_by_id)
    assert json.loads(renamed.body) == {**json.loads(body), "model": "b"}


def test_of_a_long_answer_nothing_is_kept() -> None:
    kept = KeptBody(MAX_KEPT_BYTES)
    for _ in range(3):
        kept.note(b"x" * (MAX_KEPT_BYTES // 2))
    kept.note(b"y")
    assert (kept.is_too_long, kept.parts) == (True, [])


def test_a_rule_that_is_made_anew_begins_a_new_report() -> None:
    reports = ShadowReports(CollectorRegistry())
    reports.keep_rules([rule(made_at=1.0)])
    reports.note("shadow", ShadowResult.NO_NODE)
    reports.keep_rules([rule(made_at=1.0)])
    (one,) = joined_shadows([reports.told(2.0)])["shadows"]
    assert one["results"]["no_node"] == 1
    reports.keep_rules([rule(made_at=2.0)])
    (one,) = joined_shadows([reports.told(2.0)])["shadows"]
    assert (one["results"]["no_node"], one["mean_agreement"], one["ttft_p50_s"]["user"]) == (0, None, None)
