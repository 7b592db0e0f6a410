"""Bodies read by types against bodies parsed whole with `json.loads`, and what each of them costs."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.gateway.routing import json_cost, routing_facts
from fleetctl.gateway.routing.json_cost import MAX_CHEAP_VALUES, is_cheap_to_parse, with_fields
from fleetctl.gateway.routing.prefix_blocks import CHARS_PER_TOKEN
from fleetctl.gateway.routing.routing_facts import (
    CHAT_PATH,
    COMPLETION_PATH,
    BadBodyError,
    RoutingFacts,
    read_routing_facts,
    routing_facts_of,
)

TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["\ud800", "a\udc00b", "x" * 200, "\x00", "😀"]))
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.sampled_from([10**30, 10.0, 0, -1, 1e400, 1e9])
)
ANY = st.recursive(
    SCALAR, lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(TEXT, one, max_size=3)), max_leaves=6
)
PART = st.fixed_dictionaries({}, optional={"type": TEXT, "text": st.one_of(TEXT, ANY), "image_url": ANY})
CONTENT = st.one_of(TEXT, st.lists(st.one_of(PART, ANY), max_size=3), ANY)
MESSAGE = st.fixed_dictionaries({}, optional={"role": st.one_of(TEXT, ANY), "content": CONTENT, "name": ANY})
PROMPT = st.one_of(TEXT, st.lists(st.integers(0, 100), max_size=80), st.lists(TEXT, max_size=3), ANY)
FIELDS = {
    "model": st.one_of(st.just("demo"), ANY),
    "stream": st.one_of(st.booleans(), ANY),
    "user": ANY,
    "max_tokens": ANY,
    "max_completion_tokens": ANY,
    "deadline_s": ANY,
    "messages": st.one_of(st.lists(st.one_of(MESSAGE, ANY), max_size=4), ANY),
    "prompt": PROMPT,
    "anything": ANY,
}
BODY = st.fixed_dictionaries({}, optional=FIELDS)
PATH = st.sampled_from([CHAT_PATH, COMPLETION_PATH])


def outcome(read: Any, *given: Any) -> RoutingFacts | str:
    try:
        facts: RoutingFacts = read(*given)
    except BadBodyError as error:
        return str(error)
    return facts


def parsed_whole(path: str, body: bytes) -> RoutingFacts:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadBodyError("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise BadBodyError("the body must be a JSON object")
    return routing_facts_of(path, value)


@settings(deadline=None, max_examples=150)
@given(PATH, BODY, st.booleans())
def test_facts_are_those_of_a_body_that_is_parsed_whole(path: str, body: dict[str, Any], is_ascii: bool) -> None:
    try:
        raw = json.dumps(body, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:
        raw = json.dumps(body).encode()
    assert outcome(read_routing_facts, path, raw) == outcome(parsed_whole, path, raw)


@pytest.mark.parametrize(
    "body",
    [
        b'{"temperature": NaN, "prompt": "p", "model": "m"}',
        b'{"x": "\\ud83d", "prompt": "p", "model": "m"}',
        b'{"prompt": "half \\ud83d of it", "model": "m", "stream": true}',
        b'{"\\ud800": 1, "model": "m"}',
        b'{"model": "a", "model": "b", "prompt": "x", "prompt": ["y"]}',
        b'{"mod\\u0065l": "m"}',
        b'\xef\xbb\xbf{"model": "m"}',
        '{"model": "m"}'.encode("utf-16"),
        b'{"max_tokens": 1e400}',
        b'{"model": "m"} x',
        b'{"model": "m", "x": tru}',
        b'{"model": "m", "x": "\n"}',
        b'{"model": "\xff"}',
        b'{"messages": [{"role": "user", "content": "' + b"{[ " * 100_000 + b'"}]}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[1, 2]",
        b"5",
        b"",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_odd_json_is_read_as_it_was_parsed(body: bytes) -> None:
    for path in (CHAT_PATH, COMPLETION_PATH):
        assert outcome(read_routing_facts, path, body) == outcome(parsed_whole, path, body)


@pytest.mark.parametrize(
    "body", [b'{"model": "m", "x": "\xff"}', b'{"model": "m", "x": ' + b"9" * 5000 + b"}"], ids=["utf-8", "int"]
)
def test_what_only_a_whole_parse_would_have_found_is_left_to_the_node(body: bytes) -> None:
    """The two differences: bytes of a skipped string that are no UTF-8, and integers of thousands of digits."""
    assert isinstance(outcome(parsed_whole, COMPLETION_PATH, body), str)
    assert read_routing_facts(COMPLETION_PATH, body).model == "m"


MANY = MAX_CHEAP_VALUES + 2
HOSTILE = {
    "unknown field": b'{"model": "m", "x": [' + b"[]," * MANY + b"[]]}",
    "messages of lists": b'{"model": "m", "messages": [' + b"[]," * MANY + b"[]]}",
    "messages of objects": b'{"model": "m", "messages": [' + b"{}," * MANY + b"{}]}",
    "parts of objects": b'{"model": "m", "messages": [{"content": [' + b"{}," * MANY + b"{}]}]}",
    "tools": b'{"model": "m", "messages": [], "tools": [' + b"{}," * MANY + b"{}]}",
    "half a surrogate pair": b'{"model": "m", "user": "\\ud800", "x": [' + b"[]," * MANY + b"[]]}",
    "scalar of lists": b'{"model": [' + b"[]," * MANY + b"[]]}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_objects_are_built_of_very_many_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_parse(body: bytes) -> None:
        raise AssertionError(f"{len(body)} bytes were parsed whole")

    monkeypatch.setattr(routing_facts.json, "loads", no_parse)
    monkeypatch.setattr(json_cost.json, "loads", no_parse)
    tracemalloc.start()
    try:
        outcome(read_routing_facts, CHAT_PATH, HOSTILE[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(HOSTILE[name]), "an object of each value takes twenty times its bytes"


def test_a_prompt_that_is_not_read_counts_by_its_length() -> None:
    body = HOSTILE["messages of lists"]
    facts = read_routing_facts(CHAT_PATH, body)
    assert (facts.model, facts.head, facts.blocks) == ("m", "", ())
    assert facts.input_tokens == len(body) // CHARS_PER_TOKEN


def test_a_changed_body_keeps_the_bytes_of_all_other_fields() -> None:
    body = b'{"model": "a", "seed": 1e2, "x": {"b":  1}, "max_completion_tokens": 5}'
    changed = with_fields(body, {"model": "b"}, without=frozenset({"max_completion_tokens"}))
    assert changed == b'{"model":"b","seed":1e2,"x":{"b":  1}}'
    odd = json.loads(with_fields(b'{"model": "a", "x": "\\ud800", "y": [1]}', {"model": "b"}, without=frozenset("y")))
    assert odd == {"model": "b", "x": "\ud800"}


@pytest.mark.parametrize(
    ("body", "is_cheap"),
    [
        (b'{"a": [' + b"1," * MAX_CHEAP_VALUES + b"1, 2]}", False),
        (b'{"a": "' + b"1," * (2 * MAX_CHEAP_VALUES) + b'"}', True),
        (b'{"a": "' + b'\\",' * (2 * MAX_CHEAP_VALUES) + b'"}', True),
        (b'{"a": "\\\\", "b": [' + b"1," * MAX_CHEAP_VALUES + b'1, "x"]}', False),
        (b'{"a": [' + b'",",' * MAX_CHEAP_VALUES + b'"", ""]}', False),
        (b"{" + b'"a":"",' * (3 * MAX_CHEAP_VALUES) + b'"a":""}', False),
    ],
    ids=["numbers", "commas of a text", "escaped quotes", "an escaped backslash", "texts of a comma", "names"],
)
def test_what_a_parse_costs_is_told_by_values_and_not_by_commas_of_texts(body: bytes, is_cheap: bool) -> None:
    json.loads(body)
    assert is_cheap_to_parse(body) is is_cheap
