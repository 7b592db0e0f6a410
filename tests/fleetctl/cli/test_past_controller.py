"""A recording in the cockpit: each moment as it stood, nothing of later, and nothing that was not recorded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from diagnostics.blackbox import BlackBox, RecordedSeries, write
from diagnostics.record import EventRecord, Impact
from fleetctl.cli.past_controller import PastController
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.tui.app import Cockpit
from fleetctl.tui.slider import TimeSlider
from fleetctl.wire.alert import AlertState
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import NodePhase
from fleetctl.wire.run import RunStatus
from tests.fixtures.cockpit_screen import screen, wait_for_text
from tests.fixtures.incident import OPENED, make_record

pytestmark = pytest.mark.anyio


def phase(node: str, name: str, begin: int, end: int) -> RecordedSeries:
    labels = {"__name__": "fleet_node_phase", "node": node, "pool": "chat", "model": "tiny", "phase": name}
    return RecordedSeries(labels, tuple((OPENED + at, 1.0) for at in range(begin, end, 5)))


def recording(tmp_path: Path) -> Path:
    """Ten minutes around the incident: node-2 is slow from its onset on, and stopped in the end."""
    running = {"__name__": "llm:running", "node": "node-2", "pool": "chat"}
    series = (
        phase("node-1", "ready", -600, 100),
        phase("node-2", "ready", -600, 60),
        phase("node-2", "stopped", 60, 100),
        RecordedSeries(running, tuple((OPENED + at, 3.0 if at < 0 else 9.0) for at in range(-600, 60, 5))),
    )
    record = make_record()
    path = tmp_path / "incident.blackbox.jsonl.gz"
    write(path, BlackBox(record, OPENED + 100, OPENED - 600, OPENED + 100, series, software="fleetctl 0.1"))
    return path


async def test_a_moment_before_the_incident_knows_nothing_of_it(tmp_path: Path) -> None:
    past = PastController(recording(tmp_path), lambda: OPENED - 60)

    assert await past.incidents() == []
    assert await past.alerts() == []
    assert await past.runs() == []
    assert [(node.name, node.phase, node.running.value) for node in await past.nodes()] == [
        ("node-1", NodePhase.READY, None),
        ("node-2", NodePhase.READY, 3.0),
    ]
    assert all(entry.at <= OPENED - 60 for entry in await past.newest_events())
    with pytest.raises(BadInputError):
        await past.incident("inc-20231114-221320-ab12")


async def test_a_moment_within_it_shows_what_stood_then_and_the_end_what_became_of_it(tmp_path: Path) -> None:
    now = [OPENED + 2.0]
    past = PastController(recording(tmp_path), lambda: now[0])

    (one,) = await past.incidents()
    assert (one.status, one.resolved_at) == (IncidentStatus.OPEN, None)
    assert [alert.state for alert in await past.alerts()] == [AlertState.FIRING]
    assert (await past.incident(one.id)).diagnosis is not None
    status = await past.status()
    assert (status.nodes_ready, status.firing, status.open_incidents) == (2, 1, 1)

    now[0] = OPENED + 95
    (one,) = await past.incidents()
    assert one.status is IncidentStatus.RESOLVED
    assert {run.status for run in one.runs} == {RunStatus.SUCCEEDED}
    assert (await past.status()).open_incidents == 0


async def test_a_verdict_is_the_one_that_stood_then_and_not_the_last(tmp_path: Path) -> None:
    record = make_record()
    verdicts = (("diagnosis.named", 1.0, "overload", "likely"), ("diagnosis.replaced", 20.0, "slow_node", "confirmed"))
    told = [
        EventRecord(
            seq=900 + number,
            at=OPENED + at,
            kind=kind,
            text="",
            data={"cause": cause, "confidence": confidence, "tree": "latency", "title": cause, "evidence": []},
        )
        for number, (kind, at, cause, confidence) in enumerate(verdicts)
    ]
    record = record.model_copy(update={"timeline": [*record.timeline, *told]})
    path = tmp_path / "incident.blackbox.jsonl.gz"
    write(path, BlackBox(record, OPENED + 100, OPENED - 600, OPENED + 100, (), software="fleetctl 0.1"))
    now = [OPENED + 2.0]
    past = PastController(path, lambda: now[0])

    found = []
    for at in (2.0, 30.0):
        now[0] = OPENED + at
        diagnosis = (await past.incident(record.id)).diagnosis
        assert diagnosis is not None
        found.append((diagnosis.cause, diagnosis.confidence, diagnosis.at - OPENED))
    assert found == [("overload", "likely", 1.0), ("slow_node", "confirmed", 20.0)]


async def test_what_is_not_recorded_is_unknown_and_nothing_can_be_changed(tmp_path: Path) -> None:
    past = PastController(recording(tmp_path))

    assert "does not say" in (await past.node_requests("node-2")).unknown
    assert (await past.pools())[0].load.ttft_p95_s.value is None
    with pytest.raises(RefusedError):
        await past.act()
    with pytest.raises(BadInputError, match="missing"):
        PastController(tmp_path / "missing.gz")


def counter(name: str, values: list[tuple[int, float]], **labels: str) -> RecordedSeries:
    return RecordedSeries({"__name__": name, **labels}, tuple((OPENED + at, value) for at, value in values))


def felt(tmp_path: Path, *, watched: bool = True, impact: Impact | None = None) -> Path:
    """It began at -15 s. One request is lost 20 s after it opened and another after 60 s; the p99 rises meanwhile."""
    times = range(-60, 100, 5)
    series = (
        counter("gateway_requests_total", [(at, 200.0 + at) for at in times], outcome="finished", node="node-1"),
        counter(
            "gateway_requests_total", [(at, (at >= 20) + (at >= 60)) for at in times], outcome="failed", node="node-2"
        ),
        counter("llm:ttft_seconds:p99", [(at, 0.4 if at < 0 else 1.0 + max(0, at) / 100) for at in times], pool="chat"),
        counter("llm:objective_ttft_seconds", [(at, 0.5) for at in times], pool="chat"),
        *([counter("up", [(at, 1.0) for at in times], job="llm-gateway")] if watched else []),
    )
    path = tmp_path / "felt.blackbox.jsonl.gz"
    box = BlackBox(
        make_record(), OPENED + 100, OPENED - 60, OPENED + 100, series, software="fleetctl 0.1", impact=impact
    )
    write(path, box)
    return path


async def test_what_users_felt_is_told_as_of_the_moment_and_in_the_end_as_it_was_written_down(tmp_path: Path) -> None:
    now = [OPENED]
    final = Impact(requests=150, lost=2, p99_ttft_worst_s=1.9, objective_ttft_s=0.5)
    past = PastController(felt(tmp_path, impact=final), lambda: now[0])
    (listed,) = await past.incidents()
    told = []
    for at in (10, 30, 70, 95):
        now[0] = OPENED + at
        told.append((await past.incident(listed.id)).impact)
    assert listed.impact == ""
    assert [one.split(",")[0] for one in told] == [
        "0 of the fleet's 30 requests lost",
        "1 of the fleet's 51 requests lost",
        "2 of the fleet's 92 requests lost",
        "2 of 150 requests lost",
    ]
    assert "p99 TTFT up to 1.1 s, beyond the promised 500 ms" in told[0]
    assert "p99 TTFT up to 1.9 s, beyond the promised 500 ms" in told[3]


async def test_requests_that_nobody_recorded_are_not_known_to_be_lost_or_not(tmp_path: Path) -> None:
    past = PastController(felt(tmp_path, watched=False), lambda: OPENED + 30)
    told = (await past.incident(make_record().id)).impact
    assert told.startswith("requests lost: not known (the recording does not say), p99 TTFT up to 1.3 s")

    restarted = Impact(why_not_counted="the gateway was started anew meanwhile, and its counts went with it")
    past = PastController(felt(tmp_path, impact=restarted), lambda: OPENED + 30)
    assert "lost: not known (the gateway was started anew" in (await past.incident(make_record().id)).impact


async def test_the_screens_of_a_recording_show_what_users_felt_by_then(tmp_path: Path) -> None:
    past = PastController(felt(tmp_path))
    slider = TimeSlider(past.since, past.until, past.name, time.monotonic, at=OPENED + 30)
    past.now = slider.now
    app = Cockpit(lambda: past, poll_every_s=0.2, slider=slider)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for_text(_typed(pilot), "1 of the fleet's 51 requests lost")
        await pilot.press("g", "i")
        await wait_for_text(_typed(pilot), "impact", "1 of the fleet's 51 requests lost")
        await pilot.press(
            "full_stop", "full_stop", "full_stop", "full_stop", "full_stop", "full_stop", "full_stop", "full_stop"
        )
        await wait_for_text(_typed(pilot), "2 of the fleet's 92 requests lost")


async def test_keys_move_through_the_recording_in_the_cockpits_own_screens(tmp_path: Path) -> None:
    past = PastController(recording(tmp_path))
    slider = TimeSlider(past.since, past.until, past.name, time.monotonic, at=OPENED - 60)
    past.now = slider.now
    app = Cockpit(lambda: past, poll_every_s=0.2, slider=slider)
    async with app.run_test(size=(120, 40)) as pilot:
        await wait_for_text(_typed(pilot), "REPLAY", "22:12:20", "Nothing hurts", "read-only (viewer)")
        await pilot.press("greater_than_sign", "full_stop")
        await wait_for_text(_typed(pilot), "22:13:25", "node-2 is slower than its peers")
        assert "Approve" not in screen(app)
        await pilot.press("less_than_sign")
        await wait_for_text(_typed(pilot), "Nothing hurts")


def _typed(pilot: Any) -> Pilot[None]:
    return pilot  # type: ignore[no-any-return]
