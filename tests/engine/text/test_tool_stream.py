from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.tool_formats import ToolFormatName
from engine.text.tool_stream import ToolStream

Calls = list[tuple[str, str]]


def _read(fmt: ToolFormatName, parts: list[str], max_calls: int | None = None) -> tuple[str, Calls]:
    """What comes out piece by piece, held to what the stream says it found in all."""
    stream, content, pieces = ToolStream(fmt, max_calls=max_calls), "", []
    for part in parts:
        more, new = stream.push(part)
        content, pieces = content + more, [*pieces, *new]
    more, new = stream.finish()
    content, pieces = content + more, [*pieces, *new]
    calls: dict[int, list[str]] = {}
    for piece in pieces:
        assert (piece.name is not None) == (piece.call not in calls), "the name comes first, and once"
        calls.setdefault(piece.call, [piece.name or "", ""])[1] += piece.arguments
    assert list(calls) == list(range(len(calls)))
    found = [(name, arguments) for name, arguments in calls.values()]
    assert found == [(call.name, call.arguments) for call in stream.calls]
    return content, found


CASES: list[tuple[ToolFormatName, str, str, Calls]] = [
    (
        "hermes",
        'hi\n<tool_call>\n{"name": "f", "arguments": {"a": "}<tool_call>\\""}}\n</tool_call>\n<tool_call>'
        '{"arguments": {"b": [1, {}]}, "name":"g"}</tool_call>\n',
        "hi\n",
        [("f", '{"a": "}<tool_call>\\""}'), ("g", '{"b": [1, {}]}')],
    ),
    ("hermes", '\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> bye', " bye", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "id": 3, "arguments": {"a": 1}, "x": [1]}', "", [("f", '{"a": 1}')]),
    ("hermes", "a <tool and <tool_call> none</tool_call> x", "a <tool and <tool_call> none</tool_call> x", []),
    ("hermes", '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
    ("hermes", '<tool_call>{"name": 1, "arguments": {}}', '<tool_call>{"name": 1, "arguments": {}}', []),
    ("hermes", '<tool_call>{"name": "f", "argum', '<tool_call>{"name": "f", "argum', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a"', "", [("f", '{"a"')]),
    ("hermes", "just text \n", "just text \n", []),
    ("hermes", " \n", " \n", []),
    (
        "mistral",
        'ok [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abc"}, {"name": "g", "arguments": {}}]',
        "ok ",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]g{"c":2}',
        "",
        [("f", '{"a": {"b": "}"}}'), ("g", '{"c":2}')],
    ),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    ("mistral", "well [TOOL_CALLS] no json here", "well [TOOL_CALLS] no json here", []),
    ("mistral", "[TOOL_CALLS]" + "x" * 400, "[TOOL_CALLS]" + "x" * 400, []),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    ("llama3_json", '{"answer": 42, "x": [1]} ok', '{"answer": 42, "x": [1]} ok', []),
    ("llama3_json", 'Well: {"name": "f", "parameters": {}}', 'Well: {"name": "f", "parameters": {}}', []),
    ("llama3_json", "<|pyth", "<|pyth", []),
    (
        "json",
        '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("json", "[1, 2]", "[1, 2]", []),
]


@pytest.mark.parametrize(("fmt", "text", "content", "calls"), CASES, ids=[f"{c[0]} {c[1][:24]}" for c in CASES])
def test_calls_are_told_from_text_however_it_is_cut(fmt: ToolFormatName, text: str, content: str, calls: Calls) -> None:
    for size in (1, 2, 3, 7, len(text)):
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        assert _read(fmt, parts) == (content, calls), f"in pieces of {size}"


WORDS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", '{"name": "f"', ', "arguments": '),
    *("{}", "}", "{", "[", "]", '"', "\\", ";", ",", " ", "\n", "text", '"parameters": {"a": 1}', "é🙂", "f"),
]


@settings(max_examples=200, deadline=None)
@given(
    fmt=st.sampled_from(["hermes", "mistral", "llama3_json", "json"]),
    words=st.lists(
        st.sampled_from(WORDS),
        max_size=14,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_text_gives_the_same_however_it_is_cut_and_no_text_is_invented(
    fmt: ToolFormatName, words: list[str], cuts: list[int]
) -> None:
    text = "".join(words)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(edges)]
    whole = _read(fmt, [text])
    assert _read(fmt, parts) == whole
    if not whole[1]:
        assert whole[0] == text, "without calls, all of it is text"


def test_calls_after_the_allowed_number_are_left_out() -> None:
    text = "".join(f"<tool_call>{json.dumps({'name': n, 'arguments': {}})}</tool_call>" for n in "abc")
    assert _read("hermes", list(text), max_calls=1) == ("", [("a", "{}")])


def test_a_cut_call_is_no_whole_call() -> None:
    stream = ToolStream("hermes")
    stream.push('<tool_call>{"name": "f", "arguments": {"a": 1}')
    assert not stream.has_whole_calls
    stream.push("}")
    assert stream.has_whole_calls


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_call_nested_two_thousand_deep_is_read_like_any_other(opening: str) -> None:
    """The JSON parser recurses; about 1,000 levels ended the process that read them."""
    value = opening * 2_000 + "1" + {"[": "]", '{"a":': "}"}[opening] * 2_000
    content, calls = _read("hermes", ['<tool_call>{"name": "f", "arguments": ' + value + "}</tool_call>"])
    assert content == ""
    assert [name for name, _ in calls] == ["f"]
