"""The reader keeps the last good answer, and says since when there is no newer one."""

from __future__ import annotations

import pytest

from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.tui.snapshot import SnapshotReader
from fleetctl.wire import IncidentStatus, NodePhase, RunbookInfo
from tests.fixtures.cockpit import NOW, FakeController, make_incident, make_node, make_run, make_status

pytestmark = pytest.mark.anyio


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


async def test_reads_everything_in_one_turn_and_the_gravest_incident_in_full() -> None:
    controller = FakeController()
    over = make_incident(id="inc-9", status=IncidentStatus.RESOLVED, opened_at=NOW - 1)
    controller.incidents_now.insert(0, over)

    snapshot = await SnapshotReader(controller, Clock()).read(None)

    assert [incident.id for incident in snapshot.incidents] == ["inc-1", "inc-9"]
    assert snapshot.focus is not None
    assert snapshot.focus.diagnosis is not None
    assert snapshot.page is not None
    assert (snapshot.page.name, snapshot.known_at, snapshot.cut_off_since) == ("replace-node", NOW, None)


async def test_keeps_the_last_good_answer_while_cut_off() -> None:
    controller, clock = FakeController(), Clock()
    reader = SnapshotReader(controller, clock)
    good = await reader.read(None)

    controller.away = UnreachableError("connection refused")
    clock.now = NOW + 5
    first = await reader.read(None)
    clock.now = NOW + 9
    second = await reader.read(None)

    assert second.nodes == good.nodes
    assert (first.cut_off_since, second.cut_off_since) == (NOW + 5, NOW + 5)
    assert (second.known_at, second.error) == (NOW, "connection refused")
    assert second.age_s(clock.now) == 9.0

    controller.away = None
    again = await reader.read(None)
    assert (again.cut_off_since, again.error, again.known_at) == (None, "", NOW + 9)


async def test_a_refused_token_counts_as_cut_off_too() -> None:
    controller = FakeController()
    controller.away = FleetctlError("the controller refused the token")

    snapshot = await SnapshotReader(controller, Clock()).read(None)

    assert (snapshot.known_at, snapshot.cut_off_since) == (None, NOW)


async def test_reads_a_page_once_until_the_controller_restarts() -> None:
    controller = FakeController()
    reader = SnapshotReader(controller, Clock())
    for _ in range(3):
        await reader.read("inc-1")
    assert controller.asked.count("runbook replace-node") == 1

    controller.status_now = make_status(started_at=NOW)
    await reader.read("inc-1")
    assert controller.asked.count("runbook replace-node") == 2


async def test_a_run_without_a_page_is_no_failure() -> None:
    class Pageless(FakeController):
        async def runbook(self, name: str) -> RunbookInfo:
            raise BadInputError(f"no runbook {name}")

    controller = Pageless()
    controller.incidents_now = [make_incident(runs=[make_run(runbook="drain")])]

    snapshot = await SnapshotReader(controller, Clock()).read(None)

    assert (snapshot.page, snapshot.cut_off_since) == (None, None)


async def test_stopped_nodes_come_last() -> None:
    controller = FakeController()
    names = ("node-1", "node-2", "node-3")
    phases = (NodePhase.STOPPED, NodePhase.READY, NodePhase.UNREACHABLE)
    controller.nodes_now = [make_node(name, phase=phase) for name, phase in zip(names, phases, strict=True)]
    snapshot = await SnapshotReader(controller, Clock()).read(None)
    assert [node.name for node in snapshot.nodes] == ["node-2", "node-3", "node-1"]
