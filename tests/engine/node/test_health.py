"""Readiness: each reason from its facts, and busy told from hung."""

import mmap
import struct
from dataclasses import replace

import pytest

from engine.node.health import (
    STUCK_FLOOR_S,
    STUCK_STEPS,
    UNMEASURED_S,
    CorePhase,
    Health,
    Reason,
    Wakefulness,
    is_stuck,
    judge,
)
from engine.protocol.heartbeat import CoreState, Heartbeat, HeartbeatPage


@pytest.mark.parametrize(
    ("phase", "stuck", "wrong", "takes_work", "expected"),
    [
        (CorePhase.LOADING, True, True, True, Reason.LOADING),
        (CorePhase.WARMING_UP, True, True, True, Reason.WARMING_UP),
        (CorePhase.UP, False, False, True, Reason.READY),
        (CorePhase.UP, False, False, False, Reason.DRAINING),
        (CorePhase.UP, False, True, True, Reason.WRONG_OUTPUT),
        (CorePhase.UP, False, True, False, Reason.DRAINING),
        (CorePhase.UP, True, True, True, Reason.CORE_STUCK),
        (CorePhase.UP, True, False, False, Reason.CORE_STUCK),
        (CorePhase.DEAD, True, True, False, Reason.CORE_DEAD),
    ],
)
def test_the_gravest_reason_is_shown(
    phase: CorePhase, stuck: bool, wrong: bool, takes_work: bool, expected: Reason
) -> None:
    assert judge(phase=phase, stuck=stuck, output_is_wrong=wrong, takes_work=takes_work) is expected


def step(predicted_s: float | None, at: float = 100.0) -> Heartbeat:
    return Heartbeat(at, CoreState.STEP, 7, predicted_s)


@pytest.mark.parametrize(
    ("heartbeat", "allowed_s"),
    [
        (Heartbeat(100.0, CoreState.IDLE), STUCK_FLOOR_S),
        (Heartbeat(100.0, CoreState.BETWEEN_STEPS, 6, 9.0), STUCK_FLOOR_S),
        (step(0.01), STUCK_FLOOR_S),
        (step(20.0), STUCK_STEPS * 20.0),
        (step(None), UNMEASURED_S),
        (replace(step(100.0), marks=25), STUCK_STEPS * 4.0),
        (replace(step(100.0), marks=512), STUCK_FLOOR_S),
        (replace(step(None), marks=512), STUCK_FLOOR_S),
    ],
)
def test_a_core_is_stuck_when_it_takes_longer_than_it_foresaw(heartbeat: Heartbeat, allowed_s: float) -> None:
    assert not is_stuck(heartbeat, awake_since=0.0, now=heartbeat.at + allowed_s)
    assert is_stuck(heartbeat, awake_since=0.0, now=heartbeat.at + allowed_s + 0.01)


def test_a_core_that_stops_inside_a_step_of_minutes_is_found_within_five_seconds_of_its_last_progress() -> None:
    for progress_at in (100.5, 150.0, 350.0):
        heartbeat = replace(step(300.0, at=100.0), marks=1500, progress_at=progress_at)
        assert not is_stuck(heartbeat, awake_since=0.0, now=progress_at + STUCK_FLOOR_S)
        assert is_stuck(heartbeat, awake_since=0.0, now=progress_at + 5.0)


def test_progress_is_read_beside_the_beat_that_it_belongs_to() -> None:
    page = HeartbeatPage.private()
    memory = page.progress_memory()
    page.write(step(0.5))
    struct.pack_into("=d", memory, 0, 101.25)
    assert page.read() == replace(step(0.5), progress_at=101.25)


def test_before_its_first_sign_of_life_nothing_is_held_against_a_core() -> None:
    assert not is_stuck(None, awake_since=0.0, now=1e9)


def test_what_passed_while_the_judge_was_stopped_does_not_count() -> None:
    awake = Wakefulness(since=0.0, asked_at=0.0)
    for now in (1.0, 2.0, 3.0):
        assert awake.note(now) == 0.0
    assert awake.note(500.0) == 500.0, "nobody asked for minutes: this process did not run"
    heartbeat = Heartbeat(2.5, CoreState.IDLE)
    assert not is_stuck(heartbeat, awake_since=awake.note(501.0), now=501.0)
    assert is_stuck(heartbeat, awake_since=awake.note(502.0), now=500.0 + STUCK_FLOOR_S + 0.1)


def test_the_age_counts_from_the_last_change_of_reason() -> None:
    health = Health(Reason.LOADING, since=100.0)
    assert health.note(Reason.READY, now=110.0)
    assert not health.note(Reason.READY, now=120.0)
    assert health.report(now=130.0) == {"ready": True, "reason": "ready", "since": 110.0, "age_s": 20.0}


def test_a_beat_is_read_as_it_was_written() -> None:
    page = HeartbeatPage.private()
    assert page.read() is None
    for heartbeat in (Heartbeat(1.5, CoreState.IDLE), Heartbeat(2.5, CoreState.STEP, 3, 0.25, 4, 5, 6), step(None)):
        page.write(heartbeat)
        assert page.read() == heartbeat


def test_a_writer_that_stopped_in_the_middle_leaves_the_beat_before() -> None:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    page = HeartbeatPage(memory)
    page.write(step(0.5))
    assert page.read() == step(0.5)
    struct.pack_into("<Qd", memory, 0, 2, 999.0)  # the next write was begun and not ended
    assert page.read() == step(0.5)
