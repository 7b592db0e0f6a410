"""Named loops on fixed slots: one that fails backs off and shows its age, and never takes the others down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from fleetctl.controller.database import FencedError
from fleetctl.kit.clock import Clock

log = structlog.get_logger()

MAX_BACKOFF_S = 30.0
TURN_LIMIT_S = 60.0  # a turn that hangs longer is abandoned, so that a loop can't stop for ever without a word


@dataclass(slots=True)
class LoopState:
    interval_s: float
    turn: Callable[[], Awaitable[None]]
    last_completed_at: float
    failures_in_row: int = 0
    failures: int = 0
    last_error: str = ""


class Loops:
    """A set of periodic turns. `run` ends when cancelled, or with FencedError when another controller took over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loops: dict[str, LoopState] = {}

    def add(self, name: str, interval_s: float, turn: Callable[[], Awaitable[None]]) -> None:
        self._loops[name] = LoopState(interval_s, turn, self._clock.now())

    def ages(self, now: float) -> dict[str, float]:
        """Loop name to seconds since its last completed turn."""
        return {name: max(0.0, now - loop.last_completed_at) for name, loop in self._loops.items()}

    def failures(self) -> dict[str, int]:
        return {name: loop.failures for name, loop in self._loops.items()}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in self._loops:
                group.create_task(self._run_loop(name), name=f"loop-{name}")

    async def turn(self, name: str) -> None:
        """One turn of one loop, its failure recorded and not raised."""
        loop = self._loops[name]
        try:
            async with asyncio.timeout(TURN_LIMIT_S):
                await loop.turn()
        except FencedError:
            raise
        except Exception as error:
            loop.failures += 1
            loop.failures_in_row += 1
            loop.last_error = str(error) or type(error).__name__
            log.error(
                "loop.failed",
                loop=name,
                error=loop.last_error,
                in_row=loop.failures_in_row,
                exc_info=loop.failures_in_row == 1,
            )
        else:
            if loop.failures_in_row:
                log.info("loop.recovered", loop=name, after_failures=loop.failures_in_row)
            loop.failures_in_row = 0
            loop.last_completed_at = self._clock.now()

    async def _run_loop(self, name: str) -> None:
        loop = self._loops[name]
        slot = self._clock.now()
        while True:
            await self.turn(name)
            now = self._clock.now()
            slot = next_slot(slot, loop.interval_s, now)
            pause = slot - now
            if loop.failures_in_row:
                pause = max(pause, min(loop.interval_s * 2**loop.failures_in_row, MAX_BACKOFF_S))
            await self._clock.sleep(pause)


def next_slot(slot: float, interval_s: float, now: float) -> float:
    """The first slot after `now` on the grid of `slot`; missed ones are skipped, not made up for.

    A clock that was set back, or far ahead, starts a new grid: no loop may wait for yesterday to pass.
    """
    if not slot <= now < slot + 3600:
        return now + interval_s
    return slot + interval_s * (int((now - slot) / interval_s) + 1)
