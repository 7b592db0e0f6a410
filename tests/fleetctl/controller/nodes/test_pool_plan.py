"""The next step of a pool: what it may never do, that it gets there, and that it then does nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from fleetctl.controller.nodes.pool_plan import (
    PoolLimits,
    PoolNode,
    PoolPlan,
    PoolStep,
    StepKind,
    WantedPool,
    leave_order,
    plan_pool,
)
from fleetctl.wire.node import NodePhase
from fleetctl.wire.pool import PoolState

READY, STARTING, DEAD = NodePhase.READY, NodePhase.STARTING, NodePhase.UNREACHABLE


def pool_of(*phases: NodePhase | None, is_current: bool = True) -> list[PoolNode]:
    return [PoolNode(f"n{i}", phase, is_current, created_at=float(i)) for i, phase in enumerate(phases, 1)]


def plan(size: int, nodes: list[PoolNode], num_current: int = 0, **given: object) -> PoolPlan:
    limits = given.pop("limits", PoolLimits())
    return plan_pool(WantedPool(size, num_current), nodes, limits, now=0.0, **given)  # type: ignore[arg-type]


def test_a_pool_that_is_short_starts_all_that_are_missing() -> None:
    assert plan(3, pool_of(READY)).steps == (PoolStep(StepKind.START),) * 2


def test_a_node_that_died_counts_and_is_not_replaced_here() -> None:
    found = plan(3, pool_of(READY, READY, DEAD))
    assert (found.state, found.steps) == (PoolState.CONVERGED, ())
    assert found.reason == "as wanted, but n3 takes no requests"


def test_one_too_many_is_drained_then_stopped_one_at_a_time() -> None:
    assert plan(1, pool_of(READY, READY, READY)).steps == (PoolStep(StepKind.DRAIN, "n3"),)
    assert plan(1, pool_of(READY, READY, NodePhase.DRAINING)).steps == ()
    assert plan(1, pool_of(READY, READY, NodePhase.DRAINED)).steps == (PoolStep(StepKind.STOP, "n3"),)


def test_unknown_and_a_run_that_acts_hold_it_still() -> None:
    unseen = plan(1, pool_of(READY, None))
    assert (unseen.state, unseen.steps, unseen.reason) == (PoolState.HELD, (), "not looked at lately: n2")
    held = plan(5, pool_of(READY), held_by="run-7")
    assert (held.state, held.steps, held.reason) == (PoolState.HELD, (), "run run-7 acts on it")


def test_who_is_not_ready_leaves_first_then_the_cordoned_then_the_least_loaded_and_newest() -> None:
    nodes = [
        PoolNode("busy", READY, held=9, created_at=9),
        PoolNode("unknown-load", READY, held=None, created_at=9),
        PoolNode("idle-old", READY, held=0, created_at=1),
        PoolNode("idle-new", READY, held=0, created_at=2),
        PoolNode("cordoned", NodePhase.CORDONED, held=9),
        PoolNode("not-ready", NodePhase.NOT_READY, held=9),
        PoolNode("draining", NodePhase.DRAINING, held=9),
    ]
    order = [node.name for node in leave_order(nodes)]
    assert order == ["draining", "not-ready", "cordoned", "idle-new", "idle-old", "busy", "unknown-load"]


def test_a_failed_start_is_tried_again_when_its_time_has_come_and_nothing_else_is_started_meanwhile() -> None:
    nodes = [PoolNode("n1", DEAD, failed_start=True), *pool_of(READY)[1:]]
    waits = plan(3, nodes, not_before=10.0)
    assert (waits.state, waits.steps) == (PoolState.BACKING_OFF, ())
    assert plan(3, nodes, not_before=0.0).steps == (PoolStep(StepKind.RETRY, "n1"),)
    assert plan(3, nodes, not_before=None).steps == (), "it was tried just now, or nobody counted it yet"


def test_an_exchange_starts_one_first_and_takes_an_old_one_out_once_it_is_ready() -> None:
    old = pool_of(READY, READY, is_current=False)
    assert plan(2, old, num_current=1).steps == (PoolStep(StepKind.START),)
    assert plan(2, [*old, PoolNode("new", STARTING)], num_current=1).steps == ()
    assert plan(2, [*old, PoolNode("new", READY)], num_current=1).steps == (PoolStep(StepKind.DRAIN, "n2"),)
    canary = [old[0], PoolNode("new", READY)]
    assert plan(2, canary, num_current=1).state is PoolState.CONVERGED
    assert plan(2, canary, num_current=2).steps == (PoolStep(StepKind.START),)


def test_a_revision_that_never_gets_ready_takes_no_old_node_out() -> None:
    nodes = [*pool_of(READY, READY, is_current=False), PoolNode("new", DEAD, failed_start=True)]
    assert plan(2, nodes, num_current=2, not_before=9.0).steps == ()
    assert plan(2, nodes, num_current=2, not_before=0.0).steps == (PoolStep(StepKind.RETRY, "new"),)
    back = plan(2, [replace(node, is_current=not node.is_current) for node in nodes], num_current=2)
    assert back.steps == (PoolStep(StepKind.STOP, "new"),), "rolled back, it goes at once"


@dataclass
class World:
    """A pool whose steps take effect after a while, with deaths from time to time."""

    dice: random.Random
    nodes: list[PoolNode]
    num_made: int = 0

    def take(self, step: PoolStep) -> None:
        if step.kind is StepKind.START:
            self.num_made += 1
            self.nodes.append(PoolNode(f"new-{self.num_made}", STARTING, created_at=100.0 + self.num_made))
        elif step.kind is StepKind.STOP:
            self.nodes = [node for node in self.nodes if node.name != step.node]
        else:
            phase = NodePhase.DRAINING if step.kind is StepKind.DRAIN else STARTING
            self._set(step.node, phase=phase, failed_start=False)

    def pass_time(self, *, may_die: bool) -> None:
        for node in self.nodes:
            if node.phase is STARTING and self.dice.random() < 0.5:
                fails = may_die and self.dice.random() < 0.3
                self._set(node.name, phase=DEAD if fails else READY, failed_start=fails)
            elif node.phase is NodePhase.DRAINING and self.dice.random() < 0.5:
                self._set(node.name, phase=NodePhase.DRAINED)
            elif may_die and node.phase is READY and self.dice.random() < 0.02:
                self._set(node.name, phase=DEAD)

    def repair(self) -> None:
        """What died after it was ready, or was cordoned, is a person's work."""
        for node in self.nodes:
            if node.phase in (DEAD, NodePhase.NOT_READY, NodePhase.CORDONED) and not node.failed_start:
                self._set(node.name, phase=READY)

    @property
    def num_ready(self) -> int:
        return sum(node.phase is READY for node in self.nodes)

    def _set(self, name: str, **changes: object) -> None:
        self.nodes = [replace(node, **changes) if node.name == name else node for node in self.nodes]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(80))
def test_any_pool_gets_there_within_its_limits_and_stays(seed: int) -> None:
    dice = random.Random(seed)
    limits = PoolLimits(surge=dice.randint(1, 3), max_unavailable=dice.randint(0, 2))
    size = dice.randint(1, 8)
    wanted = WantedPool(size, dice.choice([0, 1, size]))
    phases = [READY, READY, READY, STARTING, NodePhase.CORDONED, NodePhase.NOT_READY]
    nodes = [PoolNode(f"n{i}", dice.choice(phases), dice.random() < 0.5) for i in range(dice.randint(1, 10))]
    world = World(dice, nodes)
    most = max(len(nodes), size + limits.surge)
    for turn in range(250):
        found = plan_pool(wanted, world.nodes, limits, not_before=0.0, now=float(turn))
        ready_before = world.num_ready
        for step in found.steps:
            world.take(step)
        assert len(world.nodes) <= most
        assert world.num_ready >= min(ready_before, size - limits.max_unavailable), "what it takes out itself"
        assert sum(step.kind in (StepKind.DRAIN, StepKind.STOP) for step in found.steps) <= 1
        world.pass_time(may_die=turn < 60)
        if turn == 60:
            world.repair()
    assert found.state is PoolState.CONVERGED
    assert found.steps == ()
    assert len(world.nodes) == size
    assert sum(node.is_current for node in world.nodes) >= wanted.num_current
