"""Progress against admitted work: a request that the core no longer knows is ended aloud, not left waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from engine.config import NodeConfig
from engine.node.health import STUCK_FLOOR_S, CorePhase
from engine.node.inflight import Ask, Fate, Flight
from engine.node.metrics import NodeMetrics
from engine.node.model_facts import ModelFacts
from engine.node.node import Node
from engine.node.request_record import Arrival
from engine.protocol.core_config import CoreConfig
from engine.protocol.messages import CoreIdle, CoreReady, SequenceUpdate, StepReport
from engine.protocol.step import SamplingParams
from engine.text.tokenizer import load_tokenizer
from tests.fixtures.engine import sample, tiny_model_dir


@pytest.fixture
def node() -> Iterator[Node]:
    """One whose core is up and swallows what it is sent."""
    config = NodeConfig(tiny_model_dir(), ("m",), "n1")
    tokenizer = load_tokenizer(config.model_dir)
    facts = ModelFacts(tokenizer.vocab_size, 1024, (), "r1")
    metrics = NodeMetrics(model_name="m", max_model_len=1024)
    node = Node(config, CoreConfig(model_dir="."), tokenizer, facts, metrics)
    node.core._hear(CoreReady(100, 16, 1024, "cpu", "float32", 0.0, 0.0))
    assert node.core.phase is CorePhase.UP
    yield node
    for flight in list(node.flights):
        node.close(flight, flight.outcome or Fate.ABORTED)


def admit(node: Node, request_id: str) -> Flight:
    ask = Ask(request_id, request_id, "completion", "m", 0, ((1, 2, 3),), 1, SamplingParams(max_tokens=5))
    return node.admit(ask, arrival=Arrival(request_id, "completion", time.monotonic()))


def idle(at: float) -> CoreIdle:
    return CoreIdle(at, 0, 100)


@pytest.mark.anyio
async def test_a_request_that_an_idle_core_should_have_is_ended_with_an_error(node: Node) -> None:
    flight = admit(node, "lost")
    node.core._hear(idle(flight.admitted_at + STUCK_FLOOR_S - 0.1))
    assert flight.outcome is None, "it may still be on its way"
    node.core._hear(idle(flight.admitted_at + STUCK_FLOOR_S + 0.1))
    assert flight.outcome is Fate.FAILED
    assert "lost" in str(flight.error)


@pytest.mark.anyio
async def test_a_request_that_ended_is_not_called_lost(node: Node) -> None:
    flight = admit(node, "done")
    (choice,) = flight.choices
    update = SequenceUpdate(choice.seq_id, token_ids=(4,), finish_reason="length")
    node.core._hear(StepReport(1, "prefill", 0.0, 0.01, 3, 1, (update,), 0, 0, 0, 100))
    node.core._hear(idle(flight.admitted_at + 100.0))
    assert flight.outcome is Fate.FINISHED


@pytest.mark.anyio
async def test_a_deadline_that_another_node_used_up_ends_a_continued_request(node: Node) -> None:
    ask = Ask("a", "a", "completion", "m", 0, ((1, 2, 3),), 1, SamplingParams(max_tokens=5), deadline_s=10.0)
    flight = node.admit(ask, arrival=Arrival("a", "completion", time.monotonic()), elapsed_before_s=11.0)
    assert await flight.news() == []
    assert (flight.outcome, flight.error_code) == (Fate.FAILED, "deadline_exceeded")


@pytest.mark.anyio
@pytest.mark.parametrize(("fate", "counted"), [(Fate.MOVED, 0), (Fate.ABORTED, 1)])
async def test_a_sequence_counts_where_it_ends_also_when_its_move_came_to_nothing(
    node: Node, fate: Fate, counted: int
) -> None:
    """Its client left between the stop for the hand-off and the hand-off itself: no other node will count it."""
    flight = admit(node, "moving")
    (choice,) = flight.choices
    choice.abort_reason = "moved"
    node.core._hear(
        StepReport(1, "decode", 0.0, 0.01, 1, 1, (SequenceUpdate(choice.seq_id, finish_reason="abort"),), 0, 0, 0, 100)
    )
    assert flight.outcome is Fate.MOVED
    node.close(flight, fate)
    exposition = node.metrics.exposition().decode()
    assert sample(exposition, "vllm:request_success_total", {"finished_reason": "abort"}) == counted
    assert sample(exposition, "vllm:e2e_request_latency_seconds_count", {}) == counted
