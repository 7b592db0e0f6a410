"""A rollout: how a pool gets from one revision to another. Its states, and what follows from each. Pure.

    canary ──> promoting ──> done                 each step of a canary: nodes ready, then judged
      │  ▲         │
      ▼  │         ▼
    paused ──> rolling_back ──> rolled_back       and `failed`, when its pool is gone

What is wanted of the pool and of its traffic follows from the stored rollout alone (`wanted_of`), so that a controller
that was killed at any point goes on with the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

MAX_HISTORY = 200


class RolloutState(StrEnum):
    """Where a rollout is. The last three are ends; each rollout has one."""

    CANARY = "canary"  # a share of the sessions is on the new revision
    PROMOTING = "promoting"  # the last step: all nodes are exchanged
    PAUSED = "paused"  # stays at its step until a person says more
    ROLLING_BACK = "rolling_back"
    DONE = "done"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Whether nothing comes after it."""
        return self in (RolloutState.DONE, RolloutState.ROLLED_BACK, RolloutState.FAILED)


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a rollout. `at` in Unix seconds; `by`: a person, or `controller`."""

    at: float
    state: RolloutState
    share: float
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout as it is stored. Times in Unix seconds, shares above 0 up to 1.

    `ready_at`: since when all nodes of the step are ready; None: they are not. `evidence`: what the gate has counted in
    this step. `override` is why a person acts against what was frozen at `override_at`.
    """

    id: str
    pool: str
    from_revision: str
    to_revision: str
    steps: tuple[float, ...]
    started_at: float
    started_by: str
    reason: str = ""
    state: RolloutState = RolloutState.CANARY
    step: int = 0
    is_gated: bool = True
    by_hand: bool = False
    is_return: bool = False  # to an earlier revision, in one step
    shadow_share: float = 0.0
    ready_at: float | None = None
    back_to: str = ""
    override: str = ""
    override_at: float = 0.0
    why: str = ""
    updated_at: float = 0.0
    updated_by: str = ""
    needs_person: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Transition, ...] = ()

    @property
    def share(self) -> float:
        """Of the sessions, that the present step gives the new revision."""
        return self.steps[self.step]

    @property
    def is_last_step(self) -> bool:
        """Whether all nodes are being exchanged."""
        return self.step + 1 == len(self.steps)

    @property
    def target(self) -> str:
        """The revision that the pool is on its way to, or has reached."""
        return self.back_to or self.to_revision

    @property
    def rule_id(self) -> str:
        """Of the traffic rule that shares out the sessions."""
        return self.id

    @property
    def shadow_id(self) -> str:
        """Of the traffic rule that copies requests to the new revision."""
        return f"{self.id}-shadow"

    def to_json(self) -> dict[str, Any]:
        """The document, as it is stored."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Rollout:
        """A stored document. What an earlier version kept, and this one does not, is left out."""
        kept = {name: value for name, value in document.items() if name in cls.__slots__}
        history = tuple(
            Transition(**{**one, "state": RolloutState(one["state"])}) for one in document.get("history", ())
        )
        changed = {"state": RolloutState(document["state"]), "steps": tuple(document["steps"]), "history": history}
        return cls(**{**kept, **changed})

    def moved(self, state: RolloutState, *, at: float, by: str, why: str, **changed: Any) -> Rollout:
        """The rollout after a transition. What the gate counted is not kept beyond an end."""
        if state.is_end:
            changed = {"evidence": {}, **changed}
        moved = replace(self, state=state, why=why, updated_at=at, updated_by=by, **{"needs_person": False, **changed})
        entry = Transition(at, state, moved.share, by, why)
        return replace(moved, history=(*self.history, entry)[-MAX_HISTORY:])

    def at_step(self, step: int, *, at: float, by: str, why: str, **changed: Any) -> Rollout:
        """The rollout at the begin of a step, which is judged anew."""
        state = RolloutState.PROMOTING if step + 1 == len(self.steps) else RolloutState.CANARY
        anew: dict[str, Any] = {"step": step, "ready_at": None, "evidence": {}}
        return self.moved(state, at=at, by=by, why=why, **{**anew, **changed})

    def rolling_back(self, *, at: float, by: str, why: str, to: str = "", **changed: Any) -> Rollout:
        """The rollout on its way back, to where it came from unless another revision is named."""
        return self.moved(RolloutState.ROLLING_BACK, at=at, by=by, why=why, back_to=to or self.from_revision, **changed)


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A wanted node of the pool. `is_known`: it was looked at lately. `was_ready`: at some time since it is wanted."""

    name: str
    revision: str
    is_known: bool = True
    is_ready: bool = False
    was_ready: bool = False
    has_died: bool = False  # it was ready, and its process ended
    age_s: float = 0.0  # since it became wanted


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a rollout wants of its pool, in the words of `pool_row.want_revision`, and of its traffic.

    `share` None: no rule; requests go where all go. `shadow` None: no copies.
    """

    revision: str
    num_current: int
    stable: tuple[str, int] = ("", 0)
    share: float | None = None
    shadow: float | None = None
    goes_on_frozen: str = ""


def wanted_of(
    rollout: Rollout, size: int, nodes: Sequence[SeenNode], *, surge: int, floor_ratio: float = 0.6
) -> Wanted:
    """What is to be true while the rollout is in this state. `size`: the pool's wanted one; surge, floor: limits.

    The share follows the nodes that are ready: one new node never gets what was meant for three. On the way back users
    leave the new revision at once where the nodes that stay can carry them, else as these become more.
    """
    new, end = rollout.to_revision, rollout.state.is_end
    if end:
        return Wanted(rollout.target if rollout.state is not RolloutState.FAILED else "", 0)
    num_ready_new = sum(node.is_ready and node.revision == new for node in nodes)
    num_ready_old = sum(node.is_ready and node.revision != new for node in nodes)
    if rollout.state is RolloutState.ROLLING_BACK:
        num_third = sum(node.revision not in (new, rollout.back_to) for node in nodes)
        carried = min(1.0, num_ready_old / max(1, size))
        share = 0.0 if carried >= floor_ratio else 1.0 - carried
        why = rollout.override or f"{rollout.id} rolls back: {rollout.why}"
        keeps_third = num_third if rollout.back_to == rollout.from_revision else 0
        return Wanted(rollout.back_to, max(0, size - keeps_third), share=share, goes_on_frozen=why)
    if rollout.is_last_step:
        return Wanted(new, size)
    num_new = min(size, max(1, math.ceil(rollout.share * size - 1e-9)))
    num_old = max(0, min(math.ceil((1 - rollout.share) * size - 1e-9), size + surge - num_new))
    share = rollout.share * min(1.0, num_ready_new / num_new)
    shadow = rollout.shadow_share if rollout.shadow_share and num_ready_new else None
    return Wanted(new, num_new, (rollout.from_revision, num_old), share, shadow)
