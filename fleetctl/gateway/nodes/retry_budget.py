"""How many tries beyond each request's first one are allowed: a share of what was answered lately, and a small floor.

A retry helps when one node has no room and another has; when none has, it only multiplies the load that caused it. Each
gateway process counts its own: `n` of them together allow `share` of all answers and `n` times the floor.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 10
SLOT_S = 1.0


class RetryBudget:
    """Answers and retries of the last ten seconds. Times are monotonic seconds."""

    def __init__(self, *, share: float, floor: int) -> None:
        """`share`: retries for each answered request; `floor`: retries within ten seconds that need no answers."""
        self._share = share
        self._floor = floor
        self._slots: deque[list[float]] = deque()  # [second, answered, retried], the newest last
        self._answered = 0.0
        self._retried = 0.0
        self.refused = 0  # retries that the budget did not allow

    def note_answered(self, now: float) -> None:
        """A node answered a request without an error."""
        self._slot(now)[1] += 1
        self._answered += 1

    def withdraw(self, now: float) -> bool:
        """Take one retry out of the budget; False when there is none left."""
        slot = self._slot(now)
        if self._retried + 1 > self._floor + self._share * self._answered:
            self.refused += 1
            return False
        slot[2] += 1
        self._retried += 1
        return True

    def left(self, now: float) -> float:
        """Retries that are left now."""
        self._slot(now)
        return max(0.0, self._floor + self._share * self._answered - self._retried)

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
