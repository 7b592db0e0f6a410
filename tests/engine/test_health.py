"""Readiness: each reason from its facts, and busy told from hung."""

import pytest

from engine.health import (
    STUCK_FLOOR_S,
    CorePhase,
    Health,
    Reason,
    StepClock,
    judge,
)


@pytest.mark.parametrize(
    ("phase", "silent_s", "takes_work", "expected"),
    [
        (CorePhase.LOADING, 1000.0, True, Reason.LOADING),
        (CorePhase.WARMING_UP, 1000.0, True, Reason.WARMING_UP),
        (CorePhase.UP, 0.1, True, Reason.READY),
        (CorePhase.UP, 0.1, False, Reason.DRAINING),
        (CorePhase.UP, STUCK_FLOOR_S + 1, True, Reason.CORE_STUCK),
        (CorePhase.UP, STUCK_FLOOR_S + 1, False, Reason.CORE_STUCK),
        (CorePhase.DEAD, 0.0, False, Reason.CORE_DEAD),
    ],
)
def test_the_gravest_reason_is_shown(phase: CorePhase, silent_s: float, takes_work: bool, expected: Reason) -> None:
    assert judge(phase=phase, silent_s=silent_s, longest_step_s=0.01, takes_work=takes_work) is expected


def test_a_core_with_long_steps_is_busy_not_stuck() -> None:
    silent_s = STUCK_FLOOR_S * 3
    assert judge(phase=CorePhase.UP, silent_s=silent_s, longest_step_s=0.1, takes_work=True) is Reason.CORE_STUCK
    assert judge(phase=CorePhase.UP, silent_s=silent_s, longest_step_s=5.0, takes_work=True) is Reason.READY


def test_a_slow_start_is_forgotten_after_many_quick_steps() -> None:
    clock = StepClock()
    clock.note(20.0)
    for _ in range(10_000):
        clock.note(0.01)
    assert clock.longest_s == pytest.approx(0.01, rel=0.2)


def test_the_age_counts_from_the_last_change_of_reason() -> None:
    health = Health(Reason.LOADING, since=100.0)
    assert health.note(Reason.READY, now=110.0)
    assert not health.note(Reason.READY, now=120.0)
    assert health.report(now=130.0) == {"ready": True, "reason": "ready", "since": 110.0, "age_s": 20.0}
