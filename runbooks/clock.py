"""Where the executor's time comes from; `fleetctl.kit.clock.SystemClock` fits."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time in Unix seconds, and a sleep that tests can drive."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...
