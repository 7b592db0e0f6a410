from __future__ import annotations

import asyncio

import pytest

from fleetctl.controller.database import FencedError, StorageLostError
from fleetctl.controller.loops import Loop, Loops, next_slot


class StepClock:
    """Sleeping advances it at once; every sleep gives the other tasks a turn."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("slot", "now", "expected"),
    [
        pytest.param(10.0, 10.0, 11.0, id="at once done"),
        pytest.param(10.0, 10.4, 11.0, id="inside the slot"),
        pytest.param(10.0, 13.5, 14.0, id="missed slots are skipped"),
        pytest.param(10.0, 3.0, 4.0, id="clock set back"),
        pytest.param(10.0, 1e9, 1e9 + 1, id="clock far ahead"),
    ],
)
def test_next_slot_is_on_the_grid_and_soon(slot: float, now: float, expected: float) -> None:
    assert next_slot(slot, 1.0, now) == expected


@pytest.mark.anyio
async def test_a_failing_loop_backs_off_shows_its_age_and_leaves_the_others_alone() -> None:
    clock = StepClock()
    good_turns = 0
    enough = asyncio.Event()

    async def good() -> None:
        nonlocal good_turns
        good_turns += 1
        if good_turns == 50:
            enough.set()

    async def bad() -> None:
        raise RuntimeError("always")

    loops = Loops(clock, Loop("good", 1.0, good), Loop("bad", 1.0, bad))
    started = clock.now()
    running = asyncio.create_task(loops.run_all())
    await enough.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    ages = loops.ages(clock.now())
    assert ages["bad"] == clock.now() - started
    assert ages["good"] < ages["bad"]
    assert max(clock.slept) == 30.0


@pytest.mark.anyio
async def test_while_nothing_can_be_stored_a_loop_goes_on_trying_every_few_seconds() -> None:
    """A dead node had no proposal for half a minute after a full disk had room again: its loop waited out its pause."""
    clock = StepClock()
    turns = 0
    enough = asyncio.Event()

    async def full() -> None:
        nonlocal turns
        turns += 1
        if turns == 20:
            enough.set()
        raise StorageLostError("no space left on the disk", remedy="free space")

    running = asyncio.create_task(Loops(clock, Loop("remediation", 1.0, full)).run_all())
    await enough.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert max(clock.slept) == 3.0


@pytest.mark.anyio
async def test_a_loop_that_recovers_is_young_again() -> None:
    clock = StepClock()
    outcomes = [RuntimeError("once"), None]

    async def turn() -> None:
        outcome = outcomes.pop(0)
        if outcome:
            raise outcome

    loops = Loops(clock, Loop("one", 1.0, turn))
    await loops.run_turn("one")
    clock.time += 5
    assert loops.ages(clock.now())["one"] == 5
    await loops.run_turn("one")
    assert loops.ages(clock.now())["one"] == 0
    assert loops.failures() == {"one": 1}


@pytest.mark.anyio
async def test_all_loops_end_when_another_controller_took_over() -> None:

    async def fenced() -> None:
        raise FencedError("epoch 2 took over")

    async def good() -> None:
        pass

    loops = Loops(StepClock(), Loop("fenced", 1.0, fenced), Loop("good", 1.0, good))
    with pytest.raises(ExceptionGroup) as caught:
        await loops.run_all()
    assert caught.value.subgroup(FencedError) is not None


@pytest.mark.anyio
async def test_turn_is_timed_whether_it_fails_or_not() -> None:
    clock = StepClock()
    turns: list[tuple[str, float]] = []

    async def slow() -> None:
        clock.time += 2.5

    async def failing() -> None:
        clock.time += 0.5
        raise RuntimeError("always")

    loops = Loops(
        clock,
        Loop("slow", 1.0, slow),
        Loop("failing", 1.0, failing),
        turn_ended=lambda name, seconds: turns.append((name, seconds)),
    )
    await loops.run_turn("slow")
    await loops.run_turn("failing")
    assert turns == [("slow", 2.5), ("failing", 0.5)]


@pytest.mark.anyio
async def test_a_loop_is_late_by_its_own_interval() -> None:
    clock = StepClock()

    async def turn() -> None:
        pass

    loops = Loops(clock, Loop("quick", 1.0, turn), Loop("hourly", 3600.0, turn))
    assert loops.late(clock.now() + 7.0) == {}
    assert loops.late(clock.now() + 240.0) == {"quick": 240.0}
    await loops.run_turn("quick")
    assert loops.late(clock.now() + 7201.0) == {"quick": 7201.0}
