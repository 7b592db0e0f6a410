"""Starts of the engine core: how long one may take, and how long to wait before the next. Pure: `now` is monotonic.

The first start is watched by whoever started the node, who knows the model. Those after it are nobody's but the node's,
so they have a limit, learnt from the starts that came to an end.
"""

from __future__ import annotations

START_FACTOR = 5.0  # of the slowest start so far
START_FLOOR_S = 60.0
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
STEADY_AFTER_S = 60.0  # a core that was ready for so long starts over with the first back-off


class CoreStarts:
    """What is known of the starts of one node's cores."""

    def __init__(self) -> None:
        self._since: float | None = None  # of the start under way
        self._ready_at: float | None = None  # of the core that answers
        self._next_at: float | None = None  # during a back-off
        self._slowest_s: float | None = None  # None: none has been ready yet
        self._backoff_s = FIRST_BACKOFF_S
        self._num_deaths = 0  # since a core was last ready

    @property
    def limit_s(self) -> float | None:
        """How long a start may take; None for the first."""
        return None if self._slowest_s is None else max(START_FLOOR_S, START_FACTOR * self._slowest_s)

    def begin(self, now: float) -> None:
        """A core process is started."""
        self._since, self._next_at, self._ready_at = now, None, None

    def note_ready(self, now: float) -> None:
        """It can answer."""
        if self._since is not None:
            self._slowest_s = max(self._slowest_s or 0.0, now - self._since)
        self._since, self._ready_at, self._num_deaths = None, now, 0

    def note_lost(self, now: float) -> float:
        """It is gone, and another one is wanted; returns the seconds to wait before that is started."""
        if self._ready_at is not None and now - self._ready_at > STEADY_AFTER_S:
            self._backoff_s = FIRST_BACKOFF_S
        wait_s = self._backoff_s
        self._backoff_s = min(LONGEST_BACKOFF_S, 2 * wait_s)
        self._since, self._next_at = None, now + wait_s
        self._num_deaths += 1
        return wait_s

    def note_rested(self) -> None:
        """It is gone, and none is wanted for now: the next one is no repeated try."""
        self._since, self._next_at, self._backoff_s = None, None, FIRST_BACKOFF_S

    def is_late(self, now: float, *, awake_since: float) -> bool:
        """Whether the start under way takes longer than it may. What it did not do while its judge was stopped as well
        (before `awake_since`) is not held against it."""
        limit_s, since = self.limit_s, self._since
        return limit_s is not None and since is not None and now - max(since, awake_since) > limit_s

    def report(self, now: float) -> dict[str, object]:
        """For `/health`, while no core answers: what is done about it."""
        facts: dict[str, object] = {"deaths_in_a_row": self._num_deaths, "start_limit_s": self.limit_s}
        if self._since is not None:
            return {"state": "starting", "for_s": round(max(0.0, now - self._since), 3), **facts}
        next_in_s = None if self._next_at is None else round(max(0.0, self._next_at - now), 3)
        return {"state": "backing_off", "next_start_in_s": next_in_s, **facts}
