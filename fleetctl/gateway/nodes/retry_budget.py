"""How many tries beyond each request's first one are allowed: a share of what was answered lately, and a small floor.

A retry helps when one node has no room and another has; when none has, it only multiplies the load that caused it. The
workers of a gateway count together; gateways side by side allow `share` of all answers, and divide the floor.
"""

from __future__ import annotations

from collections import deque

from fleetctl.kit.shared_counters import NO_TOTALS, CounterRow

WINDOW_S = 10
SLOT_S = 1.0


class RetryBudget:
    """Answers and retries of the last ten seconds. Times are monotonic seconds."""

    def __init__(self, *, share: float, floor: int) -> None:
        """`share`: retries for each answered request; `floor`: retries within ten seconds that need no answers."""
        self._share = share
        self._floor_of_all = floor
        self._floor = float(floor)
        self._row: CounterRow | None = None
        self._seen = NO_TOTALS
        self._slots: deque[list[float]] = deque()  # [second, answered, retried], the newest last
        self._answered = 0.0
        self._retried = 0.0
        self.refused = 0  # retries that the budget did not allow

    def join(self, row: CounterRow) -> None:
        """Count together with the other workers of this gateway from now on."""
        self._row, self._seen = row, row.others()

    def use_num_sharing(self, num: int) -> None:
        """So many gateways divide the floor, each with one retry at least."""
        self._floor = max(1.0, self._floor_of_all / max(1, num)) if self._floor_of_all else 0.0

    def take_up(self, now: float) -> None:
        """Count what other workers counted since; once a second at least, for they count it as of then."""
        if self._row is None:
            return
        found, seen = self._row.others(), self._seen
        if found != seen:
            self._seen = found
            self._note(found.first - seen.first, found.second - seen.second, now)

    def note_answered(self, now: float) -> None:
        """A node answered a request without an error."""
        self._note(1, 0, now)
        if self._row is not None:
            self._row.add(0, 1)

    def withdraw(self, now: float) -> bool:
        """Take one retry out of the budget; False when there is none left."""
        self.take_up(now)
        self._slot(now)
        if self._retried + 1 > self._floor + self._share * self._answered:
            self.refused += 1
            return False
        self._note(0, 1, now)
        if self._row is not None:
            self._row.add(1, 1)
        return True

    def left(self, now: float) -> float:
        """Retries that are left now."""
        self.take_up(now)
        self._slot(now)
        return max(0.0, self._floor + self._share * self._answered - self._retried)

    def _note(self, answered: float, retried: float, now: float) -> None:
        slot = self._slot(now)
        slot[1] += answered
        slot[2] += retried
        self._answered += answered
        self._retried += retried

    def _slot(self, now: float) -> list[float]:
        second = now // SLOT_S
        slots = self._slots
        if slots and slots[-1][0] == second:
            return slots[-1]
        while slots and slots[0][0] <= second - WINDOW_S:
            _, answered, retried = slots.popleft()
            self._answered -= answered
            self._retried -= retried
        slots.append([second, 0.0, 0.0])
        return slots[-1]
