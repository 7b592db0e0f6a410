"""`/v1/responses` by the official client: what it sends is understood, and events come in their types' order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests.fixtures.engine import EngineNode, start_node
from tests.fixtures.openai import strict_client

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "of a town",
    "parameters": {
        "type": "object",
        "properties": {"town": {"enum": ["Rome", "Oslo"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
    "strict": True,
}
AGE = {"type": "object", "properties": {"age": {"type": "boolean"}}, "required": ["age"], "additionalProperties": False}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("responses")) as running:
        yield running


@pytest.fixture(scope="module")
def client(node: EngineNode) -> Iterator[openai.OpenAI]:
    with strict_client(node.url) as made:
        yield made


def create(client: openai.OpenAI, **body: Any) -> Response:
    return client.responses.create(**{"model": "tiny", "input": "hi", "extra_body": {"seed": 4}, **body})


def events_of(client: openai.OpenAI, **body: Any) -> list[Any]:
    asked = {"model": "tiny", "input": "hi", "extra_body": {"seed": 4}, **body, "stream": True}
    events = list(client.responses.create(**asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def test_text_is_the_chats(node: EngineNode, client: openai.OpenAI) -> None:
    response = create(client, instructions="be brief", max_output_tokens=12, store=False, metadata={"a": "b"})
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    chat = node.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 12, "seed": 4}).json()
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        chat["usage"]["prompt_tokens"],
        chat["usage"]["completion_tokens"],
    )
    assert response.id.startswith("resp_")
    assert (response.instructions, response.metadata) == ("be brief", {"a": "b"})


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI) -> None:
    response = create(client, max_output_tokens=3, extra_body={"ignore_eos": True, "seed": 4})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    events = events_of(client, max_output_tokens=3, extra_body={"ignore_eos": True, "seed": 4})
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output == response.output or events[-1].response.output_text == response.output_text


def test_events_come_in_the_order_of_their_types(client: openai.OpenAI) -> None:
    whole = create(client, max_output_tokens=20, extra_body={"ignore_eos": True, "seed": 4})
    events = events_of(client, max_output_tokens=20, extra_body={"ignore_eos": True, "seed": 4})
    kinds = [event.type for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert num_deltas > 3
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
    assert events[0].response.usage is None
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens if whole.usage else False


def test_a_call_and_what_came_of_it(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    response = create(client, **asked)
    (call,) = response.output
    assert call.type == "function_call"
    assert call.name == "weather"
    assert json.loads(call.arguments)["town"] in ("Rome", "Oslo")
    events = events_of(client, **asked)
    kinds = [event.type for event in events]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        *["response.function_call_arguments.delta"] * len(pieces),
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(pieces) == call.arguments
    assert events[-1].response.output[0].arguments == call.arguments
    history: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "what is the weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    after = create(client, input=history, **asked)
    assert after.usage is not None
    assert after.usage.input_tokens > (response.usage.input_tokens if response.usage else 0)
    named = create(client, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    assert [item.type for item in named.output] == ["function_call"]


def test_the_text_fits_its_schema(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "age", "schema": AGE, "strict": True}}
    response = create(client, text=form)
    assert set(json.loads(response.output_text)) == {"age"}
    events = events_of(client, text=form)
    assert json.loads(events[-1].response.output_text) == json.loads(response.output_text)


def test_log_probabilities_come_with_the_text(client: openai.OpenAI) -> None:
    body: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 6}
    response = create(client, **body, extra_body={"ignore_eos": True, "seed": 4})
    logprobs = response.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert [len(entry.top_logprobs) for entry in logprobs or ()] == [2] * 6
    events = events_of(client, **body, extra_body={"ignore_eos": True, "seed": 4})
    streamed = [one.token for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert streamed == [entry.token for entry in logprobs or ()][: len(streamed)]


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no responses"),
        ({"background": True}, "background", "keeps no responses"),
        ({"conversation": "conv_1"}, "conversation", "keeps no responses"),
        ({"input": []}, "input", "at least 1"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0", "text only"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", ""),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "name and schema"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"max_output_tokens": 10**7}, "max_output_tokens", ""),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    node: EngineNode, changes: dict[str, Any], param: str, words: str
) -> None:
    answer = node.http.post("/v1/responses", json={"input": "hi"} | changes)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


def test_nothing_is_kept(node: EngineNode, client: openai.OpenAI) -> None:
    response = create(client, max_output_tokens=2)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    assert node.http.delete(f"/v1/responses/{response.id}").status_code == 404


def test_the_helpers_of_the_client_follow_a_stream(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "age", "schema": AGE, "strict": True}}
    with client.responses.stream(model="tiny", input="hi", text=form) as stream:
        for _ in stream:
            pass
        assert set(json.loads(stream.get_final_response().output_text)) == {"age"}
