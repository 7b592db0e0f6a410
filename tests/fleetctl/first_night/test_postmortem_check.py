"""A post-mortem that the product wrote is read back and held to what the harness knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnostics.postmortem import PostmortemInput, render
from diagnostics.record import AlertRecord, DiagnosisRecord, Impact, IncidentRecord, RunRecord
from fleetctl.first_night.postmortem_check import Known, false_statements, read_postmortem

INJECTED_AT = 1_800_000_000.0
OPENED_AT = INJECTED_AT + 61
KNOWN = Known(
    injected_at=INJECTED_AT,
    lost=5,
    lost_late=0,
    causes=("node_down",),
    runs=("succeeded",),
    ended_at=[INJECTED_AT + second for second in range(3, 93)],
    over_at=OPENED_AT + 35,
)


def written_page(impact: Impact) -> str:
    """What the controller writes of an incident whose first bad sample came two seconds after the injection."""
    down = AlertRecord(
        fingerprint="f", name="LLMNodeDown", state="resolved", active_at=INJECTED_AT + 2, fired_at=OPENED_AT
    )
    run = RunRecord(
        id="run-1",
        runbook="replace-node",
        title="Replace node-2",
        status="succeeded",
        inputs={},
        created_at=OPENED_AT + 2,
        updated_at=OPENED_AT + 30,
    )
    record = IncidentRecord(
        id="inc-1",
        title="LLMNodeDown on node-2",
        status="resolved",
        severity="page",
        scope={"node": "node-2"},
        opened_at=OPENED_AT,
        resolved_at=OPENED_AT + 35,
        alerts=[down],
        diagnosis=DiagnosisRecord(tree="node", cause="node_down", title="It does not answer", confidence="confirmed"),
        runs=[run],
    )
    return render(PostmortemInput(record, written_at=OPENED_AT + 36, impact=impact))


PAGE = written_page(Impact(requests=90, finished=85, moved=2, lost=5))


def test_true_page_is_not_called_false() -> None:
    assert false_statements(read_postmortem(PAGE), KNOWN) == ()


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (replace(KNOWN, lost=7), "says lost 5, clients lost 7"),
        (replace(KNOWN, lost=0), "says lost 5, clients lost 0"),
        (replace(KNOWN, injected_at=INJECTED_AT - 60), "onset is 62 s off"),
        (replace(KNOWN, causes=("slow_node",)), "names node_down"),
        (replace(KNOWN, runs=("succeeded", "undone")), "there were succeeded, undone"),
        (replace(KNOWN, runs=()), "there were none"),
        (replace(KNOWN, ended_at=KNOWN.ended_at[:48]), "says 90 requests were served, clients had 48"),
    ],
)
def test_false_statement_is_named(known: Known, word: str) -> None:
    (false,) = false_statements(read_postmortem(PAGE), known)
    assert word in false


def test_requests_that_end_with_the_incident_may_count_or_not() -> None:
    assert false_statements(read_postmortem(PAGE), replace(KNOWN, lost=4, lost_late=2)) == ()


def test_page_that_says_nobody_counted_is_not_false() -> None:
    stated = read_postmortem(written_page(Impact()))
    assert stated.lost is None
    assert false_statements(stated, KNOWN) == ()
