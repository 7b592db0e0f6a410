"""Deep checks: asked of every node now and then, few at once; what nobody could look at lately is unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.controller.incidents.views import deep_check_view
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.deep_checks import RESULT_WAIT_S, DeepCheck, DeepChecks, due_nodes
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.nodes.fleet_series import FleetSeries
from fleetctl.controller.nodes.foreign_check import Finding
from fleetctl.controller.nodes.gateways import Gateways
from fleetctl.controller.nodes.known_answers import KnownAnswers
from fleetctl.controller.nodes.node_answers import GoldenReport, NoAnswerError
from fleetctl.controller.nodes.node_row import NodeRow, Role, RouteIntent
from fleetctl.engines.greedy_answer import Answer
from fleetctl.wire.node import NodePhase
from tests.fixtures.controller import make_config, make_spec, running_fleet, stop_all, tell_node, until
from tests.fixtures.driven import DrivenClock

pytestmark = pytest.mark.anyio


def make_state(name: str, phase: NodePhase = NodePhase.READY, reason: str = "", **changes: Any) -> NodeState:
    row = NodeRow(make_spec(name), True, True, RouteIntent.ACTIVE, Role.MEMBER, "http://x", None, 0.0, 0.0)
    facts: dict[str, Any] = {"url": f"http://{name}", "instance": "i1", "process_up": True, **changes}
    return NodeState(row, phase, reason, 0.0, **facts)


class World:
    """Nodes that answer what `reports` says, each held back while its name is in `held`."""

    def __init__(self, *names: str, at_once: int = 2) -> None:
        self.clock = DrivenClock()
        self.metrics = ControllerMetrics()
        self.nodes = {name: make_state(name) for name in names}
        self.reports: dict[str, GoldenReport | NoAnswerError] = {}
        self.release = asyncio.Event()
        self.release.set()
        self.asked: list[str] = []
        self.says: dict[str, list[Finding]] = {}  # nodes of other engines, what they say next; the last one stays
        self.stored: list[object] = []
        self.timeline: list[str] = []

        async def write(_: object) -> None:
            self.stored.append(_)

        records: Any = SimpleNamespace(
            clock=self.clock,
            metrics=self.metrics,
            database=SimpleNamespace(write=write),
            timeline=SimpleNamespace(append_soon=lambda kind, *_, **__: self.timeline.append(kind)),
        )
        self.fleet = cast(
            Fleet,
            SimpleNamespace(nodes=self.nodes, seen_at=lambda _: self.clock.now(), observe_node=self._observe),
        )
        client: Any = SimpleNamespace(deep_health=self._deep_health)
        foreign: Any = SimpleNamespace(ask=self._say, forget=lambda _: None)
        answers = KnownAnswers(records, {}, 180.0)
        self.checks = DeepChecks(records, self.fleet, client, foreign, answers, interval_s=60.0, at_once=at_once)

    def add_foreign(self, *names: str) -> None:
        for name in names:
            state = make_state(name)
            row = replace(state.row, spec=replace(state.row.spec, engine="vllm"))
            self.nodes[name] = replace(state, row=row)
            self.says[name] = [Finding(GOOD)]

    async def _say(self, state: NodeState) -> Finding:
        self.asked.append(state.name)
        left = self.says[state.name]
        return left.pop(0) if len(left) > 1 else left[0]

    async def _observe(self, name: str) -> None:
        """As the fleet does: what is known against a node is its phase."""
        out = self.checks.why_out(name)
        phase = NodePhase.NOT_READY if out else NodePhase.READY
        self.nodes[name] = replace(self.nodes[name], phase=phase, reason=out)

    async def minutes(self, number: int = 1) -> None:
        for _ in range(number * 12):
            self.clock.move(5.0)
            await self.turn()

    async def _deep_health(self, url: str) -> GoldenReport:
        name = url.removeprefix("http://")
        self.asked.append(name)
        await self.release.wait()
        report = self.reports.get(name, GoldenReport("passed", 1.0, "", False))
        if isinstance(report, NoAnswerError):
            raise report
        return report

    async def turn(self) -> None:
        await self.checks.ask_due_nodes()
        for _ in range(12):
            await asyncio.sleep(0)

    def result(self, name: str) -> str:
        return deep_check_view(self.checks.last(name), self.clock.now(), self.checks.max_age_s).result


async def test_each_node_is_asked_once_an_interval_and_few_at_once() -> None:
    world = World("a", "b", "c", at_once=2)
    world.release.clear()
    await world.turn()
    await world.turn()
    assert world.asked == ["a", "b"], "no more than two at once"
    world.release.set()
    await world.turn()
    await world.turn()
    assert world.asked == ["a", "b", "c"]
    world.clock.move(59.0)
    await world.turn()
    assert len(world.asked) == 3
    world.clock.move(1.0)
    await world.turn()
    await world.turn()
    assert sorted(world.asked[3:]) == ["a", "b", "c"]


async def test_a_result_is_waited_for_and_a_busy_node_keeps_the_one_before() -> None:
    world = World("a")
    world.reports["a"] = GoldenReport("passed", 45.0, "", True)
    await world.turn()
    assert world.result("a") == "unknown"
    for _ in range(int(2 * RESULT_WAIT_S) + 2):
        world.clock.move(0.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await world.turn()
    assert world.result("a") == "passed"
    assert len(world.asked) == 2 * RESULT_WAIT_S + 1


async def test_a_node_whose_own_minute_was_not_over_is_asked_again_soon() -> None:
    world = World("a")
    world.reports["a"] = GoldenReport("passed", 59.5, "", False)
    await world.turn()
    world.clock.move(4.9)
    await world.turn()
    assert len(world.asked) == 1
    world.clock.move(0.1)
    await world.turn()
    assert len(world.asked) == 2


async def test_wrong_is_wrong_until_it_is_right_and_unknown_when_nobody_could_look_for_long() -> None:
    world = World("a")
    world.reports["a"] = GoldenReport("failed", 0.0, "token 3 differs", False)
    await world.turn()
    assert world.result("a") == "failed"
    world.nodes["a"] = make_state("a", NodePhase.NOT_READY, "wrong_output")
    world.reports["a"] = NoAnswerError("timed out")
    world.clock.move(60.0)
    await world.turn()
    assert world.result("a") == "failed", "one look that fails says nothing new"
    view = deep_check_view(world.checks.last("a"), world.clock.now(), world.checks.max_age_s)
    assert (view.age_s, view.detail) == (60.0, "could not look: timed out")
    world.clock.move(121.0)
    assert world.result("a") == "unknown"


async def test_another_process_and_another_engine_and_a_silent_node_are_not_known() -> None:
    world = World("a", "b", "c", "d")
    world.nodes["d"] = make_state("d", NodePhase.NOT_READY, "asleep")
    world.nodes["b"] = make_state("b", NodePhase.UNREACHABLE)
    world.nodes["c"] = make_state("c", NodePhase.STARTING)
    await world.turn()
    assert world.asked == ["a"]
    world.nodes["a"] = make_state("a", instance="i2")
    world.release.clear()
    await world.turn()
    assert world.result("a") == "unknown"


GOOD, BAD = Answer(" Thursday"), Answer(" banana")


async def test_a_node_of_another_engine_that_most_contradict_twice_is_out_until_it_is_right() -> None:
    world = World(at_once=8)
    world.add_foreign("a", "b", "c")
    await world.minutes()
    assert [world.result(name) for name in "abc"] == ["passed"] * 3
    world.says["c"] = [Finding(BAD)]
    await world.minutes()
    assert [world.result(name) for name in "abc"] == ["passed", "passed", "failed"]
    assert (world.checks.why_out("c"), world.checks.why_out("a")) == ("wrong_output", "")
    asked = world.asked.count("c")
    world.clock.move(5.0)
    await world.turn()
    assert world.asked.count("c") == asked + 1, "it is asked soon again: when is it right?"
    world.says["c"] = [Finding(GOOD)]
    world.clock.move(5.0)
    await world.turn()
    assert (world.result("c"), world.checks.why_out("c")) == ("passed", "")


async def test_one_odd_answer_is_no_fault() -> None:
    world = World(at_once=8)
    world.add_foreign("a", "b", "c")
    await world.minutes()
    world.says["c"] = [Finding(BAD), Finding(GOOD)]
    await world.minutes()
    assert world.result("c") == "passed"
    assert "wrong" not in world.checks.why_out("c")


async def test_one_that_was_wrong_stays_out_when_nobody_is_left_to_say_so() -> None:
    world = World(at_once=8)
    world.add_foreign("a", "b", "c")
    world.says["c"] = [Finding(BAD)]
    await world.minutes()
    assert world.checks.why_out("c") == "wrong_output"
    del world.nodes["a"], world.nodes["b"]
    await world.minutes(10)
    assert (world.checks.why_out("c"), world.result("c")) == ("wrong_output", "failed"), "and its alert stands"
    world.says["c"] = [Finding(reason="core_stuck", detail="no answer")]
    await world.minutes()
    assert world.checks.why_out("c") == "wrong_output"


async def test_the_first_of_three_is_asked_at_once_when_the_others_contradict_it() -> None:
    world = World(at_once=1)
    world.add_foreign("a", "b", "c")
    world.says["a"] = [Finding(BAD)]
    await world.minutes()
    assert world.checks.why_out("a") == "wrong_output"
    assert [world.result(name) for name in "bc"] == ["passed", "passed"]
    assert world.timeline == ["answers.changed"], "what was recorded first was wrong"


async def test_a_core_that_is_stuck_is_out_until_it_answers() -> None:
    world = World(at_once=8)
    world.add_foreign("a")
    world.says["a"] = [Finding(reason="core_stuck", detail="no answer")]
    await world.minutes()
    assert (world.checks.why_out("a"), world.result("a")) == ("core_stuck", "unknown")
    world.says["a"] = [Finding(GOOD)]
    await world.minutes()
    assert (world.checks.why_out("a"), world.result("a")) == ("", "passed")


def exposed(metrics: ControllerMetrics, names: set[str]) -> dict[tuple[str, str], float]:
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {(one.name, one.labels.get("pool", "")): one.value for one in samples if one.name in names}


async def test_series_have_what_is_known_and_end_with_it() -> None:
    world = World("a")
    store = SeriesStore()
    metrics = ControllerMetrics()
    metrics.storage_ok.set(1)
    metrics.tell_pools({}, {"default": 0})
    series = FleetSeries(
        world.fleet,
        cast(Gateways, {}),
        world.checks,
        store,
        world.clock,
        stale_after_s=10.0,
        own=metrics.asked_by_rules,
    )

    async def values() -> dict[str, float]:
        world.clock.move(1.0)
        await series.record()
        found = evaluate('{__name__=~"fleet_node_.*",node="a",pool="default"}', store, world.clock.now())
        return {sample.labels["__name__"].removeprefix("fleet_node_"): sample.value for sample in found}

    assert await values() == {"process_up": 1.0, "phase": 1.0}
    await world.turn()
    assert await values() == {"process_up": 1.0, "output_ok": 1.0, "phase": 1.0}
    world.nodes["a"] = make_state("a", NodePhase.UNREACHABLE, process_up=False, exit_status=-9)
    world.clock.move(200.0)
    assert await values() == {"process_up": 0.0, "exit_status": -9.0, "phase": 1.0}
    world.nodes["a"] = make_state("a", NodePhase.UNREACHABLE, process_up=False, exit_status=1, comes_back=True)
    assert await values() == {"process_up": 0.0, "exit_status": 1.0, "comes_back": 1.0, "phase": 1.0}
    world.nodes.clear()
    metrics.storage_ok.set(0)
    metrics.breaker_open.set(1)
    metrics.tell_pools({}, {"default": 2})
    assert await values() == {}
    own = {
        ("controller_storage_ok", ""): 0.0,
        ("controller_breaker_open", ""): 1.0,
        ("controller_heartbeat_age_seconds", ""): 0.0,
        ("controller_pool_start_failures", "default"): 2.0,
    }
    found = evaluate('{__name__=~"controller_.*"}', store, world.clock.now())
    assert {(one.labels["__name__"], one.labels.get("pool", "")): one.value for one in found} == own, "for our rules"
    assert exposed(metrics, {name for name, _ in own}) == own, "for a Prometheus, under the same names"
    assert not evaluate("controller_audit_intact", store, world.clock.now()), "nobody has looked yet"


def test_whose_turn_it_is_does_not_wait_for_yesterday() -> None:
    checks = {"a": DeepCheck("i", 100.0), "b": DeepCheck("i", 90.0), "c": DeepCheck("i", 500.0)}
    assert due_nodes(["a", "b", "c", "d"], checks, {"d"}, 150.0, 60.0) == ["b", "c"]


async def test_a_node_with_wrong_output_is_seen_by_the_controller_that_asks(tmp_path: Path) -> None:
    try:
        async with running_fleet(make_config(tmp_path, nodes=1, deep_check_interval_s=1.0)) as controller:
            wrong = {"result": "failed", "detail": "token 3 differs", "age_s": 0.1, "running": False}
            await tell_node(controller, "node-1", golden=wrong, health="wrong_output")

            async def is_failed() -> bool:
                for loop in ("fleet", "deep-checks", "fleet-series"):
                    await controller.loops.run_turn(loop)
                check = controller.deep_checks.last("node-1")
                return check is not None and check.is_right is False

            await until(is_failed, "the check failed")
            assert controller.fleet.nodes["node-1"].phase is NodePhase.NOT_READY
            assert controller.metrics.registry.get_sample_value("controller_deep_checks_total", {"result": "failed"})
    finally:
        stop_all(tmp_path)
