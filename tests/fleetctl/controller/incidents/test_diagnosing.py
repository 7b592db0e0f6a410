"""A cause is asked again while its incident is open; a person may ask without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import FiredAlert, join, open_incident
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_row import list_nodes
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import NoProvider, make_config
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
CALM = {
    "llm:up": 1.0,
    "llm:running": 2.0,
    "llm:waiting": 0.0,
    "llm:ttft_seconds:mean": 0.1,
    "llm:queue_seconds:mean": 0.01,
    "llm:step_seconds:mean": 0.02,
    "llm:prefix_hit_ratio": 0.6,
}
SLOW = {"llm:step_seconds:mean": 0.2}
IS_UP = {"fleet_node_process_up": 1.0}
PREFIX = {"llm:prefix_hit_ratio": 0.1}  # of both nodes: of one alone it may as well be routing, which nobody tells here


def make_alert(name: str, at: float, severity: str = "page") -> FiredAlert:
    labels = {"node": "node-1", "pool": "default"}
    return FiredAlert(f"{name}-node-1", name, severity, "firing", labels, active_at=at, fired_at=at)


def fill(
    controller: Controller, clock: DrivenClock, seconds: int, num_nodes: int = 2, **changes: Mapping[str, float]
) -> None:
    """Time passes, with `changes` on node_1 and so on; the last of it is now."""
    for _ in range(0, seconds, 10):
        clock.move(10.0)
        for node in (f"node-{number + 1}" for number in range(num_nodes)):
            values = CALM | dict(changes.get(node.replace("-", "_"), {}))
            for name, value in values.items():
                controller.store.append({"__name__": name, "node": node, "pool": "default"}, clock.now(), value)


async def told(controller: Controller, kind: str) -> list[str]:
    await controller.timeline.flush()
    return [one.text for one in await controller.timeline.read() if one.kind == kind]


async def test_a_confirmed_cause_that_another_replaces_is_on_the_timeline_with_both(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        fill(controller, clock, 300)
        onset = clock.now()
        fill(controller, clock, 30, node_1=SLOW)
        incident = open_incident(make_alert("LLMNodeSlow", onset), clock.now())
        await controller.book.store_incident(incident)
        causes = []
        for changes in (SLOW, SLOW, PREFIX, PREFIX, PREFIX, PREFIX, PREFIX):
            await controller.diagnosing.diagnose_incidents()
            (standing,) = controller.book.open_incidents()
            assert standing.diagnosis is not None
            causes.append(standing.diagnosis.cause)
            fill(controller, clock, 30, node_1=changes, node_2=PREFIX if changes is PREFIX else CALM)
        assert causes[:3] == ["slow_node"] * 3
        assert causes[-1] == "prefix_cache_broken"
        (replaced,) = await told(controller, "diagnosis.replaced")
        assert "(prefix_cache_broken, likely); in place of slow_node (confirmed, " in replaced
        assert replaced.endswith("asked again while it is open")


async def test_a_node_that_an_alert_names_alone_is_asked_about_with_its_pool(tmp_path: Path) -> None:
    """A gateway's alert names no pool: whether a rollout went on there was unknown, and its fault called another."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        fill(controller, clock, 300)
        alert = make_alert("LLMGatewayNodeEjected", clock.now(), "ticket")
        await controller.book.store_incident(open_incident(replace(alert, labels={"node": "node-1"}), clock.now()))
        await controller.diagnosing.diagnose_incidents()
        (standing,) = controller.book.open_incidents()
        assert standing.diagnosis is not None
        unknown = {one.why_unknown for one in standing.diagnosis.evidence}
        assert not any("names no pool" in why for why in unknown), unknown


async def test_an_alert_that_joins_has_the_trees_asked_at_once(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        fill(controller, clock, 300)
        incident = open_incident(make_alert("LLMNodeSlow", clock.now(), "ticket"), clock.now())
        await controller.book.store_incident(incident)
        await controller.diagnosing.diagnose_incidents()
        clock.move(1.0)
        await controller.book.change_incident(
            incident.id, lambda one: join(one, make_alert("LLMCoreStuck", clock.now()), clock.now())
        )
        labels = {"__name__": "llm:up", "node": "node-1", "pool": "default"}
        controller.store.append(labels, clock.now(), 0.0)
        await controller.diagnosing.diagnose_incidents()
        (standing,) = controller.book.open_incidents()
        assert standing.diagnosis is not None
        assert (standing.diagnosis.tree, standing.diagnosis.cause) == ("node", "node_down")


async def test_two_faults_of_one_node_become_two_incidents_each_with_its_own_cause(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        fill(controller, clock, 1200)
        onset = clock.now()
        fill(controller, clock, 60, node_1=SLOW | PREFIX)
        incident = open_incident(make_alert("LLMNodeGray", onset), clock.now())
        incident = join(incident, make_alert("LLMPrefixHitDrop", onset + 20), clock.now())
        await controller.book.store_incident(incident)
        for _ in range(5):
            await controller.diagnosing.diagnose_incidents()
            fill(controller, clock, 10, node_1=SLOW | PREFIX)
        causes = {}
        for one in controller.book.open_incidents():
            assert one.diagnosis is not None
            causes[tuple(alert.name for alert in one.alerts)] = one.diagnosis.cause
        assert causes == {("LLMNodeGray",): "slow_node", ("LLMPrefixHitDrop",): "prefix_cache_broken"}
        (split,) = await told(controller, "incident.split")
        assert " is another fault: LLM" in split
        counted = controller.metrics.registry.get_sample_value("controller_incidents_total", {"severity": "page"})
        assert counted == 1, "the one that was split off is opened too"


async def test_a_fault_that_has_an_incident_is_not_told_as_the_cause_of_another(tmp_path: Path) -> None:
    """A worker of the gateway was killed, then a node: the gateway's incident said "the fleet is down"."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=3), NoProvider(), clock) as controller:

        def pass_time(seconds: int, deaths: float, **down: float) -> None:
            for _ in range(0, seconds, 10):
                fill(controller, clock, 10, node_1=IS_UP | down, node_2=IS_UP)
                controller.store.append({"__name__": "fleet_gateway_deaths_total"}, clock.now(), deaths)
                for name, value in (CALM | IS_UP).items():
                    controller.store.append({"__name__": name, "node": "node-3", "pool": "default"}, clock.now(), value)

        pass_time(900, 0.0)
        pass_time(10, 1.0)
        gateway = replace(make_alert("LLMGatewayDied", clock.now(), "ticket"), labels={}, fingerprint="gateway")
        await controller.book.store_incident(open_incident(gateway, clock.now()))
        causes: dict[str, set[str | None]] = {}
        beside, titles = {}, []
        for turn in range(12):
            if turn == 3:
                await controller.book.store_incident(open_incident(make_alert("LLMNodeDown", clock.now()), clock.now()))
            await controller.diagnosing.diagnose_incidents()
            for one in controller.book.open_incidents():
                assert one.diagnosis is not None
                causes.setdefault(one.alerts[0].name, set()).add(one.diagnosis.cause)
                beside[one.alerts[0].name] = one.diagnosis.also
                titles.append(one.diagnosis.title)
            pass_time(10, 1.0, **({"llm:up": 0.0, "fleet_node_process_up": 0.0} if turn >= 2 else {}))
        assert causes == {"LLMGatewayDied": {"gateway_crash"}, "LLMNodeDown": {"node_down"}}
        assert set(beside.values()) == {None}, "each is told once"
        assert not any("fleet is down" in title for title in titles)


async def test_asked_by_hand_a_healthy_fleet_has_no_cause_and_who_is_not_there_is_refused(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        fill(controller, clock, 300)
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        calm = controller.inquiry.diagnose(None, {})
        assert (calm.cause, calm.confidence) == (None, "confirmed")
        assert calm.title == "Nothing is wrong with pool default: no alert, no symptom"
        assert {(one.question, one.answer) for one in calm.evidence} == {
            ("alerts", "no"),
            ("fell_far_behind", "no"),
            ("node_promise_broken", "no"),
            ("numbers_missing", "no"),
            ("ends_again", "no"),
            ("scrapes_fail", "no"),
            ("silent", "no"),
            ("queue_waits", "no"),
            ("no_steps", "no"),
            ("ttft_up", "no"),
            ("slow_steps", "no"),
            ("slow_tokens", "no"),
        }
        with pytest.raises(BadInputError, match='unknown node "node-11", did you mean "node-1"'):
            controller.inquiry.diagnose(None, {"node": "node-11"})
        with pytest.raises(BadInputError, match='unknown tree "latencies", did you mean "latency"'):
            controller.inquiry.diagnose("latencies", {})
        clock.move(120.0)
        assert controller.inquiry.diagnose(None, {}).title.startswith("Could not look at pool default")


async def test_a_cause_that_stays_likely_is_said_since_it_was_first_so_that_its_remedy_does_not_wait_anew(
    tmp_path: Path,
) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=2), NoProvider(), clock) as controller:
        fill(controller, clock, 300)
        onset = clock.now()
        fill(controller, clock, 30, node_1=PREFIX, node_2=PREFIX)
        await controller.book.store_incident(open_incident(make_alert("LLMPrefixHitDrop", onset), clock.now()))
        said = []
        for _ in range(3):
            await controller.diagnosing.diagnose_incidents()
            (standing,) = controller.book.open_incidents()
            assert standing.diagnosis is not None
            said.append((standing.diagnosis.cause, standing.diagnosis.confidence, standing.diagnosis.said_since))
            assert standing.diagnosis.at == clock.now()  # the evidence that is shown is the latest
            fill(controller, clock, 10, node_1=PREFIX, node_2=PREFIX)
        assert said == [("prefix_cache_broken", "likely", onset + 30)] * 3


@pytest.mark.parametrize(("later_s", "cause"), [(50, "gateway_crash"), (360, "gateway_crash"), (50, None)])
async def test_what_a_nodes_own_incident_tells_later_takes_no_older_one_of_the_fleet_over(
    tmp_path: Path, later_s: int, cause: str | None
) -> None:
    """Of requests lost at a killed gateway it was said six minutes later that "a node of the fleet is down", and of a
    pool with too much work, as one of its nodes was killed 44 s later."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=3), NoProvider(), clock) as controller:
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        fill(controller, clock, 900, 3, node_1=IS_UP, node_2=IS_UP, node_3=IS_UP)
        lost = replace(make_alert("LLMRequestsLost", clock.now(), "ticket"), labels={}, fingerprint="lost")
        stands = Diagnosis("errors", cause, "The gateway ended", "confirmed" if cause else "unknown", at=clock.now())
        fleet = replace(open_incident(lost, clock.now()), diagnosis=stands)
        await controller.book.store_incident(fleet)
        fill(controller, clock, later_s, 3, node_1=IS_UP, node_2=IS_UP, node_3=IS_UP)
        await controller.book.store_incident(open_incident(make_alert("LLMNodeDown", clock.now()), clock.now()))
        for _ in range(12):
            down = {"llm:up": 0.0, "fleet_node_process_up": 0.0}
            fill(controller, clock, 30, 3, node_1=down, node_2=IS_UP, node_3=IS_UP)
            await controller.diagnosing.diagnose_incidents()
        named = {one.alerts[0].name: one.diagnosis for one in controller.book.open_incidents()}
        assert named["LLMNodeDown"] is not None
        assert named["LLMNodeDown"].cause == "node_down"
        assert named["LLMRequestsLost"] is not None
        assert named["LLMRequestsLost"].cause == cause
        assert named["LLMRequestsLost"].then_found == "", "nor is it told as what was found since"


@pytest.mark.parametrize(("before_s", "cause"), [(-20, "slow_node"), (100, None)], ids=["of the fault", "older"])
async def test_an_alert_that_says_itself_what_is_wrong_is_not_told_of_what_began_after_it(
    tmp_path: Path, before_s: int, cause: str | None
) -> None:
    """Of an objective that cannot be measured it was said that a node is slow, which began a minute later."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=3), NoProvider(), clock) as controller:
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        fill(controller, clock, 900, 3)
        alert = make_alert("LLMObjectiveUnmeasured", clock.now() - before_s, "ticket")
        fill(controller, clock, 90, 3, node_1=SLOW)
        await controller.book.store_incident(open_incident(replace(alert, labels={"pool": "default"}), clock.now()))
        await controller.diagnosing.diagnose_incidents()
        (standing,) = controller.book.open_incidents()
        assert standing.diagnosis is not None
        assert standing.diagnosis.cause == cause


async def test_an_incident_of_a_pool_names_the_node_that_alone_has_its_cause(tmp_path: Path) -> None:
    """ "A node of pool default gives wrong answers" sent who was paged to look for it."""
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path, nodes=3), NoProvider(), clock) as controller:
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        fine, wrong = ({"llm:output_ok": value, "llm:requests:rate": 1.0} for value in (1.0, 0.0))
        fill(controller, clock, 600, 3, node_1=fine, node_2=fine, node_3=fine)
        fill(controller, clock, 60, 3, node_1=fine, node_2=fine, node_3=wrong)
        alert = make_alert("LLMOfThePool", clock.now())
        await controller.book.store_incident(open_incident(replace(alert, labels={"pool": "default"}), clock.now()))
        await controller.diagnosing.diagnose_incidents()
        (standing,) = controller.book.open_incidents()
        assert standing.diagnosis is not None
        assert standing.diagnosis.cause == "wrong_output"
        assert standing.diagnosis.title.startswith("node-3 gives wrong answers")
        assert standing.diagnosis.its_node == "node-3"
        (told_then,) = await told(controller, "diagnosis.named")
        assert told_then.startswith("node-3 gives wrong answers")

        row = controller.fleet.nodes["node-3"].row
        controller.fleet.nodes["node-3"] = NodeState(replace(row, wanted=False), NodePhase.STOPPED, "", None)
        fill(controller, clock, 360, 2, node_1=fine | PREFIX, node_2=fine | PREFIX)
        drop = replace(make_alert("LLMPrefixHitDrop", clock.now()), labels={"pool": "default"})
        await controller.book.change_incident(standing.id, lambda one: join(one, drop, clock.now()))
        await controller.diagnosing.diagnose_incidents()
        (standing,) = controller.book.open_incidents()
        assert standing.diagnosis is not None
        assert standing.diagnosis.its_node != "node-3"
        (replaced,) = await told(controller, "diagnosis.replaced")
        assert replaced.endswith("node-3 was taken out"), replaced


@pytest.mark.parametrize(("cause", "is_by_deploy"), [("bad_deploy", True), ("overload", False)])
async def test_a_rollout_that_went_back_meanwhile_mitigated_what_a_deploy_began(
    tmp_path: Path, cause: str, is_by_deploy: bool
) -> None:
    clock = DrivenClock()
    async with open_controller(make_config(tmp_path), NoProvider(), clock) as controller:
        data = {"rollout": "rollout-7", "pool": "default"}
        await controller.timeline.append("rollout.started", "rollout-7: canary", data=data)
        clock.move(30.0)
        opened = open_incident(replace(make_alert("LLMErrors", clock.now()), labels={"pool": "default"}), clock.now())
        incident = replace(opened, diagnosis=Diagnosis("errors", cause, "t", "confirmed", at=clock.now()))
        clock.move(60.0)
        await controller.timeline.append("rollout.rolled_back", "rollout-7: rolled back", data=data)
        report = await controller.reports.report_now(incident, clock.now() + 1)
        assert ("as rollout-7 was rolled back" in report.page("md")) == is_by_deploy
