"""What a pool needs next, judged from what is wanted and what is there. Pure: it looks at nothing and does nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from fleetctl.wire.node import NodePhase
from fleetctl.wire.pool import PoolState


class StepKind(StrEnum):
    """What may be done to a pool."""

    START = "start"  # a new node of the pool's revision
    START_STABLE = "start_stable"  # a new node of the revision that a rollout comes from
    RETRY = "retry"  # the process of a node that was never ready and ended
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class PoolStep:
    """One thing to do now. `node` is empty for a start: the new node has no name yet."""

    kind: StepKind
    node: str = ""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How far a pool may be off its size while its nodes are exchanged."""

    surge: int = 1  # nodes beyond the wanted size
    max_unavailable: int = 0  # nodes below it that need not be ready, by our doing


@dataclass(frozen=True, slots=True)
class WantedPool:
    """`num_current`: so many of the nodes, at least, are to be of the pool's revision; `num_stable`: so many of others.

    Both together may exceed `size`, while a rollout compares two revisions and the old one carries the load.
    """

    size: int
    num_current: int = 0
    num_stable: int = 0


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A wanted node as it is. `phase` is None when it was not looked at lately; `held`, its requests, when unknown."""

    name: str
    phase: NodePhase | None
    is_current: bool = True  # of the pool's revision
    failed_start: bool = False  # its process ended before it was ever ready
    held: int | None = None
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What to do now, or why nothing is done."""

    state: PoolState
    reason: str
    steps: tuple[PoolStep, ...] = ()


class _Leaving(IntEnum):
    """Which node goes first."""

    BEING_TAKEN_OUT = 0  # else one node after the other would be begun and none ended
    NOT_READY = 1
    CORDONED = 2
    SERVING = 3


def plan_pool(
    wanted: WantedPool,
    nodes: Sequence[PoolNode],
    limits: PoolLimits,
    *,
    held_by: str | None = None,
    not_before: float | None = None,
    now: float,
) -> PoolPlan:
    """The next steps towards what is wanted; at most one node is taken out at a time.

    `held_by` is the run that acts on the pool now; `not_before`: a start failed, and is not tried again until then.
    A node that was ready once and died counts as it is: it is not replaced here.
    """
    if held_by is not None:
        return PoolPlan(PoolState.HELD, f"run {held_by} acts on it")
    unseen = sorted(node.name for node in nodes if node.phase is None)
    if unseen:
        return PoolPlan(PoolState.HELD, f"not looked at lately: {', '.join(unseen)}")
    balance = _Balance.of(wanted, nodes, limits)
    failed = sorted((node for node in nodes if node.failed_start), key=lambda node: node.name)
    if kept := [node for node in failed if not balance.is_spare(node)]:
        return _retried(kept[0].name, not_before, now)
    if balance.surplus < 0:
        return _converging(f"starts {-balance.surplus} of {balance.size}", *balance.starts(-balance.surplus))
    num_missing = max(0, balance.num_missing)
    if num_missing and failed:  # of another revision: it serves nobody, and makes room first
        return _with_one_less(wanted.size, failed[0], nodes, limits)
    if num_missing and balance.room > 0:
        num = min(num_missing, balance.room)
        return _converging(f"starts {num} of the pool's revision", *[PoolStep(StepKind.START)] * num)
    may_leave = [node for node in nodes if balance.may_leave(node)]
    if balance.surplus == 0 and not (num_missing and may_leave):
        return _settled(nodes)
    return _with_one_less(wanted.size, leave_order(may_leave)[0], nodes, limits)


@dataclass(frozen=True, slots=True)
class _Balance:
    """How far the nodes are from what is wanted; a negative number of missing nodes is so many too many."""

    size: int
    surplus: int
    num_missing: int  # of the pool's revision
    num_missing_stable: int  # of others
    room: int  # nodes that may be started beyond the size

    @classmethod
    def of(cls, wanted: WantedPool, nodes: Sequence[PoolNode], limits: PoolLimits) -> _Balance:
        size = max(wanted.size, wanted.num_current + wanted.num_stable)
        num_current = sum(node.is_current for node in nodes)
        return cls(
            size,
            len(nodes) - size,
            min(wanted.num_current, size) - num_current,
            wanted.num_stable - (len(nodes) - num_current),
            limits.surge - (len(nodes) - wanted.size),
        )

    def may_leave(self, node: PoolNode) -> bool:
        """Whether there are more nodes of its kind than are to stay."""
        return (self.num_missing if node.is_current else self.num_missing_stable) < 0

    def is_spare(self, node: PoolNode) -> bool:
        """Whether it is to leave now, or to make room for another one."""
        return self.may_leave(node) and (self.surplus > 0 or (self.num_missing > 0 and not node.is_current))

    def starts(self, num: int) -> list[PoolStep]:
        """So many starts: of the pool's revision first, unless the other one is what is missing."""
        num_stable = max(0, min(self.num_missing_stable, num - max(0, self.num_missing)))
        return [PoolStep(StepKind.START)] * (num - num_stable) + [PoolStep(StepKind.START_STABLE)] * num_stable


def _retried(name: str, not_before: float | None, now: float) -> PoolPlan:
    if not_before is None or now < not_before:
        return PoolPlan(PoolState.BACKING_OFF, f"{name} ended before it was ready")
    return PoolPlan(PoolState.BACKING_OFF, f"starts {name} again", (PoolStep(StepKind.RETRY, name),))


def _settled(nodes: Sequence[PoolNode]) -> PoolPlan:
    starting = sorted(node.name for node in nodes if node.phase is NodePhase.STARTING)
    if starting:
        return _converging(f"starting: {', '.join(starting)}")
    idle = sorted(node.name for node in nodes if node.phase is not NodePhase.READY)
    reason = f"as wanted, but {', '.join(idle)} takes no requests" if idle else "as wanted"
    return PoolPlan(PoolState.CONVERGED, reason)


def _with_one_less(size: int, leaver: PoolNode, nodes: Sequence[PoolNode], limits: PoolLimits) -> PoolPlan:
    """Takes the node out, once enough of the others are ready."""
    num_ready = sum(node.phase is NodePhase.READY for node in nodes)
    least = size - limits.max_unavailable
    too_many = f"{len(nodes) - size} too many"
    if leaver.phase is NodePhase.READY and num_ready - 1 < least:
        return _converging(f"{too_many}: {leaver.name} leaves once {least} others are ready, {num_ready - 1} are")
    if leaver.phase is NodePhase.DRAINING:
        return _converging(f"{too_many}: {leaver.name} is being drained")
    kind = StepKind.STOP if leaver.phase in _STOPPED_AT_ONCE else StepKind.DRAIN
    return _converging(f"{too_many}: {leaver.name} leaves", PoolStep(kind, leaver.name))


def leave_order(nodes: Collection[PoolNode]) -> list[PoolNode]:
    """In which order nodes leave: not ready, cordoned, then the least loaded, and of equals the newest."""

    def order(node: PoolNode) -> tuple[_Leaving, float, float, str]:
        held = math.inf if node.held is None else node.held
        return _LEAVING.get(node.phase, _Leaving.NOT_READY), held, -node.created_at, node.name

    return sorted(nodes, key=order)


_LEAVING: dict[NodePhase | None, _Leaving] = {
    NodePhase.DRAINING: _Leaving.BEING_TAKEN_OUT,
    NodePhase.DRAINED: _Leaving.BEING_TAKEN_OUT,
    NodePhase.CORDONED: _Leaving.CORDONED,
    NodePhase.READY: _Leaving.SERVING,
}
# What is idle, does not answer or was never ready holds nothing that a drain could wait for.
_STOPPED_AT_ONCE = frozenset({NodePhase.DRAINED, NodePhase.UNREACHABLE, NodePhase.STARTING, NodePhase.STOPPED})


def _converging(reason: str, *steps: PoolStep) -> PoolPlan:
    return PoolPlan(PoolState.CONVERGING, reason, steps)
