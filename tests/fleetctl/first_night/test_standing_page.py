"""A page is written anew and keeps what stands on it of faults that were not run again."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.first_night.outcome import FiredAlert, Outcome, Said, SeenIncident
from fleetctl.first_night.report import page
from fleetctl.first_night.standing_page import WALKED_HEADING, read_page
from fleetctl.first_night.traffic import FateCounts

INCIDENT = SeenIncident(
    id="inc-1",
    title="node-2 is slow",
    severity="page",
    scope={"node": "node-2"},
    alerts=("LLMNodeSlow",),
    opened_after_s=18.0,
    cause="slow_node",
    confidence="confirmed",
    verdict="node-2 computes slowly: its steps take 5.1× as long as its peers', and more words than one line holds",
    runs=(),
    postmortem="/state/postmortem.md",
)
SLOW = Outcome(
    fault="slow-step",
    title="every step of a node takes ten times as long",
    at=1_800_000_000.0,
    alerts=(FiredAlert("LLMNodeSlow", "node-2", "page", 18.0),),
    incidents=(INCIDENT,),
    requests=FateCounts(sent=120, finished=118, lost=2, lost_begun=1),
    ended_by="page",
    over_after_s=46.0,
    ready_nodes=3,
    runner="fake",
    said=(
        Said(30.0, "slow_node", None, None, "confirmed", "node-2 computes slowly", "incident"),
        Said(60.0, None, None, None, "confirmed", "Nothing is wrong", "asked"),
    ),
    machine="a CPU, 2 cores",
)
OOM = replace(
    SLOW, fault="oom", at=1_800_100_000.0, requests=FateCounts(sent=30, finished=30), machine="another CPU, 4 cores"
)


def row(outcome: Outcome) -> dict[str, object]:
    return outcome.to_json()


def test_row_verdicts_and_notes_of_a_fault_without_a_new_result_stay() -> None:
    both = page([row(SLOW), row(OOM)])
    merged = page([row(OOM)], read_page(page([row(SLOW)])))
    assert merged.count("**slow-step**") == 1
    assert "Of 150 requests 2 were lost" in both
    assert "Of 150 requests 2 were lost" in merged
    assert "| slow-step | slow_node | (nothing is wrong) |  |  |\n" in merged
    assert "- slow-step: 1 lost in mid-stream." in merged
    assert "a CPU, 2 cores, another CPU, 4 cores:" in " ".join(merged.split())


def test_new_result_of_a_fault_replaces_all_that_stood_of_it() -> None:
    wrong = replace(SLOW, wrong=("no alert",), at=1_800_200_000.0)
    again = page([row(SLOW)], read_page(page([row(wrong)])))
    assert "## Not right yet\n\nNothing" in again
    assert "1 of 1 right" in again


def test_rows_of_held_drills_have_a_table_of_their_own_and_stay() -> None:
    held = replace(
        SLOW, held_s=900.0, said=(*SLOW.said, Said(900.0, "slow_node", None, None, "likely", "", "incident"))
    )
    first = page([row(SLOW)], held=[row(held)])
    assert (
        "| **slow-step** | 15 min | LLMNodeSlow, 18 s | slow_node | (nothing is wrong) |  |  |  | slow_node |" in first
    )
    again = page([row(OOM)], read_page(first))
    assert again.count("| **slow-step** | 15 min |") == 1
    assert again.count("**slow-step**") == 2


def test_page_says_of_each_cause_whether_its_fault_was_run_and_went_right() -> None:
    written = page([row(SLOW), row(replace(OOM, wrong=("no alert",)))])
    assert "| slow_node | slow-step |" in written
    assert "| out_of_memory | oom (not right yet) |" in written
    assert (
        "| node_down | sigkill-api (not run yet), sigkill-api-pending (not run yet), sigstop-api (not run yet) |"
        in written
    )
    assert "1 of them in right rows" in " ".join(written.split())


def test_what_people_wrote_at_the_end_of_the_page_stays_as_they_wrote_it() -> None:
    walked = f"{WALKED_HEADING}\n\n| **oom**: nobody ran this | - |\n\n- slow-step: a line  of theirs\n"
    first = f"{page([row(SLOW)])}\n{walked}"
    again = page([row(OOM)], read_page(first))
    assert again.endswith(f"\n\n{walked}")
    assert page([row(OOM)], read_page(again)) == again
    assert "nobody ran this" not in again.partition(WALKED_HEADING)[0]
