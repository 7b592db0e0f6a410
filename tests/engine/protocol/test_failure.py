"""A sequence's failure crosses from the core to the client by its kind, whatever its message says."""

from __future__ import annotations

import pytest

from engine.api.respond import STATUS_OF
from engine.node.inflight import Choice
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.frames import Decoder, encode_frame
from engine.protocol.messages import FinishReason, FromCore, SequenceUpdate, StepKind, StepReport
from engine.protocol.step import SamplingParams
from engine.text.detokenizer import TextStream

MISLEADING = "its grammar: out of memory, non-finite logits"


@pytest.mark.parametrize("kind", FailureKind)
def test_the_answer_follows_the_kind_whatever_the_message_says(kind: FailureKind) -> None:
    choice = Choice(0, "r-0", (1,), SamplingParams(max_tokens=2), TextStream(lambda token: bytes([token])))
    failure = SequenceFailure(kind, MISLEADING)
    choice.apply(SequenceUpdate("r-0", finish_reason=FinishReason.ERROR, failure=failure))
    known = {FailureKind.GRAMMAR: ("grammar_failed", 400), FailureKind.OUT_OF_MEMORY: ("out_of_memory", 503)}
    expected = known.get(kind, ("engine_error", 500))
    assert (choice.error_code, STATUS_OF.get(choice.error_code, 500)) == expected
    assert choice.error == MISLEADING


def report_of(update: SequenceUpdate) -> StepReport:
    return StepReport(1, StepKind.DECODE, 1.0, 0.1, 1, 1, (update,), 0, 0, 0, 8)


@pytest.mark.parametrize("kind", FailureKind)
def test_kind_and_message_survive_the_wire(kind: FailureKind) -> None:
    sent = report_of(SequenceUpdate("a", finish_reason=FinishReason.ERROR, failure=SequenceFailure(kind, "why")))
    received: StepReport = Decoder[StepReport](FromCore).decode(encode_frame(sent)[4:])
    assert received == sent
    (update,) = received.updates
    assert update.failure is not None
    assert update.failure.kind is kind
    assert update.finish_reason is FinishReason.ERROR
    assert received.kind is StepKind.DECODE
