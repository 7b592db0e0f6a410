"""The reader keeps the last good answer, and says since when there is no newer one."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.told_node import KnownNodes
from fleetctl.tui.reader import OF_NODES, SnapshotReader
from fleetctl.tui.snapshot import Part, Wanted
from fleetctl.wire.incident import IncidentStatus
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.run import Run, RunStatus
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.tenant import TenantUse
from tests.fixtures.cockpit import NOW, FakeController, make_event, make_incident, make_node, make_run, make_status

pytestmark = pytest.mark.anyio


ALL = Wanted(frozenset({Part.NODES, Part.POOLS, Part.ALERTS}))


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


async def test_reads_everything_in_one_turn_and_the_gravest_incident_in_full() -> None:
    controller = FakeController()
    over = make_incident(id="inc-9", status=IncidentStatus.RESOLVED, opened_at=NOW - 1)
    controller.incidents_now.insert(0, over)

    snapshot = await SnapshotReader(controller, Clock()).read(ALL)

    assert [incident.id for incident in snapshot.incidents] == ["inc-1", "inc-9"]
    assert snapshot.focus is not None
    assert snapshot.focus.diagnosis is not None
    assert snapshot.page is not None
    assert (snapshot.page.name, snapshot.known_at, snapshot.cut_off_since) == ("replace-node", NOW, None)


async def test_the_gravest_is_looked_at_first_and_not_the_newest() -> None:
    """Fourteen minutes into a SEV-2 a ticket opened: "g i opens the gravest" led to the ticket."""
    controller = FakeController()
    ticket = make_incident(id="inc-2", sev="SEV-4", opened_at=NOW)
    part = make_incident(id="inc-3", sev="SEV-2", opened_at=NOW - 5, part_of="inc-1")
    page = make_incident(sev="SEV-2", opened_at=NOW - 840)
    over = make_incident(id="inc-9", sev="SEV-1", status=IncidentStatus.RESOLVED, opened_at=NOW - 1)
    controller.incidents_now = [ticket, over, part, page]

    snapshot = await SnapshotReader(controller, Clock()).read(ALL)

    assert [incident.id for incident in snapshot.incidents] == ["inc-1", "inc-3", "inc-2", "inc-9"]
    assert snapshot.focus is not None
    assert snapshot.focus.id == "inc-1"


async def test_keeps_the_last_good_answer_while_cut_off() -> None:
    controller, clock = FakeController(), Clock()
    reader = SnapshotReader(controller, clock)
    good = await reader.read(ALL)

    controller.away = UnreachableError("connection refused")
    clock.now = NOW + 5
    first = await reader.read(ALL)
    clock.now = NOW + 9
    second = await reader.read(ALL)

    assert second.nodes == good.nodes
    assert (first.cut_off_since, second.cut_off_since) == (NOW + 5, NOW + 5)
    assert (second.known_at, second.error) == (NOW, "connection refused")
    assert second.age_s(clock.now) == 9.0

    controller.away = None
    again = await reader.read(ALL)
    assert (again.cut_off_since, again.error, again.known_at) == (None, "", NOW + 9)


async def test_a_refused_token_counts_as_cut_off_too() -> None:
    controller = FakeController()
    controller.away = FleetctlError("the controller refused the token")

    snapshot = await SnapshotReader(controller, Clock()).read(ALL)

    assert (snapshot.known_at, snapshot.cut_off_since) == (None, NOW)


async def test_reads_a_page_once_until_the_controller_restarts() -> None:
    controller = FakeController()
    reader = SnapshotReader(controller, Clock())
    for _ in range(3):
        await reader.read(Wanted(incident="inc-1"))
    assert controller.asked.count("runbook replace-node") == 1

    controller.status_now = make_status(started_at=NOW)
    await reader.read(Wanted(incident="inc-1"))
    assert controller.asked.count("runbook replace-node") == 2


async def test_a_run_without_a_page_is_no_failure() -> None:
    class Pageless(FakeController):
        async def runbook(self, name: str) -> RunbookInfo:
            raise BadInputError(f"no runbook {name}")

    controller = Pageless()
    controller.incidents_now = [make_incident(runs=[make_run(runbook="drain")])]

    snapshot = await SnapshotReader(controller, Clock()).read(ALL)

    assert (snapshot.page, snapshot.cut_off_since) == (None, None)


async def test_stopped_nodes_come_last() -> None:
    controller = FakeController()
    names = ("node-1", "node-2", "node-3")
    phases = (NodePhase.STOPPED, NodePhase.READY, NodePhase.UNREACHABLE)
    controller.nodes_now = [make_node(name, phase=phase) for name, phase in zip(names, phases, strict=True)]
    snapshot = await SnapshotReader(controller, Clock()).read(ALL)
    assert [node.name for node in snapshot.nodes] == ["node-2", "node-3", "node-1"]


async def test_reads_only_what_the_screen_needs() -> None:
    controller = FakeController()
    reader = SnapshotReader(controller, Clock())
    await reader.read(Wanted(frozenset({Part.AUDIT})))
    controller.asked.clear()

    await reader.read(Wanted(frozenset({Part.AUDIT})))

    assert controller.asked == ["status"], "the audit is read every few turns, the rest is not on screen"


async def test_an_event_has_what_it_is_about_read_at_once() -> None:
    controller = FakeController()
    reader = SnapshotReader(controller, Clock())
    await reader.read(ALL)
    controller.asked.clear()
    await reader.read(ALL)
    assert "incidents" not in controller.asked

    reader.heard([make_event(1)])
    snapshot = await reader.read(ALL)
    assert "incidents" in controller.asked
    assert [event.seq for event in snapshot.events] == [1]

    controller.asked.clear()
    reader.heard([make_event(1)])
    await reader.read(ALL)
    assert "incidents" not in controller.asked, "it was heard of before"


async def test_what_is_heard_of_while_it_is_read_is_read_once_more() -> None:
    class Slow(FakeController):
        has_answered = False

        async def runs(self, *args: Any, **filters: Any) -> list[Run]:
            found = await super().runs(*args, **filters)
            if not self.has_answered:  # it is cancelled behind this answer, which is still on its way
                self.has_answered = True
                self.runs_now = [make_run(status=RunStatus.CANCELLED)]
                reader.heard([make_event(1)])
            return found

    controller = Slow()
    controller.runs_now = [make_run(status=RunStatus.PROPOSED)]
    reader = SnapshotReader(controller, Clock())
    shown = Wanted(frozenset({Part.RUNS}))

    assert [run.status for run in (await reader.read(shown)).runs] == [RunStatus.PROPOSED]
    assert [run.status for run in (await reader.read(shown)).runs] == [RunStatus.CANCELLED]


async def test_a_large_fleet_is_read_as_often_as_it_is_scraped() -> None:
    controller = FakeController()
    controller.nodes_now = [make_node(f"node-{number}") for number in range(300)]
    reader = SnapshotReader(controller, Clock())
    for _ in range(6):
        await reader.read(ALL)
    assert controller.asked.count("nodes") == 2


def known_of(*nodes: Node, changed: set[str] | None = None) -> KnownNodes:
    """What the stream of nodes has told; `changed`: of which just now."""
    known = KnownNodes()
    known.nodes = {node.name: node for node in nodes}
    known.changed = set(known.nodes) if changed is None else changed
    return known


async def test_nodes_that_are_told_as_they_change_are_not_read() -> None:
    controller, clock = FakeController(), Clock()
    reader = SnapshotReader(controller, clock)
    reader.heard_nodes(known_of(make_node("node-1"), make_node("node-2")))
    first = await reader.read(ALL)
    clock.now = NOW + 4
    reader.heard_nodes(known_of(make_node("node-1", zone="b"), make_node("node-2"), changed={"node-1"}))
    second = await reader.read(ALL)
    third = await reader.read(ALL)

    assert "nodes" not in controller.asked
    assert [node.zone for node in second.nodes] == ["b", "a"]
    assert third.nodes is second.nodes is not first.nodes, "the same while nothing was told: it is drawn anew else"
    assert [second.node_drift_s(name, NOW + 5) for name in ("node-1", "node-2")] == [1.0, 5.0]
    assert [len(second.trends[name].ttft_s) for name in ("node-1", "node-2")] == [2, 1]


async def test_nodes_that_nobody_tells_of_any_more_are_read_at_once_and_told_again_with_their_ages() -> None:
    controller, clock = FakeController(), Clock()
    controller.nodes_now = [make_node(f"node-{number}") for number in range(300)]
    reader = SnapshotReader(controller, clock)
    reader.heard_nodes(known_of(*controller.nodes_now))
    await reader.read(ALL)
    reader.lost_nodes()
    clock.now = NOW + 60
    read = await reader.read(ALL)
    assert controller.asked.count("nodes") == 1
    assert read.node_drift_s("node-1", NOW + 61) == 1.0

    reader.heard_nodes(known_of(*controller.nodes_now, changed={"node-1"}))
    told = await reader.read(ALL)
    assert [told.node_drift_s(name, NOW + 61) for name in ("node-1", "node-2")] == [1.0, 61.0]


async def test_a_controller_that_is_away_leaves_what_was_told_to_grow_old() -> None:
    controller, clock = FakeController(), Clock()
    reader = SnapshotReader(controller, clock)
    reader.heard_nodes(known_of(make_node("node-1")))
    await reader.read(ALL)
    controller.away = UnreachableError("connection refused")
    reader.lost_nodes()
    clock.now = NOW + 30
    cut_off = await reader.read(ALL)
    assert [node.name for node in cut_off.nodes] == ["node-1"]
    assert cut_off.node_drift_s("node-1", clock.now) == 30.0


async def test_tells_latencies_beside_those_of_an_hour_ago() -> None:
    controller = FakeController()
    now, before = (OF_NODES.format("ttft", when) for when in ("", " offset 3600s"))
    controller.told = {now: {"node-1": 0.4}, before: {"node-1": 0.2}}
    snapshot = await SnapshotReader(controller, Clock()).read(Wanted(frozenset({Part.PAST})))
    tail = snapshot.node_tails["node-1"]
    assert (tail.ttft_s, tail.ttft_before_s, tail.itl_s) == (0.4, 0.2, None)


async def test_says_for_how_long_it_was_away() -> None:
    controller, clock = FakeController(), Clock()
    reader = SnapshotReader(controller, clock)
    await reader.read(ALL)
    controller.away = UnreachableError("connection refused")
    clock.now = NOW + 5
    await reader.read(ALL)
    controller.away = None
    clock.now = NOW + 40
    snapshot = await reader.read(ALL)
    assert (snapshot.reconnected_at, snapshot.was_away_s) == (NOW + 40, 35.0)


async def test_tenants_that_no_gateway_tells_of_are_unknown_and_the_rest_is_good() -> None:
    class Mute(FakeController):
        async def tenants(self) -> list[TenantUse]:
            raise UnreachableError("no gateway answers")

    snapshot = await SnapshotReader(Mute(), Clock()).read(Wanted(frozenset({Part.TRAFFIC})))
    assert (snapshot.tenants_unknown, snapshot.cut_off_since) == ("no gateway answers", None)
