"""The soak's requests and what counts as the same answer."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.gateway_soak.soak_request import KINDS, make_requests
from fleetctl.gateway_soak.told_answer import ToldAnswer, first_difference


def told(*bodies: dict[str, Any]) -> str:
    answer = ToldAnswer()
    for body in bodies:
        answer.note_body({"id": "a", **body})
    return answer.canonical()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words, **more}]}


def call(**function: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]}


WHOLE = told(text("abcd", finish_reason="length"))


def test_the_requests_are_of_every_kind_and_the_same_each_time() -> None:
    made = make_requests(56, 0)
    assert made == make_requests(56, 0)
    assert len(set(made)) == 56
    assert {request.kind for request in made if request.is_streamed} == set(KINDS)
    assert {request.kind for request in made if not request.is_streamed} == set(KINDS)
    assert {request.kind for request in made if not request.has_seed} == {"chat without a seed"}
    assert all(request.body("demo")["model"] == "demo" for request in made)


def test_an_answer_is_the_same_however_it_was_cut_into_events() -> None:
    assert told(text("ab"), text("c"), text("d", finish_reason="length")) == WHOLE
    arguments = [call(name="say", arguments=""), call(arguments='{"a":'), call(arguments=" 1}")]
    assert told(*arguments) == told(call(name="say", arguments='{"a": 1}'))


@pytest.mark.parametrize(
    ("bodies", "field"),
    [
        ([text("abXd", finish_reason="length")], "choice 0.text, from 2 of 4 on"),
        ([text("ab"), text("ab"), text("cd", finish_reason="length")], "choice 0.text, from 2 of 4 on"),
        ([text("abcd")], "choice 0.finish_reason"),
        ([text("ab"), {**text("cd", finish_reason="length"), "id": "b"}], "ids"),
    ],
    ids=["another token", "a piece twice", "no finish reason", "another answer's end"],
)
def test_what_differs_or_comes_twice_is_told_by_field(bodies: list[dict[str, Any]], field: str) -> None:
    assert first_difference(WHOLE, told(*bodies)).startswith(field)


def test_ids_of_tool_calls_and_what_a_node_had_cached_may_differ() -> None:
    def answer(call_id: str, cached: int) -> str:
        message = {"tool_calls": [{"id": call_id, "function": {"name": "say", "arguments": "{}"}}]}
        usage = {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": cached}}
        return told({"choices": [{"index": 0, "message": message}], "usage": usage})

    assert answer("call-1", 0) == answer("call-2", 16)
