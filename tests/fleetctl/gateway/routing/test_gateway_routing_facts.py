from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.gateway.routing.json_cost import has_more_than
from fleetctl.gateway.routing.routing_facts import (
    DEFAULT_OUTPUT_TOKENS,
    HEAD_CHARS,
    KEY_CHARS,
    MAX_OUTPUT_TOKENS,
    BadBodyError,
    RoutingFacts,
    read_routing_facts,
)

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


def facts_of(path: str, **body: Any) -> Any:
    return read_routing_facts(path, json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_named(body: bytes) -> None:
    with pytest.raises(BadBodyError, match="JSON"):
        read_routing_facts(CHAT, body)


def test_conversations_with_the_same_beginning_share_their_prefix() -> None:
    system = {"role": "system", "content": "s" * HEAD_CHARS}
    first = facts_of(CHAT, messages=[system, {"role": "user", "content": "one"}])
    second = facts_of(CHAT, messages=[system, {"role": "user", "content": "two"}])
    assert first.head == second.head
    assert len(first.head) == HEAD_CHARS


def test_text_parts_and_plain_text_are_the_same_prompt() -> None:
    plain = facts_of(CHAT, messages=[{"role": "user", "content": "hello"}])
    parts = facts_of(CHAT, messages=[{"content": [{"type": "text", "text": "hello"}], "role": "user"}])
    assert plain.head == parts.head


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_completion_tokens": 7, "max_tokens": 10}, 7),
        ({}, DEFAULT_OUTPUT_TOKENS),
        ({"max_tokens": True}, DEFAULT_OUTPUT_TOKENS),
        ({"max_tokens": "many"}, DEFAULT_OUTPUT_TOKENS),
        ({"max_tokens": -5}, DEFAULT_OUTPUT_TOKENS),
        ({"max_tokens": 10**12}, MAX_OUTPUT_TOKENS),
    ],
    ids=repr,
)
def test_cost_counts_prompt_and_output(asked: dict[str, Any], tokens: int) -> None:
    assert facts_of(COMPLETION, prompt="x" * 400, **asked).tokens == 100 + tokens


@pytest.mark.parametrize(
    "prompt",
    [None, 5, {}, [], [[]], [None], [[1, 2], [3]], ["a", "b"], [1, 2, 3], [{"a": 1}], [[["deep"]]], ""],
    ids=repr,
)
def test_any_prompt_shape_is_readable(prompt: Any) -> None:
    facts = facts_of(COMPLETION, prompt=prompt, stream="yes", model=3)
    assert facts.tokens >= DEFAULT_OUTPUT_TOKENS
    assert facts.stream is False
    assert facts.model is None


@pytest.mark.parametrize("messages", [None, 5, "text", [None, 1], [{}], [{"content": [1, {"text": 2}]}]], ids=repr)
def test_any_messages_shape_is_readable(messages: Any) -> None:
    assert facts_of(CHAT, messages=messages, stream=True).stream is True


def test_a_chats_prefix_is_role_and_text_of_each_message_in_order() -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        "no message",
        {"role": "user", "content": [{"text": "a"}, 5, {"text": 6}, {"image": "x"}, {"text": "b"}]},
        {"role": "user"},
    ]
    facts = facts_of(CHAT, messages=messages, max_tokens=1)
    assert facts.head == "system\nbe brief\nuser\nab\nuser\n\n"
    assert facts.tokens == (8 + 2) // 4 + 1


def test_a_prefix_ends_after_its_length_however_the_messages_are_cut() -> None:
    long = [
        {"role": "user", "content": "x" * 300},
        {"role": "user", "content": "y" * HEAD_CHARS},
        {"role": "z", "content": "z"},
    ]
    facts = facts_of(CHAT, messages=long, max_tokens=1)
    assert facts.head == ("user\n" + "x" * 300 + "\nuser\n" + "y" * HEAD_CHARS)[:HEAD_CHARS]
    assert facts.tokens == (301 + HEAD_CHARS) // 4 + 1, "cost counts all of it"
    exact = facts_of(CHAT, messages=[{"role": "u", "content": "x" * (HEAD_CHARS - 3)}, {"role": "v", "content": "w"}])
    assert exact.head == "u\n" + "x" * (HEAD_CHARS - 3) + "\n"


def test_a_completions_prefix_is_the_beginning_of_its_first_prompt() -> None:
    text = "p" * (HEAD_CHARS + 8)
    assert facts_of(COMPLETION, prompt=text, max_tokens=1).head == text[:HEAD_CHARS]
    several = facts_of(COMPLETION, prompt=["first!!!", "second!!", "third"], max_tokens=1)
    assert (several.head, several.tokens) == ("first!!!", 21 // 4 + 1)


def test_token_ids_count_as_tokens_and_their_beginning_as_prefix() -> None:
    ids = list(range(1000, 1200))
    facts = facts_of(COMPLETION, prompt=ids, max_tokens=1)
    assert facts.head == " ".join(map(str, ids[: KEY_CHARS // 4]))[:KEY_CHARS]
    assert facts.tokens == 200 + 1
    several = facts_of(COMPLETION, prompt=[[1, 2, 3], [4, 5]], max_tokens=1)
    assert (several.head, several.tokens) == ("1 2 3", 5 + 1)
    assert facts_of(COMPLETION, prompt=[[1], [[2] * 100]], max_tokens=1).tokens == 1 + 1, "no prompt is a list of lists"


def test_model_and_stream_are_read_as_they_are_given() -> None:
    facts = facts_of(CHAT, messages=[], model="m", stream=True)
    assert (facts.model, facts.stream, facts.head, facts.tokens) == ("m", True, "", DEFAULT_OUTPUT_TOKENS)
    assert facts_of(CHAT, messages=[], stream=1).stream is False
    assert (RoutingFacts().model, RoutingFacts().stream) == (None, False)
    assert (RoutingFacts().head, RoutingFacts().tokens) == ("", 0)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 0}, DEFAULT_OUTPUT_TOKENS),
        ({"max_completion_tokens": 0, "max_tokens": 3}, 3),
        ({"max_tokens": MAX_OUTPUT_TOKENS}, MAX_OUTPUT_TOKENS),
        ({"max_tokens": MAX_OUTPUT_TOKENS - 1}, MAX_OUTPUT_TOKENS - 1),
    ],
    ids=repr,
)
def test_the_output_that_is_counted_is_bounded_on_both_sides(asked: dict[str, Any], tokens: int) -> None:
    assert facts_of(COMPLETION, **asked).tokens == tokens


@pytest.mark.parametrize(("body", "says"), [(b"{", "not valid JSON"), (b"[]", "must be a JSON object")])
def test_the_client_is_told_what_is_wrong_with_its_body(body: bytes, says: str) -> None:
    with pytest.raises(BadBodyError, match=says):
        read_routing_facts(CHAT, body)


@pytest.mark.parametrize(
    ("asked", "deadline_s"), [(0.5, 0.5), (1, 1.0), (0, None), (-1, None), (True, None), ("5", None), (1e9, None)]
)
def test_a_deadline_in_the_body_is_any_positive_number_of_seconds(asked: Any, deadline_s: float | None) -> None:
    assert facts_of(CHAT, messages=[], deadline_s=asked).deadline_s == deadline_s


def test_what_tells_prompts_apart_is_what_comes_after_what_they_share() -> None:
    facts = facts_of(COMPLETION, prompt="s" * 1024 + "the question" * 100)
    assert facts.key_text() == "s" * KEY_CHARS
    assert facts.key_text(after_tokens=256) == ("the question" * 100)[:KEY_CHARS]
    assert facts.key_text(after_tokens=10_000) == facts.head[-KEY_CHARS:], "all of it is shared"
    assert RoutingFacts().key_text() == ""


def test_tools_are_part_of_what_a_prompt_shares_with_others() -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    one = facts_of(CHAT, messages=messages, model="m")
    assert one.blocks == facts_of(CHAT, messages=messages, model="m", user="ann").blocks
    assert not set(one.blocks) & set(facts_of(CHAT, messages=messages, model="m", tools=[{"type": "function"}]).blocks)


@given(st.integers(0, 200), st.integers(0, 200))
def test_more_than_so_many_is_told_as_counting_tells_it(count: int, most: int) -> None:
    body = b"a{" * count + b"b"
    assert has_more_than(most, body, b"{") is (count > most)
