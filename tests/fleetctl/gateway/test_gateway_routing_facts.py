from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.gateway.routing_facts import (
    DEFAULT_OUTPUT_TOKENS,
    MAX_OUTPUT_TOKENS,
    PREFIX_CHARS,
    BadBodyError,
    read_routing_facts,
)

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


def ask_of(path: str, **body: Any) -> Any:
    return read_routing_facts(path, json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_named(body: bytes) -> None:
    with pytest.raises(BadBodyError, match="JSON"):
        read_routing_facts(CHAT, body)


def test_conversations_with_the_same_beginning_share_their_prefix() -> None:
    system = {"role": "system", "content": "s" * PREFIX_CHARS}
    first = ask_of(CHAT, messages=[system, {"role": "user", "content": "one"}])
    second = ask_of(CHAT, messages=[system, {"role": "user", "content": "two"}])
    assert first.prefix == second.prefix
    assert len(first.prefix) == PREFIX_CHARS


def test_text_parts_and_plain_text_are_the_same_prompt() -> None:
    plain = ask_of(CHAT, messages=[{"role": "user", "content": "hello"}])
    parts = ask_of(CHAT, messages=[{"content": [{"type": "text", "text": "hello"}], "role": "user"}])
    assert plain.prefix == parts.prefix


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
    assert ask_of(COMPLETION, prompt="x" * 400, **asked).tokens == 100 + tokens


@pytest.mark.parametrize(
    "prompt",
    [None, 5, {}, [], [[]], [None], [[1, 2], [3]], ["a", "b"], [1, 2, 3], [{"a": 1}], [[["deep"]]], ""],
    ids=repr,
)
def test_any_prompt_shape_is_readable(prompt: Any) -> None:
    ask = ask_of(COMPLETION, prompt=prompt, stream="yes", model=3)
    assert ask.tokens >= DEFAULT_OUTPUT_TOKENS
    assert ask.stream is False
    assert ask.model is None


@pytest.mark.parametrize("messages", [None, 5, "text", [None, 1], [{}], [{"content": [1, {"text": 2}]}]], ids=repr)
def test_any_messages_shape_is_readable(messages: Any) -> None:
    assert ask_of(CHAT, messages=messages, stream=True).stream is True
