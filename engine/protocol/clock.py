"""Time as an argument: the real clock, and one that moves only when somebody sleeps on it."""

from __future__ import annotations

import time
from typing import Protocol


class MonotonicClock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""

    def sleep(self, seconds: float) -> None:
        """Return `seconds` later."""


class SystemMonotonicClock:
    """`time.monotonic`, which on Linux is one clock for all processes of a machine."""

    def now(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


class ManualClock:
    """A clock for simulations: sleeping takes no time, it only moves the hand."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Where the hand stands."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move the hand on by `seconds`."""
        self._now += seconds
