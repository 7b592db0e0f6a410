"""How long this process did not attend to anything: stopped, starved of CPU, or busy in one callback.

What waits for a peer must not count such time as the peer's silence: after SIGSTOP and SIGCONT every timer is due at
once, before one byte of the answers that lie in the sockets has been read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.1
_LATE_S = 0.02  # a tick that is late by less is only the event loop's grain


class StallMonitor:
    """Ticks on the event loop; the lateness of its ticks is the time in which nothing else could run either.

    Threading: belongs to one event loop. Without `start` nothing ever stalled.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._total_s = 0.0
        self._longest_s = 0.0
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
        """Seconds stalled since the start, those of a tick that is late now included. Never falls."""
        return self._total_s + self._late_s()

    def take_longest(self) -> float:
        """The longest single stall (seconds) since the last call."""
        longest, self._longest_s = max(self._longest_s, self._late_s()), 0.0
        return longest

    def _late_s(self) -> float:
        late_s = 0.0 if self._due is None else self._clock() - self._due
        return late_s if late_s > _LATE_S else 0.0

    def _tick(self) -> None:
        late_s = self._late_s()
        self._total_s += late_s
        self._longest_s = max(self._longest_s, late_s)
        self.start()
