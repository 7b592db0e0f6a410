"""What the end of a run says to who typed the command."""

from __future__ import annotations

import pytest

from fleetctl.cli.act import show_run
from fleetctl.cli.output import Output
from fleetctl.wire.run import RunStatus, StepRecord
from tests.fixtures.cockpit import make_run


def test_counts_of_requests_are_told_and_no_number_of_the_routing_table(capsys: pytest.CaptureFixture[str]) -> None:
    """ "uncordon node-2: table_version 4" told nobody anything."""
    step = StepRecord(index=1, phase="do", title="drain node-2", command="drain node-2", status="done", receipt={})
    for receipt in ({"table_version": 4}, {"table_version": 4, "moved": 2}):
        steps = [step.model_copy(update={"receipt": receipt})]
        show_run(make_run(id="run-1", status=RunStatus.SUCCEEDED, steps=steps), Output.table)
    assert capsys.readouterr().out.splitlines() == [
        "run run-1 succeeded",
        "  drain node-2: moved 2",
        "run run-1 succeeded",
    ]
