"""What is old goes; nothing that belongs to an open incident or to a run that has not ended."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from diagnostics.incident import FiredAlert, Incident, IncidentStatus, open_incident
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.incidents.incident_files import IncidentFiles
from fleetctl.controller.incidents.incident_store import get_incident, list_incidents, save_incident, set_imported
from fleetctl.controller.tables import events
from fleetctl.providers.process import ProcessTable
from runbooks.journal import Journal
from runbooks.run import RunStatus
from tests.fixtures.controller import NoProvider, make_config
from tests.fixtures.driven import DrivenClock
from tests.fixtures.runbooks import make_run

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
KEEP_MB = 10


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    config = make_config(tmp_path, nodes=0, keep_for_s=30 * DAY_S, keep_mb=KEEP_MB, max_mb=1)
    async with open_controller(config, NoProvider(), DrivenClock()) as opened:
        yield opened


async def add_incident(controller: Controller, days_ago: float, *, is_open: bool = False, size: int = 100) -> Incident:
    """An incident with its files and one event, as old as that."""
    at = controller.clock.now() - days_ago * DAY_S
    alert = FiredAlert(f"a-{days_ago}", "LLMNodeDown", "page", "firing", {"node": "node-1"})
    incident = open_incident(alert, at)
    if not is_open:
        incident = replace(incident, status=IncidentStatus.RESOLVED, resolved_at=at + 60)
    files = IncidentFiles.of(controller.config.settings.incidents_dir, incident.id)
    files.postmortem.parent.mkdir(parents=True)
    for path, length in ((files.postmortem, 10), (files.blackbox, size)):
        path.write_bytes(bytes(length))
        os.utime(path, (at, at))
    paths = (str(files.postmortem), str(files.blackbox))
    await controller.database.write(lambda c: save_incident(c, incident, paths))
    await controller.timeline.append("incident.opened", incident.title, incident_id=incident.id)
    return incident


def files_of(controller: Controller, incident: Incident) -> set[str]:
    folder = controller.config.settings.incidents_dir / incident.id
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


async def test_old_incident_goes_with_its_files_and_an_open_one_stays(controller: Controller) -> None:
    old = await add_incident(controller, 40)
    old_but_open = await add_incident(controller, 41, is_open=True)
    new = await add_incident(controller, 3)
    await controller.loops.run_turn("pruning")
    stored = [await controller.database.read(lambda c, i=i: get_incident(c, i.id)) for i in (old, old_but_open, new)]
    assert [one is not None for one in stored] == [False, True, True]
    assert [len(files_of(controller, one)) for one in (old, old_but_open, new)] == [0, 2, 2]


async def test_an_incident_from_a_file_is_kept_as_long_as_others_from_when_it_was_read(
    tmp_path: Path, any_database_url: str
) -> None:
    limits = {"keep_for_s": 30 * DAY_S, "database_url": any_database_url}
    async with open_controller(make_config(tmp_path, nodes=0, **limits), NoProvider(), DrivenClock()) as controller:
        incidents = [await add_incident(controller, days_ago) for days_ago in (400, 401)]
        now = controller.clock.now()
        for incident, read_days_ago in zip(incidents, (29, 31), strict=True):
            imported = {"software": "x", "at": now - read_days_ago * DAY_S, "runs": [], "timeline": []}
            await controller.database.write(lambda c, i=incident, told=imported: set_imported(c, i.id, told))
        await controller.loops.run_turn("pruning")
        stored = [await controller.database.read(lambda c, i=i: get_incident(c, i.id)) for i in incidents]
        assert [one is not None for one in stored] == [True, False]


async def test_what_is_too_much_goes_the_oldest_first_and_incidents_are_exported_with_their_timeline(
    tmp_path: Path, any_database_url: str
) -> None:
    bounds = {"max_incidents": 10, "max_events": 1000, "max_runs": 100, "database_url": any_database_url}
    async with open_controller(make_config(tmp_path, nodes=0, **bounds), NoProvider(), DrivenClock()) as controller:
        added = [await add_incident(controller, days_ago) for days_ago in range(15, 0, -1)]
        now = controller.clock.now()
        await controller.database.call(lambda: fill_runs(controller.journal, 130, now))
        rows = [{"at": now, "kind": "x.y", "text": str(number), "data": {}} for number in range(3000)]
        await controller.database.write(lambda c: c.execute(sa.insert(events), rows))
        await controller.loops.run_turn("pruning")
        kept = await controller.database.read(lambda c: {one.incident.id for one in list_incidents(c)})
        assert kept == {incident.id for incident in added[5:]}
        texts = [path.read_text() for path in controller.config.settings.exported_dir.iterdir()]
        gone = {row["id"]: row for row in map(json.loads, "".join(texts).splitlines())}
        assert gone.keys() == {incident.id for incident in added[:5]}
        assert [entry["kind"] for entry in gone[added[0].id]["timeline"]] == ["incident.opened"]
        counts = await controller.database.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(events)))
        assert counts.scalar_one() <= 1000
        left = await controller.database.call(controller.journal.list)
        assert [run.updated_at - now for run in left] == list(range(129, 29, -1)), "dry runs are among them"


def fill_runs(journal: Journal, count: int, now: float) -> None:
    for number in range(count):
        run = make_run(RunStatus.SUCCEEDED, f"node-{number}", dry_run=True)
        journal.create(replace(run, created_at=now + number, updated_at=now + number))


async def test_oldest_black_boxes_go_when_there_are_too_many_bytes(controller: Controller) -> None:
    older = await add_incident(controller, 3, size=KEEP_MB << 20)
    newer = await add_incident(controller, 2, size=KEEP_MB << 19)
    await controller.loops.run_turn("pruning")
    assert files_of(controller, older) == {"postmortem.md"}
    assert len(files_of(controller, newer)) == 2
    stored = await controller.database.read(lambda c: get_incident(c, older.id))
    assert stored is not None
    assert (stored.blackbox, stored.postmortem is None) == (None, False)


async def test_old_events_go_but_for_those_of_open_incidents(controller: Controller) -> None:
    open_one = await add_incident(controller, 1, is_open=True)
    await controller.timeline.append("node.ready", "node-1: ready", node="node-1")
    controller.clock.move(31 * DAY_S)  # type: ignore[attr-defined]  # a DrivenClock
    await controller.timeline.append("node.ready", "node-2: ready", node="node-2")
    await controller.loops.run_turn("pruning")
    left = [(entry.kind, entry.incident_id) for entry in await controller.timeline.read()]
    assert left == [("incident.opened", open_one.id), ("node.ready", None)]


async def test_log_that_has_grown_too_long_is_begun_anew(controller: Controller) -> None:
    folder = controller.config.settings.run_dir / "node-1"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    with (folder / "log").open("ab") as log:  # as a process has it
        log.write(b"old line\n" * 300_000)
        log.flush()
        await controller.loops.run_turn("pruning")
        log.write(b"new line\n")
    assert ProcessTable(folder.parent).log_tail("node-1") == ["new line"]
    assert (folder / "log.1").stat().st_size == 1 << 20
    assert (folder / "log.1").stat().st_mode & 0o777 == 0o600
