"""The guide of the tour: at each moment it says what one sees and what to press next, and fits above 80 columns."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from fleetctl.demo.guide import CHAPTERS, Scene, Words, words
from fleetctl.demo.progress import Act, Progress
from fleetctl.demo.report import DemoReport, RequestCounts
from fleetctl.tui.place import Place
from fleetctl.wire.incident import Incident
from fleetctl.wire.run import RunStatus
from tests.fixtures.cockpit import NOW, make_incident, make_run

SCENE = Scene("node-2", 3, 4.0, 10.0, "fleetctl --state-dir .fleetctl/demo")
NORMAL = Progress(Act.NORMAL, breaks_at=NOW + 20)
BROKEN = replace(NORMAL, act=Act.BROKEN, fault_at=NOW - 8)
REPORT = DemoReport(12.4, "slow_node", 60.0, RequestCounts(sent=400, finished=400, moved=3), diagnosed_s=12.6)


def paged(**fields: object) -> Progress:
    incident: Incident = make_incident(**{"opened_at": NOW, "runs": [make_run()], **fields})
    return replace(BROKEN, incident=incident)


def at(progress: Progress, place: Place = Place.NOW, *, takes_answers: bool = True) -> Words:
    return words(SCENE, progress, place, NOW, takes_answers=takes_answers)


def test_each_act_of_the_story_is_the_next_chapter() -> None:
    story = [
        at(NORMAL),
        at(BROKEN),
        at(paged()),
        at(paged(), Place.INCIDENT),
        at(paged(runs=[make_run(status=RunStatus.RUNNING)])),
        at(replace(paged(), act=Act.OVER, report=REPORT)),
    ]
    assert [told.title.partition(":")[0] for told in story] == [f"{n} of {CHAPTERS}" for n in range(1, CHAPTERS + 1)]
    assert all(told.do for told in story), "there is always something to press or to wait for"


def test_while_all_is_well_it_says_when_the_node_breaks_and_where_to_look() -> None:
    assert "In 20 s node-2 is made slow" in at(NORMAL).sees
    assert "g, then f" in at(NORMAL).do
    assert "g, then n" in at(NORMAL, Place.FLEET).do


def test_the_page_comes_with_its_verdict_and_the_way_to_the_incident() -> None:
    told = at(paged())
    assert "paged 8.0s after the fault" in told.sees
    assert "(slow_node, confirmed)" in told.sees
    assert "g, then i" in told.do


def test_no_key_is_named_before_the_screen_has_what_it_answers() -> None:
    told = at(paged(), Place.INCIDENT, takes_answers=False)
    assert "Press a" not in told.do
    assert "the proposal comes below" in told.do


def test_a_proposal_is_answered_by_a_key_or_by_a_command_in_another_terminal() -> None:
    told = at(paged(), Place.INCIDENT)
    assert "Press a, then y" in told.do
    assert told.do.endswith("fleetctl --state-dir .fleetctl/demo runbook approve run-1")


def test_a_verdict_without_a_proposal_is_no_end() -> None:
    assert "the evidence is read again" in at(paged(runs=[])).sees
    assert "by hand" in at(paged(runs=[], no_remedy="restart it by hand")).sees


@pytest.mark.parametrize("status", [RunStatus.DENIED, RunStatus.FAILED, RunStatus.EXPIRED, RunStatus.UNDONE])
def test_a_run_that_mended_nothing_leaves_a_command_to_type(status: RunStatus) -> None:
    assert ":replace node-2" in at(paged(runs=[make_run(status=status)])).do


def test_a_run_tells_its_step_and_then_that_done_is_not_mended() -> None:
    run = make_run(status=RunStatus.RUNNING)
    run.steps[1].status = "running"
    assert "step 2 of 3, drain node-2" in at(paged(runs=[run])).sees
    assert "Done is not mended" in at(paged(runs=[make_run(status=RunStatus.VERIFYING)])).sees


def test_the_end_has_the_times_and_what_became_of_the_requests() -> None:
    told = at(replace(paged(), act=Act.OVER, report=REPORT)).sees
    assert "Of 400 requests none was lost; 3 moved" in told
    assert "did not hold" not in told
    wrong = replace(REPORT, requests=RequestCounts(sent=400, finished=398, lost=2))
    assert "Of 400 requests 2 were lost" in (told := at(replace(paged(), act=Act.OVER, report=wrong)).sees)
    assert "did not hold: 2 requests were lost" in told


def test_it_leaves_room_for_the_screen_below_it_at_80_columns() -> None:
    told = [at(one, place) for one in (NORMAL, BROKEN, paged()) for place in (Place.NOW, Place.FLEET, Place.INCIDENT)]
    told.append(at(replace(paged(), act=Act.OVER, report=REPORT)))
    for one in told:
        lines = [*textwrap.wrap(f" {one.title}   {one.sees}", 78), *(row for row in one.do.splitlines() if row)]
        assert len(lines) <= 6, lines
