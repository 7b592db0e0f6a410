"""May this node be sent requests, and if not, why, and since when?

The judgement is a pure function of what is known of the core. A busy core is told from a hung one by what it set out
to do: before each step its heartbeat says how long the step should take and how often it shows progress meanwhile, and
only a multiple of the time between two signs of progress is too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.protocol.heartbeat import CoreState, Heartbeat

STUCK_FLOOR_S = 4.0  # whatever was predicted: machines pause, kernels for a new shape are built
STUCK_STEPS = 5.0  # a step, or a part of one, that takes this many times its prediction hangs
UNMEASURED_S = 60.0  # allowed for a step while none was measured


class CorePhase(StrEnum):
    """Where the core process is, as far as it has said."""

    LOADING = "loading"
    WARMING_UP = "warming_up"
    UP = "up"
    ASLEEP = "asleep"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a node is ready or is not. One value is shown: the gravest."""

    LOADING = "loading"
    WARMING_UP = "warming_up"
    READY = "ready"
    ASLEEP = "asleep"
    DRAINING = "draining"
    CORE_DEAD = "core_dead"
    CORE_STUCK = "core_stuck"
    WRONG_OUTPUT = "wrong_output"


def allowed_silence_s(heartbeat: Heartbeat) -> float:
    """How long the core may stay with what it is doing before it counts as stuck."""
    if heartbeat.state is not CoreState.STEP:
        return STUCK_FLOOR_S  # an idle core writes each second, and between steps there is little to do
    whole_s = UNMEASURED_S if heartbeat.predicted_s is None else STUCK_STEPS * heartbeat.predicted_s
    return max(STUCK_FLOOR_S, whole_s / heartbeat.marks)


def silent_since(heartbeat: Heartbeat) -> float:
    """When the core last showed that it gets on, monotonic: with a heartbeat, or inside of a step."""
    return max(heartbeat.at, heartbeat.progress_at)


def is_stuck(heartbeat: Heartbeat | None, *, awake_since: float, now: float) -> bool:
    """Whether the core makes no progress. Times are monotonic.

    `awake_since`: the judge was there all the time from then on. What a core did not do while its judge was stopped
    as well, by a suspended machine or a debugger, is not held against it.
    """
    if heartbeat is None:
        return False
    return now - max(silent_since(heartbeat), awake_since) > allowed_silence_s(heartbeat)


def judge(
    *, phase: CorePhase, stuck: bool, takes_work: bool, output_is_wrong: bool = False, rests: bool = False
) -> Reason:
    """The node's readiness: the core's phase, its progress, its answers, and whether the node is in service."""
    match phase:
        case CorePhase.DEAD:
            return Reason.CORE_DEAD
        case CorePhase.LOADING:
            return Reason.LOADING
        case CorePhase.WARMING_UP:
            return Reason.WARMING_UP
        case CorePhase.ASLEEP:
            return Reason.ASLEEP
        case CorePhase.UP if stuck:
            return Reason.CORE_STUCK
        case CorePhase.UP if not takes_work:
            return Reason.DRAINING  # before wrong output: who waits for the drain must see it, and it takes no work
        case CorePhase.UP if rests:
            return Reason.ASLEEP  # about to be
        case CorePhase.UP:
            return Reason.WRONG_OUTPUT if output_is_wrong else Reason.READY


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
        """For `/health`; `now` in unix seconds."""
        return {
            "ready": self.reason is Reason.READY,
            "reason": self.reason.value,
            "since": self.since,
            "age_s": round(max(0.0, now - self.since), 3),
        }


@dataclass(slots=True)
class Wakefulness:
    """Since when this process has been there to judge. Asked often; a long gap means that it was stopped."""

    since: float
    asked_at: float
    longest_gap_s: float = 2.0

    def note(self, now: float) -> float:
        """Returns the moment (monotonic) from which on this process has been awake."""
        if now - self.asked_at > self.longest_gap_s:
            self.since = now
        self.asked_at = now
        return self.since
