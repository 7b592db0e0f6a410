"""One choice while it is being moved: nothing that the core draws before it confirms is lost or doubled."""

import pytest

from engine.node.choice import Choice, ReplayError
from engine.node.generation_request import GenerationRequest
from engine.node.inflight import Fate, InflightRequest
from engine.protocol.messages import SequenceUpdate
from engine.protocol.step import SamplingParams
from engine.text.detokenizer import TextStream

SEQ_ID = "r/0/0"


def make_choice(stop: tuple[str, ...] = (), max_tokens: int = 10) -> Choice:
    text = TextStream(lambda token: bytes([token]), stop=stop)
    return Choice(index=0, seq_id=SEQ_ID, prompt=(1,), sampling=SamplingParams(max_tokens=max_tokens), text=text)


def make_inflight(choice: Choice) -> InflightRequest:
    request = GenerationRequest(
        answer_id="cmpl-r",
        request_id="r",
        kind="completion",
        model="m",
        created=0,
        prompts=((1,),),
        n=1,
        sampling=choice.sampling,
        stream=True,
    )
    return InflightRequest(request=request, choices=[choice], arrived_at=0.0, accepts_handoff=True)


def update(tokens: bytes, finish_reason: str | None = None) -> SequenceUpdate:
    return SequenceUpdate(SEQ_ID, token_ids=tuple(tokens), finish_reason=finish_reason)


def test_the_state_is_taken_only_when_the_core_has_confirmed() -> None:
    choice = make_choice()
    inflight = make_inflight(choice)
    choice.apply(update(b"ab"))
    choice.abort_reason = "moved"
    inflight.settle()
    assert inflight.outcome is None
    between = choice.apply(update(b"c"))
    last = choice.apply(update(b"d", "abort"))
    inflight.settle()
    assert between is not None
    assert last is not None
    assert (between.text, last.text) == ("c", "d")
    assert inflight.outcome is Fate.MOVED
    assert choice.progress().output_token_ids == tuple(b"abcd")
    assert choice.progress().num_chars_sent == 4


def test_what_ends_by_itself_before_the_core_confirms_is_not_moved() -> None:
    choice = make_choice()
    inflight = make_inflight(choice)
    choice.abort_reason = "moved"
    choice.apply(update(b"ab", "length"))
    inflight.settle()
    assert inflight.outcome is Fate.FINISHED


def test_a_stop_string_in_the_last_tokens_still_ends_the_answer() -> None:
    choice = make_choice(stop=("bc",))
    inflight = make_inflight(choice)
    choice.apply(update(b"ab"))
    choice.abort_reason = "moved"
    choice.apply(update(b"c", "abort"))
    inflight.settle()
    assert inflight.outcome is Fate.FINISHED
    assert choice.finish_reason == "stop"


def test_half_a_stop_string_is_held_back_over_the_move() -> None:
    source, target = make_choice(stop=("bc",)), make_choice(stop=("bc",))
    shown = source.apply(update(b"ab"))
    source.abort_reason = "moved"
    source.apply(update(b"", "abort"))
    target.replay(source.progress())
    rest = target.apply(update(b"d"))
    assert shown is not None
    assert rest is not None
    assert (shown.text, rest.text, rest.char_offset) == ("a", "bd", 1)


def test_an_abort_that_nobody_asked_for_is_an_error() -> None:
    choice = make_choice()
    inflight = make_inflight(choice)
    choice.apply(update(b"a", "abort"))
    inflight.settle()
    assert inflight.outcome is Fate.FAILED


def test_tokens_that_give_another_text_are_not_continued() -> None:
    source, target = make_choice(), make_choice()
    source.apply(update(b"ab"))
    progress = source.progress()
    target.text.bytes_of = lambda token: bytes([token, token])
    with pytest.raises(ReplayError, match="2 characters were sent, its tokens give 4"):
        target.replay(progress)
