"""What somebody is told who asks: what fires now is of now, whatever has been about to fire for long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.incident import FiredAlert
from diagnostics.tree_file import builtin_tree_files, load_trees
from fleetctl.controller.incidents.inquiry import Inquiry
from tests.fixtures.driven import DrivenClock

NOW = 1_800_000_000.0
NODES = ("node-1", "node-2", "node-3")
PLACE = {"node": "node-1", "pool": "default", "model": "m"}


def diagnosed(*alerts: FiredAlert, wrong: tuple[str, ...] = ()) -> Diagnosis:
    """`wrong`: nodes that have failed their known prompt for a minute."""
    store = SeriesStore()
    for age in range(600, -1, -5):
        for name in NODES:
            place = {**PLACE, "node": name, "engine": "fleetctl"}
            for signal in ("up", "running", "requests:rate"):
                store.append({"__name__": f"llm:{signal}", **place}, NOW - age, 1.0)
            store.append({"__name__": "llm:core_deaths:increase", **place}, NOW - age, float(age < 60 and not wrong))
            store.append({"__name__": "llm:output_ok", **place}, NOW - age, float(name not in wrong or age > 60))
    content = SimpleNamespace(
        current=SimpleNamespace(knowledge=builtin_knowledge(), trees=load_trees(builtin_tree_files()), no_tree={}),
    )
    fleet = SimpleNamespace(nodes={})
    inquiry = Inquiry(content, store, fleet, lambda: alerts, DrivenClock(NOW))  # type: ignore[arg-type]
    return inquiry.diagnose(None, {"pool": "default"})


def alert(name: str, state: str, began_s_ago: float, node: str = "node-1") -> FiredAlert:
    labels = {**PLACE, "node": node}
    return FiredAlert(f"{name}-{node}", name, "ticket", state, labels, active_at=NOW - began_s_ago, fired_at=NOW)


@pytest.mark.parametrize("state", ["pending", "firing"])
def test_what_fires_is_dated_by_itself_and_not_by_what_waits_to_fire(state: str) -> None:
    onset = diagnosed(alert("LLMQueueWait", state, 500.0), alert("LLMTTFTRegression", "firing", 20.0)).onset
    assert onset is not None
    assert (NOW - onset < 60.0) == (state == "pending")


def test_what_began_last_is_told_and_a_ticket_of_long_before_beside_it() -> None:
    """The record is of ten minutes: a ticket as old as it is neither judged nor dates what came since."""
    found = diagnosed(alert("LLMQueueWait", "firing", 1400.0), alert("LLMCoreDied", "firing", 40.0))
    assert (found.tree, found.cause) == ("node", "core_crash")
    assert found.onset is not None
    assert NOW - found.onset <= 60
    assert found.evidence[-1].title == "Do older alerts stand beside it (LLMQueueWait)?"
    graver = replace(alert("LLMQueueWait", "firing", 1400.0), severity="page")
    assert diagnosed(graver, alert("LLMCoreDied", "firing", 40.0)).tree == "capacity"


@pytest.mark.parametrize(("nodes", "asked"), [(NODES[:1], 'node="node-1"'), (NODES[:2], 'pool="default"')])
def test_nodes_that_have_an_alert_together_are_asked_about_as_the_place_that_they_share(
    nodes: tuple[str, ...], asked: str
) -> None:
    found = diagnosed(*(alert("LLMQueueWait", "pending", 20.0, node) for node in nodes))
    (waits,) = (one for one in found.evidence if one.question == "queue_waits")
    assert asked in waits.query


def test_of_alerts_that_wait_to_fire_the_first_with_a_cause_is_told_as_of_its_own_beginning() -> None:
    found = diagnosed(alert("LLMPrefixHitLow", "pending", 500.0), alert("LLMCoreDied", "pending", 40.0))
    assert found.cause == "core_crash"
    assert found.onset is not None
    assert NOW - found.onset <= 60


def test_what_a_gateway_says_of_a_node_alone_is_told_to_who_asks_about_its_pool() -> None:
    ejected = replace(alert("LLMGatewayNodeEjected", "firing", 40.0), labels={"node": "node-1"})
    assert diagnosed(ejected).tree == "gateway"


def test_who_asks_about_a_pool_is_told_which_of_its_nodes_it_is() -> None:
    one, two = diagnosed(wrong=("node-2",)), diagnosed(wrong=("node-2", "node-3"))
    assert one.cause == "wrong_output"
    assert one.title.startswith("node-2 ")
    assert not two.title.startswith("node-"), "of two, neither is named for both"
