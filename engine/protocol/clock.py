"""Time as an argument: the real clock, and one that moves only when somebody sleeps on it."""

from __future__ import annotations

import time
from typing import Protocol


class MonotonicClock(Protocol):
    """Monotonic seconds."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemMonotonicClock:
    """`time.monotonic`, which on Linux is one clock for all processes of a machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock for simulations: sleeping takes no time, it only moves the hand."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
