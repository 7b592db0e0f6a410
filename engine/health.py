"""May this node be sent requests, and if not, why, and since when?

The judgement is a pure function of what is known of the core. A busy core is told from a hung one by its silence:
a core with work reports each step, an idle one reports about once a second, so silence longer than any step it
could be in means that it hangs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STUCK_FLOOR_S = 10.0  # an idle core reports each second; loading kernels for a new shape may take a few
STUCK_STEPS = 10.0  # no step takes ten times as long as the longest of late


class CorePhase(StrEnum):
    LOADING = "loading"
    WARMING_UP = "warming_up"
    UP = "up"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a node is ready or is not. One value is shown: the gravest."""

    LOADING = "loading"
    WARMING_UP = "warming_up"
    READY = "ready"
    DRAINING = "draining"
    CORE_DEAD = "core_dead"
    CORE_STUCK = "core_stuck"


def allowed_silence_s(longest_step_s: float) -> float:
    """How long a core may be silent before it counts as stuck."""
    return max(STUCK_FLOOR_S, STUCK_STEPS * longest_step_s)


def judge(*, phase: CorePhase, silent_s: float, longest_step_s: float, takes_work: bool) -> Reason:
    """The node's readiness from the core's phase, its silence, and whether the node is in service."""
    match phase:
        case CorePhase.DEAD:
            return Reason.CORE_DEAD
        case CorePhase.LOADING:
            return Reason.LOADING
        case CorePhase.WARMING_UP:
            return Reason.WARMING_UP
        case CorePhase.UP if silent_s > allowed_silence_s(longest_step_s):
            return Reason.CORE_STUCK
        case CorePhase.UP:
            return Reason.READY if takes_work else Reason.DRAINING


@dataclass(slots=True)
class Health:
    """The last judgement and since when it has been so."""

    reason: Reason
    since: float  # unix seconds

    def note(self, reason: Reason, now: float) -> bool:
        """Takes a new judgement; returns whether it differs from the last."""
        if reason is self.reason:
            return False
        self.reason, self.since = reason, now
        return True

    def report(self, now: float) -> dict[str, object]:
        return {
            "ready": self.reason is Reason.READY,
            "reason": self.reason.value,
            "since": self.since,
            "age_s": round(max(0.0, now - self.since), 3),
        }


@dataclass(slots=True)
class StepClock:
    """The longest step of late: a maximum that fades, so that one slow start is not remembered for hours."""

    longest_s: float = 0.0

    def note(self, seconds: float) -> None:
        self.longest_s = max(seconds, self.longest_s * 0.999)
