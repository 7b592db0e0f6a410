"""The simulation against the real scheduler step by step, and its process against bad input."""

from __future__ import annotations

import random
import subprocess
import sys

import msgspec
import pytest

from engine.core.fake_runner import FakeCost, FakeRunner
from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import SchedulerConfig
from engine.protocol.clock import ManualClock
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from engine.simulation import fleet as simulated
from engine.simulation.fleet import SimulatedFleet
from engine.simulation.scenario import (
    Advance,
    Arrivals,
    BadScenarioError,
    NodeLimits,
    Outcome,
    Reroute,
    Scenario,
    SimNode,
    StepCost,
)
from fleetctl.gateway.routing import pick

COST = StepCost(0.02, prompt_token_s=2e-5, decode_s=2e-5)
TO_THE_END = Advance()


def make_arrivals(count: int, rate: float, *, prompt: int = 300, output: int = 60, prefix: int = 0) -> Arrivals:
    rng = random.Random(7)
    at, prompts, outputs = [], [], []
    now = 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        at.append(now)
        prompts.append(prefix + 1 + int(rng.expovariate(1 / prompt)))
        outputs.append(1 + int(rng.expovariate(1 / output)))
    prefixes = (prefix,) * count if prefix else ()
    return Arrivals(tuple(at), tuple(prompts), tuple(outputs), prefixes)


def make_nodes(count: int, *, blocks: int = 4000, seats: int = 64, cost: StepCost = COST) -> tuple[SimNode, ...]:
    limits = NodeLimits(blocks, max_num_seqs=seats)
    return tuple(SimNode(f"node-{number}", limits, cost) for number in range(1, count + 1))


def simulate(scenario: Scenario) -> Outcome:
    return SimulatedFleet(scenario).advance(TO_THE_END)


def replay_on_the_scheduler(node: SimNode, arrivals: Arrivals) -> list[float]:
    """TTFT of each request: scheduler and fake runner, one step after the other."""
    clock = ManualClock()
    limits = node.limits
    scheduler = Scheduler(
        SchedulerConfig(
            block_size=limits.block_size,
            num_blocks=limits.num_kv_blocks,
            max_model_len=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
        )
    )
    runner = FakeRunner(clock=clock, cost=FakeCost(COST.fixed_s, token_s=COST.decode_s, row_s=0.0))
    ttft: dict[str, float] = {}
    rows = list(
        zip(range(len(arrivals.at_s)), arrivals.at_s, arrivals.prompt_tokens, arrivals.output_tokens, strict=True)
    )
    while rows or scheduler.has_work:
        if not scheduler.has_work:
            clock.sleep(max(0.0, rows[0][1] - clock.now()))
        while rows and rows[0][1] <= clock.now():
            number, at, prompt, output = rows.pop(0)
            message = AddSequence(str(number), (number + 1,) * prompt, SamplingParams(max_tokens=output), at)
            assert scheduler.add(message, clock.now()) is None
        plan = scheduler.plan(clock.now())
        assert plan is not None
        for update in scheduler.apply(runner.run_step(plan), clock.now()).updates:
            if update.token_ids:
                ttft.setdefault(update.seq_id, clock.now() - arrivals.at_s[int(update.seq_id)])
    return sorted(ttft.values())


@pytest.mark.parametrize("seats", [64, 6])
def test_one_node_gives_the_ttft_of_the_real_scheduler(seats: int) -> None:
    (node,) = make_nodes(1, seats=seats)
    arrivals = make_arrivals(100, 4.0)
    expected = replay_on_the_scheduler(node, arrivals)
    outcome = simulate(Scenario((node,), arrivals))
    assert outcome.ended == len(expected) == 100
    assert outcome.ttft_p50_s == pytest.approx(expected[49], rel=1e-6)
    assert outcome.ttft_p95_s == pytest.approx(expected[94], rel=1e-6)


@pytest.mark.parametrize(
    ("blocks", "cost", "tolerance"),
    [
        (4000, StepCost(0.02, 2e-5, 3e-4, 1e-8), 1e-6),
        (120, StepCost(0.02, 2e-5, 3e-4), 0.02),  # KV is full: sequences are preempted, and others wait for blocks
    ],
)
def test_coarse_steps_give_what_single_steps_give(blocks: int, cost: StepCost, tolerance: float) -> None:
    scenario = Scenario(make_nodes(1, blocks=blocks, cost=cost), make_arrivals(90, 4.0))
    coarse, fine = simulate(scenario), simulate(msgspec.structs.replace(scenario, coarse=False))
    assert coarse.ttft_p50_s == pytest.approx(fine.ttft_p50_s, rel=tolerance)
    assert coarse.ttft_p95_s == pytest.approx(fine.ttft_p95_s, rel=tolerance)
    assert coarse.ended == fine.ended
    assert coarse.kv_ratio_max == pytest.approx(fine.kv_ratio_max, rel=0.02)


def test_same_scenario_gives_the_same_answer() -> None:
    scenario = Scenario(make_nodes(3), make_arrivals(60, 10.0))
    assert simulate(scenario) == simulate(scenario)


def test_node_that_leaves_loses_no_request_and_the_rest_waits_longer() -> None:
    nodes, arrivals = make_nodes(2, seats=4), make_arrivals(80, 6.0)
    kept = simulate(Scenario(nodes, arrivals))
    fleet = SimulatedFleet(Scenario(nodes, arrivals))
    fleet.advance(Advance(until_s=arrivals.at_s[40]))
    left = fleet.advance(Advance(leave=("node-2",)))
    assert (left.ended, left.refused) == (80, 0)
    assert [node.name for node in left.nodes] == ["node-1"]
    assert left.ttft_p95_s is not None
    assert kept.ttft_p95_s is not None
    assert left.ttft_p95_s > kept.ttft_p95_s
    assert left.node_seconds < 2 * left.now_s


def test_node_takes_requests_once_it_is_ready() -> None:
    first, late = make_nodes(2, seats=4)
    arrivals = make_arrivals(80, 8.0)
    fleet = SimulatedFleet(Scenario((first,), arrivals))
    fleet.advance(Advance(until_s=1.0))
    waiting = fleet.advance(Advance(until_s=3.0, add=(msgspec.structs.replace(late, ready_at_s=4.0),)))
    assert waiting.nodes[1].running == 0
    assert fleet.advance(Advance(until_s=6.0)).nodes[1].running > 0


def test_long_prompts_go_to_the_nodes_of_the_rule() -> None:
    arrivals = Arrivals((0.0, 0.1, 0.2, 0.3), (100, 5000, 100, 5000), (50, 50, 50, 50))
    fleet = SimulatedFleet(Scenario(make_nodes(3), arrivals, reroute=Reroute(2000, ("node-3",))))
    outcome = fleet.advance(Advance(until_s=0.4))
    assert {node.name: node.running + node.waiting for node in outcome.nodes}["node-3"] == 2


def test_shared_prefix_is_computed_once() -> None:
    alone = simulate(Scenario(make_nodes(1), make_arrivals(40, 2.0, prompt=100)))
    cached = simulate(Scenario(make_nodes(1), make_arrivals(40, 2.0, prompt=100, prefix=3000)))
    assert cached.ttft_p50_s == pytest.approx(alone.ttft_p50_s, rel=0.5)


def test_only_what_arrives_once_it_is_warm_is_measured() -> None:
    arrivals = make_arrivals(40, 4.0)
    outcome = simulate(Scenario(make_nodes(1), arrivals, measured_from_s=arrivals.at_s[30], slo_ttft_s=100.0))
    assert (outcome.arrived, outcome.measured, outcome.attained) == (40, 10, 10)


def test_nobody_who_takes_a_request_is_counted() -> None:
    outcome = simulate(Scenario((), make_arrivals(5, 4.0)))
    assert (outcome.refused, outcome.ttft_p95_s) == (5, None)


def test_scenario_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(BadScenarioError, match="must rise"):
        SimulatedFleet(Scenario(make_nodes(1), Arrivals((1.0, 0.5), (10, 10), (10, 10))))
    with pytest.raises(BadScenarioError, match="finite time above 0"):
        SimulatedFleet(Scenario(make_nodes(1, cost=StepCost(0.0)), make_arrivals(1, 1.0)))


def test_routing_weighs_as_the_gateway_does() -> None:
    for name in ("SEAT_TOKENS", "KV_SHORT_FACTOR", "UNCACHED_FACTOR", "TIE_SHARE"):
        assert getattr(simulated, name) == getattr(pick, name)


def test_process_answers_each_line_and_names_what_is_wrong() -> None:
    scenario = msgspec.json.encode(Scenario(make_nodes(1), make_arrivals(5, 4.0)))
    lines = scenario + b'\n{"until_s": 1.0}\n{}\n{"leave": 3}\n'
    done = subprocess.run(
        [sys.executable, "-m", "engine.simulation"], input=lines, capture_output=True, check=False, timeout=60
    )
    first, last, error = done.stdout.splitlines()
    assert msgspec.json.decode(first, type=Outcome).now_s == pytest.approx(1.0)
    assert msgspec.json.decode(last, type=Outcome).ended == 5
    assert "leave" in msgspec.json.decode(error)["error"]
    assert (done.returncode, done.stderr) == (2, b"")
