"""OpenAI's chat in Bedrock's words and back: what has no place there is named and stays in the house."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.gateway.overflow.converse import ChunkWriter, chat_completion, converse_body
from fleetctl.gateway.overflow.outside import NotExpressibleError

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "shelf"}'}}


def test_a_chat_with_tools_and_limits() -> None:
    body = {
        "model": "demo",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Where"}]},
            {"role": "user", "content": "is it?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "third shelf"},
            {"role": "developer", "content": "No poems."},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"a": 1}}}],
        "tool_choice": "required",
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": "END",
        "max_completion_tokens": 9,
        "stream": True,
        "seed": 1,
        "n": 1,
        "response_format": {"type": "text"},
    }
    assert converse_body(body, 100) == {
        "system": [{"text": "Be brief."}, {"text": "No poems."}],
        "messages": [
            {"role": "user", "content": [{"text": "Where"}, {"text": "is it?"}]},
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "c1", "name": "look", "input": {"at": "shelf"}}}],
            },
            {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "third shelf"}]}}]},
        ],
        "inferenceConfig": {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
        "toolConfig": {
            "tools": [{"toolSpec": {"name": "look", "description": "Look.", "inputSchema": {"json": {"a": 1}}}}],
            "toolChoice": {"any": {}},
        },
    }


ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"guided_regex": "a"}, "guided_regex"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "no text"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "must be the user's"),
        ({"tools": [{"type": "web_search"}]}, "no function"),
        (
            {"messages": [*ASKED, {"role": "assistant", "tool_calls": [{**CALL, "function": {"arguments": "{"}}]}]},
            "tool_calls",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_place_there_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(NotExpressibleError, match=field):
        converse_body({"messages": ASKED, **changes}, 100)


def test_a_whole_answer_comes_back_in_openais_shape() -> None:
    content = [{"text": "On "}, {"text": "it."}, {"toolUse": {"toolUseId": "u1", "name": "look", "input": {"at": 1}}}]
    answer = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7, "cacheReadInputTokens": 5},
    }
    made = chat_completion(answer, answer_id="chatcmpl-1", model="demo", created=1)
    (choice,) = made["choices"]
    assert choice["message"]["content"] == "On it."
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert choice["finish_reason"] == "tool_calls"
    assert made["usage"] == {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
    for broken in ({}, {**answer, "output": None}, {**answer, "usage": {}}):
        with pytest.raises(ValueError, match="Converse"):
            chat_completion(broken, answer_id="x", model="m", created=1)


def test_a_stream_with_a_tool_call_comes_back_as_chunks() -> None:
    writer = ChunkWriter(answer_id="chatcmpl-1", model="demo", created=1, wants_usage=True)
    events: list[tuple[str, dict[str, Any]]] = [
        ("messageStart", {"role": "assistant"}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "On it"}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": {"toolUseId": "u1", "name": "look"}}}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": '{"at"'}}}),
        ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"toolUse": {"input": ": 1}"}}}),
        ("messageStop", {"stopReason": "tool_use"}),
        ("metadata", {"usage": {"inputTokens": 3, "outputTokens": 4}}),
        ("somethingNew", {}),
    ]
    frames = b"".join(chunk for kind, event in events for chunk in writer.chunks(kind, event)) + b"".join(writer.last())
    *chunks, done = frames.decode().strip().split("\n\n")
    assert done == "data: [DONE]"
    values = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]
    deltas = [one["choices"][0]["delta"] for one in values if one["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": "On it"}
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"at": 1}'
    assert values[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert values[-1]["usage"]["total_tokens"] == 7
    with pytest.raises(ValueError, match="contentBlockDelta"):
        writer.chunks("contentBlockDelta", {"delta": {"toolUse": {"input": ""}}, "contentBlockIndex": 9})
