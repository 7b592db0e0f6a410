from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
import structlog

from runbooks.errors import (
    BadCommandError,
    BadInputError,
    NotFoundError,
    StaleEpochError,
)
from runbooks.journal import Journal
from runbooks.page import parse_page
from runbooks.ports import NotPossibleError, PermanentError, TemporaryError
from runbooks.run import AlreadyDecidedError, ConflictError, Run, RunStatus
from tests.fixtures.runbooks import FAST, LIBRARY, REPLACE, Controller, FakeFleet, World, propose, temporary

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[None]:
    """`run_forever` in the background."""
    task = asyncio.create_task(controller.executor.run_forever())
    try:
        yield
    finally:
        controller.executor.stop()
        async with asyncio.timeout(DEADLINE_S):
            await task


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110 - what is waited for is in a database
            await asyncio.sleep(0.001)


async def ended(controller: Controller, run: Run) -> Run:
    await until(lambda: controller.journal.get(run.id).status.is_terminal)
    return controller.journal.get(run.id)


async def test_replaces_a_node_and_tells_what_happens(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    assert run.status is RunStatus.PROPOSED
    assert [step.command for step in run.steps] == [
        "node start node-2b --like node-2 --wait 180s",
        "drain node-2 --deadline 2s",
        "node stop node-2",
    ]
    assert run.steps[1].receipt["guard"] == "yes: 3 nodes serve without node-2, the floor is 2"
    await controller.executor.decide(run.id, "approve", "ann", "go")
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.SUCCEEDED
    assert run.decided_by == "ann"
    assert run.verification.startswith("held for 15 s: node-2b answers")
    assert world.fleet.state == {"node-1": "serving", "node-2": "stopped", "node-3": "serving", "node-2b": "serving"}
    assert world.kinds() == [
        "run.proposed",
        "run.approved",
        "run.started",
        *["step.started", "step.finished"] * 3,
        "run.verifying",
        "run.verified",
        "run.succeeded",
    ]
    assert ("step.finished", "step 2 of 3: drain node-2 --deadline 2s: done in 0.0 s") in world.events


async def test_nothing_starts_without_an_approval(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    assert (await controller.executor.drive(run.id)).status is RunStatus.PROPOSED
    assert world.fleet.calls == []


async def test_requester_may_approve_at_once(world: World) -> None:
    run = await propose(world.start(), approve=True, requested_by="ann")
    assert (run.status, run.decided_by, run.expires_at) == (RunStatus.APPROVED, "ann", None)


async def test_first_answer_wins_and_the_later_one_learns_it(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    answers = await asyncio.gather(
        controller.executor.decide(run.id, "deny", "ann", "not now"),
        controller.executor.decide(run.id, "approve", "bob"),
        return_exceptions=True,
    )
    (first,) = [answer for answer in answers if isinstance(answer, Run)]
    (later,) = [answer for answer in answers if isinstance(answer, AlreadyDecidedError)]
    assert first.status is RunStatus.DENIED
    assert later.run == first
    assert str(later).startswith(f"run {run.id} was decided by ann already; it is denied")
    assert world.kinds() == ["run.proposed", "run.denied"]


async def test_denied_run_never_runs(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    await controller.executor.decide(run.id, "deny", "ann")
    assert (await controller.executor.drive(run.id)).status is RunStatus.DENIED
    assert world.fleet.calls == []


async def test_unanswered_proposal_expires_and_can_not_be_approved_then(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    world.clock.time += FAST.approval_ttl_s
    with pytest.raises(AlreadyDecidedError, match="does not wait for an answer; it is expired"):
        await controller.executor.decide(run.id, "approve", "ann")
    assert controller.journal.get(run.id).status is RunStatus.EXPIRED
    assert world.kinds() == ["run.proposed", "run.expired"]


async def test_proposals_expire_by_themselves(world: World) -> None:
    controller = world.start(limits=replace(FAST, approval_ttl_s=10))
    run = await propose(controller)
    async with running(controller):
        assert (await ended(controller, run)).status is RunStatus.EXPIRED
    assert world.clock.time >= run.created_at + 10


async def test_temporary_errors_are_tried_again_with_growing_pauses(world: World) -> None:
    world.fleet.errors["drain"] = [temporary(), temporary(), temporary()]
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.SUCCEEDED
    assert (run.step("do", 1).attempts, run.step("do", 1).failures, run.step("do", 1).error) == (4, 3, "")
    assert world.clock.sleeps[:3] == [1, 2, 4]
    assert world.kinds().count("step.retried") == 3
    started = [text for kind, text in world.events if kind == "step.started" and "drain" in text]
    assert [text.rpartition(", ")[2] for text in started[1:]] == ["attempt 2", "attempt 3", "attempt 4"]
    assert "attempt" not in started[0]


async def test_gives_up_after_the_last_attempt_and_undoes_in_reverse(world: World) -> None:
    world.fleet.errors["drain"] = [temporary("holds 2 requests") for _ in range(5)]
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.UNDONE
    assert run.error == ("step 2 (drain node-2 --deadline 2s) failed: holds 2 requests (tried 5 times); undone")
    assert [step.command for step in run.undo_steps] == [
        "uncordon node-2",
        "drain node-2b --deadline 2s",
        "node stop node-2b",
    ]
    assert run.step("do", 2).status == "skipped"
    assert world.fleet.state["node-2"] == "serving"
    assert world.fleet.state["node-2b"] == "stopped"


async def test_what_did_not_help_is_undone_and_not_repeated_for_the_incident(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    controller = world.start()
    run = await propose(controller, approve=True, incident_id="inc-1")
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.UNDONE
    assert run.error == "it did not help; undone"
    assert "did not hold for 15 s inside 90 s" in run.verification
    assert world.fleet.state == {"node-1": "serving", "node-2": "serving", "node-3": "serving", "node-2b": "stopped"}
    inputs = {**REPLACE, "replacement": "node-2c"}
    again = await propose(controller, inputs=inputs, incident_id="inc-1")
    assert again.status is RunStatus.REFUSED
    assert f"{run.id} tried replace-node for this incident and ended undone" in again.error
    assert (await propose(controller, inputs=inputs)).status is RunStatus.PROPOSED


@pytest.mark.parametrize("value", [None, float("nan"), 0.0])
async def test_unknown_is_not_verified(world: World, value: float | None) -> None:
    world.fleet.value = lambda _: value
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.UNDONE


async def test_an_expectation_that_flaps_does_not_hold(world: World) -> None:
    world.fleet.value = lambda _: float(world.clock.time % 10 < 5)
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.UNDONE


async def test_an_expectation_that_comes_true_in_time_holds(world: World) -> None:
    start = world.clock.time
    world.fleet.value = lambda _: float(world.clock.time - start > 60)
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.SUCCEEDED
    assert world.clock.time - start >= 60 + 15


async def test_a_failing_lookup_is_unknown_and_not_the_end_of_the_controller(world: World) -> None:
    def broken(_: str) -> float:
        raise ValueError("unknown function foo()")

    world.fleet.value = broken
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.UNDONE
    assert "unknown at" in run.verification


async def test_an_undo_that_fails_does_not_keep_the_rest_from_being_undone(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    world.fleet.errors["uncordon"] = [PermanentError("no answer")]
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.FAILED
    assert run.error == "it did not help; not undone: Let the old node take requests: no answer"
    assert world.fleet.state["node-2b"] == "stopped"


async def test_what_can_not_be_undone_ends_as_failed(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, "restart-node", approve=True)).id)
    assert run.status is RunStatus.FAILED
    assert "not undone: The old process is gone: there is no command for this" in run.error
    assert world.fleet.calls[-1] == "uncordon node-2"


async def test_a_command_that_fails_has_no_undo(world: World) -> None:
    world.fleet.errors["drain"] = [PermanentError("no")]
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.FAILED
    assert run.error == "step 1 (drain node-2) failed: no; nothing was undone"


async def test_what_finds_itself_impossible_is_refused_and_undoes_nothing(world: World) -> None:
    world.fleet.errors["drain"] = [NotPossibleError("it is not switched on")]
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    run = await controller.executor.drive(run.id)
    assert (run.status, run.error) == (RunStatus.REFUSED, "step 1 (drain node-2) refused: it is not switched on")


async def test_what_may_have_been_done_before_a_failed_try_is_not_called_refused(world: World) -> None:
    world.fleet.errors["drain"] = [temporary(), NotPossibleError("it is not switched on")]
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    assert (await controller.executor.drive(run.id)).status is RunStatus.FAILED


async def test_an_unexpected_error_of_an_effect_ends_the_step(world: World) -> None:
    world.fleet.errors["drain"] = [KeyError("bug")]
    controller = world.start()
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.UNDONE
    assert "KeyError: 'bug'" in run.error


async def test_an_effect_that_hangs_is_tried_again(world: World) -> None:
    world.fleet.hold["cordon"] = asyncio.Event()
    controller = world.start(limits=replace(FAST, step_margin_s=0.01, max_attempts=2))
    run = await controller.executor.act("cordon node-2", reason="", requested_by="ann")
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.FAILED
    assert "no answer in 0.01 s (tried 2 times)" in run.error


async def test_a_command_is_a_run_of_one_step(world: World) -> None:
    controller = world.start()
    run = await controller.executor.act("fleetctl drain node-2 --deadline 5s --yes", reason="hot", requested_by="ann")
    assert (run.runbook, run.title, run.status) == ("action", "drain node-2 --deadline 5s", RunStatus.APPROVED)
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.SUCCEEDED
    assert run.step("do", 0).receipt == {"node": "node-2"}


async def test_guards_refuse_a_command_that_takes_too_much(world: World) -> None:
    world.fleet.state["node-3"] = "drained"
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    assert run.status is RunStatus.REFUSED
    assert run.error == "without node-2 only 1 of 2 nodes would serve, the floor is 2"
    assert world.kinds() == ["run.refused"]
    assert world.fleet.calls == []


async def test_guards_refuse_when_they_can_not_look(world: World) -> None:
    world.fleet.blind = True
    run = await world.start().executor.act("drain node-2", reason="", requested_by="ann")
    assert run.status is RunStatus.REFUSED
    assert run.error == "could not look which nodes serve: node-2 is not taken out blindly"


async def test_guard_is_asked_again_right_before_each_step(world: World) -> None:
    """Approved while three nodes served; by the time of the drain too few do."""
    controller = world.start()
    run = await propose(controller, approve=True)
    start = world.fleet.start_node

    async def start_and_lose_others(name: str, **kwargs: object) -> dict[str, object]:
        world.fleet.state.update({"node-1": "cordoned", "node-3": "cordoned"})
        return await start(name, **kwargs)  # type: ignore[arg-type]

    world.fleet.start_node = start_and_lose_others  # type: ignore[assignment]
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.FAILED
    assert "drain node-2" not in world.fleet.calls
    assert "refused: no: without node-2 only 1 of 2 nodes would serve, the floor is 2" in run.error
    # Taking the replacement out again would take too much as well: the guard holds for the undo too.
    assert world.fleet.state["node-2b"] == "serving"


async def test_guard_waits_for_signals_that_lag(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    world.fleet.blind = True
    sleep = world.clock.sleep

    async def see_again(seconds: float) -> None:
        await sleep(seconds)
        world.fleet.blind = False

    world.clock.sleep = see_again  # type: ignore[method-assign]
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED


async def test_blind_guard_before_the_first_step_refuses_the_run(world: World) -> None:
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    world.fleet.blind = True
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.REFUSED
    assert world.fleet.calls == []


async def test_two_runs_at_once_do_not_take_the_last_spare_node_together(world: World) -> None:
    world.fleet.hold["drain"] = asyncio.Event()
    controller = world.start()
    first = await controller.executor.act("drain node-1", reason="", requested_by="ann")
    second = await controller.executor.act("drain node-2", reason="", requested_by="ann")
    async with running(controller):
        await until(lambda: any(controller.journal.get(run.id).status.is_terminal for run in (first, second)))
        assert sum(call.startswith("drain") for call in world.fleet.calls) == 1
        world.fleet.hold["drain"].set()
        ends = {(await ended(controller, run)).status for run in (first, second)}
    assert ends == {RunStatus.SUCCEEDED, RunStatus.REFUSED}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"node": "node-7", "replacement": "x"}, "there is no node node-7; nodes: node-1, node-2, node-3"),
        ({"node": "node-2", "replacement": "node-3"}, "the new node's name node-3 is taken: give a free one"),
    ],
)
async def test_names_that_do_not_fit_are_bad_input_and_leave_no_run(
    world: World, inputs: dict[str, str], message: str
) -> None:
    controller = world.start()
    with pytest.raises(BadInputError) as error:
        await propose(controller, inputs=inputs)
    assert error.value.message == message
    assert controller.journal.list() == ()


async def test_replacement_name_taken_since_the_proposal_refuses_the_start(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    world.fleet.state["node-2b"] = "serving"
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.REFUSED
    assert world.fleet.calls == []


async def test_second_run_on_a_node_is_refused_with_the_first_ones_id(world: World) -> None:
    controller = world.start()
    first = await propose(controller, approve=True)
    second = await controller.executor.act("cordon node-2", reason="", requested_by="bob")
    assert second.status is RunStatus.REFUSED
    assert first.id in second.error


async def test_single_node_fleet_can_be_replaced_but_not_drained(world: World) -> None:
    world.fleet = FakeFleet.of("node-2")
    controller = world.start()
    assert (await controller.executor.act("drain node-2", reason="", requested_by="a")).status is RunStatus.REFUSED
    run = await controller.executor.drive((await propose(controller, approve=True)).id)
    assert run.status is RunStatus.SUCCEEDED


async def test_dry_run_shows_commands_predictions_and_guards_and_does_nothing(world: World) -> None:
    controller = world.start()
    run = await propose(controller, dry_run=True)
    assert (run.status, run.dry_run, run.error) == (RunStatus.SUCCEEDED, True, "")
    assert {step.status for step in run.steps} == {"skipped"}
    assert run.steps[0].receipt == {
        "predicted": "starts node-2b and waits until it is ready and routed",
        "guard": "yes: adds capacity",
    }
    assert run.verification.startswith("would wait until node-2b answers")
    assert world.fleet.calls == []
    assert world.events == []
    assert (await propose(controller)).status is RunStatus.PROPOSED, "a dry run holds no node"


async def test_dry_run_says_what_a_guard_would_refuse(world: World) -> None:
    world.fleet.state["node-3"] = "drained"
    controller = world.start()
    run = await controller.executor.act("drain node-2", reason="", requested_by="ann", dry_run=True)
    assert run.status is RunStatus.SUCCEEDED
    assert run.error.startswith("would be refused: without node-2 only 1 of 2")
    held = await propose(controller, "cordon-node", inputs={"node": "node-3"}, approve=True)
    run = await propose(controller, "cordon-node", inputs={"node": "node-3"}, dry_run=True)
    assert held.id in run.error


async def test_same_key_gives_the_same_run_also_after_its_end(world: World) -> None:
    controller = world.start()
    first = await propose(controller, approve=True, idempotency_key="k")
    again = await propose(controller, approve=True, idempotency_key="k")
    assert again.id == first.id
    await controller.executor.drive(first.id)
    assert (await propose(controller, approve=True, idempotency_key="k")).status is RunStatus.SUCCEEDED
    assert world.kinds().count("run.approved") == 1


async def test_cancel_before_the_start_ends_the_run(world: World) -> None:
    controller = world.start()
    proposed = await propose(controller)
    assert (await controller.executor.cancel(proposed.id, "ann")).status is RunStatus.CANCELLED
    approved = await propose(controller, approve=True)
    assert (await controller.executor.cancel(approved.id, "ann")).status is RunStatus.CANCELLED
    with pytest.raises(ConflictError, match="has ended: cancelled") as late:
        await controller.executor.cancel(approved.id, "ann")
    assert late.value.run == controller.journal.get(approved.id)
    assert world.fleet.calls == []


async def test_cancel_in_the_moment_between_the_look_at_the_fleet_and_the_start_is_no_failure(world: World) -> None:
    """Two people at once: the log had a traceback, "cancelled can't become running", for what went as asked."""
    controller = world.start()
    run = await propose(controller, approve=True)
    look = world.fleet.nodes

    async def cancel_meanwhile() -> Any:
        if controller.journal.get(run.id).status is RunStatus.APPROVED:
            controller.journal.request_cancel(run.id, "ann", world.clock.now())
        return await look()

    world.fleet.nodes = cancel_meanwhile  # type: ignore[method-assign]
    assert (await controller.executor.drive(run.id)).error == "cancelled by ann"
    assert world.fleet.calls == []


async def test_a_journal_that_can_not_be_read_for_a_while_ends_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    stored, failures = Journal.list, [sa.exc.OperationalError("SELECT", {}, OSError("disk full")) for _ in range(4)]

    def listed(journal: Journal, *args: Any, **filters: Any) -> tuple[Run, ...]:
        if failures:
            raise failures.pop()
        return stored(journal, *args, **filters)

    monkeypatch.setattr(Journal, "list", listed)
    with structlog.testing.capture_logs() as logs:
        async with running(controller):
            assert (await ended(controller, run)).status is RunStatus.SUCCEEDED
    assert [entry["in_row"] for entry in logs if entry["event"] == "runs.turn_failed"] == [1, 2, 3, 4]


async def test_cancel_lets_the_step_finish_and_says_how_to_undo(world: World) -> None:
    world.fleet.hold["drain"] = asyncio.Event()
    controller = world.start()
    run = await propose(controller, approve=True)
    async with running(controller):
        await until(lambda: "drain node-2" in world.fleet.calls)
        assert (await controller.executor.cancel(run.id, "ann")).status is RunStatus.RUNNING
        world.fleet.hold["drain"].set()
        run = await ended(controller, run)
    assert run.status is RunStatus.CANCELLED
    assert [step.status for step in run.steps] == ["done", "done", "skipped"]
    assert run.error.startswith("cancelled by ann after: node start node-2b")
    assert "to undo it: fleetctl uncordon node-2; fleetctl drain node-2b" in run.error
    assert world.fleet.state["node-2"] == "drained"


async def test_cancel_while_verifying_leaves_the_steps_done(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    cancelled = False

    def cancel_now(_: str) -> float:
        nonlocal cancelled
        if not cancelled:
            cancelled = True
            controller.journal.request_cancel(run.id, "ann", world.clock.now())
        return 0.0

    world.fleet.value = cancel_now
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.CANCELLED
    assert run.verification
    assert world.fleet.state["node-2"] == "stopped"


async def test_cancel_ends_a_step_that_waits_to_be_tried_again(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    world.fleet.errors["start"] = [temporary() for _ in range(9)]
    sleep = world.clock.sleep

    async def cancel_meanwhile(seconds: float) -> None:
        controller.journal.request_cancel(run.id, "ann", world.clock.now())
        await sleep(seconds)

    world.clock.sleep = cancel_meanwhile  # type: ignore[method-assign]
    run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.CANCELLED
    assert run.step("do", 0).attempts == 1


async def test_an_undo_can_not_be_cancelled(world: World) -> None:
    world.fleet.value = lambda _: 0.0
    world.fleet.hold["uncordon"] = asyncio.Event()
    controller = world.start()
    run = await propose(controller, approve=True)
    async with running(controller):
        await until(lambda: controller.journal.get(run.id).status is RunStatus.UNDOING)
        with pytest.raises(ConflictError, match="is being undone"):
            await controller.executor.cancel(run.id, "ann")
        world.fleet.hold["uncordon"].set()
        assert (await ended(controller, run)).status is RunStatus.UNDONE


async def test_a_controller_that_lost_its_epoch_stops_and_the_new_one_goes_on(world: World) -> None:
    world.fleet.hold["drain"] = asyncio.Event()
    old = world.start()
    run = await propose(old, approve=True)
    loop = asyncio.create_task(old.executor.run_forever())
    await until(lambda: "drain node-2" in world.fleet.calls)
    new = world.start()
    assert new.epoch == old.epoch + 1
    world.fleet.hold["drain"].set()
    with pytest.raises(StaleEpochError):
        async with asyncio.timeout(DEADLINE_S):
            await loop
    assert new.journal.get(run.id).step("do", 1).status == "running"
    with pytest.raises(StaleEpochError):
        await propose(old, "cordon-node", inputs={"node": "node-3"})
    assert await new.executor.resume() == 1
    run = await new.executor.drive(run.id)
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.changes == {"start node-2b": 1, "drain node-2": 3, "stop node-2": 1}


async def test_stopping_leaves_a_run_for_the_next_controller(world: World) -> None:
    world.fleet.hold["drain"] = asyncio.Event()
    first = world.start()
    run = await propose(first, approve=True)
    async with running(first):
        await until(lambda: "drain node-2" in world.fleet.calls)
    assert first.journal.get(run.id).step("do", 1).status == "running"
    world.fleet.hold.clear()
    second = world.start()
    async with running(second):
        assert (await ended(second, run)).status is RunStatus.SUCCEEDED


async def test_a_run_whose_database_fails_for_a_while_goes_on_by_itself(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    failures = 3

    def fail(name: str) -> None:
        nonlocal failures
        if name == "step_done.do.1.before_commit" and failures:
            failures -= 1
            raise OSError("disk full")

    world._at_fault_point = fail  # type: ignore[method-assign]
    controller.journal._at_fault_point = fail
    async with running(controller):
        assert (await ended(controller, run)).status is RunStatus.SUCCEEDED
    assert failures == 0


async def test_a_full_disk_is_logged_in_a_line_each_time_without_the_place_in_our_code(world: World) -> None:
    """Three pages of it each three seconds went onto the disk that was full."""
    controller = world.start()
    run = await propose(controller, approve=True)
    failures = 2

    def fail(name: str) -> None:
        nonlocal failures
        if name == "step_done.do.1.before_commit" and failures:
            failures -= 1
            raise TemporaryError("no space left")

    world._at_fault_point = fail  # type: ignore[method-assign]
    controller.journal._at_fault_point = fail
    with structlog.testing.capture_logs() as logs:
        async with running(controller):
            assert (await ended(controller, run)).status is RunStatus.SUCCEEDED
    told = [event for event in logs if event["event"] == "run.carry_failed"]
    assert [event["exc_info"] for event in told] == [False, False]


async def test_a_run_that_is_carried_to_its_end_is_not_reported_as_broken_off(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    with structlog.testing.capture_logs() as logs:
        async with running(controller):
            assert (await ended(controller, run)).status is RunStatus.SUCCEEDED
            cordoned = await controller.executor.act("cordon node-3", reason="", requested_by="ann")
            assert (await ended(controller, cordoned)).status is RunStatus.SUCCEEDED
    assert [event["event"] for event in logs if event["log_level"] == "error"] == []


async def test_a_listener_that_fails_does_not_stop_a_run(world: World) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("timeline is full")

    world._on_event = fail  # type: ignore[method-assign]
    controller = world.start()
    run = await propose(controller, approve=True)
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED


async def test_a_page_edited_meanwhile_does_not_change_a_run(world: World) -> None:
    controller = world.start()
    run = await propose(controller, approve=True)
    edited = parse_page(
        LIBRARY["replace-node"].markdown.replace("fleetctl node stop {{node}}", "fleetctl cordon {{node}}"), "x.md"
    )
    next_one = world.start(library={"replace-node": edited})
    assert (await next_one.executor.drive(run.id)).status is RunStatus.SUCCEEDED
    assert world.fleet.state["node-2"] == "stopped"


async def test_bad_requests_are_named(world: World) -> None:
    executor = world.start().executor
    asked = {"reason": "", "requested_by": "ann"}
    with pytest.raises(NotFoundError, match="no runbook 'replace-nod'; did you mean 'replace-node'"):
        await executor.propose("replace-nod", {}, **asked)
    with pytest.raises(BadInputError, match="replace-node: input 'node' is missing; give node=<node>: the node to"):
        await executor.propose("replace-node", {"replacement": "x"}, **asked)
    with pytest.raises(BadInputError, match="no input 'nod'; did you mean 'node'"):
        await executor.propose("replace-node", {"nod": "x"}, **asked)
    with pytest.raises(BadInputError, match="input 'deadline': 'x' is not a duration"):
        await executor.propose("replace-node", {**REPLACE, "deadline": "x"}, **asked)
    with pytest.raises(BadCommandError, match="unknown command 'drian'"):
        await executor.act("drian node-2", **asked)
    with pytest.raises(NotFoundError, match="there is no run run-x"):
        await executor.decide("run-x", "approve", "ann")
