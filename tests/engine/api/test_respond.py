"""What a client is answered when the core dies: a refusal while nothing was sent, an error event after it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest

from engine.api.respond import GenerationResponse
from engine.config import NodeConfig
from engine.node.generation_request import GenerationRequest
from engine.node.inflight import Fate
from engine.node.metrics import NodeMetrics
from engine.node.node import ServingNode
from engine.node.request_record import Arrival
from engine.node.served_model import ModelFacts
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreReady, SequenceUpdate, StepReport
from engine.protocol.step import SamplingParams
from engine.text.tokenizer import load_tokenizer
from tests.fixtures.engine import sample, tiny_model_dir

pytestmark = pytest.mark.anyio

REQUEST = GenerationRequest("r", "cmpl-r", "completion", "m", 0, ((1, 2, 3),), 1, SamplingParams(max_tokens=5))


@pytest.fixture
def node() -> ServingNode:
    """One whose core is up and swallows what it is sent."""
    config = NodeConfig(tiny_model_dir(), ("m",), "n1")
    tokenizer = load_tokenizer(config.model_dir)
    metrics = NodeMetrics(model_name="m", max_model_len=1024)
    facts = ModelFacts(tokenizer.vocab_size, 1024, (), "r1")
    node = ServingNode(config, CoreConfig(model_dir="."), tokenizer, facts, metrics)
    node.core._hear(CoreReady(100, 16, 1024, "cpu", "float32", 0.0, 0.0))
    return node


class Answered:
    """One request whose answer is being written, and what its client was sent."""

    def __init__(self, node: ServingNode, *, stream: bool) -> None:
        self.node = node
        self.sent: list[dict[str, Any]] = []
        request = msgspec.structs.replace(REQUEST, stream=stream)
        self.inflight = node.admission.admit(request, arrival=Arrival("r", "completion", time.monotonic()))
        response = GenerationResponse(node.requests, node.model.tokenizer, self.inflight)
        self.task = asyncio.create_task(response({"type": "http"}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def step(self, token_id: int) -> None:
        """The core draws one token."""
        update = SequenceUpdate(self.inflight.choices[0].seq_id, token_ids=(token_id,))
        self.node.core._hear(StepReport(1, "decode", 0.0, 0.01, 1, 1, (update,), 0, 0, 0, 100))
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.mark.parametrize(
    ("stream", "num_tokens"), [(True, 0), (False, 0), (False, 2)], ids=["stream", "whole", "whole that had tokens"]
)
async def test_what_a_dying_core_held_may_go_elsewhere_while_nothing_was_sent(
    node: ServingNode, stream: bool, num_tokens: int
) -> None:
    answered = Answered(node, stream=stream)
    for _ in range(num_tokens):
        await answered.step(70)
    await asyncio.sleep(0)
    assert answered.sent == [], "nothing is sent before the first event"
    node.on_core_lost("killed by SIGKILL")
    await answered.task
    assert (answered.status, answered.headers[b"x-fleet-refused"]) == (503, b"core_dead")
    assert int(answered.headers[b"retry-after"]) >= 1
    error = json.loads(answered.body)["error"]
    assert (error["code"], error["type"]) == ("core_dead", "server_error")
    assert "SIGKILL" in error["message"]
    assert sample(node.exposition().decode(), "engine_requests_total", {"state": "failed"}) == 1


async def test_a_stream_that_has_begun_ends_with_an_error_event_when_the_core_dies(node: ServingNode) -> None:
    answered = Answered(node, stream=True)
    await answered.step(70)
    assert (answered.status, answered.headers[b"content-type"]) == (200, b"text/event-stream; charset=utf-8")
    node.on_core_lost("killed")
    await answered.task
    last = [event for event in answered.body.decode().split("\n\n") if event][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "core_dead"
    assert "[DONE]" not in answered.body.decode()


async def test_a_stream_that_moves_before_its_first_token_is_still_a_stream(node: ServingNode) -> None:
    answered = Answered(node, stream=True)
    answered.inflight.end(Fate.MOVED)
    await answered.task
    assert answered.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert answered.body.startswith(b"event: fleet.handoff\n")


async def test_a_node_that_stops_refuses_what_it_did_not_begin_to_answer(node: ServingNode) -> None:
    answered = Answered(node, stream=True)
    node.requests.fail(answered.inflight, "the node is stopping", "node_stopping")
    await answered.task
    assert (answered.status, answered.headers[b"x-fleet-refused"]) == (503, b"node_stopping")
