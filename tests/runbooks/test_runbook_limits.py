"""Boundaries of the executor: how often, how long, and what is told with each event."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from runbooks.context import Limits
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.ports import TemporaryError
from runbooks.run import AlreadyDecidedError, Run, RunStatus
from tests.fixtures.runbooks import FAST, LIBRARY, Controller, World, propose, temporary

pytestmark = pytest.mark.anyio


async def carried(controller: Controller, command: str) -> Run:
    run = await controller.executor.act(command, reason="", requested_by="ann")
    return await controller.executor.drive(run.id)


async def test_a_step_that_was_begun_as_often_as_allowed_is_not_begun_again(world: World) -> None:
    controller = world.start(limits=replace(FAST, max_begins=2))
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    controller.journal.move(run.id, RunStatus.RUNNING, world.clock.now())
    controller.journal.begin_step(run.id, "do", 0, world.clock.now())
    controller.journal.begin_step(run.id, "do", 0, world.clock.now())
    run = await controller.executor.drive(run.id)
    assert world.fleet.calls == []
    assert run.step("do", 0).error == "begun 2 times without an end"
    assert run.step("do", 0).status == "failed"


async def test_a_step_that_was_begun_once_less_is_begun_again(world: World) -> None:
    controller = world.start(limits=replace(FAST, max_begins=2))
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    controller.journal.move(run.id, RunStatus.RUNNING, world.clock.now())
    controller.journal.begin_step(run.id, "do", 0, world.clock.now())
    run = await controller.executor.drive(run.id)
    assert (run.status, run.step("do", 0).attempts) == (RunStatus.SUCCEEDED, 2)


@pytest.mark.parametrize(
    ("retry_after_s", "pauses"),
    [(0.5, [1, 2, 4, 8]), (3.0, [3, 3, 4, 8]), (100.0, [12, 12, 12, 12])],
    ids=["backs off", "waits as asked", "never longer than allowed"],
)
async def test_a_pause_is_the_longer_of_what_is_asked_and_the_back_off(
    world: World, retry_after_s: float, pauses: list[float]
) -> None:
    world.fleet.errors["drain"] = [TemporaryError("busy", retry_after_s) for _ in range(4)]
    run = await carried(world.start(limits=replace(FAST, back_off_max_s=12.0)), "drain node-2")
    assert run.status is RunStatus.SUCCEEDED
    assert world.clock.sleeps == pauses
    retried = [text for kind, text in world.events if kind == "step.retried"]
    assert retried[0] == f"step 1 of 1: drain node-2: busy; again in {pauses[0]:g} s"


async def test_the_last_attempt_is_the_last(world: World) -> None:
    world.fleet.errors["drain"] = [temporary(), temporary()]
    run = await carried(world.start(limits=replace(FAST, max_attempts=2)), "drain node-2")
    assert run.status is RunStatus.FAILED
    assert world.fleet.calls == ["drain node-2"] * 2
    assert run.step("do", 0).error == "busy (tried 2 times)"


async def test_one_attempt_more_would_have_been_enough(world: World) -> None:
    world.fleet.errors["drain"] = [temporary()]
    run = await carried(world.start(limits=replace(FAST, max_attempts=2)), "drain node-2")
    assert run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("cordon node-2", "0.02 s"),
        ("drain node-2 --deadline 0.01", "0.03 s"),
        ("scale default --to 1 --wait 0 --deadline 0.01", "0.06 s"),
    ],
    ids=["no time of its own", "its own time on top", "for each node that leaves"],
)
async def test_an_effect_may_take_its_own_time_and_a_margin(world: World, command: str, limit: str) -> None:
    world.fleet.hold = {"cordon": asyncio.Event(), "drain": asyncio.Event()}
    limits = replace(FAST, step_margin_s=0.02, max_attempts=1, capacity_floor_ratio=0.1)
    run = await carried(world.start(limits=limits), command)
    assert f"no answer in {limit} (tried 1 times)" in run.error


async def test_a_guard_that_can_not_look_is_asked_for_as_long_as_allowed(world: World) -> None:
    controller = world.start(limits=replace(FAST, guard_wait_s=10, poll_s=4))
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    world.fleet.blind = True
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.REFUSED
    assert world.clock.sleeps == [4, 4, 4]
    assert run.step("do", 0).status == "skipped"
    assert run.step("do", 0).error.startswith("unknown: could not look which nodes serve")


async def test_a_guard_is_asked_at_least_twice(world: World) -> None:
    controller = world.start(limits=replace(FAST, guard_wait_s=0, poll_s=4))
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    world.fleet.blind = True
    await controller.executor.drive(run.id)
    assert world.clock.sleeps == [4]


async def test_names_that_can_not_be_looked_up_are_asked_for_as_long_as_allowed(world: World) -> None:
    controller = world.start(limits=replace(FAST, guard_wait_s=10, poll_s=4))
    run = await propose(controller, approve=True)

    async def no_answer() -> list[object]:
        raise OSError("database is away")

    world.fleet.nodes = no_answer  # type: ignore[method-assign,assignment]
    refused = await controller.executor.drive(run.id)
    assert refused.status is RunStatus.REFUSED
    assert refused.error == "before the start: unknown: could not look which nodes exist"
    assert world.clock.sleeps == [4, 4, 4]


async def test_a_person_may_cancel_while_a_guard_waits(world: World) -> None:
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    world.fleet.blind = True
    sleep = world.clock.sleep

    async def cancel(seconds: float) -> None:
        await sleep(seconds)
        await controller.executor.cancel(run.id, "bob")

    world.clock.sleep = cancel  # type: ignore[method-assign]
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.CANCELLED
    assert run.error == "cancelled by bob before anything was done"
    assert run.step("do", 0).error == "cancelled by bob"
    assert world.fleet.calls == []


async def test_a_person_may_cancel_between_two_attempts(world: World) -> None:
    world.fleet.errors["drain"] = [temporary() for _ in range(4)]
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    sleep = world.clock.sleep

    async def cancel(seconds: float) -> None:
        await sleep(seconds)
        await controller.executor.cancel(run.id, "bob")

    world.clock.sleep = cancel  # type: ignore[method-assign]
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.CANCELLED
    assert run.error == "cancelled by bob after: drain node-2"
    assert world.fleet.calls == ["drain node-2"]


async def test_a_proposal_may_be_answered_until_its_last_moment(world: World) -> None:
    controller = world.start(limits=replace(FAST, approval_ttl_s=10))
    early, late = await propose(controller), await propose(controller, "cordon-node", inputs={"node": "node-3"})
    assert early.expires_at == late.expires_at == world.clock.time + 10
    world.clock.time += 9.5
    assert await controller.executor.resume() == 0
    assert (await controller.executor.decide(early.id, "approve", "ann")).status is RunStatus.APPROVED
    world.clock.time += 0.5
    with pytest.raises(AlreadyDecidedError):
        await controller.executor.decide(late.id, "approve", "ann")
    assert controller.journal.get(late.id).error == "nobody answered in time"


async def test_a_new_controller_ends_what_nobody_answered(world: World) -> None:
    run = await propose(world.start(limits=replace(FAST, approval_ttl_s=10)))
    world.clock.time += 10
    second = world.start()
    assert await second.executor.resume() == 0
    assert second.journal.get(run.id).status is RunStatus.EXPIRED
    assert world.events[-1] == ("run.expired", "Replace node-2 with node-2b: nobody answered in time")


async def test_without_limits_the_usual_ones_hold(world: World) -> None:
    journal = Journal(world.engine)
    journal.claim_epoch()
    executor = Executor(journal, LIBRARY, world.fleet, world.fleet, clock=world.clock)
    try:
        run = await executor.propose(
            "replace-node", {"node": "node-2", "replacement": "n"}, reason="", requested_by="a"
        )
        assert run.expires_at == world.clock.time + 3600
        world.fleet.errors["cordon"] = [temporary() for _ in range(9)]
        failed = await executor.act("cordon node-1", reason="", requested_by="a")
        failed = await executor.drive(failed.id)
        assert "tried 5 times" in failed.error
        world.fleet.state["node-3"] = "drained"
        assert (await executor.act("cordon node-1", reason="", requested_by="a")).status is RunStatus.REFUSED
    finally:
        executor.close()


async def test_given_limits_hold(world: World) -> None:
    journal = Journal(world.engine)
    journal.claim_epoch()
    executor = Executor(
        journal,
        LIBRARY,
        world.fleet,
        world.fleet,
        clock=world.clock,
        limits=Limits(max_attempts=2, approval_ttl_s=7, capacity_floor_ratio=0.3),
    )
    try:
        proposed = await executor.propose("cordon-node", {"node": "node-2"}, reason="", requested_by="a")
        assert proposed.expires_at == world.clock.time + 7
        world.fleet.state["node-3"] = "drained"
        world.fleet.errors["cordon"] = [temporary() for _ in range(9)]
        failed = await executor.drive((await executor.act("cordon node-1", reason="", requested_by="a")).id)
        assert "tried 2 times" in failed.error, "the floor of 0.3 lets one of two go"
    finally:
        executor.close()


async def pauses_of_a_run_that_breaks_off(world: World, error: Exception, times: int) -> list[float]:
    """How long it was left alone after each time; the last ends with its success."""
    controller = world.start()
    await propose(controller, approve=True)
    failed_at: list[float] = []

    def fail(name: str) -> None:
        if name == "step_done.do.1.before_commit" and len(failed_at) < times:
            failed_at.append(world.clock.time)
            raise error

    controller.journal._at_fault_point = fail
    loop = asyncio.create_task(controller.executor.run_forever())
    async with asyncio.timeout(60):
        while "run.succeeded" not in world.kinds():  # noqa: ASYNC110 - what is waited for is in another thread
            await asyncio.sleep(0.001)
    controller.executor.stop()
    await loop
    return [later - earlier for earlier, later in itertools.pairwise(failed_at)]


async def test_a_run_that_breaks_off_is_taken_up_again_later_each_time(world: World) -> None:
    pauses = await pauses_of_a_run_that_breaks_off(world, OSError("broken"), 4)
    # The clock goes on while the journal writes, so that a pause may be longer.
    assert [pauses[0] >= 2, pauses[1] >= 4, pauses[2] >= 8] == [True] * 3


async def test_a_run_whose_journal_is_away_for_a_while_goes_on_soon_after_it_is_back(world: World) -> None:
    """A disk that had room again: nothing is wrong with the run, and users wait for what it mends."""
    assert min((await pauses_of_a_run_that_breaks_off(world, TemporaryError("disk full"), 6))[2:]) < 8


async def test_every_event_has_its_facts(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    controller = world.start()
    run = await propose(controller)
    await controller.executor.decide(run.id, "approve", "ann")
    run = await controller.executor.drive(run.id)
    facts: dict[str, list[dict[str, object]]] = {}
    for kind, data in world.facts:
        facts.setdefault(kind, []).append(data)
    assert facts["run.proposed"] == [{"inputs": dict(run.inputs), "guards": [*_guards()]}]
    assert facts["run.approved"] == [{"by": "ann"}]
    assert facts["run.started"] == [{"targets": ["node-2b", "node-2"]}]
    assert facts["run.undoing"] == [{"reason": "it did not help"}]
    assert facts["run.undone"] == [{"error": "it did not help; undone"}]
    assert facts["step.started"][1] == {
        "phase": "do",
        "index": 1,
        "title": "Drain the old node",
        "command": "drain node-2 --deadline 2s",
        "target": "node-2",
        "attempts": 1,
        "receipt": {},
        "error": "",
    }
    assert facts["step.finished"][1]["receipt"] == {"node": "node-2"}
    labels = [text.partition(":")[0] for kind, text in world.events if kind == "step.started"]
    assert labels == [f"step {i} of 3" for i in (1, 2, 3)] + [f"undo step {i} of 4" for i in (1, 2, 3, 4)]
    assert world.events[0][1] == "Replace node-2 with node-2b: proposed by bot, waits for an approval"


def _guards() -> list[str]:
    return [
        "yes: adds capacity",
        "yes: 3 nodes serve without node-2, the floor is 2",
        "yes: node-2 takes no requests now; 3 serve, the floor is 2",
    ]


async def test_denied_refused_and_cancelled_runs_say_who_and_why(world: World) -> None:
    controller = world.start()
    executor = controller.executor
    await executor.decide((await propose(controller)).id, "deny", "ann", "too late")
    await executor.cancel((await propose(controller)).id, "bob")
    late = await propose(controller)
    await executor.act("cordon node-2", reason="", requested_by="eve")
    await executor.decide(late.id, "approve", "ann")
    told = {kind: text for kind, text in world.events if kind in ("run.denied", "run.cancelled", "run.refused")}
    title = "Replace node-2 with node-2b"
    assert told["run.denied"] == f"{title}: denied by ann: too late"
    assert told["run.cancelled"] == f"{title}: cancelled by bob"
    assert told["run.refused"].startswith(f"{title}: refused: node-2 is held by run ")
    assert [data for kind, data in world.facts if kind == "run.denied"] == [{"by": "ann"}]
    assert [data for kind, data in world.facts if kind == "run.cancelled"] == [{"by": "bob"}]
    assert [data for kind, data in world.facts if kind == "run.refused"] == [{"by": "ann"}]


async def test_default_limits_are_documented_values() -> None:
    limits = Limits()
    assert (limits.max_attempts, limits.max_begins, limits.approval_ttl_s) == (5, 50, 3600)
    assert (limits.back_off_s, limits.back_off_max_s, limits.guard_wait_s, limits.poll_s) == (1, 30, 20, 1)
