"""The step loop on a clock of its own: faults, failures, idle reports, and the last update of every request."""

from __future__ import annotations

import math

import pytest

from engine.core.fake_runner import FakeRunner
from engine.core.step_loop import MAX_FAILED_STEPS
from engine.protocol.core_config import CoreConfig, read_config
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.frames import ConnectionClosed
from engine.protocol.messages import (
    AbortSequence,
    CoreFailed,
    CoreIdle,
    SequenceUpdate,
    SetFaults,
    Shutdown,
)
from engine.protocol.step import StepPlan, StepResult
from tests.fixtures.core import make_request
from tests.fixtures.step_loop import STEP_S, Desk


def failure_of(update: SequenceUpdate) -> SequenceFailure:
    assert update.failure is not None
    return update.failure


def test_publishes_a_report_for_each_step() -> None:
    desk = Desk()
    assert desk.run(make_request("a", 6, max_tokens=3), make_request("b", 6, max_tokens=2)) == 0
    assert [(r.kind, r.num_tokens, r.num_seqs) for r in desk.reports] == [
        ("prefill", 12, 2),
        ("decode", 2, 2),
        ("decode", 1, 1),
    ]
    assert [r.running for r in desk.reports] == [2, 1, 0]
    assert desk.reports[0].kv_blocks_used == 4
    assert desk.reports[-1].kv_blocks_used == 0
    assert desk.reports[0].prefix_queries_tokens == 12
    assert all(r.seconds == pytest.approx(STEP_S) for r in desk.reports)
    assert {i: u.finish_reason for i, u in desk.ends.items()} == {"a": "length", "b": "length"}


def test_idle_core_says_so_with_its_books_checked() -> None:
    desk = Desk()
    desk.run()
    (idle,) = desk.published
    assert idle == CoreIdle(at=0.0, kv_blocks_used=0, kv_blocks_total=64)


def test_broken_books_are_told_and_rebuilt() -> None:
    desk = Desk()
    lost = desk.scheduler.pool.allocate(1)
    assert lost
    desk.run()
    (idle,) = desk.published
    assert isinstance(idle, CoreIdle)
    assert "reference count" in (idle.integrity_error or "")
    assert desk.scheduler.check_integrity() is None


def test_refusal_is_told_without_a_step() -> None:
    desk = Desk()
    desk.run(make_request("a", 500))
    (report,) = desk.reports
    assert (report.kind, report.num_tokens) == ("none", 0)
    assert report.updates[0].finish_reason == "error"
    assert failure_of(report.updates[0]).kind is FailureKind.REFUSED
    assert "can never fit" in failure_of(report.updates[0]).message


def test_duplicate_does_not_end_the_request_of_that_id() -> None:
    desk = Desk()
    desk.run(make_request("a", max_tokens=2), make_request("a", max_tokens=2))
    assert desk.ends["a"].finish_reason == "length"
    assert sum(len(u.token_ids) for u in desk.updates) == 2


def test_abort_is_confirmed_once() -> None:
    desk = Desk()
    desk.replies = {1: AbortSequence("a", "moved")}
    desk.run(make_request("a", max_tokens=50), AbortSequence("unknown", "client_gone"))
    assert desk.ends["a"].finish_reason == "abort"
    assert sum(len(u.token_ids) for u in desk.updates) == 1


def test_shutdown_ends_what_is_running() -> None:
    desk = Desk()
    desk.replies = {1: Shutdown()}
    assert desk.run(make_request("a", max_tokens=50), make_request("b", max_tokens=50)) == 0
    assert {u.finish_reason for u in desk.ends.values()} == {"abort"}
    assert len(desk.ends) == 2


def test_lost_connection_ends_the_loop() -> None:
    assert Desk().run(make_request("a"), ConnectionClosed("gone")) == 0


# --- faults ---


def test_slow_steps_take_as_many_times_as_long_and_say_so() -> None:
    desk = Desk(enable_faults=True)
    desk.replies = {2: SetFaults(None)}
    desk.run(SetFaults(8.0), make_request("a", max_tokens=4))
    assert [r.seconds for r in desk.reports] == pytest.approx([8 * STEP_S, 8 * STEP_S, STEP_S, STEP_S])
    assert desk.clock.now() == pytest.approx(18 * STEP_S)


@pytest.mark.parametrize("factor", [0.5, math.nan, math.inf, -1.0])
def test_senseless_slowness_is_ignored(factor: float) -> None:
    desk = Desk(enable_faults=True)
    desk.run(SetFaults(factor), make_request("a", max_tokens=1))
    assert desk.reports[0].seconds == pytest.approx(STEP_S)


def test_faults_are_ignored_unless_enabled() -> None:
    desk = Desk()
    desk.run(SetFaults(8.0), make_request("a", max_tokens=1))
    assert desk.reports[0].seconds == pytest.approx(STEP_S)


# --- failures ---


def test_failed_step_costs_its_requests_and_the_core_goes_on() -> None:
    desk = Desk(RuntimeError("boom"))
    desk.replies = {1: make_request("b", max_tokens=1)}
    assert desk.run(make_request("a")) == 0
    assert desk.ends["a"].finish_reason == "error"
    assert desk.ends["a"].failure == SequenceFailure(FailureKind.STEP_FAILED, "the step failed: RuntimeError: boom")
    assert desk.reports[0].failed_steps == 1
    assert desk.reports[0].out_of_memory == 0
    assert desk.ends["b"].finish_reason == "length"


def test_out_of_memory_costs_one_request() -> None:
    desk = Desk(MemoryError("tried to allocate"))
    desk.run(make_request("small", 4), make_request("big", 16))
    assert desk.ends["big"].failure == SequenceFailure(
        FailureKind.OUT_OF_MEMORY, "out of memory: MemoryError: tried to allocate"
    )
    assert desk.ends["small"].finish_reason == "length"
    assert desk.reports[0].out_of_memory == 1
    assert desk.reports[0].preemptions == 1


@pytest.mark.parametrize("kind", FailureKind)
def test_out_of_memory_that_the_runner_contained_is_counted(kind: FailureKind) -> None:
    failure = SequenceFailure(kind, "this text says nothing of it")

    class Tight(FakeRunner):
        def run_step(self, plan: StepPlan) -> StepResult:
            result = super().run_step(plan)
            return StepResult(result.step_id, {}, result.seconds, failed={"a": failure})

    desk = Desk()
    desk.loop._faults._runner = Tight(clock=desk.clock)
    desk.run(make_request("a"))
    assert desk.ends["a"].failure == failure
    assert (desk.reports[0].failed_steps, desk.reports[0].out_of_memory) == (0, kind is FailureKind.OUT_OF_MEMORY)


def test_steps_that_fail_again_and_again_end_the_core() -> None:
    desk = Desk(*[RuntimeError("boom")] * MAX_FAILED_STEPS, max_num_seqs=1)
    code = desk.run(*(make_request(f"r{i}") for i in range(MAX_FAILED_STEPS + 2)))
    assert code == 1
    assert isinstance(desk.published[-1], CoreFailed)
    assert "boom" in desk.published[-1].reason
    assert len(desk.ends) == MAX_FAILED_STEPS


def test_a_step_that_works_forgives_the_failures_before() -> None:
    nearly = [RuntimeError("boom")] * (MAX_FAILED_STEPS - 1)
    desk = Desk(*nearly, None, *nearly, max_num_seqs=1)
    assert desk.run(*(make_request(f"r{i}", max_tokens=1) for i in range(2 * MAX_FAILED_STEPS))) == 0
    assert sum(end.finish_reason == "error" for end in desk.ends.values()) == 2 * len(nearly)


# --- configuration ---


def test_configuration_survives_the_command_line() -> None:
    config = CoreConfig(model_dir="models/m", runner="fake", eos_token_ids=(2, 3), enable_faults=True)
    assert read_config(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "--config"),
        ("{}", "model_dir"),
        ('{"model_dir": "m", "runner": "other"}', "runner"),
        ('{"model_dir": "m", "bloc_size": 3}', "bloc_size"),
        ("x" * 70_000, "at most"),
    ],
)
def test_bad_configuration_names_the_field(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_config(text)
