"""An incident's file leaves one controller and is read by another: a record, complete, that nothing acts on."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics import blackbox
from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import FiredAlert, Incident, open_incident, resolve
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.incidents.incident_store import StoredIncident, get_incident, list_recent
from fleetctl.controller.incidents.pruning import surplus_incidents
from fleetctl.controller.incidents.views import imported_view
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.wire.incident import IncidentNote, VerdictRequest
from tests.fixtures.controller import make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(state_dir: Path, clock: DrivenClock | None = None) -> AsyncIterator[Controller]:
    config = make_config(state_dir, nodes=0, start_nodes=False)
    try:
        async with open_controller(config, make_provider(state_dir), clock or DrivenClock()) as controller:
            yield controller
    finally:
        stop_all(state_dir)


async def slow_node(controller: Controller) -> Incident:
    """An open incident of node-2, with series of it and its peer, and something that happened before it."""
    clock = controller.clock
    assert isinstance(clock, DrivenClock)
    await controller.timeline.append("node.started", "node-2 started again", node="node-2")
    await controller.timeline.append("node.started", "node-9 started", node="node-9")
    for at in range(120):
        for node, slow in (("node-1", 0.2), ("node-2", 2.0 if at > 60 else 0.2)):
            labels = {"__name__": "llm:ttft_seconds:p99", "node": node, "pool": "chat"}
            controller.store.append(labels, clock.now() + at, slow)
    clock.move(120)
    labels = {"alertname": "LLMNodeSlow", "node": "node-2", "pool": "chat", "severity": "page"}
    alert = FiredAlert("f1", "LLMNodeSlow", "page", "firing", labels, active_at=clock.now() - 50, fired_at=clock.now())
    verdict = Diagnosis("latency", "overload", "too much work", "confirmed", at=clock.now())
    incident = replace(open_incident(alert, clock.now()), diagnosis=verdict)
    await controller.book.store_incident(incident)
    await controller.timeline.append("incident.opened", incident.title, incident_id=incident.id)
    return incident


async def exported(controller: Controller, incident: Incident, path: Path) -> Path:
    await controller.reports.export(StoredIncident(incident), path)
    return path


async def test_an_incident_goes_from_one_fleet_to_another_as_a_record_that_nothing_acts_on(tmp_path: Path) -> None:
    async with opened(tmp_path / "a") as first:
        incident = await slow_node(first)
        await first.handling.correct_verdict(incident.id, VerdictRequest(cause="slow_node", comment="its fan"), "ann")
        current = first.book.get(incident.id)
        assert current is not None
        file = await exported(first, current, tmp_path / "x.gz")
    box = blackbox.read(file)
    assert {one.labels["node"] for one in box.series} == {"node-1", "node-2"}
    around = [event.text for event in box.incident.around]
    assert around == ["controller started, epoch 1", "node-2 started again"]
    assert box.impact is not None
    async with opened(tmp_path / "b") as second:
        stored = await second.imports.take(file, "bob")
        assert second.book.open_incidents() == []
        assert second.book.get(incident.id) is None
        recent = await second.database.read(lambda c: list_recent(c, 0.0))
        assert recent == []
        taken_at = second.clock.now()
        assert await second.database.read(lambda c: surplus_incidents(c, taken_at - 60, 1, 10)) == []
        long_ago = await second.database.read(lambda c: surplus_incidents(c, taken_at + 60, 1, 10))
        assert [row["id"] for row in long_ago] == [incident.id]
        told = await second.timeline.read_all(incident.id)
        view = imported_view(stored, told)
        assert [entry.kind for entry in view.timeline] == [
            "incident.opened",
            "diagnosis.corrected",
            "incident.imported",
        ]
        assert view.imported_from.startswith("fleetctl")
        assert view.handling.correction is not None
        again = await second.database.read(lambda c: get_incident(c, incident.id))
        assert again is not None
        assert again.imported == stored.imported
        page = (await second.reports.report_of(again)).page("html")
        assert 'class="own"' in page
        assert "the verdict had been overload" in page
        with pytest.raises(RefusedError, match="imported already"):
            await second.imports.take(file, "bob")
        await second.handling.comment(incident.id, IncidentNote(comment="seen here too"), "bob")
        assert "seen here too" in (await second.reports.report_of(again)).page("md")


async def test_what_people_say_after_the_end_is_in_the_page_and_in_the_file(tmp_path: Path) -> None:
    async with opened(tmp_path) as controller:
        incident = resolve(await slow_node(controller), controller.clock.now())
        report = await controller.reports.report_now(incident, controller.clock.now())
        files = controller.reports.files_of(incident.id)
        await controller.reports.write_files(incident, report, files.blackbox)
        await controller.book.store_incident(incident)
        changed = await controller.handling.correct_verdict(incident.id, VerdictRequest(cause="slow_node"), "ann")
        stored = StoredIncident(changed, None, str(files.blackbox))
        page = (await controller.reports.report_of(stored)).page("md")
        assert r"Cause: **slow_node** (likely)" in page
        await controller.reports.export(stored, tmp_path / "x.gz")
    box = blackbox.read(tmp_path / "x.gz")
    assert box.incident.handling.correction is not None
    assert box.incident.handling.correction.cause == "slow_node"
    assert box.series


async def test_its_own_incident_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as controller:
        incident = await slow_node(controller)
        file = await exported(controller, incident, tmp_path / "x.gz")
        with pytest.raises(RefusedError, match="one of this fleet"):
            await controller.imports.take(file, "bob")
        file.write_bytes(b"not gzip")
        with pytest.raises(BadInputError, match="the file: "):
            await controller.imports.take(file, "bob")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "../../etc/passwd"}, "no id of an incident"),
        ({"id": "a/b"}, "no id of an incident"),
        ({"opened_at": 1e300}, "is no time"),
        ({"opened_at": -5}, "is no time"),
        ({"alerts": "x"}, "the file"),
    ],
)
async def test_a_hostile_file_stores_nothing(tmp_path: Path, change: dict[str, object], words: str) -> None:
    async with opened(tmp_path / "a") as controller:
        file = await exported(controller, await slow_node(controller), tmp_path / "x.gz")
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    lines[1] |= change
    if "alerts" in change:
        lines[2] |= {"labels": {"node": {"deep": 1}}}
    packed = gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode())
    await asyncio.to_thread(file.write_bytes, packed)
    async with opened(tmp_path / "b") as controller:
        with pytest.raises(BadInputError, match=words):
            await controller.imports.take(file, "bob")
        assert await controller.database.read(lambda c: list_recent(c, 0.0)) == []
        assert not (tmp_path / "b" / "incidents").exists()
