"""How long this process did not attend to anything: stopped, starved of CPU, or busy in one callback.

What waits for a peer must not count such time as the peer's silence: after SIGSTOP and SIGCONT every timer is due at
once, before one byte of the answers that lie in the sockets has been read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

TICK_S = 0.1
LONG_S = 5.0
_LATE_S = 0.02  # a tick that is late by less is only the event loop's grain


class StallMonitor:
    """Ticks on the event loop; the lateness of its ticks is the time in which nothing else could run either.

    Threading: belongs to one event loop. Without `start` nothing ever stalled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that never go back."""
        self._clock = clock
        self._total_s = self._long_s = 0.0
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to tick on the running loop."""
        self._due = self._clock() + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """End ticking; the totals stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None

    @property
    def stalled_s(self) -> float:
        """Seconds stalled since the start, up to now. Never falls."""
        self._account()
        return self._total_s

    @property
    def long_s(self) -> float:
        """Of these, those of single stalls of LONG_S and more: time in which nobody judged. Never falls."""
        self._account()
        return self._long_s

    def _account(self) -> None:
        late_s = 0.0 if self._due is None else self._clock() - self._due
        if self._due is None or late_s <= _LATE_S:
            return
        self._due += late_s
        self._total_s += late_s
        if late_s >= LONG_S:
            self._long_s += late_s
            log.warning("loop.stalled", seconds=round(late_s, 1), why="stopped, starved of CPU, or busy")

    def _tick(self) -> None:
        self._account()
        self.start()
