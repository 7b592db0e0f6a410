"""What each write of the journal leaves behind, field by field, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbooks.errors import IllegalTransitionError, NotFoundError, StaleEpochError
from runbooks.journal import AuditEntry, Journal
from runbooks.run import Run, RunStatus, StepStatus
from runbooks.target import node_target
from tests.fixtures.runbooks import NOW, World, make_run


def running(journal: Journal, node: str = "node-2") -> Run:
    run = journal.create(make_run(RunStatus.APPROVED, node))
    return journal.move(run.id, RunStatus.RUNNING, NOW + 1)


def carried(journal: Journal, run: Run, num_steps: int) -> Run:
    """The run with its first steps done."""
    for index in range(num_steps):
        journal.begin_step(run.id, "do", index, NOW + 10 * index)
        run = journal.end_step(run.id, "do", index, StepStatus.DONE, NOW + 10 * index + 5)
    return run


def facts(journal: Journal, run: Run) -> list[tuple[float, str, str, str]]:
    assert all(entry.run_id == run.id for entry in journal.audit(run.id))
    return [(entry.at - NOW, entry.by, entry.what, entry.comment) for entry in journal.audit(run.id)]


def test_epochs_count_up_and_are_not_held_before_they_are_claimed(world: World) -> None:
    first, second = Journal(world.engine), Journal(world.engine)
    assert first.epoch is None
    assert first.claim_epoch() == first.epoch
    assert second.claim_epoch() == (first.epoch or 0) + 1
    with pytest.raises(StaleEpochError, match=f"epoch {first.epoch} may not write to the journal") as caught:
        first.create(make_run())
    assert caught.value.remedy == "stop this one"


def test_every_write_has_a_named_point_before_and_after_its_commit(world: World) -> None:
    points: list[str] = []
    journal = Journal(world.engine, at_fault_point=points.append)
    journal.claim_epoch()
    run = running(journal)
    journal.begin_step(run.id, "do", 1, NOW)
    journal.note_failure(run.id, "do", 1, "busy", NOW)
    journal.end_step(run.id, "do", 1, StepStatus.FAILED, NOW)
    journal.request_cancel(run.id, "ann", NOW)
    journal.start_undo(run.id, (), "", "", NOW)
    other = journal.create(make_run(node="node-7"))
    journal.decide(other.id, "deny", "ann", "", NOW)
    journal.expire(other.id, NOW)
    names = ["run_created", "run_running", "step_begun.do.1", "step_retried.do.1", "step_failed.do.1"]
    names += ["cancel_requested", "run_undoing", "run_created", "run_decided", "run_expired"]
    assert points == [f"{name}.{when}_commit" for name in names for when in ("before", "after")]


def test_what_a_person_starts_is_approved_by_the_request(journal: Journal) -> None:
    run = journal.create(make_run(RunStatus.APPROVED, requested_by="ann", reason="slow"))
    assert run.status is RunStatus.APPROVED
    assert facts(journal, run) == [(0, "ann", "requested", "slow"), (0, "ann", "approved", "by the requester")]
    assert journal.audit(run.id)[0] == AuditEntry(run.id, NOW, "ann", "requested", "slow")


def test_what_is_held_is_refused_with_its_steps_skipped(journal: Journal) -> None:
    held = journal.create(make_run(RunStatus.APPROVED))
    run = journal.create(make_run(RunStatus.APPROVED, requested_by="ann", expires_at=NOW + 9))
    assert (run.status, run.expires_at) == (RunStatus.REFUSED, None)
    assert f"is held by run {held.id}" in run.error
    assert {step.status for step in run.steps} == {StepStatus.SKIPPED}
    assert facts(journal, run) == [(0, "ann", "requested", ""), (0, "executor", "refused", run.error)]
    assert journal.why_held(run, lambda one, other: one == other) == run.error
    assert journal.why_held(make_run(node="node-7"), lambda one, other: one == other) is None


def test_a_dry_run_is_stored_whoever_holds_its_targets(journal: Journal) -> None:
    journal.create(make_run(RunStatus.APPROVED))
    run = journal.create(make_run(RunStatus.SUCCEEDED, dry_run=True))
    assert run.status is RunStatus.SUCCEEDED
    assert {step.status for step in run.steps} == {StepStatus.PENDING}


def test_the_first_answer_wins_and_is_kept_with_its_words(journal: Journal) -> None:
    run = journal.create(make_run())
    denied, accepted = journal.decide(run.id, "deny", "ann", "not now", NOW + 1)
    assert accepted
    assert (denied.status, denied.error) == (RunStatus.DENIED, "denied by ann: not now")
    assert (denied.decided_by, denied.decided_at, denied.updated_at) == ("ann", NOW + 1, NOW + 1)
    assert journal.decide(run.id, "approve", "bob", "", NOW + 2) == (denied, False)
    assert facts(journal, run)[1:] == [(1, "ann", "denied", "not now")]
    silent = journal.create(make_run())
    assert journal.decide(silent.id, "deny", "ann", "", NOW + 1).run.error == ""


def test_an_approval_that_finds_its_target_held_ends_refused(journal: Journal) -> None:
    proposal = journal.create(make_run())
    holder = journal.create(make_run(RunStatus.APPROVED))
    run, accepted = journal.decide(proposal.id, "approve", "ann", "go", NOW + 1)
    assert accepted
    assert run.status is RunStatus.REFUSED
    assert f"is held by run {holder.id}" in run.error
    assert facts(journal, run)[1:] == [(1, "ann", "approved", "go"), (1, "executor", "refused", run.error)]


def test_an_answer_at_the_deadline_is_too_late(journal: Journal) -> None:
    in_time = journal.create(make_run(node="node-7", expires_at=NOW + 5))
    assert journal.decide(in_time.id, "approve", "ann", "", NOW + 4.9).run.status is RunStatus.APPROVED
    run = journal.create(make_run(expires_at=NOW + 5))
    late, accepted = journal.decide(run.id, "approve", "ann", "", NOW + 5)
    assert not accepted
    assert (late.status, late.error) == (RunStatus.EXPIRED, "nobody answered in time")
    assert facts(journal, run)[1:] == [(5, "executor", "expired", "nobody answered in time")]
    assert journal.expire(run.id, NOW + 9) == late
    assert journal.expire(in_time.id, NOW + 9).status is RunStatus.APPROVED
    unanswered = journal.create(make_run(node="node-8"))
    assert journal.expire(unanswered.id, NOW + 9).status is RunStatus.EXPIRED


def test_ends_are_audited_and_moves_between_are_not(journal: Journal) -> None:
    run = running(journal)
    assert (run.status, run.updated_at, run.error, run.verification) == (RunStatus.RUNNING, NOW + 1, "", "")
    run = journal.move(run.id, RunStatus.VERIFYING, NOW + 2)
    run = journal.move(run.id, RunStatus.SUCCEEDED, NOW + 3, verification="as declared")
    assert (run.error, run.verification) == ("", "as declared")
    assert facts(journal, run)[2:] == [(3, "executor", "succeeded", "")]


def test_a_cancelled_run_ends_at_once_before_its_start_and_is_asked_after_it(journal: Journal) -> None:
    waiting = journal.create(make_run(node="node-7"))
    run, accepted = journal.request_cancel(waiting.id, "ann", NOW + 2)
    assert accepted
    assert (run.status, run.error, run.cancelled_by) == (RunStatus.CANCELLED, "cancelled by ann", "ann")
    assert journal.request_cancel(waiting.id, "bob", NOW + 3) == (run, False)
    begun = running(journal)
    run, accepted = journal.request_cancel(begun.id, "bob", NOW + 4)
    assert accepted
    assert (run.status, run.cancelled_by, run.updated_at) == (RunStatus.RUNNING, "bob", NOW + 4)
    run, accepted = journal.request_cancel(begun.id, "cid", NOW + 4.5)
    assert (accepted, run.cancelled_by, run.to_dict()["cancelled_by"]) == (True, "bob", "bob"), "who asked first"
    undoing = journal.start_undo(begun.id, (), "it failed", "", NOW + 5)
    assert journal.request_cancel(begun.id, "ann", NOW + 6) == (undoing, False)
    assert facts(journal, waiting)[1:] == [
        (2, "ann", "cancel_requested", ""),
        (2, "executor", "cancelled", "cancelled by ann"),
    ]
    assert facts(journal, begun)[2:] == [
        (4, "bob", "cancel_requested", ""),
        (4.5, "cid", "cancel_requested", ""),
        (5, "executor", "undoing", "it failed"),
    ]


def test_an_undo_is_written_down_with_its_steps_before_it_begins(journal: Journal) -> None:
    run = carried(journal, running(journal), 1)
    undo = replace(run.steps[0], phase="undo", index=1, status=StepStatus.PENDING, attempts=0)
    run = journal.start_undo(run.id, [undo], "step 2 failed", "too slow", NOW + 20)
    assert (run.status, run.error, run.verification) == (RunStatus.UNDOING, "step 2 failed", "too slow")
    assert [step.command for step in run.undo_steps] == [undo.command]
    assert run.updated_at == NOW + 20
    with pytest.raises(IllegalTransitionError, match=f"run {run.id} is undoing: no do step may begin"):
        journal.begin_step(run.id, "do", 2, NOW + 21)
    assert journal.begin_step(run.id, "undo", 1, NOW + 22).undo_steps[0].status is StepStatus.RUNNING


def test_a_step_keeps_when_it_first_began_and_how_often(journal: Journal) -> None:
    run = running(journal)
    with pytest.raises(IllegalTransitionError, match="no undo step may begin"):
        journal.begin_step(run.id, "undo", 1, NOW)
    step = journal.begin_step(run.id, "do", 1, NOW + 2).step("do", 1)
    assert (step.status, step.attempts, step.started_at, step.failures) == (StepStatus.RUNNING, 1, NOW + 2, 0)
    for failures in (1, 2):
        step = journal.note_failure(run.id, "do", 1, "busy", NOW + 3).step("do", 1)
        assert (step.status, step.failures, step.error) == (StepStatus.RUNNING, failures, "busy")
    step = journal.begin_step(run.id, "do", 1, NOW + 4).step("do", 1)
    assert (step.attempts, step.started_at, step.error) == (2, NOW + 2, "")
    run = journal.end_step(run.id, "do", 1, StepStatus.DONE, NOW + 5, receipt={"node": "n"}, error="late")
    step = run.step("do", 1)
    assert (step.status, step.ended_at, step.receipt, step.error) == (StepStatus.DONE, NOW + 5, {"node": "n"}, "late")
    assert run.updated_at == NOW + 5


def test_running_steps_are_those_of_other_runs(journal: Journal) -> None:
    mine, other = running(journal), running(journal, "node-7")
    journal.begin_step(mine.id, "do", 1, NOW)
    journal.begin_step(other.id, "do", 1, NOW)
    assert [step.command for step in journal.running_steps(mine.id)] == [other.steps[1].command]
    journal.end_step(other.id, "do", 1, StepStatus.DONE, NOW)
    assert journal.running_steps(mine.id) == ()


def test_last_action_is_the_newest_that_was_begun_there_and_stands(journal: Journal) -> None:
    node = node_target("node-2")
    assert journal.last_action("drain", node) is None
    run = carried(journal, running(journal), 1)
    assert journal.last_action("drain", node) is None  # planned as step 2, and not begun
    run = carried(
        journal, journal.move(journal.create(make_run(RunStatus.APPROVED, "node-7")).id, RunStatus.RUNNING, NOW), 2
    )
    assert journal.last_action("drain", node) is None  # of another node
    action = journal.last_action("drain", node_target("node-7"))
    assert action == run.step("do", 1).action
    assert journal.last_action("node start", node_target("node-7b")) == run.step("do", 0).action
    assert journal.last_action("cordon", node_target("node-7")) is None
    journal.start_undo(run.id, (), "", "", NOW + 50)
    assert journal.last_action("drain", node_target("node-7")) == action
    journal.move(run.id, RunStatus.UNDONE, NOW + 60)
    assert journal.last_action("drain", node_target("node-7")) is None


def test_lists_newest_first_and_no_more_than_asked(journal: Journal) -> None:
    runs = [journal.create(make_run(node=f"node-{i}", created_at=NOW + i)) for i in range(3)]
    assert [run.id for run in journal.list(limit=2)] == [runs[2].id, runs[1].id]
    assert journal.find("never") is None
    with pytest.raises(NotFoundError):
        journal.decide("run-none", "approve", "ann", "", NOW)


def test_newer_runs_that_did_nothing_there_do_not_hide_the_last_action(journal: Journal) -> None:
    run = carried(journal, running(journal, "node-7"), 2)
    journal.move(run.id, RunStatus.VERIFYING, NOW + 50)
    journal.move(run.id, RunStatus.SUCCEEDED, NOW + 60)
    journal.create(make_run(RunStatus.APPROVED, "node-7", created_at=NOW + 70))  # planned, not begun
    other = journal.create(make_run(RunStatus.APPROVED, "node-9", created_at=NOW + 80))
    carried(journal, journal.move(other.id, RunStatus.RUNNING, NOW + 81), 2)  # begun, elsewhere
    assert journal.last_action("drain", node_target("node-7")) == run.step("do", 1).action


def test_the_last_action_is_the_newer_of_two_runs_on_the_same_target(journal: Journal) -> None:
    older = carried(journal, running(journal, "node-7"), 2)
    journal.move(older.id, RunStatus.FAILED, NOW + 50)
    made = make_run(RunStatus.APPROVED, "node-7", created_at=NOW + 60)
    slower = replace(made.steps[1], command="drain node-7 --deadline 9s")
    newer = journal.create(replace(made, steps=(made.steps[0], slower, made.steps[2])))
    carried(journal, journal.move(newer.id, RunStatus.RUNNING, NOW + 61), 2)
    assert journal.last_action("drain", node_target("node-7")) == slower.action


def test_a_proposal_does_not_hold_its_targets(journal: Journal) -> None:
    journal.create(make_run())
    assert journal.why_held(make_run(RunStatus.APPROVED), lambda one, other: one == other) is None


def test_the_only_step_of_another_run_is_told_while_it_runs(journal: Journal) -> None:
    made = make_run(RunStatus.APPROVED, "node-7")
    run = journal.create(replace(made, steps=made.steps[:1]))
    journal.move(run.id, RunStatus.RUNNING, NOW)
    journal.begin_step(run.id, "do", 0, NOW)
    assert [step.command for step in journal.running_steps("run-none")] == [made.steps[0].command]
