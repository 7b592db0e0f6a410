"""May this be done now? Pure judgements over what is known of the fleet; what is not known is never a yes.

They are asked when a run is proposed, to show the answer, and again right before each step, to hold it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from runbooks.command import Action, Capacity
from runbooks.run import Run, RunStatus

DEFAULT_FLOOR_RATIO = 0.6


class Answer(StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # could not look


@dataclass(frozen=True, slots=True)
class Verdict:
    answer: Answer
    reason: str

    @property
    def allows(self) -> bool:
        return self.answer is Answer.YES

    def __str__(self) -> str:
        return f"{self.answer.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a look at the fleet said. None: could not look."""

    wanted: frozenset[str] | None
    serving: frozenset[str] | None

    def after(self, action: Action) -> Fleet:
        """The fleet as it would be when `action` has succeeded."""
        if self.serving is None or self.wanted is None:
            return self
        target = {action.target}
        if action.verb == "node start":
            return Fleet(self.wanted | target, self.serving | target)
        if action.capacity is Capacity.REMOVES:
            return replace(self, serving=self.serving - target)
        return replace(self, serving=self.serving | target)


def capacity_floor(num_wanted: int, floor_ratio: float = DEFAULT_FLOOR_RATIO) -> int:
    """How many nodes must keep taking requests: at least one."""
    return max(1, math.ceil(floor_ratio * num_wanted - 1e-9))


def judge_capacity(
    action: Action,
    fleet: Fleet,
    *,
    fresh: Iterable[str] = (),
    leaving: Iterable[str] = (),
    floor_ratio: float = DEFAULT_FLOOR_RATIO,
) -> Verdict:
    """Whether enough nodes still take requests once `action` has begun.

    `fresh` are nodes that the same run started: they serve, but don't raise the floor, so that a replacement counts
    for the node it replaces. `leaving` are nodes that steps of other runs are taking out right now.
    """
    if action.capacity is Capacity.ADDS:
        return Verdict(Answer.YES, "adds capacity")
    if fleet.serving is None or fleet.wanted is None:
        return Verdict(Answer.UNKNOWN, f"could not look which nodes serve: {action.target} is not taken out blindly")
    floor = capacity_floor(len(fleet.wanted - set(fresh)), floor_ratio)
    serving = fleet.serving - set(leaving)
    left = len(serving - {action.target})
    if action.target not in serving:
        return Verdict(Answer.YES, f"{action.target} takes no requests now; {left} serve, the floor is {floor}")
    if left < floor:
        return Verdict(
            Answer.NO, f"without {action.target} only {left} of {len(serving)} nodes would serve, the floor is {floor}"
        )
    return Verdict(Answer.YES, f"{left} nodes serve without {action.target}, the floor is {floor}")


def judge_names(existing: Iterable[str], fresh: Iterable[str], fleet: Fleet) -> Verdict:
    """Whether the nodes to act on exist, and the names of new nodes are free."""
    if fleet.wanted is None:
        return Verdict(Answer.UNKNOWN, "could not look which nodes exist")
    for name in existing:
        if name not in fleet.wanted:
            known = ", ".join(sorted(fleet.wanted)) or "none"
            return Verdict(Answer.NO, f"there is no node {name}; nodes: {known}")
    for name in fresh:
        if name in fleet.wanted:
            return Verdict(Answer.NO, f"the new node's name {name} is taken: give a free one")
    return Verdict(Answer.YES, "all names fit")


def judge_plan(
    actions: Sequence[Action],
    fleet: Fleet,
    *,
    fresh: Iterable[str] = (),
    floor_ratio: float = DEFAULT_FLOOR_RATIO,
) -> tuple[Verdict, ...]:
    """One answer for each action, each on the fleet as the actions before it leave it."""
    fresh = frozenset(fresh)
    verdicts = []
    for action in actions:
        verdicts.append(judge_capacity(action, fleet, fresh=fresh, floor_ratio=floor_ratio))
        fleet = fleet.after(action)
    return tuple(verdicts)


def judge_repeat(runbook: str, targets: Sequence[str], earlier: Iterable[Run]) -> Verdict:
    """No to what was already tried on the same node for the same incident and undone: it does not help."""
    for run in earlier:
        if (
            run.runbook == runbook
            and run.status in (RunStatus.UNDONE, RunStatus.FAILED)
            and not run.dry_run
            and set(run.targets) & set(targets)
        ):
            return Verdict(
                Answer.NO,
                f"{run.id} tried {runbook} for this incident and ended {run.status.value}: it is not repeated;"
                " to insist, start it without naming the incident",
            )
    return Verdict(Answer.YES, "not tried for this incident")


def held_text(node: str, holder: Run) -> str:
    """Why a run can't have `node`: one mutating run at a time."""
    return f"{node} is held by run {holder.id} ({holder.title}, {holder.status.value})"


class Policy(StrEnum):
    """Who lets a run start that the controller proposed."""

    PROPOSE = "propose"  # a person approves
    ASK = "ask"  # a person approves, and is asked at once
    RUN = "run"  # pages of low and medium risk start by themselves; guards hold all the same


def needs_person(policy: Policy, risk: str) -> bool:
    """Whether a proposed run of this risk waits for a person's approval."""
    return policy is not Policy.RUN or risk == "high"
