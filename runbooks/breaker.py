"""Whether automation's last runs helped: a breaker that stops it after useless ones and lets one try after a rest.

Its state follows from the journal alone, so a restart neither forgets nor holds it. Pure judgement. The states are
those of a circuit breaker (M. Nygard, Release It!): closed, open, half-open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbooks.guard import GuardAnswer, Ruling

FORGOTTEN_S = 86_400.0
"""What ended so long ago says nothing about now."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """After `max_useless` runs in a row that did not help it rests `rest_s`; twice as long after each further one."""

    max_useless: int = 3
    rest_s: float = 900.0
    max_rest_s: float = 4 * 3600.0


class BreakerState(StrEnum):
    """What automation may start."""

    CLOSED = "closed"  # what its budget allows
    OPEN = "open"  # nothing
    HALF_OPEN = "half_open"  # one run, which decides


@dataclass(frozen=True, slots=True)
class UnaskedEnd:
    """The end of a run that started without a person, `age_s` seconds ago."""

    run_id: str
    helped: bool  # done and verified; else undone or failed
    age_s: float


@dataclass(frozen=True, slots=True)
class Breaker:
    """`useless` are the last runs in a row that did not help, the newest first; `trial` the one that decides."""

    state: BreakerState = BreakerState.CLOSED
    useless: tuple[str, ...] = ()
    retry_in_s: float = 0.0
    trial: str | None = None

    @property
    def words(self) -> str:
        """Why automation does not start anything now; empty when it may."""
        if self.state is BreakerState.CLOSED:
            return ""
        why = f"breaker: automation's last {len(self.useless)} runs did not help ({', '.join(self.useless[:5])})"
        if self.state is BreakerState.OPEN:
            return f"{why}; it tries one again in {math.ceil(self.retry_in_s / 60)} min"
        return f"{why}; {self.trial} is its next try" if self.trial else f"{why}; the next one decides"


def breaker_of(ends: Sequence[UnaskedEnd], active: Sequence[str], limits: BreakerLimits) -> Breaker:
    """The breaker after these ends, the newest first, while automation's runs `active` are under way."""
    useless: list[UnaskedEnd] = []
    for end in ends:
        if end.helped or end.age_s >= FORGOTTEN_S:
            break
        useless.append(end)
    if len(useless) < limits.max_useless:
        return Breaker(useless=tuple(end.run_id for end in useless))
    further = min(len(useless) - limits.max_useless, 32)
    rest_s = min(limits.rest_s * 2.0**further, limits.max_rest_s)
    left_s = rest_s - useless[0].age_s
    names = tuple(end.run_id for end in useless)
    if left_s > 0:
        return Breaker(BreakerState.OPEN, names, left_s)
    return Breaker(BreakerState.HALF_OPEN, names, trial=active[0] if active else None)


def judge_breaker(breaker: Breaker, run_id: str) -> Ruling:
    """Whether automation may start this run."""
    is_free = breaker.trial in (None, run_id)
    if breaker.state is BreakerState.CLOSED or (breaker.state is BreakerState.HALF_OPEN and is_free):
        return Ruling(GuardAnswer.YES, "automation's runs help")
    return Ruling(GuardAnswer.NO, breaker.words)
