"""Structured output and tool calls on a real node with random weights, through the official client."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.fixtures.engine import EngineNode, read_stream, start_node
from tests.fixtures.grammar import PERSON

pytestmark = pytest.mark.e2e

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "get_person", "description": "one", "parameters": PERSON}},
    {"type": "function", "function": {"name": "nothing"}},
]
PIN = r"[A-F]{2}-\d{4}"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("structured"), runner="torch") as running:
        yield running


@pytest.fixture(scope="module")
def client(node: EngineNode) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{node.url}/v1", api_key="unused", max_retries=0, timeout=120, _strict_response_validation=True
    ) as made:
        yield made


def test_a_schema_is_kept_to_by_every_choice(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HI, n=2, seed=5, max_tokens=900, response_format=FORMAT, logprobs=True
    )
    texts = [choice.message.content or "" for choice in answer.choices]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert texts[0] != texts[1]
    for text in texts:
        jsonschema_rs.validate(PERSON, json.loads(text))


def test_a_stream_of_json_is_the_whole_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", messages=HI, seed=6, max_tokens=900, response_format=FORMAT)
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=HI, seed=6, max_tokens=900, response_format=FORMAT, stream=True
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    jsonschema_rs.validate(PERSON, json.loads(text))


def test_a_cut_answer_says_length(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HI, max_tokens=4, response_format=FORMAT)
    assert answer.choices[0].finish_reason == "length"


def test_json_object_begins_as_one_and_ends_as_one(client: openai.OpenAI) -> None:
    # The tiny model never ends a string by itself; a bias towards quotes and braces makes it.
    bias = {str(token): 14 for token in _tokens(client, '"}{:,')}
    answer = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=2000, seed=1, response_format={"type": "json_object"}, logit_bias=bias
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def _tokens(client: openai.OpenAI, text: str) -> list[int]:
    answer = client.with_options(base_url=str(client.base_url).removesuffix("/v1/")).post(
        "/tokenize", body={"prompt": text}, cast_to=dict[str, Any]
    )
    return list(answer["tokens"])


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": PIN}}, PIN),
        ({"guided_regex": PIN}, PIN),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "x" /[0-9]{2}/'}}, "x[0-9]{2}"),
        ({"guided_grammar": 'root ::= "x" [0-9] [0-9]'}, "x[0-9]{2}"),
        ({"structured_outputs": {"json": {"enum": [42]}}}, "42"),
        ({"structured_outputs": {"json": '{"enum": [42]}', "disable_any_whitespace": True}}, "42"),
        ({"guided_json": {"enum": [42]}}, "42"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [42]}}}}, "42"),
        ({"response_format": {"type": "text"}, "guided_regex": PIN}, PIN),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_every_name_for_it_works_on_both_routes(client: openai.OpenAI, fields: dict[str, Any], pattern: str) -> None:
    completion = client.completions.create(model="tiny", prompt="a", max_tokens=50, extra_body=fields)
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=50, extra_body=fields)
    assert completion.choices[0].finish_reason == chat.choices[0].finish_reason == "stop"
    for text in (completion.choices[0].text, chat.choices[0].message.content or ""):
        assert re.fullmatch(pattern, text)


def _schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _tool(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (_schema({"type": "foo"}), "response_format.json_schema.schema"),
        (_schema({"enum": ["x" * 5000]}), "response_format.json_schema.schema.enum.0"),
        (_schema([]), "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice.1"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_what_can_not_be_kept_to_is_400_naming_the_field(node: EngineNode, fields: dict[str, Any], param: str) -> None:
    for path, body in (("chat/completions", {"messages": HI}), ("completions", {"prompt": "a"})):
        answer = node.http.post(f"/v1/{path}", json={**body, "max_tokens": 5, **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param), error
        assert error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (_tool(name="a b"), "tools.0.function.name"),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools.1.function.name"),
        ({"tools": [{"type": "search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({**_tool(parameters={"type": "bar"}), "tool_choice": "required"}, "tools.0.function.parameters"),
        ({**_tool(parameters=[]), "tool_choice": "required"}, "tools.0.function.parameters"),
        ({"tools": TOOLS, "guided_regex": "a"}, "guided_regex"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "tool_calls": [{"id": "x", "function": {"name": "f"}}]}]}, "messages.0"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "1"}}]}
                ]
            },
            "messages.0.tool_calls.0.function.arguments",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_tools_that_do_not_fit_are_400_naming_the_path(node: EngineNode, fields: dict[str, Any], param: str) -> None:
    answer = node.http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 5, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


def test_required_calls_validate_and_their_stream_says_the_same(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 2000}
    called = set()
    for seed in range(4):
        whole = client.chat.completions.create(**asked, seed=seed).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content is None
        expected = [
            (c.function.name, c.function.arguments) for c in whole.message.tool_calls or () if c.type == "function"
        ]
        for name, arguments in expected:
            called.add(name)
            jsonschema_rs.validate(PERSON if name == "get_person" else {"enum": [{}]}, json.loads(arguments))
        calls: dict[int, list[str]] = {}
        reasons = []
        for chunk in client.chat.completions.create(**asked, seed=seed, stream=True):
            choice = chunk.choices[0]
            assert not choice.delta.content
            reasons.append(choice.finish_reason)
            for piece in choice.delta.tool_calls or ():
                assert piece.function is not None
                if piece.index not in calls:
                    assert piece.id
                    assert piece.type == "function"
                    calls[piece.index] = [piece.function.name or "", ""]
                calls[piece.index][1] += piece.function.arguments or ""
        assert [tuple(call) for call in calls.values()] == expected
        assert reasons[-1] == "tool_calls"
        assert not any(reasons[:-1])
    assert called == {"get_person", "nothing"}


def test_a_named_function_is_called_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "nothing"}},
        max_tokens=200,
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("nothing", {})
    assert answer.choices[0].finish_reason == "tool_calls"


def test_one_call_when_they_may_not_be_parallel_and_a_cut_call_says_length(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HI, "tools": TOOLS, "tool_choice": "required"}
    for seed in range(3):
        answer = client.chat.completions.create(**asked, parallel_tool_calls=False, max_tokens=2000, seed=seed)
        assert len(answer.choices[0].message.tool_calls or ()) == 1
    cut = client.chat.completions.create(**asked, max_tokens=12)
    assert cut.choices[0].finish_reason == "length"


def test_calls_and_their_results_go_back_into_the_prompt(client: openai.OpenAI, node: EngineNode) -> None:
    first = client.chat.completions.create(
        model="tiny", messages=HI, tools=TOOLS, tool_choice="required", max_tokens=2000, parallel_tool_calls=False
    ).choices[0]
    (call,) = first.message.tool_calls or ()
    history: list[Any] = [
        *HI,
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=history, tools=TOOLS, max_tokens=5)
    assert answer.choices[0].message.content
    tokens = node.http.post("/tokenize", json={"messages": history, "tools": TOOLS}).json()["tokens"]
    prompt = node.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert '"name": "get_person"' in prompt
    assert prompt.count("<tool_call>") == 2, "one in the instructions, one in the history"
    assert "tool\ndone" in prompt


def test_tools_that_may_not_be_called_are_not_shown_to_the_model(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="tiny", messages=HI, max_tokens=3)
    none = client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS, tool_choice="none", max_tokens=3)
    auto = client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS, max_tokens=3)
    counts = [answer.usage.prompt_tokens for answer in (plain, none, auto) if answer.usage]
    assert counts[0] == counts[1] < counts[2]


def test_with_tools_a_response_format_binds_only_what_is_no_call(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [42]}}}
    reasons = set()
    for seed in range(8):
        choice = client.chat.completions.create(
            model="tiny", messages=HI, tools=[TOOLS[1]], response_format=form, max_tokens=900, seed=seed
        ).choices[0]
        reasons.add(choice.finish_reason)
        assert (choice.message.content == "42") != bool(choice.message.tool_calls)
        assert choice.finish_reason == ("stop" if choice.message.content else "tool_calls")
    assert reasons


def test_a_request_with_a_grammar_slows_nobody_and_changes_nobody(client: openai.OpenAI, node: EngineNode) -> None:
    body = {"model": "tiny", "prompt": "once", "max_tokens": 60, "seed": 9, "stream": True, "return_token_ids": True}
    alone = read_stream(node, "/v1/completions", body).token_ids()
    beside = client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=900, seed=5, response_format=FORMAT, stream=True
    )
    next(iter(beside))
    assert read_stream(node, "/v1/completions", body).token_ids() == alone
    text = "".join(chunk.choices[0].delta.content or "" for chunk in beside if chunk.choices)
    jsonschema_rs.validate(PERSON, json.loads(text))
