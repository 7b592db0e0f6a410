"""Where time comes from. Judgement takes `now` as an argument; only loops at the rim hold a clock."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time in Unix seconds, and a sleep that tests can drive."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that long by this clock."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        await asyncio.sleep(seconds)
