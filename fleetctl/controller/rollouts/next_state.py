"""What becomes of a rollout next: judged from what is seen of its nodes and from the gate's verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleetctl.controller.rollouts.gate import GateReport, Verdict
from fleetctl.controller.rollouts.rollout import Rollout, RolloutState, SeenNode, Wanted

CONTROLLER = "controller"
MAX_DEAD_SHARE = 0.1  # of the new nodes; one of few is too many already


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """How long a rollout waits, in seconds, and for how many failed starts."""

    ready_within_s: float = 900.0
    max_start_failures: int = 3
    step_min_s: float = 60.0
    step_limit_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class SeenPool:
    """The pool of a rollout as it is now. `size`: wanted nodes. `frozen`: what holds it; empty: nothing does."""

    size: int
    nodes: Sequence[SeenNode]
    start_failures: int = 0  # in a row, of a node of the new revision
    start_error: str = ""
    frozen: str = ""
    report: GateReport | None = None


def next_rollout(rollout: Rollout, seen: SeenPool, wanted: Wanted, limits: RolloutLimits, now: float) -> Rollout | None:
    """The rollout after its next transition; None: it stays as it is.

    `wanted` is what the present state wants of the pool. Unknown nodes and an undecided gate change nothing; a step
    that is undecided for too long is paused for a person.
    """
    if rollout.state is RolloutState.ROLLING_BACK:
        return _back(rollout, seen, now)
    failure = _failure(rollout, seen, limits)
    if failure and rollout.is_return:
        # Where it comes from is what was left: nobody goes back there unasked.
        if rollout.state is RolloutState.PAUSED:
            return None
        return rollout.moved(RolloutState.PAUSED, at=now, by=CONTROLLER, why=failure, needs_person=True)
    if failure:
        return rollout.rolling_back(at=now, by=CONTROLLER, why=failure)
    if rollout.state is RolloutState.PAUSED or not all(node.is_known for node in seen.nodes):
        return None
    is_ready = _is_ready(rollout, seen, wanted)
    if not is_ready:
        return replace(rollout, ready_at=None) if rollout.ready_at is not None else None
    if rollout.is_last_step:
        return rollout.moved(RolloutState.DONE, at=now, by=CONTROLLER, why=f"all nodes are of {rollout.to_revision}")
    if rollout.ready_at is None:
        return replace(rollout, ready_at=now)
    return _judged(rollout, seen, limits, now)


def _judged(rollout: Rollout, seen: SeenPool, limits: RolloutLimits, now: float) -> Rollout | None:
    """The next step, or a pause for a person, of a step whose nodes are all ready."""
    assert rollout.ready_at is not None
    if rollout.by_hand or seen.frozen:
        return None
    age_s = now - rollout.ready_at
    if age_s < limits.step_min_s:
        return None
    share = f"{rollout.steps[rollout.step + 1] * 100:.3g}%"
    if not rollout.is_gated:
        return rollout.at_step(rollout.step + 1, at=now, by=CONTROLLER, why=f"its nodes are ready: on to {share}")
    if seen.report is not None and seen.report.verdict is Verdict.PASS:
        return rollout.at_step(rollout.step + 1, at=now, by=CONTROLLER, why=f"on to {share}: {seen.report.words}")
    if age_s < limits.step_limit_s:
        return None
    missing = seen.report.words if seen.report is not None else "no signal was read"
    why = f"undecided for {limits.step_limit_s:g} s: {missing}"
    return rollout.moved(RolloutState.PAUSED, at=now, by=CONTROLLER, why=why, needs_person=True)


def _back(rollout: Rollout, seen: SeenPool, now: float) -> Rollout | None:
    left = [node.name for node in seen.nodes if node.revision == rollout.to_revision]
    if left or len(seen.nodes) < seen.size or not all(node.was_ready for node in seen.nodes):
        return None
    # Why it went back is what people ask for later: it stays.
    return rollout.moved(RolloutState.ROLLED_BACK, at=now, by=CONTROLLER, why=rollout.why)


def _failure(rollout: Rollout, seen: SeenPool, limits: RolloutLimits) -> str:
    """Why the new revision must go; empty: nothing says so."""
    new = [node for node in seen.nodes if node.revision == rollout.to_revision and node.is_known]
    if seen.start_failures >= limits.max_start_failures:
        return f"{seen.start_failures} starts in a row ended before the node was ready: {seen.start_error}"[:600]
    dead = [node.name for node in new if node.has_died]
    if len(dead) > MAX_DEAD_SHARE * len(new):
        return f"{', '.join(sorted(dead))}: of the new revision, and ended after it was ready"
    if late := [node for node in new if not node.was_ready]:
        oldest = max(late, key=lambda node: node.age_s)
        if oldest.age_s >= limits.ready_within_s:
            return f"{oldest.name} is not ready {oldest.age_s:.0f} s after it was asked for"
    if seen.report is not None and seen.report.verdict is Verdict.FAIL:
        return seen.report.words
    return ""


def _is_ready(rollout: Rollout, seen: SeenPool, wanted: Wanted) -> bool:
    """Whether the pool is as this step wants it."""
    new = [node for node in seen.nodes if node.revision == rollout.to_revision]
    if rollout.is_last_step:  # one that has died since is its incident's
        return len(new) == len(seen.nodes) >= seen.size and all(node.was_ready for node in new)
    return sum(node.is_ready for node in new) >= wanted.num_current
