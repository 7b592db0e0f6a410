"""What counts as right after a fault, and what its row says otherwise."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import ClassVar

import pytest

from fleetctl.first_night.catalogue import FAULTS, fault_named
from fleetctl.first_night.fault import Expectation, held
from fleetctl.first_night.outcome import FiredAlert, Outcome, Said, SeenIncident, SeenRun, failures_of
from fleetctl.first_night.report import WIDTH, page, table
from fleetctl.first_night.traffic import FateCounts

pytestmark = pytest.mark.anyio

RUN = SeenRun("replace-node", "Replace node-2 with node-2b", "succeeded", 90.0)
INCIDENT = SeenIncident(
    id="inc-1",
    title="LLMNodeDown on node-2",
    severity="page",
    scope={"node": "node-2"},
    alerts=("LLMNodeDown",),
    opened_after_s=61.0,
    cause="node_down",
    confidence="confirmed",
    verdict="node-2 does not answer",
    runs=(RUN,),
    postmortem="/state/incidents/inc-1/postmortem.md",
)
MENDED = Outcome(
    fault="sigstop-api",
    title="SIGSTOP of a node's API process",
    at=1_800_000_000.0,
    alerts=(FiredAlert("LLMNodeDown", "node-2", "page", 61.0),),
    incidents=(INCIDENT,),
    requests=FateCounts(sent=300, finished=300, moved=3),
    ended_by="page",
    over_after_s=95.0,
    ready_nodes=3,
)
EXPECTED = Expectation(alerts=("LLMNodeDown",), causes=("node_down",), pages=("replace-node",))
QUIET = replace(MENDED, alerts=(), incidents=(), ended_by="itself", over_after_s=0.0)


def incident_with(**changes: object) -> Outcome:
    return replace(MENDED, incidents=(replace(INCIDENT, **changes),))  # type: ignore[arg-type]


async def test_a_killed_gateway_is_left_to_the_controller_that_starts_it_again() -> None:
    class Fleet:
        sent: ClassVar[list[tuple[str, int]]] = []

        def send_signal(self, name: str, number: int) -> None:
            self.sent.append((name, number))

    fault = fault_named("sigkill-gateway")
    await fault.inject(Fleet())  # type: ignore[arg-type]
    assert Fleet.sent == [("gateway", signal.SIGKILL)]
    assert fault.expects.alerts == ("LLMGatewayDied",), "it is back before LLMGatewayDown has waited its 15 s"
    assert fault.watch_s > 600, "the alert stands for ten minutes"


def test_night_with_page_cause_repair_and_no_loss_is_right() -> None:
    assert failures_of(MENDED, EXPECTED) == ()


def test_fault_that_heals_itself_is_right_in_silence() -> None:
    assert failures_of(QUIET, Expectation()) == ()


@pytest.mark.parametrize(
    ("outcome", "expects", "word"),
    [
        (replace(MENDED, alerts=()), EXPECTED, "no alert"),
        (replace(MENDED, alerts=(FiredAlert("LLMNodeSlow", "node-2", "page", 9.0),)), EXPECTED, "LLMNodeSlow"),
        (MENDED, Expectation(pages=("replace-node",)), "nothing to do"),
        (incident_with(cause="slow_node"), EXPECTED, "slow_node"),
        (incident_with(cause=None), EXPECTED, "named is none"),
        (incident_with(runs=()), EXPECTED, "not proposed"),
        (incident_with(runs=(replace(RUN, status="undone"),)), EXPECTED, "ended undone"),
        (MENDED, replace(EXPECTED, pages=()), "does not treat"),
        (incident_with(false=("says lost 0, clients lost 5",)), EXPECTED, "clients lost 5"),
        (replace(MENDED, requests=FateCounts(sent=300, finished=298, lost=2)), EXPECTED, "2 requests lost that"),
        (replace(MENDED, requests=FateCounts(sent=300, finished=297, lost=3, lost_begun=2)), EXPECTED, "3 requests"),
        (replace(MENDED, requests=FateCounts(sent=300, finished=300, waited=13)), EXPECTED, "13 users waited"),
        (replace(MENDED, over_after_s=None), EXPECTED, "not over"),
        (replace(MENDED, still_standing=("LLMNodeGray",)), EXPECTED, "LLMNodeGray still stands"),
        (replace(MENDED, ready_nodes=2), EXPECTED, "2 of 3 nodes"),
    ],
)
def test_what_went_wrong_is_named(outcome: Outcome, expects: Expectation, word: str) -> None:
    (wrong,) = failures_of(outcome, expects)
    assert word in wrong


def test_loss_that_no_other_node_could_prevent_is_not_wrong() -> None:
    outcome = replace(MENDED, requests=FateCounts(sent=300, finished=290, lost=10))
    assert failures_of(outcome, replace(EXPECTED, loss="the gateway holds them")) == ()


def test_overload_that_nobody_felt_needs_no_page() -> None:
    expects = Expectation(alerts=("LLMOverload",), is_quiet_unless_felt=True, late="more work than the fleet can do")
    assert failures_of(QUIET, expects) == ()
    assert failures_of(replace(QUIET, requests=FateCounts(sent=60, finished=60, waited=9)), expects) == ("no alert",)


def said(age_s: float, cause: str | None, also: str | None = None) -> Said:
    return Said(age_s, cause, also, None, "likely", "", "asked")


def test_verdict_must_be_right_at_every_age_from_when_it_can_be_seen() -> None:
    expects = Expectation(causes=("gateway_limit",), named_from_s=60.0)
    early = replace(
        QUIET, said=(said(30.0, None), said(60.0, "overload", "gateway_limit"), said(120.0, "gateway_limit"))
    )
    assert failures_of(early, expects) == ()
    (forgotten,) = failures_of(replace(early, said=(*early.said, said(300.0, None))), expects)
    assert forgotten == "after 300 s no cause is named, expected gateway_limit"
    (unasked,) = failures_of(replace(early, said=early.said[:1]), expects)
    assert "nobody was asked" in unasked


def test_held_drill_is_wrong_where_the_cause_named_changes_even_to_a_right_one() -> None:
    expects = Expectation(causes=("seats_full", "overload"), named_from_s=60.0)
    words = (said(30.0, None), said(60.0, "overload"), said(900.0, "seats_full"))
    assert failures_of(replace(QUIET, said=words), expects) == ()
    (changed,) = failures_of(replace(QUIET, said=words, held_s=900.0), expects)
    assert changed == "the cause named changed: overload, then seats_full"


def test_held_fault_lasts_to_its_age_and_is_asked_there() -> None:
    slow = held(fault_named("slow-step"), 900.0)
    assert slow.hold_s is not None
    assert slow.hold_s > 900.0 > (slow.expects.named_from_s or 0.0)
    assert slow.watch_s > slow.hold_s


def test_table_fits_the_terminal_and_page_has_every_fault() -> None:
    wrong = replace(incident_with(cause="long_context_outlier"), wrong=("the cause named is " + "long " * 30,))
    rows = [{**wrong.to_json(), "fault": fault.name, "machine": "a CPU"} for fault in FAULTS]
    assert max(map(len, table(rows).splitlines())) <= WIDTH
    written = page(rows)
    for fault in FAULTS:
        assert f"**{fault.name}**" in written
    assert f"0 of {len(FAULTS)} right" in written
    assert "a CPU" in written


@pytest.mark.parametrize(
    ("held_s", "reason", "is_wrong"), [(3600.0, "gave_up", False), (3600.0, "cut", True), (None, "gave_up", True)]
)
def test_who_gives_up_on_a_slow_node_for_which_nobody_acts_is_not_held_against_the_fleet(
    held_s: float | None, reason: str, is_wrong: bool
) -> None:
    requests = FateCounts(sent=300, finished=298, lost=2, reasons={reason: 2})
    wrong = failures_of(replace(MENDED, requests=requests, held_s=held_s), Expectation(alerts=("LLMNodeDown",)))
    assert any("requests lost" in one for one in wrong) == is_wrong
