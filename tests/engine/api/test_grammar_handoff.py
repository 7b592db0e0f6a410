"""Requests with a grammar or tools that move between nodes: the client reads what it would have read unmoved."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.fixtures.engine import EngineNode, Streamed, read_stream, start_node
from tests.fixtures.grammar import tiny_tokenizer

pytestmark = pytest.mark.e2e

ACCEPT = {"X-Fleet-Handoff": "accept"}
LONG = {
    "type": "object",
    "properties": {"words": {"type": "string", "pattern": "^[a-z ]{150}$"}, "n": {"enum": [1, 2]}},
    "required": ["words", "n"],
    "additionalProperties": False,
}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 900,
    "seed": 4,
    "stream": True,
    "return_token_ids": True,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": LONG}}
TOOLS = {
    "tools": [{"type": "function", "function": {"name": "say", "parameters": LONG}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineNode, EngineNode]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(start_node(tmp_path_factory.mktemp(name))) for name in "ab"]
        yield made[0], made[1]


def _handoff(source: EngineNode, body: dict[str, Any]) -> dict[str, Any]:
    def on_chunk(count: int) -> None:
        if count == 3:
            source.drain(0)

    with source.slowed(300):
        first = read_stream(source, "/v1/chat/completions", body, headers=ACCEPT, on_chunk=on_chunk)
    source.http.post("/admin/resume")
    assert first.handoff is not None
    return first.handoff


def _calls(parts: list[Streamed]) -> list[tuple[str, str, str]]:
    calls: dict[int, list[str]] = {}
    for part in parts:
        for chunk in part.chunks:
            for choice in chunk["choices"]:
                for piece in choice["delta"].get("tool_calls", ()):
                    if piece["index"] not in calls:
                        calls[piece["index"]] = [piece["id"], piece["function"]["name"], ""]
                    assert "id" not in piece or calls[piece["index"]][0] == piece["id"]
                    calls[piece["index"]][2] += piece["function"]["arguments"]
    return [(a, b, c) for a, b, c in calls.values()]


@pytest.mark.parametrize("fields", [{"response_format": FORMAT}, TOOLS], ids=["json", "tools"])
def test_every_cut_continues_exactly(nodes: tuple[EngineNode, EngineNode], fields: dict[str, Any]) -> None:
    source, target = nodes
    handoff = _handoff(source, CHAT | fields)
    # Continued from its very first token it is the whole answer, under the same id.
    progress = handoff["state"]["choices"][0]
    progress |= {"output_token_ids": [], "num_chars_sent": 0, "is_opened": False}
    whole = read_stream(target, "/internal/continue", handoff)
    tokens, calls = whole.token_ids(), _calls([whole])
    if fields is TOOLS:
        ((_, name, arguments),) = calls
        assert name == "say"
        assert whole.finish_reason() == "tool_calls"
        jsonschema_rs.validate(LONG, json.loads(arguments))
    else:
        assert whole.finish_reason() == "stop"
        jsonschema_rs.validate(LONG, json.loads(whole.text()))
    for cut in range(1, len(tokens), 6):
        sent = tiny_tokenizer().decode(tokens[:cut])
        progress |= {"output_token_ids": tokens[:cut], "num_chars_sent": len(sent), "is_opened": True}
        rest = read_stream(target, "/internal/continue", handoff)
        assert rest.status == 200, rest.body
        assert rest.token_ids() == tokens[cut:]
        assert rest.finish_reason() == whole.finish_reason()
        if fields is TOOLS:
            # The name is sent once: here, or before the move.
            later = "".join(
                piece["function"]["arguments"]
                for chunk in rest.chunks
                for choice in chunk["choices"]
                for piece in choice["delta"].get("tool_calls", ())
            )
            assert calls[0][2].endswith(later)
            named = [p for p in _pieces(rest) if "id" in p]
            assert [p["id"] for p in named] in ([], [calls[0][0]])
            assert bool(named) == (later == calls[0][2])
        else:
            assert whole.text() == sent + rest.text()


def _pieces(part: Streamed) -> list[dict[str, Any]]:
    return [
        piece for chunk in part.chunks for choice in chunk["choices"] for piece in choice["delta"].get("tool_calls", ())
    ]


def test_a_moved_stream_reads_as_an_unmoved_one(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    for fields in ({"response_format": FORMAT}, TOOLS):
        body = CHAT | fields
        unmoved = read_stream(target, "/v1/chat/completions", body, headers={"X-Request-Id": "same"})
        with source.slowed(300):
            first = read_stream(
                source,
                "/v1/chat/completions",
                body,
                headers={**ACCEPT, "X-Request-Id": "same"},
                on_chunk=lambda count: source.drain(0) if count == 8 else None,
            )
        source.http.post("/admin/resume")
        assert first.handoff is not None
        parts = [first, read_stream(target, "/internal/continue", first.handoff)]
        assert "".join(p.text() for p in parts) == unmoved.text()
        assert _calls(parts) == _calls([unmoved])
        assert parts[-1].finish_reason() == unmoved.finish_reason()


def test_a_whole_answer_with_calls_is_whole_after_a_move(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    handoff = _handoff(source, CHAT | TOOLS)
    whole = read_stream(target, "/internal/continue", copy.deepcopy(handoff))
    assert whole.is_done
    state = handoff["state"]
    state["ask"]["stream"] = False
    answer = target.http.post("/internal/continue", json=handoff)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    jsonschema_rs.validate(LONG, json.loads(call["function"]["arguments"]))
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("grammar", ["{", "x" * 300_000], ids=["no grammar", "too large"])
def test_a_grammar_that_can_not_be_compiled_is_not_continued(
    nodes: tuple[EngineNode, EngineNode], grammar: str
) -> None:
    source, target = nodes
    handoff = _handoff(source, CHAT | {"response_format": FORMAT})
    handoff["state"]["ask"]["sampling"]["grammar"] = grammar
    answer = target.http.post("/internal/continue", json=handoff)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "bad_grammar")


def test_output_that_does_not_fit_its_grammar_ends_with_an_error(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    handoff = _handoff(source, CHAT | {"response_format": FORMAT})
    text = "no json"
    progress = handoff["state"]["choices"][0]
    progress |= {"output_token_ids": tiny_tokenizer().encode(text), "num_chars_sent": len(text)}
    rest = read_stream(target, "/internal/continue", handoff)
    assert rest.error is not None
    assert "does not fit the grammar" in rest.error["message"]


def test_what_a_model_wrote_by_itself_is_read_for_calls(nodes: tuple[EngineNode, EngineNode]) -> None:
    """Random weights never write a call unforced, so a model that was taught to is a state that is handed over."""
    source, target = nodes
    handoff = _handoff(source, CHAT | {"tools": TOOLS["tools"], "ignore_eos": True})
    text = 'Let me.\n<tool_call>\n{"name": "say", "arguments": {"n": 1}}\n</tool_call>'
    tokens = [*tiny_tokenizer().encode(text), tiny_tokenizer().eos_token_ids[0]]
    handoff["state"]["ask"]["stream"] = False
    handoff["state"]["choices"][0] |= {"output_token_ids": tokens, "finish_reason": "stop", "num_chars_sent": 0}
    choice = target.http.post("/internal/continue", json=handoff).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "say", "arguments": '{"n": 1}'}
    assert choice["message"]["content"] == "Let me.\n"
    assert choice["finish_reason"] == "tool_calls"
