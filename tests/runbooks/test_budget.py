"""How much an hour may see: counted by run and node, per node, pool, zone and fleet, whatever the clock does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.kit.clock import SystemClock
from runbooks.budget import WINDOW_S, ActionBudget, Ages, Disruption, judge_budget
from runbooks.context import Limits
from runbooks.executor import Executor
from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer
from runbooks.journal import Journal
from runbooks.ports import NodeFacts
from runbooks.run import HeldError, Run, RunStatus
from tests.fixtures.runbooks import LIBRARY, FakeClock, World, propose

pytestmark = pytest.mark.anyio

NODES = {name: (pool, zone) for name, pool, zone in [("n1", "a", "z1"), ("n2", "a", "z2"), ("n3", "b", "z1")]}
FLEET = FleetView.of([NodeFacts(name, pool, zone=zone) for name, (pool, zone) in NODES.items()], NODES)
TIGHT = ActionBudget(per_node=2, per_pool=3, per_zone=3, per_fleet=4)

asks = st.lists(
    st.tuples(st.sampled_from(["r1", "r2", "r3", "r4", "r5"]), st.sampled_from(sorted(NODES)), st.floats(0, 900)),
    max_size=60,
)


@given(asks)
def test_no_hour_ever_sees_more_than_the_budget_of_any_node_pool_zone_or_the_fleet(
    asked: list[tuple[str, str, float]],
) -> None:
    now = 0.0
    done: list[tuple[str, str, float]] = []
    for run_id, node, pause_s in asked:
        now += pause_s
        recent = [Disruption(run, name, now - at) for run, name, at in done]
        if judge_budget([node], recent, FLEET, TIGHT, run_id=run_id).allows:
            done.append((run_id, node, now))
        hour = {(run, name) for run, name, at in done if now - at < WINDOW_S}
        scopes: list[tuple[int, Callable[[str], str]]] = [
            (2, lambda name: name),
            (3, lambda name: NODES[name][0]),
            (3, lambda name: NODES[name][1]),
            (4, lambda name: ""),
        ]
        for limit, key in scopes:
            names = sorted(key(name) for _, name in hour)
            assert all(len(list(group)) <= limit for _, group in itertools.groupby(names))


def test_refusal_names_scope_numbers_limit_and_when_there_is_room() -> None:
    recent = [Disruption(f"r{i}", name, age_s) for i, (name, age_s) in enumerate([("n1", 3000), ("n1", 60), ("n2", 5)])]
    ruling = judge_budget(["n1"], recent, FLEET, TIGHT, run_id="new")
    assert ruling.reason == (
        "budget of actions: 2 within the last hour on n1, 1 more asked for, the limit is 2; room in 10 min"
    )
    assert "3 within the last hour in pool a" in judge_budget(["n2"], recent, FLEET, TIGHT, run_id="new").reason
    assert judge_budget(["n3"], recent, FLEET, TIGHT, run_id="new").allows


def test_what_the_run_took_out_itself_counts_once() -> None:
    recent = [Disruption("r1", "n1", 10), Disruption("r1", "n1", 5), Disruption("r2", "n1", 5)]
    assert judge_budget(["n1"], recent, FLEET, TIGHT, run_id="r1").allows
    assert not judge_budget(["n1"], recent, FLEET, TIGHT, run_id="r3").allows


def test_automation_stops_at_its_part_of_the_budget_and_people_go_on() -> None:
    recent = [Disruption("r1", "n1", 10)]
    ruling = judge_budget(["n1"], recent, FLEET, TIGHT, run_id="r2", by_automation=True)
    assert (ruling.answer, "automation may bring it to 1" in ruling.reason) == (GuardAnswer.NO, True)
    assert judge_budget(["n1"], recent, FLEET, TIGHT, run_id="r2").allows


def test_large_pool_may_see_half_of_its_nodes() -> None:
    names = [f"n{i}" for i in range(40)]
    fleet = FleetView.of([NodeFacts(name, "a") for name in names], names)
    assert judge_budget(names[:20], (), fleet, TIGHT).allows
    assert "20" in judge_budget(names[:21], (), fleet, TIGHT).reason


def test_share_of_a_pool_does_not_sink_with_each_node_that_is_stopped() -> None:
    stopped = [f"n{i}" for i in range(10)]
    names = [*stopped, *(f"n{i}" for i in range(10, 40))]
    fleet = FleetView.of([NodeFacts(name, "a", wanted=name not in stopped) for name in names], names[10:])
    recent = [Disruption(f"r-{name}", name, 60.0) for name in stopped]
    assert judge_budget(names[10:20], recent, fleet, TIGHT).allows
    assert not judge_budget(names[10:21], recent, fleet, TIGHT).allows


def test_what_could_not_be_looked_up_is_unknown() -> None:
    blind = FleetView.of(None, None)
    assert judge_budget(["n1"], None, FLEET, TIGHT).answer is GuardAnswer.UNKNOWN
    assert judge_budget(["n1"], (), blind, TIGHT).answer is GuardAnswer.UNKNOWN


def test_age_of_what_is_from_the_future_begins_when_it_is_seen() -> None:
    ages = Ages()
    assert ages.age_s("late", 5000.0, 1000.0) == 0
    assert ages.age_s("late", 5000.0, 1600.0) == 600
    assert ages.age_s("early", 900.0, 1000.0) == 100


LIMITS = Limits(guard_wait_s=0, poll_s=1, step_margin_s=5, budget=ActionBudget(per_node=1, per_pool=2))


async def drain_and_return(executor: Executor, node: str, override: str = "") -> Run:
    run = await executor.act(f"drain {node}", reason="r", requested_by="bob", override=override)
    if run.status is RunStatus.APPROVED:
        run = await executor.drive(run.id)
        back = await executor.act(f"uncordon {node}", reason="r", requested_by="bob")
        await executor.drive(back.id)
    return run


async def test_person_is_refused_beyond_the_budget_and_overrides_it_with_a_reason(world: World) -> None:
    executor = world.start(limits=LIMITS).executor
    assert (await drain_and_return(executor, "node-1")).status is RunStatus.SUCCEEDED
    refused = await drain_and_return(executor, "node-1")
    assert refused.status is RunStatus.REFUSED
    assert "1 within the last hour on node-1, 1 more asked for, the limit is 1" in refused.error
    assert "--override REASON" in refused.error
    assert (await drain_and_return(executor, "node-1", "it burns")).status is RunStatus.SUCCEEDED
    assert "in pool default" in (await drain_and_return(executor, "node-2")).error
    world.clock.time += WINDOW_S
    assert (await drain_and_return(executor, "node-1")).status is RunStatus.SUCCEEDED


async def test_automation_beyond_its_budget_waits_as_a_proposal_that_a_person_may_approve(world: World) -> None:
    limits = Limits(guard_wait_s=0, poll_s=1, step_margin_s=5, budget=ActionBudget(per_node=2))
    executor = world.start(limits=limits).executor
    await drain_and_return(executor, "node-2")
    run = await propose(world.start(limits=limits), unasked=True, requested_by="policy:slow_node")
    assert run.status is RunStatus.PROPOSED
    assert "automation may bring it to 1" in world.events[-1][1]
    assert "automation may bring it to 1" in await executor.why_held(run)


async def test_approval_beyond_the_budget_leaves_the_proposal(world: World) -> None:
    controller = world.start(limits=LIMITS)
    await drain_and_return(controller.executor, "node-2")
    run = await propose(controller)
    with pytest.raises(HeldError, match="budget of actions"):
        await controller.executor.decide(run.id, "approve", "bob")
    assert (await controller.executor.decide(run.id, "approve", "bob", override="now")).status is RunStatus.APPROVED


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "after a restart"])
async def test_clock_that_is_set_back_neither_empties_the_budget_nor_holds_it_beyond_its_hour(
    world: World, restarts: bool
) -> None:
    wall, monotonic = [1_000_000.0], [0.0]

    def pass_s(seconds: float) -> None:
        wall[0] += seconds
        monotonic[0] += seconds

    class Clock(FakeClock):
        def __init__(self) -> None:
            super().__init__()
            self._system = SystemClock(lambda: wall[0], lambda: monotonic[0])

        def now(self) -> float:
            return self._system.now()

    world.clock = Clock()
    executor = world.start(limits=LIMITS).executor
    await drain_and_return(executor, "node-1")
    wall[0] -= 5 * 3600.0
    if restarts:
        world.clock = Clock()
        executor = world.start(limits=LIMITS).executor
    assert (await drain_and_return(executor, "node-1")).status is RunStatus.REFUSED
    pass_s(1.1 * WINDOW_S)
    assert (await drain_and_return(executor, "node-1")).status is RunStatus.SUCCEEDED


async def test_budget_that_is_used_up_meanwhile_stops_a_run_before_its_step(world: World, journal: Journal) -> None:
    controller = world.start(LIBRARY, LIMITS)
    run = await controller.executor.act("drain node-1", reason="r", requested_by="bob")
    await drain_and_return(controller.executor, "node-2")
    await drain_and_return(controller.executor, "node-3")
    ended = await controller.executor.drive(run.id)
    assert ended.status is RunStatus.REFUSED
    assert "2 within the last hour in pool default" in ended.error
    assert "drain node-1" not in world.fleet.calls
