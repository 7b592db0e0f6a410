"""Progress against admitted work: a request that the core no longer knows is ended aloud, not left waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from engine.config import NodeConfig
from engine.node.generation_request import GenerationRequest
from engine.node.health import STUCK_FLOOR_S, CorePhase
from engine.node.inflight import Fate, InflightRequest
from engine.node.metrics import NodeMetrics
from engine.node.node import ServingNode
from engine.node.request_record import Arrival
from engine.node.served_model import ModelFacts
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreIdle, CoreReady, SequenceUpdate, StepReport
from engine.protocol.step import SamplingParams
from engine.text.tokenizer import load_tokenizer
from tests.fixtures.engine import sample, tiny_model_dir


@pytest.fixture
def node() -> Iterator[ServingNode]:
    """One whose core is up and swallows what it is sent."""
    config = NodeConfig(tiny_model_dir(), ("m",), "n1")
    tokenizer = load_tokenizer(config.model_dir)
    facts = ModelFacts(tokenizer.vocab_size, 1024, (), "r1")
    metrics = NodeMetrics(model_name="m", max_model_len=1024)
    node = ServingNode(config, CoreConfig(model_dir="."), tokenizer, facts, metrics)
    node.core._hear(CoreReady(100, 16, 1024, "cpu", "float32", 0.0, 0.0))
    assert node.core.phase is CorePhase.UP
    yield node
    for inflight in list(node.requests.held):
        node.requests.close(inflight, inflight.outcome or Fate.ABORTED)


def make_request(request_id: str, deadline_s: float | None = None) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=5)
    prompts = ((1, 2, 3),)
    return GenerationRequest(request_id, request_id, "completion", "m", 0, prompts, 1, sampling, deadline_s=deadline_s)


def admit(node: ServingNode, request_id: str) -> InflightRequest:
    return node.admission.admit(make_request(request_id), arrival=Arrival(request_id, "completion", time.monotonic()))


def idle(at: float) -> CoreIdle:
    return CoreIdle(at, 0, 100)


@pytest.mark.anyio
async def test_a_request_that_an_idle_core_should_have_is_ended_with_an_error(node: ServingNode) -> None:
    inflight = admit(node, "lost")
    node.core._hear(idle(inflight.admitted_at + STUCK_FLOOR_S - 0.1))
    assert inflight.outcome is None, "it may still be on its way"
    node.core._hear(idle(inflight.admitted_at + STUCK_FLOOR_S + 0.1))
    assert inflight.outcome is Fate.FAILED
    assert "lost" in str(inflight.error)


@pytest.mark.anyio
async def test_a_request_that_ended_is_not_called_lost(node: ServingNode) -> None:
    inflight = admit(node, "done")
    (choice,) = inflight.choices
    update = SequenceUpdate(choice.seq_id, token_ids=(4,), finish_reason="length")
    node.core._hear(StepReport(1, "prefill", 0.0, 0.01, 3, 1, (update,), 0, 0, 0, 100))
    node.core._hear(idle(inflight.admitted_at + 100.0))
    assert inflight.outcome is Fate.FINISHED


@pytest.mark.anyio
async def test_a_deadline_that_another_node_used_up_ends_a_continued_request(node: ServingNode) -> None:
    request, arrival = make_request("a", deadline_s=10.0), Arrival("a", "completion", time.monotonic())
    inflight = node.admission.admit(request, arrival=arrival, elapsed_before_s=11.0)
    assert await inflight.next_deltas() == []
    assert (inflight.outcome, inflight.error_code) == (Fate.FAILED, "deadline_exceeded")


@pytest.mark.anyio
@pytest.mark.parametrize(("fate", "counted"), [(Fate.MOVED, 0), (Fate.ABORTED, 1)])
async def test_a_sequence_counts_where_it_ends_also_when_its_move_came_to_nothing(
    node: ServingNode, fate: Fate, counted: int
) -> None:
    """Its client left between the stop for the hand-off and the hand-off itself: no other node will count it."""
    inflight = admit(node, "moving")
    (choice,) = inflight.choices
    choice.abort_reason = "moved"
    node.core._hear(
        StepReport(1, "decode", 0.0, 0.01, 1, 1, (SequenceUpdate(choice.seq_id, finish_reason="abort"),), 0, 0, 0, 100)
    )
    assert inflight.outcome is Fate.MOVED
    node.requests.close(inflight, fate)
    exposition = node.metrics.exposition().decode()
    assert sample(exposition, "vllm:request_success_total", {"finished_reason": "abort"}) == counted
    assert sample(exposition, "vllm:e2e_request_latency_seconds_count", {}) == counted


@pytest.mark.anyio
async def test_output_that_can_not_be_read_ends_its_own_request_and_no_other(node: ServingNode) -> None:
    broken, sound = admit(node, "broken"), admit(node, "sound")

    def bytes_of_no_token(token_id: int) -> bytes:
        raise RecursionError

    broken.choices[0].text.bytes_of = bytes_of_no_token
    unreadable = SequenceUpdate(broken.choices[0].seq_id, token_ids=(4,))
    last = SequenceUpdate(sound.choices[0].seq_id, token_ids=(4,), finish_reason="length")
    node.core._hear(StepReport(1, "decode", 0.0, 0.01, 2, 2, (unreadable, last), 0, 0, 0, 100))
    assert (broken.outcome, broken.error_code) == (Fate.FAILED, "engine_error")
    assert sound.outcome is Fate.FINISHED
    assert b"engine_output_failures_total 1.0" in node.exposition()
