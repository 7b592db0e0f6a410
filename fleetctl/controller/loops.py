"""Named loops on fixed slots: one that fails backs off and shows its age, and never takes the others down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from fleetctl.controller.database import FencedError, StorageLostError
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import UnreachableError

log = structlog.get_logger()

MAX_BACKOFF_S = 30.0
MAX_STORAGE_BACKOFF_S = 3.0  # nothing is wrong with the loop: once there is room a remedy waits no half minute for it
TURN_LIMIT_S = 60.0  # a turn that hangs longer is abandoned, so that a loop can't stop for ever without a word
LATE_S = 5.0  # beyond two intervals: a turn under load takes a second or two


class Loop(NamedTuple):
    """What is done again and again, and how often it begins."""

    name: str
    interval_s: float
    work: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class LoopState:
    """A loop and how it goes."""

    loop: Loop
    last_completed_at: float
    failures_in_row: int = 0
    max_backoff_s: float = MAX_BACKOFF_S  # after the last failure
    failures: int = 0
    last_error: str = ""


class Loops:
    """A set of loops. `run_all` ends when cancelled, or with FencedError when another controller took over."""

    def __init__(self, clock: Clock, *loops: Loop, turn_ended: Callable[[str, float], None] | None = None) -> None:
        """`turn_ended` is called after each turn, also one that failed, with the loop's name and the turn's seconds."""
        self._clock = clock
        self._turn_ended = turn_ended
        self._loops = {loop.name: LoopState(loop, clock.now()) for loop in loops}

    def ages(self, now: float) -> dict[str, float]:
        """Loop name to seconds since its last completed turn."""
        return {name: max(0.0, now - state.last_completed_at) for name, state in self._loops.items()}

    def late(self, now: float) -> dict[str, float]:
        """Loop name to seconds since its last completed turn, of those that should have ended another one since."""
        limits = {name: 2 * state.loop.interval_s + LATE_S for name, state in self._loops.items()}
        return {name: age_s for name, age_s in self.ages(now).items() if age_s > limits[name]}

    def failures(self) -> dict[str, int]:
        """Loop name to how many of its turns failed since the start."""
        return {name: state.failures for name, state in self._loops.items()}

    async def run_all(self) -> None:
        """Run every loop on its slots, for ever."""
        async with asyncio.TaskGroup() as group:
            for name in self._loops:
                group.create_task(self._run_loop(name), name=f"loop-{name}")

    async def run_turn(self, name: str) -> None:
        """One turn of one loop, its failure recorded and not raised."""
        state = self._loops[name]
        began_at = self._clock.now()
        try:
            async with asyncio.timeout(TURN_LIMIT_S):
                await state.loop.work()
        except FencedError:
            raise
        except Exception as error:
            state.failures += 1
            state.failures_in_row += 1
            state.max_backoff_s = MAX_STORAGE_BACKOFF_S if isinstance(error, StorageLostError) else MAX_BACKOFF_S
            state.last_error = str(error) or type(error).__name__
            log.error(
                "loop.failed",
                loop=name,
                error=state.last_error,
                in_row=state.failures_in_row,
                # Where something does not answer the place in our code tells nothing, and rendering it takes long.
                exc_info=state.failures_in_row == 1 and not isinstance(error, UnreachableError),
            )
        else:
            if state.failures_in_row:
                log.info("loop.recovered", loop=name, after_failures=state.failures_in_row)
            state.failures_in_row = 0
            state.last_completed_at = self._clock.now()
        if self._turn_ended is not None:
            self._turn_ended(name, max(0.0, self._clock.now() - began_at))

    async def _run_loop(self, name: str) -> None:
        state = self._loops[name]
        slot = self._clock.now()
        while True:
            await self.run_turn(name)
            now = self._clock.now()
            slot = next_slot(slot, state.loop.interval_s, now)
            pause = slot - now
            if state.failures_in_row:
                pause = max(pause, min(state.loop.interval_s * 2**state.failures_in_row, state.max_backoff_s))
            await self._clock.sleep(pause)


def next_slot(slot: float, interval_s: float, now: float) -> float:
    """The first slot after `now` on the grid of `slot`; missed ones are skipped, not made up for.

    A clock that was set back, or far ahead, starts a new grid: no loop may wait for yesterday to pass.
    """
    if not slot <= now < slot + 3600:
        return now + interval_s
    return slot + interval_s * (int((now - slot) / interval_s) + 1)
