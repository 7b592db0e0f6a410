from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from fleetctl.load.ledger import RequestLedger, Samples
from fleetctl.load.request_fate import JudgedFate, RequestFate, compare, judge
from fleetctl.load.streamed_answer import EventLines, StreamedAnswer


def make_answer(tokens: int = 4, **changes: Any) -> StreamedAnswer:
    answer = StreamedAnswer(sent_at=0.0, status=200)
    for position in range(tokens):
        choice = {"index": 0, "delta": {"content": f" {position}"}, "token_ids": [position], "finish_reason": None}
        answer.take_event(json.dumps({"id": "x", "choices": [choice]}).encode(), 1.0 + position)
    answer.take_event(
        b'{"id": "x", "choices": [{"index": 0, "delta": {}, "token_ids": [], "finish_reason": "length"}]}', 9.0
    )
    answer.take_event(json.dumps({"id": "x", "choices": [], "usage": {"completion_tokens": tokens}}).encode(), 9.0)
    answer.take_event(b"[DONE]", 9.0)
    for name, value in changes.items():
        setattr(answer, name, value)
    return answer


@pytest.mark.parametrize(
    ("answer", "fate", "reason"),
    [
        (make_answer(), RequestFate.FINISHED, ""),
        (make_answer(status=None), RequestFate.LOST, "unreachable"),
        (make_answer(status=None, error="SocketTimeoutError"), RequestFate.LOST, "gave_up"),
        (make_answer(0, status=429), RequestFate.REFUSED, "http_429"),
        (make_answer(0, status=503), RequestFate.REFUSED, "http_503"),
        (make_answer(0, status=502), RequestFate.LOST, "http_502"),
        (make_answer(0, status=400), RequestFate.LOST, "http_400"),
        (make_answer(5), RequestFate.DUPLICATED, "too_much"),
        (make_answer(num_dones=2), RequestFate.DUPLICATED, "too_much"),
        (make_answer(num_finishes=2), RequestFate.DUPLICATED, "too_much"),
        (make_answer(error="node_lost", num_dones=0), RequestFate.LOST, "error_event"),
        (make_answer(num_dones=0), RequestFate.LOST, "cut"),
        (make_answer(3), RequestFate.LOST, "missing_tokens"),
        (make_answer(completion_tokens=3), RequestFate.LOST, "usage_disagrees"),
        (make_answer(completion_tokens=None), RequestFate.LOST, "usage_disagrees"),
        (make_answer(ids={"x", "y"}), RequestFate.LOST, "id_changed"),
        (make_answer(is_garbled=True), RequestFate.LOST, "garbled"),
        (make_answer(has_token_ids=False), RequestFate.FINISHED, ""),
        (make_answer(3, has_token_ids=False), RequestFate.LOST, "missing_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_answer_has_one_fate(answer: StreamedAnswer, fate: RequestFate, reason: str) -> None:
    assert judge(answer, 4) == JudgedFate(fate, reason)


def test_first_token_and_gaps_are_of_tokens_not_of_openings() -> None:
    answer = StreamedAnswer(sent_at=10.0, status=200)
    answer.take_event(b'{"choices": [{"delta": {"role": "assistant", "content": ""}, "token_ids": []}]}', 11.0)
    assert answer.ttft_s is None
    answer.take_event(b'{"choices": [{"delta": {"content": "a"}, "token_ids": [1]}]}', 12.0)
    answer.take_event(b'{"choices": [{"delta": {"content": ""}, "token_ids": [2]}]}', 12.5)
    answer.take_event(b'{"choices": [{"delta": {}, "token_ids": [], "finish_reason": "length"}]}', 15.0)
    assert answer.ttft_s == 2.0
    assert answer.gaps_s == [0.5]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_come_out_however_they_were_cut(size: int) -> None:
    stream = b': comment\n\ndata: {"a": 1}\r\n\r\nevent: x\ndata:[DONE]\n\n'
    lines = EventLines()
    found = [event for i in range(0, len(stream), size) for event in lines.events_in(stream[i : i + size])]
    assert found == [b'{"a": 1}', b"[DONE]"]


@pytest.mark.parametrize("data", [b"{", b"[1]", b"5"])
def test_events_that_make_no_sense_are_noted(data: bytes) -> None:
    answer = StreamedAnswer(sent_at=0.0, status=200)
    answer.take_event(data, 1.0)
    assert answer.is_garbled


@pytest.mark.parametrize(
    ("got", "fate"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], RequestFate.FINISHED),
        ([1, 2, 3, 4, 3, 4, 5, 6], RequestFate.DUPLICATED),
        ([1, 2, 3, 3, 4, 5, 6, 7], RequestFate.DUPLICATED),
        ([1, 2, 3, 5, 6, 7, 8, 9], RequestFate.LOST),
        ([1, 2, 3, 9, 9, 9, 9, 9], RequestFate.LOST),
    ],
)
def test_a_moved_answer_is_compared_with_an_undisturbed_one(got: list[int], fate: RequestFate) -> None:
    again = StreamedAnswer(sent_at=0.0, token_ids=[1, 2, 3, 4, 5, 6, 7, 8])
    assert compare(StreamedAnswer(sent_at=0.0, token_ids=got), again).fate is fate


def test_equal_tokens_with_other_text_are_not_equal() -> None:
    first = StreamedAnswer(sent_at=0.0, token_ids=[1], text="a\ufffd")
    assert compare(first, StreamedAnswer(sent_at=0.0, token_ids=[1], text="aé")).fate is RequestFate.LOST


def test_percentiles_are_those_of_numpy_and_unknown_without_values() -> None:
    samples = Samples()
    assert samples.percentiles() == (0, None, None, None) or samples.percentiles().p50 is None
    rng = random.Random(3)
    values = [rng.random() for _ in range(777)]
    for value in values:
        samples.add_value(value)
    got = samples.percentiles()
    assert got.count == 777
    assert [got.p50, got.p95, got.p99] == pytest.approx(list(np.percentile(values, [50, 95, 99])))


def test_samples_past_the_limit_stay_bounded_and_fair() -> None:
    samples = Samples(limit=500)
    for value in range(20_000):
        samples.add_value(float(value))
    got = samples.percentiles()
    assert got.count == 20_000
    assert got.p50 is not None
    assert 8_000 < got.p50 < 12_000
    assert len(samples._values) == 500


def test_any_sequence_of_fates_adds_up() -> None:
    rng = random.Random(5)
    ledger, flying = RequestLedger(), []
    for number in range(400):
        if flying and rng.random() < 0.6:
            ledger.book_end(flying.pop(), JudgedFate(rng.choice(list(RequestFate)), "why"), make_answer())
        else:
            ledger.book_sent(f"r{number}")
            flying.append(f"r{number}")
        ledger.check_integrity()
    report = ledger.report(2.0)
    ended = report.finished + report.refused + report.lost + report.duplicated + report.abandoned
    assert report.sent == ended + report.in_flight
    assert json.loads(json.dumps(report.as_json()))["sent"] == report.sent


def test_answer_in_one_piece_is_judged_as_a_stream_is_and_tells_no_first_token() -> None:
    body = {
        "id": "chatcmpl-1",
        "choices": [{"message": {"content": "a b"}, "finish_reason": "length", "token_ids": [1, 2]}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    answer = StreamedAnswer(sent_at=0.0, status=200)
    answer.take_plain(json.dumps(body).encode(), at=5.0)
    assert judge(answer, 2).fate is RequestFate.FINISHED
    assert answer.ttft_s is None
    assert judge(answer, 3).reason == "missing_tokens"
    broken = StreamedAnswer(sent_at=0.0, status=200)
    broken.take_plain(b"[1]", at=5.0)
    assert judge(broken, 2).fate is RequestFate.LOST
