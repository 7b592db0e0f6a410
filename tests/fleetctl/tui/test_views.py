"""Texts of the screen: unknown is never a number, and old is never fresh."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from fleetctl.tui.alert_view import explanation_lines
from fleetctl.tui.cell import Cell, Tone, clock_time, quantity, span, sparkline
from fleetctl.tui.fleet_view import FLEET_COLUMNS, beside_past, fleet_lines
from fleetctl.tui.header_view import header
from fleetctl.tui.incident_view import (
    INCIDENT_COLUMNS,
    incident_lines,
    incident_view,
    no_incident_words,
    plan_of,
    receipt_text,
)
from fleetctl.tui.listing import Order, shown_columns
from fleetctl.tui.node_view import KV_LINE, KV_LINES, PHASES, node_lines, node_sections
from fleetctl.tui.now_view import now_sections
from fleetctl.tui.pane import section_text
from fleetctl.tui.runbook_view import run_section
from fleetctl.tui.snapshot import Part, Snapshot, Tail, asking, current_run, proposal
from fleetctl.wire.alert import Alert, AlertExplanation, AlertPart, AlertState
from fleetctl.wire.diagnosis import Diagnosis
from fleetctl.wire.group import GroupLoad, GroupSignal
from fleetctl.wire.held import KvBlocks
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import NodePhase, Signal
from fleetctl.wire.notification import Notification, NotificationState
from fleetctl.wire.pool import Pool, PoolState
from fleetctl.wire.run import RunStatus, StepRecord
from fleetctl.wire.timeline import TimelineEntry
from tests.fixtures.cockpit import NOW, make_incident, make_node, make_run, make_status

COLUMNS = {column.title: column for column in FLEET_COLUMNS}


def cell(snapshot: Snapshot, now: float, column: str) -> Cell:
    """One cell of the first node."""
    row = fleet_lines(snapshot, now)[0].row
    assert row is not None
    return COLUMNS[column].write(row)


def test_every_phase_has_a_glyph_of_its_own() -> None:
    assert set(PHASES) == set(NodePhase)
    assert len({glyph for glyph, _ in PHASES.values()}) == len(PHASES)


@pytest.mark.parametrize(
    ("signal", "text", "tone"),
    [
        (Signal(), "-", Tone.DIM),
        (Signal(value=None, age_s=1.0), "-", Tone.DIM),
        (Signal(value=float("nan"), age_s=1.0), "-", Tone.DIM),
        (Signal(value=0.0, age_s=1.0), "         0%", Tone.PLAIN),
        (Signal(value=0.5, age_s=15.0), "███     50%", Tone.PLAIN),
        (Signal(value=0.5, age_s=15.1), "███    50%?", Tone.DIM),
        (Signal(value=0.97, age_s=99.0), "█████▉ 97%?", Tone.DIM),
        (Signal(value=0.5, age_s=None), "███    50%?", Tone.DIM),
        (Signal(value=0.9, age_s=1.0), "█████▍  90%", Tone.WARN),
        (Signal(value=0.96, age_s=1.0), "█████▊  96%", Tone.BAD),
    ],
)
def test_writes_a_signal_by_what_is_known_of_it(signal: Signal, text: str, tone: Tone) -> None:
    snapshot = Snapshot(status=make_status(), nodes=(make_node(kv_ratio=signal),), known_at=NOW)

    told = cell(snapshot, NOW, "KV")

    assert (told.text, told.tone) == (text, tone)


def test_values_age_while_nothing_new_comes() -> None:
    snapshot = Snapshot(status=make_status(), nodes=(make_node(),), known_at=NOW, read_at={Part.NODES: NOW})

    assert cell(snapshot, NOW + 14, "TTFT").text == "210ms"
    assert cell(snapshot, NOW + 15, "TTFT").text == "210ms?"
    assert cell(snapshot, NOW + 15, "age").text == "16s"


def test_nothing_is_certain_once_contact_is_lost() -> None:
    node = make_node(alerts=["LLMNodeSlow"])
    snapshot = Snapshot(status=make_status(), nodes=(node,), known_at=NOW, cut_off_since=NOW)

    assert cell(snapshot, NOW + 1, "state") == Cell("● ready?", Tone.DIM)
    assert [fact.text[-1] for fact in header(snapshot, NOW + 1).facts] == ["?"] * 4
    assert fleet_lines(snapshot, NOW + 1, group="pool")[0].heading[1] == Cell("1/1 ready?", Tone.DIM)


def test_an_order_about_overflow_says_whether_the_way_out_is_open() -> None:
    rules = [
        {"id": "overflow", "spec": {"kind": "overflow", "state": "on"}, "made_at": NOW},
        {"id": "overflow-demo", "spec": {"kind": "overflow", "state": "off", "model": "demo"}, "made_at": NOW},
    ]
    snapshot = Snapshot(status=make_status(traffic_rules=rules), known_at=NOW)
    told = [cell.text for cell in header(snapshot, NOW).rules]
    assert told[1].startswith("overflow on ")
    assert told[2].startswith("overflow off overflow-demo ")


def test_a_silent_poller_is_not_taken_for_a_quiet_fleet() -> None:
    snapshot = Snapshot(status=make_status(), known_at=NOW)

    assert header(snapshot, NOW + 5).link.text == "● controller ok"
    assert header(snapshot, NOW + 40).link.text == "▲ no answer for 40s"


@pytest.mark.parametrize("width", [80, 120, 200, 300])
def test_columns_fit_the_table_and_more_room_shows_more_of_them(width: int) -> None:
    shown = shown_columns(FLEET_COLUMNS, width)
    assert sum(column.width + 1 for column in shown) + 1 <= width
    assert len(shown) > len(shown_columns(FLEET_COLUMNS, width - 81)) or width in (80, 300)


def test_values_fit_their_columns_at_their_widest() -> None:
    node = make_node(
        phase=NodePhase.UNREACHABLE,
        alerts=["a"] * 9,
        running=Signal(value=999.0, age_s=60),
        waiting=Signal(value=9999, age_s=1),
        kv_ratio=Signal(value=1.0, age_s=60),
        ttft_s=Signal(value=0.999, age_s=60),
        step_s=Signal(value=0.999, age_s=60),
        tokens_per_s=Signal(value=123_456.0, age_s=60),
        requests_per_s=Signal(value=999.9, age_s=60),
        signal_age_s=3000.0,
    )
    snapshot = Snapshot(nodes=(node,), known_at=NOW)
    assert [one.title for one in FLEET_COLUMNS if len(cell(snapshot, NOW, one.title).text) > one.width] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1.0, "0s"),
        (0.0, "0ms"),
        (0.0184, "18ms"),
        (0.9994, "999ms"),
        (0.9999, "1.0s"),
        (1.44, "1.4s"),
        (9.96, "10s"),
        (75.0, "75s"),
        (119.0, "119s"),
        (120.0, "2m"),
        (7200.0, "2h"),
        (200_000.0, "2d"),
    ],
)
def test_writes_a_time_in_six_characters(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ratio", "-"),
        (0.27, "ratio", "27%"),
        (1.2, "seconds", "1.2s"),
        (3.41, "times", "3.4×"),
        (8192.0, "tokens", "8,192 tok"),
        (4.25, "per_second", "4.25/s"),
        (3.0, "count", "3"),
        (3.0, "", "3"),
    ],
)
def test_writes_evidence_in_its_unit(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_a_node_without_details_says_so_instead_of_guessing() -> None:
    lines = node_lines(make_node(model="", zone="", revision="", instance=None, since=None), NOW)

    assert lines[1].text == "pool default  model -  engine fleetctl  zone -  revision -"
    assert lines[2].text.endswith("instance -")


@pytest.mark.parametrize(
    ("out", "total", "told"),
    [
        (["gateway: down, its process ended"], 1, "▲ gateway down"),
        (["gateway: unreachable, timed out"], 1, "▲ gateway unreachable"),
        (["gateway: not_ready, no routing table yet"], 1, "▲ gateway not ready"),
        (["a: unreachable, timed out"], 3, "▲ 1 gateway unreachable"),
        (["a: down", "b: unreachable, timed out"], 3, "▲ 2 gateways out"),
    ],
)
def test_a_gateway_that_does_not_serve_is_told_as_what_it_is_and_not_as_down(
    out: list[str], total: int, told: str
) -> None:
    status = make_status(gateways_down=out, gateways_total=total)
    assert header(Snapshot(status=status), NOW).facts[0].text == told


def test_a_pool_whose_starts_fail_is_in_the_header_and_beside_its_nodes() -> None:
    pool = Pool(
        name="default",
        wanted=3,
        ready=2,
        unknown=1,
        state=PoolState.BACKING_OFF,
        reason="node-3 ended before it was ready",
    )
    snapshot = Snapshot(status=make_status(), nodes=(make_node(),), pools=(pool,), known_at=NOW)
    assert header(snapshot, NOW).facts[0].text == "▲ pool default: starts fail"
    lines = [cell.text for cell in node_lines(make_node(), NOW, pool)]
    told = "pool default  2/3 ready (1 unknown)  owner person  backing off: node-3 ended before it was ready"
    assert told in lines
    well = snapshot.pools[0].model_copy(update={"state": PoolState.CONVERGED})
    quiet = Snapshot(status=make_status(), pools=(well,), known_at=NOW)
    assert "pool" not in header(quiet, NOW).facts[0].text


def test_the_run_that_waits_comes_first_then_the_one_that_acts_then_the_newest() -> None:
    done = make_run(id="a", status=RunStatus.SUCCEEDED, created_at=NOW)
    older = make_run(id="b", status=RunStatus.DENIED, created_at=NOW - 9)
    acting = make_run(id="c", status=RunStatus.RUNNING, created_at=NOW - 5)
    waiting = make_run(id="d", created_at=NOW - 50)

    def chosen(*runs: object) -> str | None:
        run = current_run(make_incident(runs=list(runs)))
        return run.id if run is not None else None

    assert chosen(done, older, acting, waiting) == "d"
    assert chosen(done, older, acting) == "c"
    assert chosen(done, older) == "a"
    assert chosen() is None
    assert proposal(make_incident(runs=[done])) is None
    assert proposal(None) is None


def test_a_finished_incident_tells_how_long_it_took_and_what_was_done() -> None:
    step = {
        "index": 1,
        "phase": "do",
        "title": "Drain",
        "command": "drain node-2",
        "status": "done",
        "attempts": 2,
        "started_at": NOW,
        "ended_at": NOW + 21,
        "receipt": {"in_flight": 7, "moved": 3, "nested": {"x": 1}},
    }
    run = make_run(status=RunStatus.SUCCEEDED, decided_by="ana", steps=[step], verification="LLMNodeSlow is clear")
    incident = make_incident(
        status=IncidentStatus.RESOLVED, resolved_at=NOW + 48, runs=[run], postmortem="pm/inc-1.md", diagnosis=None
    )

    view = incident_view(incident, NOW + 60)

    assert view.ask is None
    assert view.run is not None
    assert view.run.heading.text == "Run: Replace a node, succeeded, by ana"
    assert [cell.text for cell in view.run.rows[0]] == ["✓", "21s 2×", "drain node-2  → in_flight 7, moved 3"]
    assert view.run.rows[1][2].text == "LLMNodeSlow is clear"
    assert view.head.rows[0][1].text == "page, opened 22:12:38, over after 90s"
    assert view.head.rows[-1][1].text == "pm/inc-1.md"
    assert view.diagnosis.heading.text == "Diagnosis: not made yet"


@pytest.mark.parametrize(
    ("title", "confidence"),
    [
        ("LLMReceiverFailing says itself what is wrong: mend its URL", "unknown"),
        ("Nothing is wrong now: users are served as promised", "confirmed"),
        ("", "unknown"),
    ],
)
def test_what_stands_in_the_place_of_a_cause_is_not_called_no_cause(title: str, confidence: str) -> None:
    """ "no cause named" stood before the alert's own word on what is wrong."""
    found = Diagnosis.model_validate({"tree": "", "cause": None, "title": title, "confidence": confidence})
    told = make_incident(diagnosis=found)
    assert incident_view(told, NOW).diagnosis.heading.text == f"Diagnosis: {title or 'no cause named'}"


def test_an_incident_that_was_over_and_came_back_says_when() -> None:
    again = TimelineEntry(seq=9, at=NOW - 20, kind="incident.reopened", text="node-2 is slow")
    head = incident_view(make_incident(timeline=[again]), NOW).head
    texts = [cell.text for row in head.rows for cell in row]
    assert any(text.endswith(f", came back {clock_time(NOW - 20)}") for text in texts), texts


def test_an_incident_says_who_was_told_when_and_who_could_not_be() -> None:
    def told(receiver: str, kind: str, state: str, **fields: Any) -> Notification:
        made = {"id": f"{receiver}-{kind}", "subject": "s", "text": "t", "thread": "inc-1", "created_at": NOW - 40}
        return Notification(receiver=receiver, kind=kind, state=NotificationState(state), **made, **fields)

    notifications = [
        told("chat", "opened", "delivered", ended_at=NOW - 39),
        told("chat", "update", "delivered", ended_at=NOW - 20),
        told("pager", "opened", "failed", ended_at=NOW - 38, why="receiver pager: answered 403"),
        told("ann", "opened", "held", held_by="quiet_hours"),
        told("chat", "update", "merged", ended_at=NOW - 1),
    ]
    incident = make_incident(notifications=notifications, dashboard="https://grafana.example/d/fleetctl-node")
    rows = [row for row in incident_view(incident, NOW).head.rows if row[0].text in ("told", "graphs")]
    assert [(row[1].text.partition(" ")[0], row[1].text.partition(", ")[2], row[1].tone) for row in rows[:3]] == [
        ("chat", "update: delivered", Tone.PLAIN),
        ("pager", "opened: failed: answered 403", Tone.BAD),
        ("ann", "opened: held: quiet hours", Tone.WARN),
    ]
    assert rows[3][1].text == "https://grafana.example/d/fleetctl-node"


def test_run_that_acts_shows_what_it_asks_who_paused_it_and_what_was_skipped() -> None:
    skipped = {"phase": "do", "index": 0, "title": "Drain", "command": "drain node-2", "status": "skipped"}
    run = make_run(
        status=RunStatus.RUNNING, steps=[skipped], question="Does node-2 answer again?", paused_by="ana", id="run-7"
    )
    view = incident_view(make_incident(runs=[run]), NOW)
    assert view.run is not None
    assert [[cell.text for cell in row] for row in view.run.rows] == [
        ["–", "", "drain node-2"],
        ["?", "asks", "Does node-2 answer again?   a yes   d no"],
        ["‖", "paused", "by ana; fleetctl runbook resume run-7"],
    ]
    assert asking(make_incident(runs=[run])) == run
    over = make_run(status=RunStatus.FAILED, steps=[skipped], question="x?", paused_by="ana")
    ended = incident_view(make_incident(runs=[over]), NOW).run
    assert ended is not None
    assert len(ended.rows) == 1
    assert asking(make_incident(runs=[over])) is None


def test_the_plan_lists_the_commands_that_a_yes_runs() -> None:
    assert plan_of(make_run())[1:] == (
        "1. fleetctl node start node-4 --like node-2 --wait 180s",
        "2. fleetctl drain node-2 --deadline 20s",
        "3. fleetctl node stop node-2",
    )


def test_an_old_incident_is_listed_by_its_day() -> None:
    snapshot = Snapshot(incidents=(make_incident(opened_at=NOW - 200_000),))
    row = incident_lines(snapshot, NOW)[0].row
    assert row is not None
    assert [column.write(row).text for column in INCIDENT_COLUMNS][2] == "Nov 12"


def test_a_gateway_that_serves_with_something_wrong_is_told_in_the_header() -> None:
    status = make_status(gateways_total=1, gateways_ready=1, gateways_impaired=["gateway: 1 of 2 workers serve"])
    facts = {fact.text: fact.tone for fact in header(Snapshot(status=status, known_at=NOW), NOW).facts}
    assert facts["1 gateway impaired"] is Tone.WARN


def test_stopped_nodes_are_left_out_and_counted_until_asked_for() -> None:
    nodes = (make_node("node-1"), make_node("node-0", phase=NodePhase.STOPPED))
    snapshot = Snapshot(status=make_status(), nodes=nodes, known_at=NOW)
    assert [line.key for line in fleet_lines(snapshot, NOW)] == ["node-1"]
    assert [line.key for line in fleet_lines(snapshot, NOW, with_stopped=True)] == ["node-1", "node-0"]
    assert "■ 1" in [fact.text for fact in header(snapshot, NOW).facts]


def test_a_dry_run_is_no_run_of_an_incident() -> None:
    done = make_run(id="run-2", status=RunStatus.SUCCEEDED, dry_run=True, created_at=NOW)
    assert current_run(make_incident(runs=[done])) is None
    acted = make_run(status=RunStatus.FAILED, created_at=NOW - 60)
    assert current_run(make_incident(runs=[done, acted])) == acted


def nodes_of_two_pools() -> Snapshot:
    nodes = (
        make_node("a-1", pool="a", zone="x", ttft_s=Signal(value=0.3, age_s=1.0)),
        make_node("a-2", pool="a", zone="y", ttft_s=Signal()),
        make_node("b-1", pool="b", zone="x", ttft_s=Signal(value=0.1, age_s=1.0), phase=NodePhase.DRAINED),
    )
    return Snapshot(status=make_status(), nodes=nodes, known_at=NOW)


def test_the_fleet_is_grouped_and_each_group_counts_who_serves() -> None:
    lines = fleet_lines(nodes_of_two_pools(), NOW, group="zone")
    assert [line.heading[0].text if line.row is None else line.key for line in lines] == [
        "zone x",
        "a-1",
        "b-1",
        "zone y",
        "a-2",
    ]
    assert lines[0].heading[1] == Cell("1/2 ready", Tone.WARN)


@pytest.mark.parametrize(("is_reversed", "keys"), [(False, ["b-1", "a-1", "a-2"]), (True, ["a-1", "b-1", "a-2"])])
def test_what_is_not_known_comes_last_in_either_order(is_reversed: bool, keys: list[str]) -> None:
    lines = fleet_lines(nodes_of_two_pools(), NOW, order=Order("TTFT", is_reversed))
    assert [line.key for line in lines] == keys


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("a-", ["a-1", "a-2"]),
        ("zone=x !drained", ["a-1"]),
        ("pool=b", ["b-1"]),
        ("nothing", []),
        ("!", ["a-1", "a-2", "b-1"]),
    ],
)
def test_a_filter_fits_words_labels_and_their_opposite(words: str, keys: list[str]) -> None:
    assert [line.key for line in fleet_lines(nodes_of_two_pools(), NOW, words=words)] == keys


def test_a_latency_stands_beside_its_past_and_is_told_when_it_is_much_worse() -> None:
    assert beside_past(None, None).text == "-"
    assert beside_past(0.2, None).text == "200ms/-"
    assert beside_past(0.2, 0.19).tone is Tone.PLAIN
    assert beside_past(0.4, 0.2) == Cell("400ms/200ms", Tone.WARN, right=True)


def test_a_sparkline_leaves_a_gap_where_nothing_was_known() -> None:
    assert sparkline((1.0, None, 3.0), 4) == " ▁ █"
    assert sparkline((2.0, 2.0), 2) == "▁▁"
    assert sparkline((None,), 3) == ""


def texts(snapshot: Snapshot) -> str:
    sections = now_sections(snapshot, NOW)
    rows = [row for section in sections for row in (*section.rows, section.notes, (section.heading,))]
    return "\n".join(" ".join(cell.text for cell in row) for row in rows)


def test_now_tells_how_long_the_level_still_gives_and_that_nobody_has_it() -> None:
    late = make_incident(id="inc-2", sev="SEV-1", due_at=NOW - 60)
    in_time = make_incident(sev="SEV-2", due_at=NOW + 600)
    told = texts(Snapshot(status=make_status(), incidents=(late, in_time), known_at=NOW))
    assert "SEV-1 over by 60s" in told
    assert "SEV-2 10m left" in told
    assert "nobody has it" in told


def test_now_tells_the_cause_of_the_incident_that_was_read_in_full() -> None:
    one, other = make_incident(), make_incident(id="inc-2", diagnosis=None)
    section = now_sections(Snapshot(status=make_status(), incidents=(one, other), focus=one, known_at=NOW), NOW)[0]

    assert [row[3].text.endswith(" (slow_node, confirmed)") for row in section.rows] == [True, False]


def test_now_tells_under_the_gravest_incident_what_users_felt() -> None:
    one = make_incident(impact="3 of 812 requests lost, p99 TTFT up to 7.2 s")
    section = now_sections(Snapshot(status=make_status(), incidents=(one,), focus=one, known_at=NOW), NOW)[0]

    assert section.rows[1][3] == Cell("impact: 3 of 812 requests lost, p99 TTFT up to 7.2 s", Tone.WARN)


def test_an_incident_begins_with_what_users_felt() -> None:
    view = incident_view(make_incident(impact="3 of 812 requests lost", no_remedy="no tenants file"), NOW)

    assert [row[0].text for row in view.head.rows[:3]] == ["impact", "by hand", "▲ open"]


def test_an_incident_tells_what_explains_it_where_it_widened_and_whose_host_often_fails() -> None:
    wide = {"part_of": "inc-9", "widened_at": NOW - 5, "widened_why": "node-3 too", "offence": "h7 fails 4×"}
    told = {row[0].text: row[1].text for row in incident_view(make_incident(**wide), NOW).head.rows}

    assert told["where"] == "node node-2  pool default, wider since 22:13:15: node-3 too"
    assert told["part of"] == "inc-9, which explains it"
    assert told["often"] == "h7 fails 4×"


def test_questions_that_brought_nothing_are_counted_by_why_and_not_listed() -> None:
    found = make_incident().diagnosis
    assert found is not None
    silent = found.evidence[1]
    found.evidence += [silent.model_copy(update={"question": f"q{at}"}) for at in range(20)]
    section = incident_view(make_incident().model_copy(update={"diagnosis": found}), NOW).diagnosis

    assert len(section.rows) == 2
    assert section.notes[0].text == "Not known: 21 questions: no series has data"


def test_what_alerts_said_has_its_time_as_its_numbers_are_of_then() -> None:
    title = "default: 178 requests wait, and most nodes are full"
    labels = {"pool": "default"}
    said = [(title, NOW - 40), ("node-3: 501 requests wait", NOW - 20), ("default: clients hang up", NOW - 10)]
    alerts = [
        Alert(fingerprint=text, name="A", severity="page", state="firing", labels=labels, summary=text, fired_at=at)
        for text, at in said
    ]
    rows = incident_view(make_incident(title=title, alerts=alerts), NOW).head.rows
    told = [row[1].text for row in rows if row[0].text == "says"]
    assert told == [f"{clock_time(at)} {text}" for text, at in said]
    calm = make_incident(title="default: clients hang up", alerts=alerts[2:])
    assert "says" not in [row[0].text for row in incident_view(calm, NOW).head.rows], "the headline says it"


def test_the_headline_is_said_once_and_what_a_sign_beside_a_question_means_is_told() -> None:
    incident = make_incident()
    assert incident.diagnosis is not None
    incident.alerts[0] = incident.alerts[0].model_copy(update={"summary": incident.title})
    incident.diagnosis.evidence[2] = incident.diagnosis.evidence[2].model_copy(update={"speaks": "for"})
    view = incident_view(incident, NOW)

    assert "says" not in {row[0].text for row in view.head.rows}
    assert view.diagnosis.notes[0].text == "+ speaks for this cause, - against it"
    assert view.diagnosis.rows[0][1].text == "+ Are its steps slower than those of its peers?", (
        "before what says nothing"
    )


def test_a_verdict_that_was_replaced_is_told_with_when_and_why() -> None:
    was = {"cause": "overload", "confidence": "likely"}
    event = {"seq": 4, "at": NOW - 20, "kind": "diagnosis.replaced", "text": "", "data": {"was": was, "why": "GPU"}}
    notes = [note.text for note in incident_view(make_incident(timeline=[event]), NOW).diagnosis.notes]

    assert notes[-1] == "Said until 22:13:00: overload (likely): GPU"


def test_nodes_are_grouped_by_revision_and_tell_their_seats_where_the_engine_does() -> None:
    nodes = (
        make_node("node-1", seats=Signal(value=16, age_s=1.0)),
        make_node("node-2", revision="r42"),
    )
    lines = fleet_lines(Snapshot(nodes=nodes, known_at=NOW), NOW, group="revision")
    assert [line.heading[0].text for line in lines if line.heading] == ["revision r41", "revision r42"]
    seats = next(column for column in FLEET_COLUMNS if column.title == "seats")
    assert [seats.write(line.row).text.strip() for line in lines if line.row is not None] == ["16", "-"]
    told = [section_text(one) for one in node_sections("node-1", nodes[0], Snapshot(node=nodes[0], known_at=NOW), NOW)]
    assert "7 of 16" in "".join(told)


def test_a_pool_tells_what_is_done_with_its_size_before_its_numbers() -> None:
    pool = Pool(name="default", wanted=3, state=PoolState.BACKING_OFF, reason="a start failed")
    tails = {"default": Tail(0.8, 0.3, 0.021, 0.02)}
    snapshot = Snapshot(nodes=(make_node("node-1"),), pools=(pool,), pool_tails=tails, known_at=NOW)
    heading = next(line.heading for line in fleet_lines(snapshot, NOW, group="pool") if line.heading)
    words = [cell.text for cell in heading]
    assert words[2] == "wanted 3: a start failed"
    assert words[-3:] == ["1h ago 300ms", "ITL p95 21ms", "1h ago 20ms"]


def test_the_pools_of_now_fit_eighty_columns() -> None:
    load = GroupLoad(ttft_p95_s=GroupSignal(value=12.2, known=1, of=1), tokens_per_s=GroupSignal(value=21_824))
    pool = Pool(name="default", wanted=64, ready=64, load=load, reason="as wanted")
    tails = {"default": Tail(12.2, 0.3, 0.533, 0.024)}
    snapshot = Snapshot(status=make_status(), pools=(pool,), pool_tails=tails, known_at=NOW)
    rows = next(one for one in now_sections(snapshot, NOW) if one.heading.text.startswith("Pools")).rows

    assert [cell.text for cell in rows[1][-3:]] == ["12s/300ms", "533ms/24ms", "converged"]
    widths = [max(len(row[at].text) for row in rows) for at in range(len(rows[0]))]
    assert sum(widths) + 2 * len(widths) <= 80


def test_a_dry_run_is_nothing_that_automation_does() -> None:
    run = make_run(status=RunStatus.RUNNING, dry_run=True)
    told = texts(Snapshot(status=make_status(), runs=(run,), known_at=NOW))
    assert "nothing is under way, nothing waits" in told


def test_a_run_that_was_approved_waits_for_nobody_whichever_list_was_read_later() -> None:
    """ "waits for you" stood there for half a minute after the approval: of a list of runs that was read before it."""
    waits = make_run(status=RunStatus.PROPOSED, updated_at=NOW - 60)
    acts = waits.model_copy(update={"status": RunStatus.RUNNING, "updated_at": NOW - 5})
    for in_incident, in_list in ((acts, waits), (waits, acts)):
        incident = make_incident(runs=[in_incident])
        told = texts(Snapshot(status=make_status(), incidents=(incident,), runs=(in_list,), known_at=NOW))
        assert "waits for you" not in told


def test_rules_that_cannot_be_judged_are_told_where_nothing_fires() -> None:
    alert = make_incident().alerts[0].model_copy(update={"state": AlertState.UNKNOWN})
    told = texts(Snapshot(status=make_status(), alerts=(alert,), known_at=NOW))
    assert "Nothing hurts" in told
    assert "1 rule can't be judged" in told


def test_while_the_controller_is_away_now_says_that_nobody_judges_and_of_when_the_rest_is() -> None:
    there = Snapshot(status=make_status(), known_at=NOW)
    away = replace(there, cut_off_since=NOW + 2)

    assert "Not known" not in texts(there)
    told = texts(away)
    assert "Not known: the controller does not answer" in told
    assert f"as it was at {clock_time(NOW)}" in told
    assert "Nothing hurts" not in told
    assert "Nothing hurt: no incident was open, no alert fired." in told
    assert no_incident_words(there) == "No incidents. All quiet."
    assert no_incident_words(away).startswith("Not known: the controller does not answer."), "nobody looks"


def test_a_node_that_does_not_answer_is_told_before_its_alert_fires() -> None:
    silent = make_node("node-2", phase=NodePhase.UNREACHABLE, reason="no whole answer within 2 s", since=NOW - 40)
    gone = tuple(make_node(f"old-{i}", phase=NodePhase.NOT_READY) for i in range(4))

    told = texts(Snapshot(status=make_status(), nodes=(make_node("node-1"), silent), known_at=NOW))
    many = texts(Snapshot(status=make_status(), nodes=(silent, *gone), known_at=NOW))

    assert "Nothing hurts" in told
    assert "node-2 is unreachable for 40s: no whole answer within 2 s (g f)" in told
    assert "node-1 is" not in told
    assert "and 2 nodes more (g f)" in many


def test_a_dry_run_of_a_page_says_so_first_and_shows_no_step_as_done() -> None:
    step = {"index": 0, "phase": "do", "title": "", "command": "drain node-2", "status": "done", "started_at": NOW - 5}
    section = run_section(make_run(status=RunStatus.SUCCEEDED, dry_run=True, steps=[step]), NOW)
    assert section.heading == Cell("DRY RUN, nothing was done: Replace a node, succeeded", Tone.DIM)
    assert section.rows[0][0].text == "·"


def test_a_step_that_runs_tells_for_how_long() -> None:
    step = {
        "index": 0,
        "phase": "do",
        "title": "",
        "command": "drain node-2",
        "status": "running",
        "started_at": NOW - 5,
    }
    section = run_section(make_run(status=RunStatus.RUNNING, steps=[step]), NOW)
    assert [cell.text for cell in section.rows[0]] == ["▶", "1", "5.0s", "drain node-2"]


def test_keys_that_a_viewer_has_not_are_not_told() -> None:
    view = incident_view(make_incident(), NOW, may_handle=False, may_decide=False)

    told = [row[1].text for row in (*view.head.rows, *(view.ask.rows if view.ask is not None else ()))]

    assert "nobody" in told
    assert "none: another person answers" in told
    assert not any("a approve" in text or "T takes it" in text for text in told)


def test_a_part_of_the_evidence_that_is_not_known_says_why_beside_its_question() -> None:
    found = make_incident().diagnosis
    assert found is not None
    found.evidence[0] = found.evidence[0].model_copy(update={"answer": "unknown", "why_unknown": "no requests"})
    view = incident_view(make_incident().model_copy(update={"diagnosis": found}), NOW)

    row = view.diagnosis.rows[0]

    assert row[1].text.endswith(" Not known: no requests")
    assert [cell.text for cell in row[2:]] == ["", "", ""]


def test_a_step_tells_its_summary_once_and_not_what_its_command_says() -> None:
    done = {"index": 0, "phase": "do", "title": "", "command": "drain n", "status": "done"}
    drained = StepRecord.model_validate(done | {"receipt": {"node": "n", "moved": 3, "summary": "moved 3, lost 0"}})
    started = StepRecord.model_validate(done | {"receipt": {"node": "n", "url": "http://n", "ready_after_s": 2.3}})
    ahead = StepRecord.model_validate(
        done | {"status": "pending", "receipt": {"predicted": "drains n", "guard": "yes: 3 serve"}}
    )

    assert receipt_text(drained) == "  → moved 3, lost 0"
    assert receipt_text(started) == "  → ready_after_s 2.3"
    assert receipt_text(ahead) == "  → drains n; guard: yes: 3 serve"


def test_a_target_that_the_title_names_is_not_told_twice() -> None:
    run = make_run(title="Replace node-2 with node-2b", targets=["node-2", "node-2b", "pool/chat"])
    text = now_sections(Snapshot(status=make_status(), runs=(run,), known_at=NOW), NOW)[2].rows[0][3].text

    assert text == "Replace node-2 with node-2b pool/chat"


def test_the_limit_of_a_rule_stands_on_one_line_with_its_value_first() -> None:
    part = AlertPart(expression="a", comparison=">", limit="2.5\n*\n  b", value=0.3, limit_value=0.06)
    lines = list(explanation_lines(AlertExplanation(name="x", expression="", parts=[part])))

    assert lines[1].text.split() == ["0.3", ">", "0.06", "=", "2.5", "*", "b", "a"]


def kv_rows(kv: KvBlocks) -> str:
    node = make_node("node-1")
    snapshot = Snapshot(node=node, kv=kv, known_at=NOW)
    return "\n".join(section_text(section) for section in node_sections("node-1", node, snapshot, NOW))


def test_the_kv_cache_is_drawn_to_scale_and_nothing_that_is_there_is_left_out() -> None:
    text = kv_rows(
        KvBlocks(block_size=16, num_blocks=1000, num_held=500, num_shared=1, num_kept=240, num_kept_reused=40)
    )
    drawn = "".join(re.findall(r"^[█▓▒░·]{2,}$", text, re.MULTILINE))
    assert len(drawn) == KV_LINE * KV_LINES
    assert drawn == "".join(sorted(drawn, key="█▓▒░·".index)), "the first to go stand last"
    assert (drawn.count("█"), drawn.count("▒")) == (1, 4)
    assert "1,000 blocks of 16 tokens" in text
    assert "499  50%  held by one" in text
    assert "260  26%  blank" in text


def test_a_kv_cache_that_nobody_can_tell_of_says_why_and_draws_nothing() -> None:
    text = kv_rows(KvBlocks(unknown="node-1 runs vllm: it can't be asked this"))
    assert "not known: node-1 runs vllm" in text
    assert "blank" not in text
