"""A node turns slow, in simulated time over real small nodes: alert, incident, cause, proposal, repair, record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics import blackbox
from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import Incident, IncidentStatus, join, with_diagnosis
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.incidents.incident_report import IncidentReport, IncidentReports
from fleetctl.controller.incidents.incident_store import get_incident
from fleetctl.wire.routing import RouteState
from runbooks.run import Run, RunStatus
from tests.fixtures.controller import make_config, make_provider, stop_all
from tests.fixtures.driven import DrivenClock, Traffic, drive

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(state_dir: Path, clock: DrivenClock, **changes: object) -> AsyncIterator[Controller]:
    config = make_config(state_dir, nodes=3, **changes)
    async with open_controller(config, make_provider(state_dir), clock) as controller:
        carrying = asyncio.create_task(controller.executor.run_forever())
        try:
            yield controller
        finally:
            controller.executor.stop()
            clock.move(1.0)
            await carrying


async def healthy(controller: Controller, clock: DrivenClock, traffic: Traffic) -> None:
    await drive(controller, clock, traffic, lambda: sum(s.is_serving for s in controller.fleet.nodes.values()) == 3)
    start = clock.now()
    await drive(controller, clock, traffic, lambda: clock.now() - start >= 40)
    assert controller.book.open_incidents() == []


async def with_proposal(controller: Controller, clock: DrivenClock, traffic: Traffic) -> tuple[Incident, Diagnosis]:
    """A healthy fleet's node-2 turns slow: the incident, once its remedy is proposed, and its verdict."""
    await healthy(controller, clock, traffic)
    traffic.step_s["node-2"] = 0.15
    await drive(controller, clock, traffic, lambda: bool(runs(controller)))
    (incident,) = controller.book.open_incidents()
    assert incident.diagnosis is not None
    return incident, incident.diagnosis


async def now_found(controller: Controller, incident: Incident, diagnosis: Diagnosis) -> None:
    """The verdict turns to this, and what is to be proposed for it is."""
    await controller.book.change_incident(incident.id, lambda one: with_diagnosis(one, diagnosis))
    await controller.remediation.propose_runbooks()


def runs(controller: Controller) -> list[Run]:
    return list(controller.journal.list())


async def kinds(controller: Controller) -> list[str]:
    return [entry.kind for entry in await controller.timeline.read()]


def assert_no_loop_failed(controller: Controller) -> None:
    assert set(controller.loops.failures().values()) == {0}


async def test_slow_node_is_found_named_replaced_on_approval_and_written_up(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            found_s = await drive(controller, clock, traffic, lambda: bool(runs(controller)))
            assert found_s <= 60
            (incident,) = controller.book.open_incidents()
            assert dict(incident.scope) == {"node": "node-2", "pool": "default"}
            assert incident.diagnosis is not None
            assert incident.diagnosis.cause == "slow_node"
            (run,) = runs(controller)
            assert (run.status, run.runbook, run.incident_id) == (RunStatus.PROPOSED, "replace-node", incident.id)
            assert dict(run.inputs) | {"node": "node-2", "replacement": "node-2b"} == dict(run.inputs)

            await controller.executor.decide(run.id, "approve", "ann")
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])

            (run,) = runs(controller)
            assert run.status is RunStatus.SUCCEEDED, run.error
            table = {route.node: route.state for route in controller.routing.table.routes}
            assert table == dict.fromkeys(("node-1", "node-2b", "node-3"), RouteState.ACTIVE)
            assert not controller.effects.provider.observe("node-2").running
            stored = await controller.database.read(lambda c: get_incident(c, incident.id))
            assert stored is not None
            assert stored.incident.status is IncidentStatus.RESOLVED
            assert stored.postmortem is not None
            assert stored.blackbox is not None
            page = await asyncio.to_thread(Path(stored.postmortem).read_text)
            assert "slow_node" in page
            assert "ann" in page
            box = blackbox.read(Path(stored.blackbox))
            assert box.incident.timeline[-1].kind == "incident.resolved"
            assert any(one.labels["__name__"] == "llm:step_seconds:mean" for one in box.series)
            entries = await controller.timeline.read(incident_id=incident.id)
            order = [entry.kind for entry in entries]
            for earlier, later in (
                ("incident.opened", "diagnosis.named"),
                ("diagnosis.named", "run.proposed"),
                ("run.proposed", "run.approved"),
                ("run.approved", "run.succeeded"),
                ("run.succeeded", "incident.resolved"),
            ):
                assert order.index(earlier) < order.index(later)
            assert entries[-1].data["postmortem"] == stored.postmortem
            assert (await kinds(controller)).count("incident.opened") == 1
            assert_no_loop_failed(controller)

            later = clock.now()
            await drive(controller, clock, traffic, lambda: clock.now() - later > 60)
            assert controller.book.open_incidents() == []
            assert len(runs(controller)) == 1
    finally:
        stop_all(tmp_path)


async def test_what_was_pending_when_a_node_was_taken_out_is_told_to_nobody(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: _states(controller, "node-2") == {"pending"})
            await controller.effects.stop_node("node-2", grace_s=1.0, force=True)
            stopped = clock.now()
            await drive(controller, clock, traffic, lambda: "firing" in _states(controller, "node-2"))
            await drive(controller, clock, traffic, lambda: clock.now() - stopped > 60)
            entries = await controller.timeline.read()
            assert [entry.text for entry in entries if entry.kind.startswith("alert.") and entry.node == "node-2"] == []
            assert controller.book.open_incidents() == []
    finally:
        stop_all(tmp_path)


def _states(controller: Controller, node: str) -> set[str]:
    return {str(alert.state) for alert in controller.alerting.own_alerts() if ("node", node) in alert.labels.items()}


async def test_while_one_remedy_acts_no_other_is_proposed_whatever_the_verdict_turns_to(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            incident, slow = await with_proposal(controller, clock, traffic)
            (run,) = runs(controller)
            await controller.executor.decide(run.id, "approve", "ann")

            await now_found(controller, incident, replace(slow, cause="wrong_output", confidence="confirmed"))
            assert [one.runbook for one in runs(controller)] == ["replace-node"]

            await drive(controller, clock, traffic, lambda: runs(controller)[-1].status.is_terminal)
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])
            assert [one.runbook for one in runs(controller)] == ["replace-node"]
    finally:
        stop_all(tmp_path)


async def test_a_verdict_that_comes_back_has_its_own_remedy_proposed_again_and_the_other_ones_withdrawn(
    tmp_path: Path,
) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            incident, slow = await with_proposal(controller, clock, traffic)

            for found in (replace(slow, cause="wrong_output", confidence="confirmed"), slow):
                await now_found(controller, incident, found)

            told = sorted((run.runbook, run.status) for run in runs(controller))
            assert told == [
                ("replace-lying-node", RunStatus.CANCELLED),
                ("replace-node", RunStatus.CANCELLED),
                ("replace-node", RunStatus.PROPOSED),
            ]
    finally:
        stop_all(tmp_path)


async def test_a_verdict_that_waits_for_a_second_witness_has_its_remedy_proposed_once_there_is_one(
    tmp_path: Path,
) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            incident, slow = await with_proposal(controller, clock, traffic)
            lying = replace(slow, cause="wrong_output", confidence="confirmed")

            for awaits in ("nobody else says so", ""):
                await now_found(controller, incident, replace(lying, awaits=awaits))
                proposed = {run.runbook for run in runs(controller)}
                assert ("replace-lying-node" in proposed) is (not awaits)
    finally:
        stop_all(tmp_path)


async def test_policy_run_acts_unasked_on_a_confirmed_cause(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock, policy="run") as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: bool(runs(controller)))
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])
            (run,) = runs(controller)
            assert run.status is RunStatus.SUCCEEDED, run.error
            assert run.decided_by == "policy:slow_node"
    finally:
        stop_all(tmp_path)


async def test_policy_run_for_other_causes_still_asks(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock, policy="run", policy_causes=frozenset({"gpu_fault"})) as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: bool(runs(controller)))
            assert runs(controller)[0].status is RunStatus.PROPOSED
    finally:
        stop_all(tmp_path)


async def test_trouble_that_passes_withdraws_the_proposal_and_ends_the_incident(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock, withdraw_after_s=30.0) as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: bool(runs(controller)))
            traffic.step_s["node-2"] = 0.02
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])
            assert runs(controller)[0].status is RunStatus.CANCELLED
            assert {node.phase.value for node in controller.fleet.nodes.values()} == {"ready"}
    finally:
        stop_all(tmp_path)


async def test_what_fires_or_is_said_while_the_files_of_its_end_are_written_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a controller without CPU they took 15 s, in which the alert fired again: the incident was told as resolved and
    came back within a second, as a new page; of 1,000 nodes they take that long anyway."""
    clock, traffic = DrivenClock(), Traffic()

    def fired_again(one: Incident) -> Incident:
        return join(one, replace(one.alerts[0], state="firing", resolved_at=None), clock.now())

    def seen(one: Incident) -> Incident:
        return replace(one, handling=one.handling.acknowledged("ann", clock.now()))

    meanwhile = [fired_again, seen]
    write_files = IncidentReports.write_files
    try:
        async with opened(tmp_path, clock, withdraw_after_s=5.0) as controller:

            async def write(self: IncidentReports, incident: Incident, report: IncidentReport, path: Path) -> None:
                await write_files(self, incident, report, path)
                if meanwhile:
                    await controller.book.change_incident(incident.id, meanwhile.pop(0))

            monkeypatch.setattr(IncidentReports, "write_files", write)
            incident, _ = await with_proposal(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.02
            await drive(controller, clock, traffic, lambda: len(meanwhile) == 1)
            assert [one.id for one in controller.book.open_incidents()] == [incident.id]
            assert "incident.resolved" not in await kinds(controller)
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])
            stored = await controller.database.read(lambda c: get_incident(c, incident.id))
            assert stored is not None
            assert stored.incident.handling.acknowledged_by == "ann"
            assert stored.postmortem is not None
            told = await kinds(controller)
            assert (told.count("incident.resolved"), told.count("incident.reopened")) == (1, 0)
    finally:
        stop_all(tmp_path)


async def test_an_incident_outlives_its_controller(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as first:
            await healthy(first, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(first, clock, traffic, lambda: bool(runs(first)))
            (incident,) = first.book.open_incidents()
        clock.move(20.0)
        async with opened(tmp_path, clock) as second:
            assert [one.id for one in second.book.open_incidents()] == [incident.id]
            start = clock.now()
            await drive(second, clock, traffic, lambda: clock.now() - start >= 60)
            (again,) = second.book.open_incidents()
            assert again.id == incident.id
            assert again.diagnosis is not None
            assert incident.diagnosis is not None
            assert again.diagnosis.cause == incident.diagnosis.cause == "slow_node"
            assert again.diagnosis.said_since == incident.diagnosis.said_since
            assert again.diagnosis.at >= start, "its evidence is the second controller's own"
            assert len(runs(second)) == 1
            assert (await kinds(second)).count("incident.opened") == 1
            await second.executor.decide(runs(second)[0].id, "approve", "ann")
            await drive(second, clock, traffic, lambda: second.book.open_incidents() == [])
            assert runs(second)[0].status is RunStatus.SUCCEEDED
            assert_no_loop_failed(second)
    finally:
        stop_all(tmp_path)


async def test_draining_a_node_by_hand_is_no_incident(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    try:
        async with opened(tmp_path, clock) as controller:
            await healthy(controller, clock, traffic)
            await controller.executor.act("drain node-2 --deadline 1s", reason="", requested_by="ann")
            await drive(controller, clock, traffic, lambda: runs(controller)[0].status.is_terminal)
            traffic.step_s["node-2"] = 0.15
            start = clock.now()
            await drive(controller, clock, traffic, lambda: clock.now() - start >= 60)
            assert any(alert.state == "firing" for alert in controller.alerting.alerts())
            assert controller.book.open_incidents() == []
    finally:
        stop_all(tmp_path)


async def test_a_full_disk_does_not_keep_an_incident_open(tmp_path: Path) -> None:
    clock, traffic = DrivenClock(), Traffic()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    try:
        async with opened(tmp_path / "state", clock, dir=blocked, withdraw_after_s=5.0) as controller:
            await healthy(controller, clock, traffic)
            traffic.step_s["node-2"] = 0.15
            await drive(controller, clock, traffic, lambda: bool(runs(controller)))
            traffic.step_s["node-2"] = 0.02
            await drive(controller, clock, traffic, lambda: controller.book.open_incidents() == [])
            assert "postmortem.failed" in await kinds(controller)
    finally:
        stop_all(tmp_path / "state")
