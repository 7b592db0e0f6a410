"""Random lives of requests through the output path: detokeniser, stop strings, tool calls, log probabilities, chunks.

Whatever the core says and whatever a client asked for, each request ends once, in one state, the others are as they
would be without it, and the queue's sums are what a recount gives.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engine.api.respond import GenerationResponse
from engine.config import NodeConfig
from engine.node.generation_request import GenerationRequest
from engine.node.inflight import Fate, InflightRequest
from engine.node.metrics import NodeMetrics
from engine.node.node import ServingNode
from engine.node.request_record import Arrival, RequestRecord
from engine.node.served_model import ModelFacts
from engine.protocol.core_config import CoreConfig
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.messages import CoreReady, FinishReason, SequenceUpdate, StepReport
from engine.protocol.step import SamplingParams, TokenLogprobs
from engine.text.tool_formats import FORMATS
from tests.fixtures.engine import sample, tiny_model_dir
from tests.fixtures.grammar import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LOOP_TURNS = 6  # in which what was said is written, or a hang-up noticed
# Texts that mean something to a reader of answers, among tokens that mean nothing.
_TEXTS = [
    *(
        '<tool_call>\n{"name": "f", "arguments": ',
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "f[ARGS]{",
    ),
    *("[" * 60, "{" * 60, '{"name": "', '", "parameters": {"a": ', "}}", '"\\u', "\\", "é", "日本", "STOP", "ST"),
]
_SPELLED = [TOKENIZER.encode(text, add_special_tokens=False) for text in _TEXTS if text]
_TOKENS = st.one_of(
    st.integers(0, TOKENIZER.vocab_size - 1).map(lambda token_id: (token_id,)), st.sampled_from(_SPELLED)
)


@dataclass(frozen=True)
class Ask:
    """What one request asks for."""

    n: int
    stream: bool
    kind: str
    stop: tuple[str, ...]
    include_stop: bool
    num_logprobs: int | None
    return_token_ids: bool
    tool_format: str | None
    max_tool_calls: int | None
    include_usage: bool
    continuous_usage: bool
    max_tokens: int
    min_tokens: int


_ASKS = st.builds(
    Ask,
    n=st.integers(1, 3),
    stream=st.booleans(),
    kind=st.sampled_from(["chat", "completion"]),
    stop=st.lists(st.sampled_from(["STOP", "é", "}}", "a", "<tool_call>"]), max_size=3, unique=True).map(tuple),
    include_stop=st.booleans(),
    num_logprobs=st.sampled_from([None, 0, 2]),
    return_token_ids=st.booleans(),
    tool_format=st.sampled_from([None, *FORMATS]),
    max_tool_calls=st.sampled_from([None, 1]),
    include_usage=st.booleans(),
    continuous_usage=st.booleans(),
    max_tokens=st.integers(1, 400),
    min_tokens=st.integers(0, 3),
)


@dataclass(frozen=True)
class Said:
    """One thing that happens to a choice of a request: the core's news, its client's leaving, an operator's abort."""

    request: int
    choice: int
    tokens: tuple[int, ...]
    event: str | None  # a finish reason, `gone`, `abort`, `hand_off`


_SAID = st.builds(
    Said,
    request=st.integers(0, 3),
    choice=st.integers(0, 2),
    tokens=st.lists(_TOKENS, max_size=3).map(lambda parts: tuple(token for part in parts for token in part)),
    event=st.sampled_from([None] * 12 + [*FinishReason] + ["gone", "abort", "hand_off"]),
)


class _Records:
    """Takes what the node writes of ended requests."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def write(self, record: RequestRecord) -> None:
        self.records.append(record)


@functools.cache
def shared_node() -> tuple[ServingNode, _Records]:
    """One whose core is up and swallows what it is sent; each life leaves it empty."""
    config = NodeConfig(tiny_model_dir(), ("m",), "n1")
    facts = ModelFacts(TOKENIZER.vocab_size, 4096, (), "r1")
    node = ServingNode(
        config, CoreConfig(model_dir="."), TOKENIZER, facts, NodeMetrics(model_name="m", max_model_len=4096)
    )
    node.core._hear(CoreReady(1000, 16, 4096, "cpu", "float32", 0.0, 0.0))
    records = _Records()
    node.requests._request_log = records  # type: ignore[assignment]
    return node, records


def request_of(number: int, ask: Ask) -> GenerationRequest:
    return GenerationRequest(
        answer_id=f"a{number}",
        request_id=f"r{number}",
        kind=ask.kind,  # type: ignore[arg-type]
        model="m",
        created=0,
        prompts=((1, 2, 3),),
        n=ask.n,
        sampling=SamplingParams(
            max_tokens=ask.max_tokens, num_logprobs=ask.num_logprobs, min_tokens=ask.min_tokens, seed=number
        ),
        stop=ask.stop,
        include_stop=ask.include_stop,
        stream=ask.stream,
        include_usage=ask.include_usage,
        continuous_usage=ask.continuous_usage,
        return_token_ids=ask.return_token_ids,
        tool_format=ask.tool_format if ask.kind == "chat" else None,  # type: ignore[arg-type]
        max_tool_calls=ask.max_tool_calls,
    )


class _Client:
    """Reads one answer as an ASGI server would; hangs up when told to."""

    def __init__(self, node: ServingNode, inflight: InflightRequest) -> None:
        self.body = b""
        self.status: int | None = None
        self._gone = asyncio.Event()
        response = GenerationResponse(node.requests, TOKENIZER, inflight)
        self.done = asyncio.create_task(response({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    def hang_up(self) -> None:
        self._gone.set()


def update_of(inflight: InflightRequest, said: Said, logprobs: int | None) -> SequenceUpdate:
    choice = inflight.choices[said.choice % len(inflight.choices)]
    reason = FinishReason(said.event) if said.event in [*FinishReason] else None
    failure = SequenceFailure(FailureKind.STEP_FAILED, "it failed") if reason is FinishReason.ERROR else None
    scored = TokenLogprobs(-0.5, ((5, -0.5), (6, -1.5)))
    return SequenceUpdate(
        choice.seq_id,
        token_ids=said.tokens,
        finish_reason=reason,
        failure=failure,
        logprobs=() if logprobs is None else (scored,) * len(said.tokens),
        scheduled_at=time.monotonic() if said.tokens else None,
    )


def check_sums(node: ServingNode) -> None:
    """The sums that admission judges by, against a recount over all that is held."""
    queue = node.admission._queue
    waiting = [f for f in node.requests.held if f.outcome is None and f.is_waiting]
    assert queue.num_waiting == len(waiting)
    assert queue.queued_tokens == sum(queue.tokens_of(f.request, f.num_output_tokens) for f in waiting)


async def live(
    asks: Sequence[Ask], story: Sequence[Said]
) -> tuple[dict[str, tuple[int | None, bytes]], list[RequestRecord]]:
    """What clients got and the node noted of requests to which all of this happened."""
    node, records = shared_node()
    records.records = []
    inflights = []
    for number, ask in enumerate(asks):
        arrival = Arrival(f"r{number}", "chat", time.monotonic())
        inflights.append(
            node.admission.admit(request_of(number, ask), arrival=arrival, accepts_handoff=number % 2 == 0)
        )
        check_sums(node)
    clients = [_Client(node, inflight) for inflight in inflights]
    for said in story:
        number = said.request % len(asks)
        inflight = inflights[number]
        match said.event:
            case "gone":
                clients[number].hang_up()
            case "abort":
                node.requests.abort([f"r{number}"])
            case "hand_off":
                node.requests.hand_off()
            case _:
                update = update_of(inflight, said, asks[number].num_logprobs)
                node.core._hear(StepReport(1, "decode", 0.0, 0.01, 1, 1, (update,), 0, 0, 0, 100))
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        check_sums(node)
    node.on_core_lost("the test is over")
    check_sums(node)
    await asyncio.wait_for(asyncio.gather(*(client.done for client in clients)), 60)
    assert not node.requests.held
    check_sums(node)
    assert sample(node.exposition().decode(), "engine_output_failures_total", {}) == 0
    return {f"r{i}": (client.status, client.body) for i, client in enumerate(clients)}, records.records


def check_answer(status: int | None, body: bytes, record: RequestRecord) -> None:
    """What a client read agrees with what the node noted."""
    if record.state is Fate.ABORTED:
        return  # nobody reads
    assert status == record.status
    if body.startswith((b"data:", b"event:")):
        events = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
        assert all(json.loads(line) for line in events if line != b"[DONE]")
        assert (events[-1] == b"[DONE]") == (record.state is Fate.FINISHED)
    else:
        answer = json.loads(body)
        assert ("error" in answer) == (record.state in (Fate.FAILED, Fate.REFUSED))


@settings(max_examples=60, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(asks=st.lists(_ASKS, min_size=1, max_size=4), story=st.lists(_SAID, max_size=40))
def test_each_request_ends_once_whatever_is_said_and_the_sums_hold(asks: list[Ask], story: list[Said]) -> None:
    answers, records = asyncio.run(live(asks, story))
    assert sorted(record.arrival.request_id for record in records) == sorted(answers)
    for record in records:
        check_answer(*answers[record.arrival.request_id], record)


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(ask=_ASKS, own=st.lists(_SAID, max_size=12), other=_ASKS, others=st.lists(_SAID, max_size=12), rng=st.randoms())
def test_a_request_is_the_same_whatever_happens_to_another(
    ask: Ask, own: list[Said], other: Ask, others: list[Said], rng: Any
) -> None:
    own = [Said(0, said.choice, said.tokens, None if said.event == "hand_off" else said.event) for said in own]
    others = [Said(1, said.choice, said.tokens, None if said.event == "hand_off" else said.event) for said in others]
    order = [0] * len(own) + [1] * len(others)
    rng.shuffle(order)
    taken = {0: iter(own), 1: iter(others)}
    story = [next(taken[which]) for which in order]
    alone, _ = asyncio.run(live([ask], own))
    beside, _ = asyncio.run(live([ask, other], story))
    assert beside["r0"] == alone["r0"]
