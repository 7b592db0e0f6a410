"""A response whose node is gone goes on at another one: the client reads each numbered event once."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.engine import TOKEN, EngineNode, start_node, wait_for

pytestmark = pytest.mark.e2e

PATH = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
SAY = {"type": "function", "name": "say", "parameters": SCHEMA}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"max_output_tokens": 12, "seed": 3, "instructions": "be brief", "metadata": {"a": "b"}},
    "no seed": {"max_output_tokens": 9},
    "cut by its length": {"max_output_tokens": 6, "ignore_eos": True, "seed": 2},
    "grammar": {
        "max_output_tokens": 60,
        "seed": 7,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    },
    "tools": {"max_output_tokens": 300, "seed": 7, "tools": [SAY], "tool_choice": "required"},
}
Event = tuple[list[str], dict[str, Any]]  # the lines beside it, and its data


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("node")) as started:
        yield started


def headers_of(request_id: str) -> dict[str, str]:
    proof = hmac.digest(TOKEN.encode(), request_id.encode(), "sha256").hex()
    return {"X-Request-Id": request_id, "X-Fleet-Progress": proof, "X-Fleet-Handoff": "accept"}


def ask(node: EngineNode, body: dict[str, Any], request_id: str) -> httpx.Response:
    answer = node.http.post(PATH, json={"model": "tiny", "input": "hi", **body}, headers=headers_of(request_id))
    assert answer.status_code in (200, 202), answer.text
    return answer


def events_of(text: str) -> list[Event]:
    """What a client reads, a hand-off too."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        *lines, name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name.removeprefix("event: ") == event.get("type", "fleet.handoff")
        found.append((lines, event))
    return found


def continuation(body: dict[str, Any], request_id: str, resolved: str, lines: list[str]) -> dict[str, Any]:
    return {
        "version": 2,
        "request_id": request_id,
        "path": PATH,
        "request": {"model": "tiny", "input": "hi", **body},
        "resolved": json.loads(resolved),
        "progress": "".join(f"{line}\n" for line in lines),
        "elapsed_s": 0.5,
    }


def told(event: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on what a node had cached."""
    response = event.get("response") or {}
    if response.get("usage"):
        return event | {"response": response | {"usage": response["usage"]["total_tokens"]}}
    return event


@pytest.mark.parametrize("kind", KINDS)
def test_a_response_goes_on_with_the_next_event_wherever_it_was_cut(node: EngineNode, kind: str) -> None:
    body = KINDS[kind] | {"stream": True}
    first = ask(node, body, f"cut-{kind.replace(' ', '-')}")
    request_id, resolved = first.headers["X-Request-Id"], first.headers["X-Fleet-Progress"]
    events = events_of(first.text)
    assert all(len(lines) == 1 for lines, _ in events), "a line for each event"
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    whole = [told(event) for _, event in events]
    for cut in range(1, len(events)):
        lines = [line for told_by, _ in events[:cut] for line in told_by]
        sent = continuation(body, request_id, resolved, lines)
        rest = node.http.post("/internal/continue", json=sent, headers=headers_of(request_id))
        assert rest.status_code == 200, rest.text
        more = events_of(rest.text)
        assert [told(event) for _, event in more] == whole[cut:], f"after {cut} of {len(events)} events"
        again = [line for told_by, _ in more for line in told_by]
        assert len(again) == len(more), "and may be cut again"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_drain_without_time_hands_a_response_to_the_next_node(
    node: EngineNode, tmp_path: Path, *, stream: bool
) -> None:
    body = {"max_output_tokens": 300, "ignore_eos": True, "seed": 5, "stream": stream}
    request_id = f"drained-{stream}"
    with start_node(tmp_path) as leaving, ThreadPoolExecutor(1) as pool, leaving.slowed():
        asked = pool.submit(ask, leaving, body, request_id)

        def is_under_way() -> bool:
            held = leaving.http.get("/admin/requests").json()["requests"]
            return any(row["can_move"] and row["tokens_out"] > 3 for row in held)

        wait_for(is_under_way, "the first tokens")
        leaving.drain(0.0)
        begun = asked.result()
        receipt = leaving.wait_drained()["receipt"]
    assert (receipt["moved"], receipt["aborted"]) == (1, 0)
    undisturbed = ask(node, body, request_id)
    if stream:
        *had, (_, handoff) = events_of(begun.text)
    else:
        assert begun.status_code == 202
        had, handoff = [], begun.json()
    rest = node.http.post("/internal/continue", json=handoff, headers=headers_of(request_id))
    assert rest.status_code == 200, rest.text
    if stream:
        read = [event for _, event in had] + [event for _, event in events_of(rest.text)]
        assert [event["sequence_number"] for event in read] == list(range(len(read)))
        assert text_of(read[-1]["response"]) == text_of(events_of(undisturbed.text)[-1][1]["response"])
    else:
        assert text_of(rest.json()) == text_of(undisturbed.json())


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_log_probabilities_keep_a_response_where_it_is(node: EngineNode) -> None:
    body = {"max_output_tokens": 3, "stream": True, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = ask(node, body, "scored")
    assert "X-Fleet-Progress" not in answer.headers
    assert ":p " not in answer.text


def test_a_vector_does_not_go_on_from_a_handoff(node: EngineNode) -> None:
    exported = {"version": 1, "request_id": "v", "kind": "embedding", "state": state_of("embedding")}
    answer = node.http.post("/internal/continue", json=exported)
    assert answer.status_code == 400
    assert "embedding" in answer.json()["error"]["message"]


def state_of(kind: str) -> dict[str, Any]:
    request = {
        "id": "embd-v",
        "request_id": "v",
        "kind": kind,
        "model": "tiny",
        "created": 1,
        "prompts": [[1, 2]],
        "n": 1,
        "sampling": {"max_tokens": 0, "seed": 1},
    }
    return {"ask": request, "choices": [{"index": 0}], "elapsed_s": 0.0}
