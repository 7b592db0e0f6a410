"""How many requests the nodes of one model take at once, learnt from their refusals.

Nothing is known at first, and nobody waits. When every node says that it is overloaded, what is outstanding then is the
limit; it grows again by what nodes take, with one probe at a time once they refuse, and is forgotten when nobody waits.
"""

from __future__ import annotations

PROBE_FIRST_S = 0.25
PROBE_LAST_S = 2.0
FORGET_S = 10.0


class SeatLimit:
    """Seats taken and free. Times are monotonic seconds."""

    __slots__ = ("_limit", "_overloaded_at", "_pause_s", "_probe_at", "outstanding", "retry_after_s")

    def __init__(self) -> None:
        self.outstanding = 0
        self.retry_after_s = 1  # what the nodes said when they last refused
        self._limit: int | None = None
        self._pause_s = PROBE_FIRST_S
        self._probe_at = 0.0
        self._overloaded_at = 0.0

    @property
    def limit(self) -> int | None:
        """Seats that the nodes are known to have for us; None: nothing is known."""
        return self._limit

    def has_seat(self, now: float, most: int | None) -> bool:
        """Whether one more may go to the nodes. `most`: a limit from outside."""
        if most is not None and self.outstanding >= most:
            return False
        if self._limit is None:
            return True
        # Without one of ours to end, only time tells whether others left.
        return self.outstanding < self._limit and (self.outstanding > 0 or now >= self._probe_at)

    def take(self) -> None:
        """One more goes to the nodes."""
        self.outstanding += 1

    def give_back(self) -> None:
        """One of them ended."""
        self.outstanding -= 1
        assert self.outstanding >= 0

    def note_overload(self, now: float, retry_after_s: int = 1) -> None:
        """Every node refused one that has given its seat back by now: there are no more than those outstanding."""
        self._limit = max(1, self.outstanding)
        self.retry_after_s = retry_after_s
        self._probe_at = now + self._pause_s
        self._overloaded_at = now
        self._pause_s = min(PROBE_LAST_S, self._pause_s * 2)

    def note_seated(self, now: float) -> None:
        """A node took one: when the last refusal is a while ago, there may be one more seat."""
        if self._limit is not None and now >= self._probe_at:
            self._limit += 1
            self._pause_s = max(PROBE_FIRST_S, self._pause_s / 2)

    def forget_if_old(self, now: float) -> None:
        """Nobody waits: after a while without a refusal nothing is known any more."""
        if self._limit is not None and now - self._overloaded_at >= FORGET_S:
            self._limit = None
            self._pause_s = PROBE_FIRST_S
