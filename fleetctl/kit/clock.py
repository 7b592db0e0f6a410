"""Where time comes from. Judgement takes `now` as an argument; only loops at the rim hold a clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

log = structlog.get_logger()

STEP_S = 1.0  # less is drift, which is followed unseen
SLEW_RATIO = 0.05  # rates are off by no more than this meanwhile
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time in Unix seconds, and a sleep that tests can drive."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that long by this clock."""
        ...


class SystemClock:
    """The wall clock as far as it can be trusted: its time goes on at one pace and never back.

    Ages and orders of what we have seen depend on it. A wall clock that is set back is followed at SLEW_RATIO of a
    second each second; one that is set forward by STEP_S or more at once, as after a pause of the machine.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] | None = None) -> None:
        """`monotonic`: seconds that also pass while the machine sleeps, where the system has such a clock."""
        self._wall = wall
        self._monotonic = monotonic or _monotonic_s
        self._lock = threading.Lock()
        self._at = self._wall()
        self._read_at_s = self._monotonic()
        self._is_off = False

    def now(self) -> float:
        """Unix seconds. Never less than before."""
        with self._lock:
            read_at_s, wall = self._monotonic(), self._wall()
            passed_s = max(0.0, read_at_s - self._read_at_s)
            off_s = wall - (self._at + passed_s)
            self._tell(off_s)
            if off_s < STEP_S:
                off_s = min(max(off_s, -SLEW_RATIO * passed_s), SLEW_RATIO * passed_s)
            self._at += passed_s + off_s
            self._read_at_s = read_at_s
            return self._at

    def offset_s(self) -> float:
        """How far this clock is ahead of the wall clock, in seconds; near 0 but after a step back."""
        return self.now() - self._wall()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await asyncio.sleep(seconds)

    def _tell(self, off_s: float) -> None:
        is_off = abs(off_s) >= STEP_S
        if is_off and not self._is_off:
            how = "followed at once" if off_s > 0 else "ages stay right; restart to take the new time at once"
            log.warning("clock.stepped", seconds=round(off_s, 1), how=how)
        self._is_off = is_off and off_s < 0


def _monotonic_s() -> float:
    return time.clock_gettime(_CLOCK)
