"""What `fleetctl up` waits for."""

from __future__ import annotations

from fleetctl.providers.found import FOUND
from fleetctl.stack import UNWELL_AFTER_S, waited_for
from fleetctl.wire.node import Node, NodePhase


def node(name: str, phase: NodePhase, **fields: object) -> Node:
    return Node.model_validate({"name": name, "url": "http://n", "phase": phase, **fields})


def names(nodes: list[Node], before: set[str], looked_s: float) -> list[str]:
    return [one.name for one in waited_for(nodes, before, looked_s)]


def test_a_start_waits_for_what_it_starts_and_not_for_a_node_that_ran_before_and_is_unwell() -> None:
    lying, hung = node("node-1", NodePhase.NOT_READY), node("node-2", NodePhase.UNREACHABLE)
    fresh, ready = node("node-3", NodePhase.STARTING), node("node-4", NodePhase.READY)
    nodes, before = [lying, hung, fresh, ready], {"controller", "node-1", "node-2", "node-4"}

    assert names(nodes, before, 0.0) == ["node-1", "node-2", "node-3"], "a new controller has not looked yet"
    assert names(nodes, before, UNWELL_AFTER_S) == ["node-3"]
    assert names(nodes, set(), UNWELL_AFTER_S) == ["node-1", "node-2", "node-3"], "those are this start's own"


def test_a_node_that_others_run_and_a_cordoned_one_are_not_waited_for() -> None:
    found = node("vllm-1", NodePhase.UNREACHABLE, provider=FOUND, probe_age_s=1.0)
    unseen = node("vllm-2", NodePhase.UNREACHABLE, provider=FOUND)
    cordoned = node("node-1", NodePhase.CORDONED)
    assert names([found, unseen, cordoned], set(), 0.0) == ["vllm-2"]
