"""What is said of a run that two people answer at once, and what the audit says of it afterwards."""

from __future__ import annotations

import pytest

from fleetctl.cli.app import run
from fleetctl.wire.audit import AuditRow
from fleetctl.wire.run import RunStatus
from tests.fixtures.cockpit import NOW, make_run
from tests.fixtures.recorded_controller import recorded_controller


def test_a_run_that_is_being_cancelled_says_that_it_ends_and_by_whose_word(capsys: pytest.CaptureFixture[str]) -> None:
    """ "run run-1 running" was the answer to a cancel, as if nothing had been asked."""
    going = make_run(id="run-1", status=RunStatus.RUNNING, cancelled_by="bob")
    over = make_run(id="run-1", status=RunStatus.CANCELLED, cancelled_by="bob")
    for found in (going, over):
        with recorded_controller({"/v1/runs/run-1/cancel": found, "/v1/runs/run-1": found}) as controller:
            assert run(["--controller", controller.url, "runbook", "cancel", "run-1", "-y"]) == 0
            assert run(["--controller", controller.url, "describe", "run", "run-1"]) == 0
    said = capsys.readouterr().out
    assert "run run-1 running: it ends before its next step, as bob asked\n" in said
    assert "run run-1 cancelled\n" in said
    assert said.count("cancelled by  bob") == 1, "of the one that goes on"


def test_an_answer_that_was_refused_is_no_answer_in_the_audit(capsys: pytest.CaptureFixture[str]) -> None:
    """ "bob run.answered deny" of a denial that came after ann's yes, and that nobody took."""
    row = AuditRow(
        seq=7,
        at=NOW,
        who="bob",
        via="token",
        what="run.answered",
        target="run-1",
        why="deny",
        outcome="refused: run run-1 was decided by ann already; it is running",
        run_id="run-1",
        hash="h",
    )
    done = row.model_copy(update={"seq": 8, "what": "run.denied", "outcome": "done"})
    with recorded_controller({"/v1/audit": [row, done]}) as controller:
        assert run(["--controller", controller.url, "audit"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("deny; refused: run run-1 was decided by ann already; it is running")
    assert lines[2].endswith("deny")
