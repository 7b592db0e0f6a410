"""Events of a response whose steps bring several tokens: a call's end and what is said after it come in one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.api.responses import ResponseEvents, whole_response
from engine.api.schema_responses import ResponsesBody
from engine.api.text_logprobs import TokenTexts
from engine.node.choice import Choice
from engine.node.generation_request import GenerationRequest
from engine.node.inflight import InflightRequest
from engine.protocol.messages import SequenceUpdate
from engine.protocol.step import SamplingParams, TokenLogprobs
from engine.text.detokenizer import TextStream
from engine.text.tokenizer import load_tokenizer
from engine.text.tool_stream import ToolStream
from tests.fixtures.engine import tiny_model_dir

CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Rome"}}\n</tool_call>'
SAID = {
    "a call": CALL,
    "text, then a call": f"Let me see. {CALL}",
    "a call, then text": f"{CALL}\nThat is all.",
    "two calls and text around them": f"One. {CALL} Two. {CALL} Three.",
}


def events_of(said: str, step: int, *, num_logprobs: int | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a client reads when so many bytes come at a time, each a token; and the answer that is not streamed."""
    sampling = SamplingParams(max_tokens=1000, num_logprobs=num_logprobs)
    choice = Choice(
        index=0,
        seq_id="r/0/0",
        prompt=(1,),
        sampling=sampling,
        text=TextStream(lambda token: bytes([token])),
        tools=ToolStream("hermes"),
        keeps_text=True,
    )
    request = GenerationRequest(
        answer_id="resp_r",
        request_id="r",
        kind="response",
        model="m",
        created=0,
        prompts=((1,),),
        n=1,
        sampling=sampling,
        stream=True,
        tool_format="hermes",
    )
    inflight, body = InflightRequest(request=request, choices=[choice], arrived_at=0.0), ResponsesBody(input="hi")
    texts = TokenTexts.of(request, load_tokenizer(tiny_model_dir()))
    events, raw = ResponseEvents(inflight, body, texts), said.encode()
    written = b""
    for first in range(0, len(raw), step):
        tokens = tuple(raw[first : first + step])
        logprobs = tuple(TokenLogprobs(-0.5) for _ in tokens) if num_logprobs is not None else ()
        ended = "length" if first + step >= len(raw) else None
        delta = choice.apply(SequenceUpdate("r/0/0", tokens, logprobs=logprobs, finish_reason=ended))
        written += b"" if delta is None else events.of(delta)
    inflight.settle()
    written += events.end()
    blocks = written.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(block.split("data: ")[1]) for block in blocks], whole_response(inflight, body, texts)


def calls_of(output: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]


def text_of(output: list[dict[str, Any]]) -> str:
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


@pytest.mark.parametrize("num_logprobs", [None, 0], ids=["plain", "logprobs"])
@pytest.mark.parametrize("step", [1, 3, 8, 40])
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_calls_are_whole_however_many_tokens_a_step_brings(said: str, step: int, num_logprobs: int | None) -> None:
    events, whole = events_of(said, step, num_logprobs=num_logprobs)
    output = events[-1]["response"]["output"]
    assert calls_of(output) == calls_of(whole["output"]) == [("weather", '{"town": "Rome"}')] * said.count("weather")
    assert text_of(output) == text_of(whole["output"])
    pieces: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            pieces[event["item_id"]] = pieces.get(event["item_id"], "") + event["delta"]
    assert list(pieces.values()) == ['{"town": "Rome"}'] * said.count("weather")
    assert all(item["content"][0]["text"] for item in output if item["type"] == "message"), "none without text"


@pytest.mark.parametrize("step", [1, 3, 40])
def test_log_probabilities_are_those_of_what_is_said(step: int) -> None:
    events, whole = events_of("plain text", step, num_logprobs=0)
    (message,) = events[-1]["response"]["output"]
    assert len(message["content"][0]["logprobs"]) == len("plain text")
    assert whole["output"] == [message]
    streamed = [one for event in events if event["type"].endswith("text.delta") for one in event["logprobs"]]
    assert streamed == message["content"][0]["logprobs"]
