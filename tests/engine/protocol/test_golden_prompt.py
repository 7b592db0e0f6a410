"""The golden prompt: which answers agree, when it is asked, and what a wrong answer does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.fake_runner import generate
from engine.node.golden_probe import (
    INTERVAL_S,
    INTERVAL_WHEN_WRONG_S,
    PATIENCE_S,
    URGENT_AFTER_S,
    GoldenProbe,
    GoldenResult,
)
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.golden_prompt import (
    URGENT_PRIORITY,
    BadGoldenFileError,
    GoldenAnswerFile,
    find_difference,
    golden_sequence,
)
from engine.protocol.messages import (
    AbortSequence,
    AddSequence,
    CoreReady,
    FinishReason,
    GoldenAnswer,
    SequenceUpdate,
    ToCore,
)
from engine.protocol.step import TokenLogprobs


def answer(*tokens: int, runner_up: int = 99, margin: float = 2.0, chosen: float = -0.5) -> GoldenAnswer:
    logprobs = tuple(TokenLogprobs(chosen, ((token, chosen), (runner_up, chosen - margin))) for token in tokens)
    return GoldenAnswer(tokens, logprobs)


EXPECTED = answer(1, 2, 3)
READY = CoreReady(10, 16, 160, "cpu", "float32", 0.0, 0.0, EXPECTED)


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        (EXPECTED, EXPECTED, None),
        (EXPECTED, answer(1, 2), "2 tokens, expected 3"),
        (EXPECTED, answer(1, 7, 3), "token 1 is 7, expected 2"),
        (EXPECTED, answer(1, 99, 3), "token 1 is 99, expected 2"),
        (EXPECTED, answer(1, 2, 3, chosen=-0.6), None),
        (EXPECTED, answer(1, 2, 3, chosen=-1.5), "token 0: its log probability is off by 1.00"),
        (EXPECTED, answer(1, 2, 3, chosen=float("nan")), "token 0: its log probability is off by nan"),
        (answer(1, 2, 3, margin=0.01), answer(1, 99, 4), None),
        (answer(1, 2, 3, margin=0.01), answer(1, 98, 3), "token 1 is 98, expected 2"),
    ],
    ids=["same", "short", "other", "runner-up", "near", "far", "nan", "tie", "no-tie"],
)
def test_two_answers_agree_but_for_near_ties(expected: GoldenAnswer, got: GoldenAnswer, says: str | None) -> None:
    assert find_difference(expected, got) == says


@pytest.mark.parametrize(("max_tokens", "prompt", "output"), [(4096, 24, 8), (20, 12, 8), (5, 1, 4), (2, 1, 1)])
def test_the_prompt_fits_into_any_model(max_tokens: int, prompt: int, output: int) -> None:
    request = golden_sequence(7, max_tokens, 1.0)
    assert (len(request.prompt_token_ids), request.sampling.max_tokens) == (prompt, output)
    assert all(0 <= token < 7 for token in request.prompt_token_ids)
    assert request.is_probe


def test_the_prompt_is_greedy_and_repeatable() -> None:
    first, second = golden_sequence(1000, 100, 1.0), golden_sequence(1000, 100, 2.0)
    runs = [generate(r.prompt_token_ids, r.sampling, 1000) for r in (first, replace_seed(second))]
    assert runs[0] == runs[1]


def replace_seed(request: AddSequence) -> AddSequence:
    return AddSequence(request.seq_id, request.prompt_token_ids, replace(request.sampling, seed=5), 0.0)


class Probe(GoldenProbe):
    """With what it sent and what came of its runs."""

    def __init__(
        self, file: GoldenAnswerFile | None = None, revision: str = "r1", quantization: str | None = None
    ) -> None:
        self.sent: list[ToCore] = []
        self.results: list[str] = []
        super().__init__(
            vocab_size=1000,
            revision=revision,
            send=self.sent.append,
            file=file,
            quantization=quantization,
            on_result=self.results.append,
        )
        self._started_at = 0.0

    def start(self, ready: CoreReady = READY) -> float:
        """Ready; returns a time from which on it may be asked."""
        self.on_ready(ready, 160)
        return self._started_at + INTERVAL_S

    def answer(
        self,
        run: GoldenAnswer,
        finish_reason: FinishReason = FinishReason.LENGTH,
        failure: SequenceFailure | None = None,
    ) -> None:
        assert self.pending_id is not None
        self.note_update(SequenceUpdate(self.pending_id, run.token_ids[:1], run.logprobs[:1]))
        self.note_update(
            SequenceUpdate(
                self.pending_id, run.token_ids[1:], run.logprobs[1:], finish_reason=finish_reason, failure=failure
            )
        )


def test_the_first_answer_is_what_later_ones_are_held_to() -> None:
    probe = Probe()
    assert probe.result is GoldenResult.UNKNOWN
    at = probe.start()
    assert probe.result is GoldenResult.PASSED
    probe.request_run(at)
    probe.answer(EXPECTED)
    assert not probe.is_wrong
    probe.request_run(at + INTERVAL_S)
    probe.answer(answer(1, 2, 4))
    assert probe.is_wrong
    assert probe.report(0.0)["detail"] == "token 2 is 4, expected 3"
    assert probe.results == ["passed", "passed", "failed"]


def test_it_is_asked_once_in_an_interval_and_one_at_a_time() -> None:
    probe = Probe()
    at = probe.start()
    probe.request_run(at - 1.0)
    assert probe.sent == [], "the core answered it a minute ago"
    for _ in range(5):
        probe.request_run(at)
    assert len(probe.sent) == 1
    probe.answer(EXPECTED)
    probe.request_run(at + INTERVAL_S - 1.0)
    assert len(probe.sent) == 1
    probe.request_run(at + INTERVAL_S)
    assert len(probe.sent) == 2


def test_nobody_asks_while_answers_are_right_and_it_asks_itself_while_they_are_wrong() -> None:
    probe = Probe()
    at = probe.start()
    probe.tick(at + 1000.0)
    assert probe.sent == []
    probe.request_run(at)
    probe.answer(answer(5, 6, 7))
    probe.tick(at + INTERVAL_WHEN_WRONG_S)
    assert len(probe.sent) == 2
    probe.answer(EXPECTED)
    assert not probe.is_wrong


def test_a_run_without_a_turn_is_given_up_and_says_nothing() -> None:
    probe = Probe()
    at = probe.start()
    probe.request_run(at)
    probe.tick(at + URGENT_AFTER_S + 1.0)
    asked_id = probe.pending_id
    probe.tick(at + PATIENCE_S)
    assert probe.pending_id == asked_id
    probe.tick(at + PATIENCE_S + 1.0)
    assert probe.sent[-1] == AbortSequence(str(asked_id), "deadline")
    assert (probe.result, probe.pending_id) == (GoldenResult.PASSED, None)
    assert probe.results[-1] == "error"


def test_a_run_that_users_leave_no_turn_comes_before_them() -> None:
    """Else a node that is always full would never learn that its answers are wrong."""
    probe = Probe()
    at = probe.start()
    probe.request_run(at)
    first = probe.pending_id
    probe.tick(at + URGENT_AFTER_S)
    assert len(probe.sent) == 1
    probe.tick(at + URGENT_AFTER_S + 1.0)
    assert probe.sent[1] == AbortSequence(str(first), "deadline")
    again = probe.sent[2]
    assert isinstance(again, AddSequence)
    assert (again.seq_id, again.priority) == (probe.pending_id, URGENT_PRIORITY)
    probe.tick(at + URGENT_AFTER_S + 2.0)
    assert len(probe.sent) == 3
    probe.answer(EXPECTED)
    assert probe.results == ["passed", "passed"]


def test_an_answer_that_is_no_number_is_wrong_until_a_right_one() -> None:
    probe = Probe()
    at = probe.start()
    probe.request_run(at)
    probe.answer(
        answer(1, 2),
        finish_reason=FinishReason.ERROR,
        failure=SequenceFailure(FailureKind.NON_FINITE_LOGITS, "NaN in the logits"),
    )
    assert probe.is_wrong
    assert "NaN" in str(probe.detail)
    probe.tick(at + INTERVAL_WHEN_WRONG_S)
    probe.answer(EXPECTED)
    assert not probe.is_wrong


def test_a_run_that_failed_is_no_wrong_answer() -> None:
    probe = Probe()
    probe.request_run(probe.start())
    probe.answer(
        answer(1, 2),
        finish_reason=FinishReason.ERROR,
        failure=SequenceFailure(FailureKind.OUT_OF_MEMORY, "out of memory"),
    )
    assert probe.result is GoldenResult.PASSED
    assert "out of memory" in str(probe.detail)


def test_a_core_that_comes_back_with_other_numbers_is_wrong() -> None:
    probe = Probe()
    probe.request_run(probe.start())
    probe.on_core_lost()
    assert probe.pending_id is None
    probe.request_run(1e9)
    assert len(probe.sent) == 1, "there is no core"
    probe.start(CoreReady(10, 16, 160, "cpu", "float32", 0.0, 0.0, answer(1, 2, 4)))
    assert probe.is_wrong


def test_another_type_or_device_has_its_own_answer() -> None:
    probe = Probe()
    probe.start()
    probe.start(CoreReady(10, 16, 160, "cuda", "bfloat16", 0.0, 0.0, answer(4, 5, 6)))
    assert not probe.is_wrong


def test_a_file_keeps_the_answer_over_restarts(tmp_path: Path) -> None:
    file = GoldenAnswerFile(tmp_path / "golden.json")
    Probe(file).start()
    later = Probe(file)
    later.start(CoreReady(10, 16, 160, "cpu", "float32", 0.0, 0.0, answer(1, 2, 4)))
    assert later.is_wrong
    other_model = Probe(file, revision="r2")
    other_model.start(CoreReady(10, 16, 160, "cpu", "float32", 0.0, 0.0, answer(1, 2, 4)))
    assert not other_model.is_wrong
    assert set(file.read()) == {"r1/float32/cpu", "r2/float32/cpu"}


def test_what_changes_the_numbers_has_its_own_answer_in_the_file(tmp_path: Path) -> None:
    file = GoldenAnswerFile(tmp_path / "golden.json")
    Probe(file).start()
    for quantization, kv_cache_dtype in (("int4", "auto"), (None, "int8"), ("int4", "int8")):
        ready = CoreReady(10, 16, 160, "cpu", "float32", 0.0, 0.0, answer(1, 2, 4), kv_cache_dtype=kv_cache_dtype)
        rounded = Probe(file, quantization=quantization)
        rounded.start(ready)
        assert not rounded.is_wrong
    plain = "r1/float32/cpu"
    assert set(file.read()) == {plain, f"{plain}/int4", f"{plain}/kv int8", f"{plain}/int4/kv int8"}


@pytest.mark.parametrize("content", ["{", '{"version": 2, "answers": {}}', '{"version": 1}', "[]"])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "golden.json"
    path.write_text(content)
    with pytest.raises(BadGoldenFileError, match=r"golden\.json: .*remove it to record anew"):
        GoldenAnswerFile(path).read()
    probe = Probe(GoldenAnswerFile(path))
    probe.start()
    assert probe.result is GoldenResult.PASSED, "a node that is up goes on without the file"
