"""Where the executor's time comes from; `fleetctl.kit.clock.SystemClock` fits."""

from __future__ import annotations

from typing import Protocol

MAX_GAP_S = 60.0


class Clock(Protocol):
    """Wall time in Unix seconds, and a sleep that tests can drive."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Stopwatch:
    """Seconds since it was made, looked at often. A wall clock that is set back or far ahead does not end a wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self._elapsed_s = 0.0

    def elapsed_s(self) -> float:
        now = self._clock.now()
        self._elapsed_s += min(max(now - self._last, 0.0), MAX_GAP_S)
        self._last = now
        return self._elapsed_s
