from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from runbooks.errors import (
    IllegalTransitionError,
    NotFoundError,
    RunbookError,
    StaleEpochError,
)
from runbooks.journal import Journal
from runbooks.run import ACTIVE, TRANSITIONS, IdempotencyConflictError, RunStatus, StepStatus
from runbooks.schema import SCHEMA_VERSION, meta, open_engine, runs
from runbooks.target import node_target
from tests.fixtures.runbooks import NOW, World, make_run


def test_a_run_comes_back_as_it_was_stored(journal: Journal, world: World) -> None:
    run = make_run(reason="why", requested_by="bot", expires_at=NOW + 5, incident_id="inc-1", idempotency_key="k")
    assert journal.create(run) == run
    again = Journal(world.engine)
    assert again.get(run.id) == run
    assert again.find("k") == run
    assert again.list({RunStatus.PROPOSED}, "inc-1") == (run,)
    assert again.list({RunStatus.APPROVED}) == ()
    assert again.list(incident_id="inc-2") == ()


def test_sqlite_commits_survive_power_loss(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'j.sqlite'}")
    Journal(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() >= 5000
    engine.dispose()


def test_works_on_an_engine_that_begins_transactions_itself(tmp_path: Path) -> None:
    """The controller's engine emits BEGIN IMMEDIATE and turns the driver's own off."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'j.sqlite'}")
    sa.event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    journal = Journal(engine)
    journal.claim_epoch()
    run = journal.create(make_run(RunStatus.APPROVED))
    assert journal.move(run.id, RunStatus.RUNNING, NOW).status is RunStatus.RUNNING
    engine.dispose()


@pytest.mark.parametrize("start", RunStatus)
@pytest.mark.parametrize("end", RunStatus)
def test_only_moves_of_the_table_are_made(tmp_path: Path, start: RunStatus, end: RunStatus) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'j.sqlite'}")
    journal = Journal(engine)
    journal.claim_epoch()
    run = journal.create(make_run())
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET status = :status"), {"status": start.value})
    if end in TRANSITIONS[start]:
        assert journal.move(run.id, end, NOW + 1).status is end
    else:
        with pytest.raises(IllegalTransitionError, match=f"{start.value} can't become {end.value}"):
            journal.move(run.id, end, NOW + 1)
        assert journal.get(run.id).status is start
    engine.dispose()


def test_every_status_leads_to_an_end_and_ends_lead_nowhere() -> None:
    ends = {status for status in RunStatus if status.is_terminal}
    assert ends.isdisjoint(ACTIVE)
    for status in RunStatus:
        reached = {status}
        while more := {to for at in reached for to in TRANSITIONS[at]} - reached:
            reached |= more
        assert reached & ends


def test_steps_move_by_the_table(journal: Journal) -> None:
    run = journal.create(make_run(RunStatus.APPROVED))
    with pytest.raises(IllegalTransitionError, match="is approved: no do step may begin"):
        journal.begin_step(run.id, "do", 0, NOW)
    journal.move(run.id, RunStatus.RUNNING, NOW)
    with pytest.raises(IllegalTransitionError, match=r"do\.0 is pending and can't become done"):
        journal.end_step(run.id, "do", 0, StepStatus.DONE, NOW, receipt={})
    journal.begin_step(run.id, "do", 0, NOW + 1)
    journal.begin_step(run.id, "do", 0, NOW + 2)
    run = journal.end_step(run.id, "do", 0, StepStatus.DONE, NOW + 3, receipt={"moved": 2})
    step = run.step("do", 0)
    assert (step.attempts, step.started_at, step.ended_at, step.receipt) == (2, NOW + 1, NOW + 3, {"moved": 2})
    with pytest.raises(IllegalTransitionError, match="is done and can't become running"):
        journal.begin_step(run.id, "do", 0, NOW)


def test_the_end_of_a_run_skips_its_pending_steps_and_frees_its_nodes(journal: Journal) -> None:
    first = journal.create(make_run(RunStatus.APPROVED))
    assert journal.create(make_run(RunStatus.APPROVED)).status is RunStatus.REFUSED
    ended = journal.move(first.id, RunStatus.CANCELLED, NOW)
    assert {step.status for step in ended.steps} == {StepStatus.SKIPPED}
    assert journal.create(make_run(RunStatus.APPROVED)).status is RunStatus.APPROVED


def test_a_held_node_refuses_the_second_run_with_the_first_ones_id(journal: Journal) -> None:
    first = journal.create(make_run(RunStatus.APPROVED))
    second = journal.create(make_run(RunStatus.APPROVED))
    assert second.status is RunStatus.REFUSED
    assert second.error == f"node-2 is held by run {first.id} (Replace node-2 with node-2b, approved)"
    assert journal.create(make_run(RunStatus.APPROVED, "node-3")).status is RunStatus.APPROVED


def test_a_proposal_keeps_off_other_proposals_but_not_a_person(journal: Journal) -> None:
    first = journal.create(make_run())
    second = journal.create(make_run())
    assert second.status is RunStatus.REFUSED
    assert first.id in second.error
    by_hand = journal.create(make_run(RunStatus.APPROVED))
    assert by_hand.status is RunStatus.APPROVED
    late, accepted = journal.decide(first.id, "approve", "ann", "", NOW)
    assert accepted
    assert late.status is RunStatus.REFUSED
    assert by_hand.id in late.error


def test_same_key_and_request_is_the_same_run_whatever_the_new_nodes_name(journal: Journal) -> None:
    run = journal.create(make_run(idempotency_key="k"))
    other = make_run(idempotency_key="k")
    other = replace(other, inputs={**other.inputs, "replacement": "node-9"}, fresh_nodes=("node-9",))
    assert journal.create(other) == run
    with pytest.raises(IdempotencyConflictError, match=f"used for a different request, run {run.id}; use a new key"):
        journal.create(make_run(node="node-3", idempotency_key="k"))
    assert len(journal.list()) == 1


def test_only_the_last_claimed_epoch_may_write(world: World, journal: Journal) -> None:
    run = journal.create(make_run(RunStatus.APPROVED))
    newer = Journal(world.engine)
    with pytest.raises(StaleEpochError):
        newer.move(run.id, RunStatus.RUNNING, NOW)  # claimed nothing yet
    assert newer.claim_epoch() == 2
    writes = [
        lambda: journal.create(make_run()),
        lambda: journal.move(run.id, RunStatus.RUNNING, NOW),
        lambda: journal.decide(run.id, "approve", "ann", "", NOW),
        lambda: journal.expire(run.id, NOW),
        lambda: journal.request_cancel(run.id, "ann", NOW),
        lambda: journal.start_undo(run.id, [], "", "", NOW),
        lambda: journal.begin_step(run.id, "do", 0, NOW),
        lambda: journal.note_failure(run.id, "do", 0, "", NOW),
        lambda: journal.end_step(run.id, "do", 0, StepStatus.DONE, NOW),
    ]
    for write in writes:
        with pytest.raises(StaleEpochError, match="epoch 1 may not write"):
            write()
    assert journal.get(run.id) == run, "reading stays possible"
    assert newer.move(run.id, RunStatus.RUNNING, NOW).status is RunStatus.RUNNING


def test_a_write_that_fails_before_its_commit_leaves_nothing(world: World) -> None:
    def fail(point: str) -> None:
        if point == "run_created.before_commit":
            raise OSError("disk full")

    journal = Journal(world.engine, at_fault_point=fail)
    journal.claim_epoch()
    with pytest.raises(OSError, match="disk full"):
        journal.create(make_run(RunStatus.APPROVED))
    assert journal.list() == ()


def test_any_receipt_can_be_stored(journal: Journal) -> None:
    run = journal.create(make_run(RunStatus.APPROVED))
    journal.move(run.id, RunStatus.RUNNING, NOW)
    journal.begin_step(run.id, "do", 0, NOW)
    nested: dict[str, object] = {}
    nested["self"] = nested
    odd = {"nan": math.nan, "nul": "a\x00b", "path": Path("x"), "set": {1}, "long": "x" * 9999, "deep": nested}
    run = journal.end_step(run.id, "do", 0, StepStatus.DONE, NOW, receipt=odd, error="e\x00" + "y" * 9999)
    receipt = run.step("do", 0).receipt
    assert (receipt["nan"], receipt["nul"], receipt["path"], receipt["set"]) == (None, "a\ufffdb", "x", [1])
    assert len(receipt["long"]) == len(run.step("do", 0).error) == 4000


def test_a_journal_of_a_newer_fleetctl_is_refused(world: World, journal: Journal) -> None:
    with world.engine.begin() as connection:
        connection.execute(sa.update(meta).values(schema_version=99))
    with pytest.raises(RunbookError, match=f"schema 99, this fleetctl knows {SCHEMA_VERSION}; upgrade fleetctl"):
        Journal(world.engine)


def test_unknown_run_is_named(journal: Journal) -> None:
    with pytest.raises(NotFoundError, match="there is no run run-x"):
        journal.get("run-x")


def test_audit_tells_who_asked_and_who_decided(journal: Journal) -> None:
    run = journal.create(make_run(requested_by="bot", reason="slow"))
    journal.decide(run.id, "approve", "ann", "go", NOW + 1)
    journal.move(run.id, RunStatus.RUNNING, NOW + 2)
    journal.request_cancel(run.id, "bob", NOW + 3)
    journal.move(run.id, RunStatus.CANCELLED, NOW + 4, error="by bob")
    assert [(entry.by, entry.what, entry.comment) for entry in journal.audit(run.id)] == [
        ("bot", "requested", "slow"),
        ("ann", "approved", "go"),
        ("bob", "cancel_requested", ""),
        ("executor", "cancelled", "by bob"),
    ]


def test_a_journal_from_before_targets_had_kinds_is_read_and_holds_its_nodes(world: World, journal: Journal) -> None:
    """Rows as they were written then: plain names in the plan and in the claims."""
    run = journal.create(make_run(RunStatus.APPROVED))
    with world.engine.begin() as connection:
        plan = connection.execute(sa.select(runs.c.plan)).scalar_one()
        claims = connection.execute(sa.text("SELECT node, run_id FROM run_claims ORDER BY node")).all()
    assert plan["targets"] == ["node-2b", "node-2"]
    assert (plan["fresh_nodes"], plan["existing_nodes"]) == (["node-2b"], ["node-2"])
    assert [tuple(claim) for claim in claims] == [("node-2", run.id), ("node-2b", run.id)]
    assert journal.get(run.id).targets == (node_target("node-2b"), node_target("node-2"))


def test_a_command_that_no_verb_knows_any_more_does_not_hide_its_run(world: World, journal: Journal) -> None:
    run = journal.create(make_run())
    with world.engine.begin() as connection:
        connection.execute(sa.text("UPDATE run_steps SET command = 'defragment node-2'"))
    stored = journal.get(run.id)
    assert stored.steps[0].target is None
    assert stored.to_dict()["steps"][0]["target"] == ""
    assert journal.last_action("drain", node_target("node-2")) is None
