"""The page states what is recorded, and says so where nothing is."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from diagnostics.postmortem import PostmortemInput, began_at, clock_words, durations, follow_ups, render, unknowns
from diagnostics.record import Fate, Impact
from tests.fixtures.incident import OPENED, make_record

IMPACT = Impact(
    requests=420,
    finished=417,
    moved=3,
    lost=0,
    duplicated=0,
    p99_ttft_before_s=0.21,
    p99_ttft_worst_s=1.9,
    p99_ttft_after_s=0.2,
)


def page(impact: Impact = IMPACT, **changes: object) -> str:
    return render(PostmortemInput(make_record(**changes), written_at=OPENED + 95, impact=impact))


def tables(markdown: str) -> list[list[int]]:
    """Cells in each row of each table, as a Markdown reader sees them."""
    found: list[list[int]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append(0)
        elif token.type in ("th_open", "td_open"):
            found[-1][-1] += 1
    return found


def test_tells_the_story_of_the_incident() -> None:
    text = page()

    assert text.startswith("# Post-mortem: node-2 is slower than its peers\n")
    assert "Cause: **slow_node** (confirmed)" in text
    assert "It began 2023-11-14 22:13:05, was noticed 2023-11-14 22:13:20, and was over 2023-11-14 22:14:50." in text
    assert "| lost | 0 |" in text
    assert "210 ms / 1.9 s / 200 ms" in text
    assert "| Are its steps slower? | yes | 3.4× | > 2.0× | 1.0 s |".replace(">", "\\>") in text
    assert "Ruled out: prefix_cache_broken." in text
    assert "in_flight: 7, finished: 4, moved: 3, refused: 0, aborted: 0" in text
    assert "decided by ana at 2023-11-14 22:13:41" in text
    assert "| 22:13:20 | incident.opened | LLMNodeSlow on node-2 |" in text
    assert "Nothing that the record could tell is missing." in text
    assert "None follow from the record." in text
    assert text.endswith("\n")


def test_its_beginning_by_alerts_and_by_the_series_are_told_side_by_side_where_they_differ() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    onset = diagnosis.model_copy(update={"onset": OPENED - 75, "onset_early": OPENED - 80, "onset_late": OPENED - 60})
    text = page(diagnosis=onset)

    assert "It began 2023-11-14 22:13:05 (by its alerts; their series changed 60 s before), was noticed" in text


def test_measures_the_time_between_the_turning_points() -> None:
    found = durations(make_record())

    assert (found.to_detect_s, found.to_diagnose_s, found.to_decide_s) == (15.0, 1.0, 20.0)
    assert (found.to_mitigate_s, found.to_resolve_s) == (70.0, 90.0)


def test_a_change_by_hand_that_was_not_for_the_incident_has_not_mitigated_it() -> None:
    by_hand = make_record().runs[0].model_dump() | {"is_apart": True, "updated_at": OPENED - 30}

    assert durations(make_record(runs=[by_hand])).to_mitigate_s is None
    assert durations(make_record(runs=[by_hand, make_record().runs[0].model_dump()])).to_mitigate_s == 70.0


def test_every_table_keeps_its_columns_whatever_the_texts_hold() -> None:
    nasty = "a | b\n| c ` d <b>x</b> \\| e [l](u) ``"
    record = make_record()
    text = page(
        title=nasty,
        alerts=[{"fingerprint": "f", "name": nasty, "state": "firing", "labels": {"node": nasty}}],
        diagnosis={
            "tree": nasty,
            "cause": "slow_node",
            "title": nasty,
            "ruled_out": [nasty],
            "not_known": [nasty],
            "evidence": [
                {
                    "question": nasty,
                    "title": nasty,
                    "answer": "no",
                    "query": nasty,
                    "threshold": nasty,
                    "why_unknown": nasty,
                }
            ],
        },
        runs=[
            {
                **record.runs[0].model_dump(),
                "title": nasty,
                "inputs": {"a": nasty},
                "error": nasty,
                "steps": [
                    {
                        "index": 0,
                        "status": "failed",
                        "title": nasty,
                        "command": nasty,
                        "error": nasty,
                        "receipt": {"n": {"deep": nasty}},
                    }
                ],
            }
        ],
        timeline=[{"at": OPENED, "kind": nasty, "text": nasty}],
    )

    found = tables(text)
    assert [rows[0] for rows in found] == [2, 3, 6, 5, 7, 3]
    assert all(len(set(rows)) == 1 for rows in found)
    html = [
        part.content
        for token in MarkdownIt("commonmark").enable("table").parse(text)
        for part in token.children or []
        if part.type == "html_inline"
    ]
    assert html == []


def test_says_what_nobody_measured() -> None:
    report = PostmortemInput(make_record(diagnosis=None, runs=[]), written_at=OPENED)

    assert "| lost | not recorded |" in render(report)
    assert "| incident opened | mitigated by a run | by none |" in render(report)
    assert "Nothing was run by fleetctl." in render(report)
    assert "The cause: no tree was walked." in unknowns(report)
    assert "Whether requests were lost." in unknowns(report)
    assert any("by hand" in item for item in follow_ups(report))


def test_lists_the_answers_that_were_missing_as_unknown_and_as_work_to_do() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    changed = diagnosis.model_copy(update={"confidence": "likely", "not_known": ["Is the KV cache full? (no data)"]})
    report = PostmortemInput(make_record(diagnosis=changed.model_dump()), written_at=OPENED, impact=IMPACT)

    assert "No answer to: Is the KV cache full? (no data)" in unknowns(report)
    assert any("signals" in item for item in follow_ups(report))


def test_a_no_without_a_number_is_not_told_as_unknown() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    rows = [
        one.model_copy(update={"title": f"asked: {answer}?", "answer": answer, "value": None})
        for one, answer in zip(diagnosis.evidence, ("no", "unknown"), strict=False)
    ]
    changed = diagnosis.model_copy(update={"evidence": rows})
    text = render(PostmortemInput(make_record(diagnosis=changed.model_dump()), written_at=OPENED, impact=IMPACT))

    assert "| asked: no? | no | — |" in text
    assert "asked: unknown? |" not in text, "what nothing was read of is no row"
    assert re.search(r"^- .+ \(1 question\): asked: unknown\?$", text, re.MULTILINE)


def test_a_failed_run_and_lost_requests_ask_for_work() -> None:
    run = make_record().runs[0].model_dump() | {"status": "undone", "error": "verify timed out"}
    report = PostmortemInput(
        make_record(runs=[run]), written_at=OPENED, impact=Impact(lost=2, duplicated=1), follow_ups=("Ask the vendor.",)
    )

    items = follow_ups(report)
    assert "Run run-1 (replace-node) ended undone: verify timed out." in items
    assert any("2 requests were lost" in item for item in items)
    assert any("answered twice" in item for item in items)
    assert items[-1] == "Ask the vendor."
    assert durations(report.incident).to_mitigate_s is None


@pytest.mark.parametrize(("after_s", "is_asked"), [(9.8, True), (2.4, False), (None, False)])
def test_an_end_at_which_users_still_waited_asks_to_look_again(after_s: float | None, is_asked: bool) -> None:
    impact = Impact(p99_ttft_after_s=after_s, objective_ttft_s=2.5)
    items = follow_ups(PostmortemInput(make_record(), written_at=OPENED, impact=impact))
    assert any("p99 time to first token was 9.8 s" in item for item in items) is is_asked


def test_a_long_timeline_is_cut_and_says_so() -> None:
    events = [{"at": OPENED + i, "kind": "run.step_done", "text": f"step {i}"} for i in range(600)]

    text = page(timeline=events)

    assert "100 more entries are in the black box." in text
    assert "step 499" in text
    assert "step 500" not in text


def test_incident_began_before_it_was_noticed_also_when_its_alert_fired_again() -> None:
    again = [{**alert.model_dump(), "active_at": OPENED + 50} for alert in make_record().alerts]
    began = make_record(alerts=again, onset_at=OPENED - 12)
    assert began_at(began) == OPENED - 12
    assert durations(began).to_detect_s == 12
    assert began_at(make_record(alerts=again)) == OPENED


def event(kind: str, after_s: float, **data: object) -> dict[str, object]:
    return {"at": OPENED + after_s, "kind": kind, "text": kind, "data": data}


def test_tells_each_verdict_from_when_to_when_it_held_and_why_it_was_replaced() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    text = page(
        diagnosis=diagnosis.model_dump() | {"cause": "gpu_fault"},
        timeline=[
            event("diagnosis.named", 1, cause="downstream", confidence="likely"),
            event("diagnosis.replaced", 12, cause="node_down", confidence="confirmed", why="LLMNodeDown joined it"),
            event("diagnosis.corrected", 60, cause="gpu_fault", by="ana", why="XID 79"),
        ],
        handling={"correction": {"cause": "gpu_fault", "by": "ana", "at": OPENED + 60, "was": "node_down"}},
    )
    assert "| 22:13:21 | 22:13:32 | downstream | likely | LLMNodeDown joined it |" in text
    assert "| 22:13:32 | 22:14:20 | node_down | confirmed | a person said that it was wrong: XID 79 |" in text
    assert "| 22:14:20 | the end | gpu_fault | said by ana |  |" in text
    assert "the verdict had been node_down" in text
    assert "The verdict said node_down, it was gpu_fault" in text
    assert "| incident opened | cause named | 60 s |" in text
    assert "evidence of 2023-11-14 22:13:32, by which the verdict that was wrong was named." in text
    assert "that is the word of ana, nothing measured says so" in text


READ_FIRST = {
    "title": "node-2 is 5.2 times as slow",
    "evidence": [{"question": "slow", "title": "Is it slow?", "answer": "yes", "value": 5.2, "unit": "times"}],
    "ruled_out": ["overload"],
    "probability": 0.97,
}
READ_LAST = {
    "title": "node-2 is 1.1 times as slow",
    "evidence": [{"question": "slow", "title": "Is it slow?", "answer": "no", "value": 1.1, "unit": "times"}],
    "ruled_out": ["everything"],
    "probability": 0.61,
}


def test_the_evidence_is_that_by_which_the_cause_was_named_and_not_of_an_incident_that_ends() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    last = {"confidence": "confirmed", "at": OPENED + 80, "since": OPENED + 12, "looked_at": OPENED + 80}
    said = {"cause": diagnosis.cause, "confidence": "confirmed"}
    text = page(
        diagnosis=diagnosis.model_dump() | READ_LAST | last,
        timeline=[
            event("diagnosis.named", 1, **READ_LAST, **(said | {"confidence": "likely"})),
            event("diagnosis.named", 12, **READ_FIRST, **said),
        ],
    )
    assert "evidence of 2023-11-14 22:13:32" in text
    assert "| Is it slow? | yes | 5.2× |" in text
    assert "node-2 is 5.2 times as slow" in text
    assert "Ruled out: overload." in text
    assert "97 %" in text
    assert "1.1" not in text


def test_where_no_cause_was_named_no_time_is_told_in_which_it_was() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    unknown = {"cause": None, "confidence": "unknown", "title": "No known cause fits what was measured"}
    text = page(diagnosis=diagnosis.model_dump() | unknown)
    assert "| incident opened | cause named | none was named |" in text
    assert "No cause was named: No known cause fits" in text


@pytest.mark.parametrize(
    ("title", "confidence", "said"),
    [
        ("LLMReceiverFailing says itself what is wrong: mend its URL", "unknown", "its alert says the cause"),
        ("Nothing is wrong: it warms up", "confirmed", "nothing was wrong"),
    ],
)
def test_what_is_known_without_a_named_cause_is_not_told_as_unknown_nor_as_work(
    title: str, confidence: str, said: str
) -> None:
    """ "No cause was named: it says itself what is wrong", "What is not known: the cause", "find the cause by hand"."""
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    known = {"cause": None, "confidence": confidence, "title": title, "not_known": []}
    text = page(severity="page", diagnosis=diagnosis.model_dump() | known)
    assert f"\n{title}.\n" in text
    assert f"| incident opened | cause named | {said} |" in text
    assert f"of its opening; {said} and it was mitigated after" in text
    assert ": met." in text
    for untrue in ("No cause was named", "no cause was named", "The cause:", "Find the cause by hand"):
        assert untrue not in text
    assert ("although nothing was wrong" in text) is (confidence == "confirmed")


def test_evidence_that_was_read_without_a_tree_is_on_the_page_too() -> None:
    """Of a long prompt: "Cause: long_context_outlier (confirmed)", and "Diagnosis: None."."""
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    text = page(diagnosis=diagnosis.model_dump() | {"tree": ""})
    assert "What was seen where no tree explains its alerts, evidence of 2023-11-14 22:13:21." in text
    assert "| Are its steps slower? | yes | 3.4× |" in text


def test_of_an_incident_that_goes_on_the_page_says_what_is_read_now() -> None:
    """Of a node that took 7.5 times as long for an hour it said 2.4 times, as in its third second."""
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    last = {"confidence": "confirmed", "at": OPENED + 80, "since": OPENED + 12, "looked_at": OPENED + 80}
    text = page(
        status="open",
        resolved_at=None,
        alerts=[make_record().alerts[0].model_dump() | {"state": "firing", "resolved_at": None}],
        diagnosis=diagnosis.model_dump() | READ_LAST | last,
        timeline=[event("diagnosis.named", 12, **READ_FIRST, cause=diagnosis.cause, confidence="confirmed")],
    )
    assert "evidence of 2023-11-14 22:14:40" in text
    assert "| Is it slow? | no | 1.1× |" in text


def test_beside_a_persons_word_stands_the_evidence_of_the_verdict_that_was_wrong() -> None:
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    text = page(
        diagnosis=diagnosis.model_dump() | READ_LAST | {"cause": "gpu_fault", "looked_at": OPENED + 50},
        timeline=[
            event("diagnosis.named", 12, **READ_FIRST, cause="node_down", confidence="confirmed"),
            event("diagnosis.corrected", 60, cause="gpu_fault", by="ana", why="XID 79"),
        ],
        handling={"correction": {"cause": "gpu_fault", "by": "ana", "at": OPENED + 60, "was": "node_down"}},
    )
    assert "| Is it slow? | yes | 5.2× |" in text
    assert "evidence of 2023-11-14 22:13:32, by which the verdict that was wrong was named." in text
    assert "gpu_fault" in text


def test_runs_by_hand_are_told_as_such_with_what_was_measured() -> None:
    run = make_record().runs[0].model_dump() | {"is_apart": True, "runbook": "action", "requested_by": "bob"}
    report = PostmortemInput(
        make_record(runs=[run]), written_at=OPENED, impact=IMPACT, effects={run["id"]: "p99 1.9 s before, 0.2 s after"}
    )
    text = render(report)
    assert ", by hand" in text
    assert "by bob and not for this incident" in text
    assert "Measured: p99 1.9 s before, 0.2 s after." in text
    assert "Nothing was run" not in text
    other = PostmortemInput(make_record(runs=[run | {"incident_id": "inc-7"}]), written_at=OPENED, impact=IMPACT)
    assert ", by hand" not in render(other)
    by_pools = run | {"unasked": True, "requested_by": "pools"}
    itself = render(PostmortemInput(make_record(runs=[by_pools]), written_at=OPENED, impact=IMPACT))
    assert ": succeeded, by automation\n" in itself
    assert ", by hand" not in itself
    early = [run | {"created_at": OPENED - 900, "updated_at": OPENED - 880}]
    text = render(PostmortemInput(make_record(runs=early), written_at=OPENED, impact=IMPACT))
    assert "Nothing was run by fleetctl.\n\nRun there before it began:\n\n- " in text
    assert ": succeeded, by hand\n" in text
    assert "| step | command |" not in text
    assert ": succeeded, for inc-7\n\nRun " in render(other)
    assert "| remedy proposed | decided | nothing was proposed |" in text


def test_the_clock_of_its_level_is_met_missed_or_not_there() -> None:
    assert clock_words(make_record(severity="critical")).endswith("mitigated after 70 s: met.")
    late = make_record(severity="critical", runs=[], resolved_at=OPENED + 1200)
    assert clock_words(late).endswith("it ended after 20 min 00 s, mitigated by no run: missed.")
    assert clock_words(make_record(severity="critical", runs=[], resolved_at=None)).endswith("it is not mitigated.")
    assert "no cause was named" in clock_words(make_record(severity="critical", diagnosis=None))
    assert clock_words(make_record(severity="ticket")) == "SEV-4 has no clock."


def test_the_clock_of_what_came_back_with_something_new_counts_from_then_in_words_and_table() -> None:
    """Mended the first time within a minute, and again a quarter of an hour after it came back half an hour later."""
    back_at = OPENED + 1800
    run = make_record().runs[0].model_dump()
    later = run | {"id": "run-2", "created_at": back_at + 30, "decided_at": back_at + 60, "updated_at": back_at + 890}
    named = event("diagnosis.named", 1810, cause="slow_node", confidence="confirmed")
    record = make_record(
        severity="critical",
        clock_at=back_at,
        resolved_at=back_at + 1200,
        runs=[run, later],
        timeline=[event("incident.reopened", 1800), named],
    )
    words = clock_words(record)
    assert "within 15 min 00 s of its coming back at 22:43:20" in words
    assert words.endswith("the cause was named after 10 s and it was mitigated after 14 min 50 s: met.")
    took = durations(record)
    assert (took.to_decide_s, took.to_resolve_s) == (30, 1200)
    page = render(PostmortemInput(record, written_at=back_at + 1300, impact=IMPACT))
    assert "| it came back | mitigated by a run | 14 min 50 s |" in page
    assert "mitigated by no run: missed" in clock_words(record.model_copy(update={"runs": [record.runs[0]]}))


def rollout(kind: str, after_s: float, pool: str = "chat") -> dict[str, object]:
    return event(f"rollout.{kind}", after_s, rollout="rollout-7", pool=pool) | {"text": f"rollout-7: {kind}"}


STARTED = event("node.started", -50) | {"node": "node-2"}


WENT_BACK = [rollout("started", -60), rollout("rolled_back", 40)]


@pytest.mark.parametrize(
    ("scope", "around", "is_by_deploy", "is_taken_back"),
    [
        pytest.param({"pool": "chat"}, WENT_BACK, True, True, id="its cause is the deploy"),
        pytest.param({}, WENT_BACK, False, False, id="a gateway that died meanwhile"),
        pytest.param(None, [STARTED, *WENT_BACK], False, True, id="its canary, which the gate took out"),
        pytest.param(None, WENT_BACK, True, False, id="a node of the revision before"),
        pytest.param(None, [rollout("started", 20), STARTED, WENT_BACK[1]], True, False, id="it began before"),
        pytest.param(None, [rollout("started", -60), STARTED, rollout("done", 40)], True, False, id="it stayed"),
        pytest.param({"pool": "batch"}, WENT_BACK, True, False, id="another pool's"),
    ],
)
def test_a_rollout_that_went_back_is_what_mitigated_it(
    scope: dict[str, str] | None, around: list[dict[str, object]], is_by_deploy: bool, is_taken_back: bool
) -> None:
    changes = {} if scope is None else {"scope": scope}
    record = make_record(severity="critical", runs=[], around=around, **changes)
    text = render(PostmortemInput(record, written_at=OPENED + 95, impact=IMPACT, is_by_deploy=is_by_deploy))
    assert ("it was mitigated after 40 s, as rollout-7 was rolled back: met." in text) == is_taken_back
    assert ("mitigated by no run" in text) != is_taken_back
    assert ("| incident opened | mitigated, as rollout-7 was rolled back | 40 s |" in text) == is_taken_back
    assert ("was taken back at 22:14:00: rollout-7: rolled_back." in text) == is_taken_back
    assert ("No runbook resolved this" in text) != is_taken_back


def test_a_proposal_that_nobody_answered_asks_who_was_told_and_for_no_runbook() -> None:
    """ "No runbook resolved this: write one for the cause", and "Error: its alerts cleared", of one that was there."""
    run = make_record().runs[0].model_dump()
    passed = {"status": "cancelled", "decided_by": None, "decided_at": None, "error": "its alerts cleared before"}
    text = page(runs=[run | passed | {"created_at": OPENED + 3, "updated_at": OPENED + 63}])
    assert "was proposed, and nobody answered in 60 s: see who was told" in text
    assert "No runbook resolved this" not in text
    assert "Why: its alerts cleared before" in text
    denied = page(runs=[run | {"status": "denied"}])
    assert "nobody answered" not in denied
    assert "No runbook resolved this" not in denied


def test_what_the_run_of_the_wider_incident_mended_is_not_told_as_mended_by_nobody() -> None:
    """A pool's rollback took the bad node out: "mitigated by no run", "write a runbook" stood on the node's page."""
    run = make_record().runs[0].model_dump() | {"is_apart": True, "incident_id": "inc-wide", "status": "verifying"}
    text = page(severity="page", part_of="inc-wide", runs=[run])
    assert f"mitigated by that of inc-wide ({run['runbook']}): met." in text
    assert f"| incident opened | mitigated by a run | by that of inc-wide ({run['runbook']}) |" in text
    assert "No runbook resolved this" not in text
    assert "mitigated by no run" in page(part_of="inc-other", runs=[run])


def test_the_numbers_of_a_verdict_that_is_over_stand_with_when_they_were_read() -> None:
    """ "2.4 times as long as its peers'" was of its third second, and the worst was twenty."""
    verdict = event("diagnosis.named", 3, cause="slow_node", confidence="confirmed")
    diagnosis = make_record().diagnosis
    assert diagnosis is not None
    told = {"title": "node-2 is 2.4 times as slow"}
    assert "node-2 is 2.4 times as slow (as it was at 22:13:21). Cause: **slow_node**" in page(
        timeline=[verdict], diagnosis=diagnosis.model_dump() | told
    )
    assert "as it was at" not in page(
        timeline=[verdict], diagnosis=diagnosis.model_dump() | {"title": "node-2 is slow"}
    )
    on = page(timeline=[verdict], diagnosis=diagnosis.model_dump() | told, resolved_at=None, status="open")
    assert "as it was at" not in on


def test_of_one_that_goes_on_the_page_says_that_it_is_not_there_yet() -> None:
    waits = make_record().runs[0].model_dump() | {"status": "proposed", "decided_by": None, "decided_at": None}
    text = page(resolved_at=None, status="open", runs=[waits])
    assert "| remedy proposed | decided | not decided |" in text
    assert "| incident opened | mitigated by a run | not yet |" in text
    assert "| incident opened | resolved | not yet |" in text


def test_one_that_was_over_and_came_back_says_when() -> None:
    text = page(timeline=[event("incident.opened", 0), event("incident.reopened", 40)])
    assert "was noticed 2023-11-14 22:13:20, came back 2023-11-14 22:14:00, and was over 2023-11-14 22:14:50." in text
    assert "came back" not in page()


def test_what_a_controller_found_when_it_started_began_nobody_knows_when() -> None:
    """A node had been dead for 45 s while no controller was there: "it began" with the first look at it."""
    started, ready = event("controller.started", -17), {**event("node.ready", -16), "node": "node-2"}
    found = " or before (the controller started 22:13:03, and found it so), was noticed"
    assert f"It began 2023-11-14 22:13:05{found}" in page(around=[started])
    assert "or before" not in page(around=[started, ready]), "it was well then"
    assert "or before" not in page(around=[event("controller.started", -120)])
    assert "or before" not in page()


def test_what_requests_became_and_the_minutes_out_of_objective_are_told() -> None:
    text = page(
        IMPACT.model_copy(
            update={
                "fates": [Fate(node="node-2", outcome="failed", count=3)],
                "slo_minutes": 4,
                "objective_ttft_s": 2.0,
            }
        )
    )
    assert "| node-2 | failed | 3 |" in text
    assert "above its objective of 2.0 s: 4 min 00 s." in text
    within = page(IMPACT.model_copy(update={"slo_minutes": 0.0, "objective_ttft_s": 2.0}))
    assert "above its objective of 2.0 s: none." in within
