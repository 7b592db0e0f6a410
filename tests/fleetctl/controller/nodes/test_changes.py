"""What changed last: told from two looks at the nodes, from their limits, and from the timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.changes import KEPT_S, Change, ChangeKind, Changes
from fleetctl.controller.nodes.deep_checks import DeepChecks
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.fleet_series import FleetSeries, reason_word
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent
from fleetctl.providers.provider import Sign, SignKind
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import make_spec
from tests.fixtures.driven import DrivenClock

NOW = 1_700_000_000.0


def node(name: str, phase: NodePhase = NodePhase.READY, **changes: Any) -> NodeState:
    """A node that was there before anybody looked, of pool default and revision r1."""
    row_changes = {key: changes.pop(key) for key in ("wanted", "route", "created_at") if key in changes}
    spec = replace(make_spec(name), revision=changes.pop("revision", "r1"))
    row = NodeRow(spec, True, True, RouteIntent.ACTIVE, Role.MEMBER, "http://x", None, 0.0, 0.0)
    facts: dict[str, Any] = {"instance": "i1", "process_up": True, **changes}
    return NodeState(replace(row, **row_changes), phase, facts.pop("reason", ""), 0.0, **facts)


def seen(*looks: list[NodeState]) -> set[tuple[str, str, str]]:
    """Kind, node and pool of what changed over these looks, a second apart."""
    changes = Changes()
    for i, look in enumerate(looks):
        changes.observe_nodes(look, NOW + i)
    return {(one.kind.value, one.node, one.pool) for one in changes.changes(NOW + len(looks))}


a, b = node("a"), node("b")
restarting = replace(a, row=replace(a.row, restart={"state": "begun", "instance": "i1"}))
restarted = replace(a, row=replace(a.row, restart={"state": "done", "instance": "i1"}), instance="i2")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([[a, b], [a, b]], set()),
        ([[a], [a, b]], set()),  # the second one was there before, and had not been looked at yet
        ([[a], [a, node("c", NodePhase.STARTING, created_at=NOW + 1)]], {("scale", "", "default")}),
        ([[a, b], [a, node("b", NodePhase.DRAINED, wanted=False)]], {("scale", "", "default")}),
        ([[a, b], [a]], {("scale", "", "default")}),
        ([[a], [node("a", instance="i2")]], {("start", "a", "default")}),  # it ended, and who runs it started it again
        ([[restarting], [node("a", instance="i2")]], {("restart", "a", "default")}),
        ([[a], [restarted]], {("restart", "a", "default")}),  # its end was stored between two looks
        ([[a], [replace(restarted, instance="i3")]], {("restart", "a", "default")}),
        ([[restarted], [replace(restarted, instance="i3")]], {("start", "a", "default")}),  # a crash after our restart
        ([[a], [node("a", instance=None)], [node("a", instance=None)]], set()),  # its end is no change of ours
        (
            [[a, b], [a, node("b", NodePhase.STARTING, instance="i2", revision="r2")]],
            {("restart", "b", "default"), ("deploy", "b", "default")},
        ),
        (
            [[a], [a, node("c", NodePhase.STARTING, created_at=NOW + 1, revision="r2")]],
            {("scale", "", "default"), ("deploy", "c", "default")},
        ),
        ([[a, b], [a, node("b", instance="i2")]], {("start", "b", "default")}),
        ([[a], [node("a", NodePhase.CORDONED, route=RouteIntent.CORDONED)]], {("reroute", "a", "default")}),
        ([[a], [node("a", NodePhase.DRAINING)]], {("stop", "a", "default")}),  # told to end by whoever runs it
        (
            [[a], [node("a", NodePhase.DRAINING, route=RouteIntent.CORDONED)]],
            {("drain", "a", "default"), ("reroute", "a", "default")},
        ),
    ],
)
def test_two_looks_tell_what_changed(looks: list[list[NodeState]], expected: set[tuple[str, str, str]]) -> None:
    assert seen(*looks) == expected


@pytest.mark.parametrize(("after_s", "is_restart"), [(5.0, False), (600.0, True)])
def test_the_first_start_of_a_node_is_no_restart_of_it(after_s: float, is_restart: bool) -> None:
    changes = Changes()
    changes.observe_nodes([node("a", created_at=NOW)], NOW)
    changes.hear("node.started", NOW + after_s, "a", {})
    told = {one.kind for one in changes.changes(NOW + after_s + 1)}
    assert told == ({ChangeKind.RESTART} if is_restart else set())


def test_limits_that_anybody_changes_are_a_change_of_that_node() -> None:
    changes = Changes()
    changes.observe_nodes([a, b], NOW)
    changes.observe_limits({"a": {"max_num_seqs": 8.0}, "b": {"max_num_seqs": 8.0}}, NOW)
    changes.observe_limits({"a": {"max_num_seqs": 8.0}}, NOW + 5)
    assert not list(changes.changes(NOW + 5))
    changes.observe_limits({"a": {"max_num_seqs": 8.0}, "b": {"max_num_seqs": 2.0}}, NOW + 10)
    assert list(changes.changes(NOW + 10)) == [Change(ChangeKind.LIMITS, NOW + 10, "b", "default")]


@pytest.mark.parametrize(
    ("kind", "name", "data", "expected"),
    [
        ("rollout.step", None, {"pool": "chat"}, ("rollout", "", "chat")),
        ("rollout.rolling_back", None, {"pool": "chat"}, ("rollout", "", "chat")),  # it is still there
        ("rollout.rolled_back", None, {"pool": "chat"}, ("rollback", "", "chat")),
        ("traffic_rule.made", None, {"id": "x"}, ("reroute", "", "")),
        ("content.loaded", None, {}, ("config", "", "")),
        ("node.started", "a", {}, ("restart", "a", "")),
        ("alert.fired", "a", {}, None),
    ],
)
def test_the_timeline_tells_what_the_controller_did(
    kind: str, name: str | None, data: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    changes = Changes()
    changes.hear(kind, NOW, name, data)
    found = [(one.kind.value, one.node, one.pool) for one in changes.changes(NOW + 1)]
    assert found == ([expected] if expected else [])
    assert not list(changes.changes(NOW + KEPT_S + 1)), "nobody asks for what is long ago"


def test_an_older_entry_does_not_hide_a_newer_one() -> None:
    changes = Changes()
    changes.hear("content.loaded", NOW, None, {})
    changes.hear("content.loaded", NOW - 60, None, {})
    assert [one.at for one in changes.changes(NOW)] == [NOW]


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (node("a"), ""),
        (node("a", NodePhase.UNREACHABLE, process_up=False, reason="its process ended: signal 9"), "process_ended"),
        (node("a", NodePhase.UNREACHABLE, process_up=False, route=RouteIntent.NONE), "start_failed"),
        (node("a", NodePhase.UNREACHABLE, process_up=False, route=RouteIntent.NONE, was_ready=True), "process_ended"),
        (node("a", NodePhase.UNREACHABLE, reason="timed out"), "no_answer"),
        (node("a", NodePhase.NOT_READY, reason="core_stuck"), "core_stuck"),
        (node("a", NodePhase.STARTING, reason="loading"), "loading"),
        (node("a", NodePhase.DRAINING, reason="3 requests left"), "draining"),
        (node("a", NodePhase.NOT_READY, reason="HTTP 503"), "other"),
    ],
)
def test_a_phase_has_one_word_for_its_reason(state: NodeState, word: str) -> None:
    assert reason_word(state) == word


@pytest.mark.anyio
async def test_rules_and_questions_ask_for_phases_and_changes() -> None:
    clock, store, changes = DrivenClock(), SeriesStore(), Changes()
    nodes = {"a": node("a"), "b": node("b")}
    fleet = cast(Fleet, type("_", (), {"nodes": nodes, "seen_at": lambda _, name: clock.now()})())
    checks = cast(DeepChecks, type("_", (), {"is_right": lambda _, name, now: None})())
    gateways = cast(Gateways, {})
    series = FleetSeries(fleet, gateways, checks, store, clock, stale_after_s=10.0, own=(), changes=changes)
    await series.record()
    clock.move(1.0)
    nodes["a"] = node("a", NodePhase.NOT_READY, instance="i2", reason="core_stuck")
    changes.hear("rollout.step", clock.now(), None, {"pool": "default"})
    await series.record()

    def asked(query: str) -> list[dict[str, str]]:
        wanted = ("node", "pool", "phase", "reason", "kind")
        found = evaluate(query, store, clock.now())
        return [{name: one.labels[name] for name in wanted if name in one.labels} for one in found]

    stuck = {"node": "a", "pool": "default", "phase": "not_ready", "reason": "core_stuck"}
    assert asked('fleet_node_phase{node="a"}') == [stuck], "one phase at a time"
    assert asked('fleet_change_timestamp_seconds{node="a"}') == [{"kind": "start", "node": "a", "pool": "default"}]
    assert asked('fleet_change_timestamp_seconds{kind="rollout"}') == [{"kind": "rollout", "pool": "default"}]
    assert [one.value for one in evaluate('time() - fleet_change_timestamp_seconds{node="a"}', store, clock.now())] == [
        0
    ]
    exposed = {one.name: [sample.labels for sample in one.samples] for one in series.collect()}
    assert {one["kind"] for one in exposed["fleet_change_timestamp_seconds"]} == {"start", "rollout"}


@pytest.mark.anyio
async def test_what_a_platform_tells_of_machine_and_pod_is_asked_for_and_untold_is_no_zero() -> None:
    clock, store = DrivenClock(), SeriesStore()
    full = (Sign("DiskPressure", SignKind.DISK), Sign("KernelDeadlock", SignKind.KERNEL, "task hung"))
    killed = (Sign("OOMKilled", SignKind.MEMORY),)
    nodes = {"a": node("a", machine_problems=full, reasons=killed), "b": node("b", machine_problems=()), "c": node("c")}
    nodes["d"] = node("d", reasons=killed)
    nodes["d"] = replace(nodes["d"], row=replace(nodes["d"].row, restart={"state": "ended"}))
    fleet = cast(Fleet, type("_", (), {"nodes": nodes, "seen_at": lambda _, name: clock.now()})())
    checks = cast(DeepChecks, type("_", (), {"is_right": lambda _, name, now: None})())
    series = FleetSeries(fleet, cast(Gateways, {}), checks, store, clock, stale_after_s=10.0, own=())
    await series.record()

    def asked(query: str) -> dict[tuple[str, str], float]:
        found = evaluate(query, store, clock.now())
        return {(one.labels["node"], one.labels.get("kind", "")): one.value for one in found}

    assert asked("fleet_machine_problems") == {("a", "disk"): 1, ("a", "kernel"): 1, ("b", ""): 0}
    assert asked("fleet_provider_reasons") == {("a", "memory"): 1}, "what is restarted by us ends by our order"
    exposed = {one.name: [sample.labels for sample in one.samples] for one in series.collect()}
    assert {one["problem"] for one in exposed["fleet_machine_problems"]} == {"DiskPressure", "KernelDeadlock", ""}
