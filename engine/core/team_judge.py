"""How many threads compute a decoding step: those that the machine has, or fewer where others want its CPUs.

A step is as late as its last thread. One that shares its CPU with a neighbour makes all of them wait, several times in
a step, and fewer threads on the CPUs that are free are then faster than more. What pays depends on neighbours, memory
and scheduler, so it is tried: some steps with the number of now, some with another, and the faster one stays. Tokens
are the same with any number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MIN_TRIAL_STEPS, MIN_TRIAL_S = 6, 0.12  # of each of the two: a neighbour's turns are some 40 ms apart
SHORTEST_WAIT_S = 0.5  # between trials; longer and longer, as long as nothing changes
LONGEST_WAIT_S, LONGEST_WAIT_OF_ALL_S = 8.0, 16.0  # with fewer threads than there are, and with all of them
GAIN = 0.93  # the other number must take less than this share of the time
HOPELESS, HOPELESS_STEPS = 1.15, 2  # a number none of whose first steps took less than so many times as long
SLOW_RATIO = 1.3  # of what such steps took in the last trial: something changed, try at once
_SMOOTHING = 0.2


@dataclass(slots=True)
class _Leg:
    """Steps with one number of threads."""

    num_threads: int
    num_steps: int = 0
    seconds: float = 0.0
    shortest_s: float = math.inf

    def add(self, seconds: float) -> None:
        self.num_steps += 1
        self.seconds += seconds
        self.shortest_s = min(self.shortest_s, seconds)

    @property
    def mean_s(self) -> float:
        return self.seconds / self.num_steps

    @property
    def is_long_enough(self) -> bool:
        return self.num_steps >= MIN_TRIAL_STEPS and self.seconds >= MIN_TRIAL_S


@dataclass(slots=True)
class _BatchJudge:
    """For batches of about one size."""

    most: int
    num_threads: int
    next_trial_at: float
    wait_s: float = SHORTEST_WAIT_S
    legs: list[_Leg] = field(default_factory=list)  # of the trial under way: the number of now, then the other
    num_refused: int = 0  # trials since the number changed
    usual_s: float | None = None
    recent_s: float | None = None
    last: tuple[int, int] | None = None  # rows and threads of the step before

    def observe(self, rows: int, num_threads: int, seconds: float, now: float) -> None:
        same_as_last, self.last = (rows, num_threads) == self.last, (rows, num_threads)
        if not same_as_last:  # recorded anew, caches are cold
            return
        if self.legs:
            self._try(seconds, now)
            return
        self.recent_s = seconds if self.recent_s is None else self.recent_s + _SMOOTHING * (seconds - self.recent_s)
        is_slow = self.usual_s is not None and self.recent_s > SLOW_RATIO * self.usual_s
        if now >= self.next_trial_at or (is_slow and now >= self.next_trial_at - self.wait_s + SHORTEST_WAIT_S):
            self.legs = [_Leg(self.num_threads)]

    def _try(self, seconds: float, now: float) -> None:
        leg = self.legs[-1]
        leg.add(seconds)
        if len(self.legs) == 1:
            if leg.is_long_enough:
                self.legs.append(_Leg(self._other()))
            return
        first = self.legs[0]
        # A number that is worse is not tried to the end: each of its steps makes clients wait.
        is_worse = leg.num_steps >= HOPELESS_STEPS and leg.shortest_s > HOPELESS * first.mean_s
        is_hopeless = is_worse or leg.seconds > max(2 * first.mean_s * MIN_TRIAL_STEPS, MIN_TRIAL_S)
        if not (leg.is_long_enough or is_hopeless):
            return
        is_better = leg.mean_s < GAIN * first.mean_s
        if is_better:
            self.num_threads, self.wait_s, self.num_refused = leg.num_threads, SHORTEST_WAIT_S, 0
        else:
            longest = LONGEST_WAIT_OF_ALL_S if self.num_threads == self.most else LONGEST_WAIT_S
            self.wait_s, self.num_refused = min(2 * self.wait_s, longest), self.num_refused + 1
        self.usual_s = self.recent_s = leg.mean_s if is_better else first.mean_s
        self.legs, self.next_trial_at = [], now + self.wait_s

    def _other(self) -> int:
        """One more, one less; then further away, as one less of sixteen is no help where four have neighbours."""
        n, far = self.num_threads, max(self.most // 4, 1)
        others = [m for m in dict.fromkeys((n + 1, n - 1, n + far, n - far, n // 2)) if 1 <= m <= self.most and m != n]
        return others[self.num_refused % len(others)]


class TeamJudge:
    """Says how many threads the next step should have, and learns from how long it took.

    Threading: one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._batches: dict[int, _BatchJudge] = {}

    def num_threads(self, rows: int, now: float) -> int:
        """For a decoding step of so many tokens."""
        if self._most == 1:
            return 1
        batch = self._batches.setdefault(
            rows.bit_length(), _BatchJudge(self._most, self._most, next_trial_at=now + SHORTEST_WAIT_S)
        )
        return batch.legs[-1].num_threads if batch.legs else batch.num_threads

    def observe(self, rows: int, num_threads: int, seconds: float, now: float) -> None:
        """Such a step took so long."""
        if (batch := self._batches.get(rows.bit_length())) is not None:
            batch.observe(rows, num_threads, seconds, now)
