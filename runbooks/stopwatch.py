"""How long a wait has taken, whatever the wall clock does meanwhile."""

from __future__ import annotations

from runbooks.ports import Clock

MAX_GAP_S = 60.0


class Stopwatch:
    """Seconds since it was made, looked at often. A wall clock that is set back or far ahead does not end a wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self._elapsed_s = 0.0

    def elapsed_s(self) -> float:
        """Seconds so far; a step of the clock counts as at most `MAX_GAP_S`, and a step back as none."""
        now = self._clock.now()
        self._elapsed_s += min(max(now - self._last, 0.0), MAX_GAP_S)
        self._last = now
        return self._elapsed_s
