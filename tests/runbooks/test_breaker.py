"""Automation stops when what it does does not help, and tries again by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.breaker import FORGOTTEN_S, BreakerLimits, BreakerState, UnaskedEnd, breaker_of, judge_breaker
from runbooks.context import Limits
from runbooks.run import Run, RunStatus
from tests.fixtures.runbooks import Controller, World, propose

pytestmark = pytest.mark.anyio

QUICK = BreakerLimits(max_useless=2, rest_s=600.0, max_rest_s=1500.0)
LIMITS = Limits(guard_wait_s=0, poll_s=5, step_margin_s=5, breaker=QUICK)


def ends(*helped: bool, newest_age_s: float = 0.0) -> list[UnaskedEnd]:
    return [UnaskedEnd(f"run-{i}", one, newest_age_s + i) for i, one in enumerate(helped)]


@given(st.lists(st.booleans(), max_size=8), st.floats(0, 5000))
def test_breaker_is_closed_exactly_while_fewer_than_the_limit_were_useless_in_a_row(
    helped: list[bool], age_s: float
) -> None:
    streak = [*helped, True].index(True)
    breaker = breaker_of(ends(*helped, newest_age_s=age_s), (), QUICK)
    assert (breaker.state is BreakerState.CLOSED) == (streak < QUICK.max_useless)
    assert len(breaker.useless) == streak
    if breaker.state is BreakerState.OPEN:
        assert 0 < breaker.retry_in_s <= QUICK.max_rest_s


@pytest.mark.parametrize(
    ("num_useless", "age_s", "state"),
    [
        (2, 599, BreakerState.OPEN),
        (2, 600, BreakerState.HALF_OPEN),
        (3, 1199, BreakerState.OPEN),
        (3, 1200, BreakerState.HALF_OPEN),
        (9, 1499, BreakerState.OPEN),
        (9, 1500, BreakerState.HALF_OPEN),
        (9, FORGOTTEN_S, BreakerState.CLOSED),
    ],
)
def test_each_further_useless_run_doubles_the_rest_up_to_the_longest(
    num_useless: int, age_s: float, state: BreakerState
) -> None:
    assert breaker_of(ends(*[False] * num_useless, newest_age_s=age_s), (), QUICK).state is state


def test_half_open_breaker_lets_one_run_go_and_says_which() -> None:
    rested = ends(False, False, newest_age_s=700)
    assert judge_breaker(breaker_of(rested, (), QUICK), "run-8").allows
    trying = breaker_of(rested, ["run-8"], QUICK)
    assert judge_breaker(trying, "run-8").allows
    assert judge_breaker(trying, "run-9").reason == (
        "breaker: automation's last 2 runs did not help (run-0, run-1); run-8 is its next try"
    )


async def unasked(controller: Controller, node: str, incident: str) -> Run:
    run = await propose(
        controller,
        inputs={"node": node, "replacement": f"{node}b"},
        unasked=True,
        requested_by="policy:slow_node",
        incident_id=incident,
    )
    return await controller.executor.drive(run.id) if run.status is RunStatus.APPROVED else run


async def test_automation_rests_after_useless_runs_tries_one_and_goes_on_when_it_helps(world: World) -> None:
    world.fleet.value = lambda _: 0.0  # nothing that is verified holds
    controller = world.start(limits=LIMITS)
    for incident in ("inc-1", "inc-2"):
        assert (await unasked(controller, "node-2", incident)).status is RunStatus.UNDONE
    held = await unasked(controller, "node-2", "inc-3")
    assert held.status is RunStatus.PROPOSED
    assert "policy:slow_node would run it, but breaker: automation's last 2 runs did not help" in world.events[-1][1]
    assert await controller.executor.release(held.id) is None

    world.clock.time += QUICK.rest_s
    controller = world.start(limits=LIMITS)  # a restart forgets nothing
    assert (await controller.executor.breaker()).state is BreakerState.HALF_OPEN
    released = await controller.executor.release(held.id)
    assert released is not None
    second = await unasked(controller, "node-1", "inc-4")
    assert second.status is RunStatus.PROPOSED, "one at a time"
    world.fleet.value = lambda _: 1.0
    assert (await controller.executor.drive(held.id)).status is RunStatus.SUCCEEDED
    assert (await controller.executor.breaker()).state is BreakerState.CLOSED
    assert await controller.executor.release(second.id) is not None


async def test_person_acts_while_the_breaker_is_open(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    controller = world.start(limits=LIMITS)
    for incident in ("inc-1", "inc-2"):
        await unasked(controller, "node-2", incident)
    held = await unasked(controller, "node-2", "inc-3")
    assert (await controller.executor.decide(held.id, "deny", "ann")).status is RunStatus.DENIED
    run = await controller.executor.act("cordon node-2", reason="r", requested_by="bob")
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED
    assert (await controller.executor.breaker()).state is BreakerState.OPEN, "a person's run says nothing of automation"
