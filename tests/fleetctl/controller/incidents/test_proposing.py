"""What is proposed for a named cause, and what is said where it is not; of nodes that are rows and never started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from diagnostics.diagnosis import Diagnosis
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, open_incident
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.incidents.views import no_remedy
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_row import list_nodes
from fleetctl.priority_class import PriorityClass
from fleetctl.traffic_rule import RerouteSpec, ShedSpec, Spec, TrafficRuleRequest
from fleetctl.wire.node import NodePhase
from runbooks.run import RunStatus
from tests.fixtures.controller import NoProvider, make_config
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio
LONG = Diagnosis("latency", "long_context_outlier", "A few very long prompts hold up pool default", "confirmed")
DOWN = Diagnosis("node", "node_down", "node-2 is down", "confirmed", is_of_one=True, its_node="node-2")


@asynccontextmanager
async def seen_fleet(folder: Path, clock: DrivenClock) -> AsyncIterator[Controller]:
    """Three nodes that serve, as the controller saw them this moment."""
    async with open_controller(make_config(folder, nodes=3, policy="run"), NoProvider(), clock) as controller:
        for row in await controller.database.read(list_nodes):
            controller.fleet.nodes[row.name] = NodeState(row, NodePhase.READY, "", None)
        yield controller


async def named(controller: Controller, clock: DrivenClock, scope: dict[str, str], diagnosis: Diagnosis) -> Incident:
    alert = FiredAlert(
        f"a-{scope}", "LLMOverload", "page", "firing", scope, active_at=clock.now(), fired_at=clock.now()
    )
    incident = replace(open_incident(alert, clock.now()), diagnosis=replace(diagnosis, at=clock.now()))
    await controller.book.store_incident(incident)
    return incident


async def proposed(controller: Controller, clock: DrivenClock) -> list[tuple[str, str]]:
    """Pages that wait for an answer, each with the node that it is about."""
    controller.fleet.looked_at = clock.now()
    await controller.remediation.propose_runbooks()
    runs = controller.journal.list({RunStatus.PROPOSED})
    return [(run.runbook, run.inputs.get("node", "")) for run in runs]


async def not_proposed(controller: Controller) -> list[str]:
    await controller.timeline.flush()
    return [one.text for one in await controller.timeline.read() if one.kind == "remediation.not_proposed"]


async def test_what_its_rule_does_already_is_not_proposed_again_until_the_rule_ends(tmp_path: Path) -> None:
    """An incident that came back half a minute after its reroute had helped asked for the same reroute."""
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        spec = RerouteSpec(over_tokens=33_000, share=0.25)
        await controller.traffic_rules.make(TrafficRuleRequest(spec=spec, for_s=3600.0))
        incident = await named(controller, clock, {"pool": "default"}, LONG)
        assert [await proposed(controller, clock) for _ in range(3)] == [[]] * 3
        said = await not_proposed(controller)
        assert said == [
            "reroute-long-context is in force already: traffic rule long-context"
            " (over 33000 tokens to 25% of the nodes)."
            " By hand: fleetctl runbook show reroute-long-context"
        ], "once, and not each second"
        timeline = await controller.timeline.read(incident_id=incident.id)
        assert no_remedy(incident, controller.content.current, (), timeline) == f"nothing is proposed: {said[0]}"
        clock.move(3601.0)
        assert await proposed(controller, clock) == [("reroute-long-context", "")]


async def test_an_incident_that_comes_back_says_again_why_nothing_is_proposed(tmp_path: Path) -> None:
    """The words of the first time are older than what is named now, and count for nothing."""
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        spec = RerouteSpec(over_tokens=33_000, share=0.25)
        await controller.traffic_rules.make(TrafficRuleRequest(spec=spec, for_s=3600.0))
        first = await named(controller, clock, {"pool": "default"}, LONG)
        assert await proposed(controller, clock) == []
        over = replace(first, status=IncidentStatus.RESOLVED, resolved_at=clock.now())
        await controller.book.store_incident(over)
        assert await proposed(controller, clock) == []
        clock.move(60.0)
        again = replace(first, reopened=1, diagnosis=replace(LONG, at=clock.now()))
        await controller.book.store_incident(again)
        assert [await proposed(controller, clock) for _ in range(2)] == [[]] * 2
        timeline = await controller.timeline.read(incident_id=first.id)
        assert no_remedy(again, controller.content.current, (), timeline).startswith(
            "nothing is proposed: reroute-long-context is in force already"
        )
        assert len(await not_proposed(controller)) == 2, "once for each time that it was open"


@pytest.mark.parametrize(
    ("standing", "wanted", "as_much"),
    [
        (RerouteSpec(over_tokens=3800, share=0.25), RerouteSpec(over_tokens=3500, share=0.25), True),
        (RerouteSpec(over_tokens=32_768, share=0.25), RerouteSpec(over_tokens=3500, share=0.25), False),
        (RerouteSpec(over_tokens=3800, share=0.25), RerouteSpec(over_tokens=3800, share=0.5), False),
        (RerouteSpec(over_tokens=3800, share=0.25), RerouteSpec(over_prefill_s=5.0, share=0.25), False),
        (RerouteSpec(over_tokens=3800, pool="long"), RerouteSpec(over_tokens=3800, share=0.25), False),
        (ShedSpec(below=PriorityClass.STANDARD), ShedSpec(below=PriorityClass.STANDARD, share=0.5), True),
        (ShedSpec(below=PriorityClass.STANDARD), ShedSpec(below=PriorityClass.CRITICAL), False),
        (ShedSpec(below=PriorityClass.STANDARD), RerouteSpec(over_tokens=3800, share=0.25), False),
    ],
    ids=[
        "a little lower",
        "moves what it did not",
        "more nodes",
        "another unit",
        "another place",
        "less",
        "more",
        "kind",
    ],
)
def test_a_rule_stands_for_another_only_where_that_would_change_nothing(
    standing: Spec, wanted: Spec, as_much: bool
) -> None:
    assert standing.orders_as_much_as(wanted) is as_much


async def test_of_a_wide_incident_the_node_that_its_verdict_names_is_proposed_to_be_replaced_and_never_unasked(
    tmp_path: Path,
) -> None:
    """ "node-2 is down", and below it `fleetctl runbook run replace-node node=NODE`."""
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        await named(controller, clock, {"pool": "default"}, DOWN)
        assert await proposed(controller, clock) == [("replace-node", "node-2")]
        assert await not_proposed(controller) == []


async def test_a_node_with_an_incident_of_its_own_is_treated_there_alone(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        own = await named(controller, clock, {"node": "node-2", "pool": "default"}, replace(DOWN, its_node=""))
        await named(controller, clock, {"pool": "default"}, DOWN)
        assert len(controller.book.open_incidents()) == 2
        await proposed(controller, clock)
        assert [run.incident_id for run in controller.journal.list()] == [own.id]
        assert await not_proposed(controller) == [f"node-2 has an incident of its own, and its remedy there: {own.id}"]


async def test_what_was_taken_out_is_not_proposed_to_be_replaced_once_more(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        await named(controller, clock, {"pool": "default"}, replace(DOWN, its_node="node-9"))
        assert await proposed(controller, clock) == []
        assert await not_proposed(controller) == ["node-9, which the verdict names, was taken out"]


async def test_the_same_is_not_proposed_twice_of_a_node_whose_own_incident_opens_after_the_pools(
    tmp_path: Path,
) -> None:
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        wide = await named(controller, clock, {"pool": "default"}, DOWN)
        assert await proposed(controller, clock) == [("replace-node", "node-2")]
        likely = replace(DOWN, its_node="", confidence="likely")  # a confirmed one would be run unasked here
        await named(controller, clock, {"node": "node-2", "pool": "default"}, likely)
        clock.move(11.0)
        assert [await proposed(controller, clock) for _ in range(2)] == [[("replace-node", "node-2")]] * 2
        assert await not_proposed(controller) == [f"replace-node of node-2 is proposed for {wide.id} already"]
        await controller.executor.cancel(controller.journal.list()[0].id, "controller", "its cause was replaced")
        await controller.book.change_incident(wide.id, lambda one: replace(one, diagnosis=None))
        assert await proposed(controller, clock) == [("replace-node", "node-2")], "of its own incident now"


async def test_what_may_run_unasked_waits_for_nobodys_answer_to_the_pools_proposal(tmp_path: Path) -> None:
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        wide = await named(controller, clock, {"pool": "default"}, DOWN)
        assert await proposed(controller, clock) == [("replace-node", "node-2")]
        own = await named(controller, clock, {"node": "node-2", "pool": "default"}, replace(DOWN, its_node=""))
        assert await proposed(controller, clock) == []
        status = {run.incident_id: run.status for run in controller.journal.list()}
        assert status == {wide.id: RunStatus.CANCELLED, own.id: RunStatus.APPROVED}


async def test_the_same_remedy_of_a_pool_is_not_proposed_for_two_incidents_of_it(tmp_path: Path) -> None:
    """ "rollback-pool refused, and is not proposed again", as the wider incident's own proposal of it waited."""
    clock = DrivenClock()
    async with seen_fleet(tmp_path, clock) as controller:
        first = await named(controller, clock, {"pool": "default"}, LONG)
        await named(controller, clock, {"model": "m", "pool": "default"}, LONG)
        assert await proposed(controller, clock) == [("reroute-long-context", "")]
        assert await not_proposed(controller) == [f"reroute-long-context of default is proposed for {first.id} already"]
        assert len(controller.journal.list()) == 1
