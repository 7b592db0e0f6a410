"""What a slow step costs whom: faults that stand between the step loop and the runner."""

from __future__ import annotations

import pytest

from engine.core.fake_runner import FakeCost, FakeRunner
from engine.core.faults import CoreFaults
from engine.core.scheduler import Scheduler
from engine.protocol.clock import ManualClock
from engine.protocol.failure import FailureKind
from engine.protocol.messages import SetFaults
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan
from tests.fixtures.core import make_config

STEP_S = 0.01
DECODE = StepPlan(2, (Scheduled("a", 8, 1, (0,), True), Scheduled("b", 8, 1, (1,), True)))
MIXED = StepPlan(2, (Scheduled("a", 8, 1, (0,), True), Scheduled("b", 8, 8, (1,), False)))
NEW = tuple(NewSequence(name, tuple(range(8)), 8, SamplingParams(max_tokens=4)) for name in ("a", "b"))
PREFILL = StepPlan(1, (Scheduled("a", 0, 8, (0,), True), Scheduled("b", 0, 8, (1,), True)), new=NEW)


def seconds_of(plan: StepPlan, faults: SetFaults) -> float:
    clock = ManualClock()
    runner = FakeRunner(vocab_size=100, clock=clock, cost=FakeCost(STEP_S, 0.0, 0.0, 0.0))
    core = CoreFaults(Scheduler(make_config()), runner, clock, is_enabled=True)
    core.run_step(PREFILL)
    core.set_faults(faults)
    began = clock.now()
    core.run_step(plan)
    return clock.now() - began


@pytest.mark.parametrize(
    ("plan", "faults", "seconds"),
    [
        (DECODE, SetFaults(), STEP_S),
        (DECODE, SetFaults(slow_steps=3.0), 3 * STEP_S),
        (DECODE, SetFaults(slow_decode=3.0), 3 * STEP_S),
        (MIXED, SetFaults(slow_decode=3.0), STEP_S),
        (DECODE, SetFaults(row_seconds=0.05), STEP_S + 2 * 0.05),
        (DECODE, SetFaults(slow_steps=2.0, slow_decode=3.0, row_seconds=0.05), 3 * (2 * STEP_S + 2 * 0.05)),
    ],
)
def test_a_step_takes_as_long_as_its_faults_say(plan: StepPlan, faults: SetFaults, seconds: float) -> None:
    assert seconds_of(plan, faults) == pytest.approx(seconds)


@pytest.mark.parametrize(("share", "failed"), [(0.0, 0), (1.0, 2)])
def test_a_share_of_the_new_sequences_fails_and_has_no_token(share: float, failed: int) -> None:
    clock = ManualClock()
    core = CoreFaults(Scheduler(make_config()), FakeRunner(vocab_size=100, clock=clock), clock, is_enabled=True)
    core.set_faults(SetFaults(failing_share=share))
    result = core.run_step(PREFILL)
    assert (len(result.failed), len(result.token_ids)) == (failed, 2 - failed)
    # An error says nothing of whether answers are right; numbers that are none would, of the known prompt too.
    assert {one.kind for one in result.failed.values()} <= {FailureKind.STEP_FAILED}
