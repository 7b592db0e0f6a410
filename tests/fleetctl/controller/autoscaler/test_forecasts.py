"""What is predicted is made of: actions, what the simulator says, lengths and step prices."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from alerts.series.store import SeriesStore
from fleetctl.controller.autoscaler.forecasts import Forecasts, change_of
from fleetctl.controller.autoscaler.lengths import LengthHistogram, Traffic
from fleetctl.controller.autoscaler.prediction import Figures, FleetChange, LongReroute, Prediction
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.autoscaler.step_cost import FittedCosts, StepCount, fit_costs
from fleetctl.controller.autoscaler.unknown import Unknown
from runbooks.command import parse_command
from runbooks.run import Run, RunStatus
from tests.fixtures.runbooks import make_run

SERVING = frozenset({"node-1", "node-2", "node-3", "node-4"})
POOLS = dict.fromkeys(SERVING, "default")
BUCKETS = (("0.4", 1), ("0.6", 2), ("0.8", 20), ("+Inf", 20))  # of TTFT, requests a second


@pytest.mark.parametrize(
    ("commands", "change"),
    [
        (["drain node-2"], FleetChange(leave=frozenset({"node-2"}))),
        (["restart node-2"], FleetChange(leave=frozenset({"node-2"}))),
        (["node start node-5", "drain node-2", "node stop node-2"], FleetChange(leave=frozenset({"node-2"}), add=1)),
        (["uncordon node-9"], FleetChange(add=1)),
        (["drain node-2", "uncordon node-2"], FleetChange()),
        (
            ["reroute long-context --over 2k --share 0.5"],
            FleetChange(reroute=LongReroute(2048, ("node-1", "node-2"))),
        ),
        (["reroute long-context --over 5s --share 0.5"], FleetChange()),
    ],
)
def test_actions_become_nodes_that_leave_and_come(commands: list[str], change: FleetChange) -> None:
    assert change_of([parse_command(command) for command in commands], SERVING, POOLS) == change


def test_lengths_lie_in_their_buckets_and_have_the_mean_of_the_histogram() -> None:
    lengths = LengthHistogram((100.0, 200.0, 2000.0, 5000.0), (0, 850, 0, 150), total=850 * 200 + 150 * 4000.0)
    drawn = lengths.draw(5000, random.Random(1))
    assert all(100 <= length <= 200 or 2000 <= length <= 5000 for length in drawn)
    assert fmean(drawn) == pytest.approx(lengths.total / lengths.count, rel=0.1)


def test_traffic_keeps_the_newest_intervals_and_their_numbers() -> None:
    lengths = LengthHistogram((100.0,), (10,), 1000.0)
    traffic = Traffic(5.0, (100.0, 2.0, 3.0), lengths, lengths, prefix_hit_ratio=0.5)
    columns = traffic.columns(50)
    assert len(columns["at_s"]) == 5
    assert list(columns["at_s"]) == sorted(columns["at_s"])
    assert columns["prefix_tokens"] == [50] * 5
    assert columns == traffic.columns(50)


def test_few_requests_come_again_as_their_p95_would_be_chance() -> None:
    lengths = LengthHistogram((100.0,), (10,), 1000.0)
    at = Traffic(5.0, (4.0, 6.0), lengths, lengths).columns(50, least=35)["at_s"]
    assert [sum(5.0 * begin <= one < 5.0 * begin + 5.0 for one in at) for begin in range(8)] == [4, 6] * 4


def test_step_prices_are_found_again_and_a_slow_node_is_told_from_the_others() -> None:
    rng = random.Random(5)
    counts = []
    for node, factor in (("a", 1.0), ("b", 1.0), ("c", 3.0)):
        for _ in range(30):
            steps, prompt, decodes = rng.randrange(50, 200), rng.randrange(0, 20_000), rng.randrange(100, 2000)
            seconds = factor * (0.02 * steps + 5e-5 * prompt + 1e-3 * decodes)
            counts.append(StepCount(node, steps, seconds, prompt, decodes, 0.0))
    costs = fit_costs(counts)
    assert isinstance(costs, FittedCosts)
    assert costs.factors["c"] / costs.factors["a"] == pytest.approx(3.0, rel=0.05)
    prices = costs.of("a")
    assert 100 * prices.fixed_s + 5000 * prices.prompt_token_s + 800 * prices.decode_s == pytest.approx(3.05, rel=0.05)


def test_few_step_times_give_no_prices() -> None:
    found = fit_costs([StepCount("a", 50, 1.0, 100, 100, 0.0)] * 3)
    assert isinstance(found, Unknown)
    assert "8 are needed" in found.why


@pytest.mark.anyio
async def test_simulator_that_fails_hangs_or_is_not_there_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Simulator(command=(sys.executable, "-c", "raise SystemExit('no memory')"))
    assert await failing.simulate({}) == Unknown("the simulator failed: no memory")
    hanging = Simulator(command=(sys.executable, "-c", "import time; time.sleep(60)"), deadline_s=0.2)
    assert await hanging.simulate({}) == Unknown("the simulation took longer than 0.2 s")
    monkeypatch.setattr("fleetctl.controller.autoscaler.simulator.find_spec", lambda _: None)
    assert await Simulator().simulate({}) == Unknown("no simulator here: the engine package is not installed")


@pytest.mark.anyio
async def test_simulator_answers_from_our_engine_wherever_the_controller_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/__init__.py").write_text("raise ImportError('a folder of the user')")
    monkeypatch.chdir(tmp_path)
    node = {"name": "a", "limits": {"num_kv_blocks": 1000}, "cost": {"fixed_s": 0.01, "prompt_token_s": 1e-4}}
    arrivals = {"at_s": [0.0, 1.0], "prompt_tokens": [100, 100], "output_tokens": [5, 5]}
    answer = await Simulator(deadline_s=60).simulate({"nodes": [node], "arrivals": arrivals})
    assert isinstance(answer, dict), json.dumps(answer, default=str)
    assert answer["ttft_p95_s"] == pytest.approx(0.02)


@pytest.mark.anyio
async def test_a_run_is_followed_until_it_has_ended_and_was_looked_at_once() -> None:
    runs, asked = [make_run(RunStatus.PROPOSED)], list[list[str]]()

    async def runs_to_follow(run_ids: Collection[str]) -> list[Run]:
        asked.append(list(run_ids))
        return [run for run in runs if not run.status.is_terminal or run.id in run_ids]

    fleet: Any = SimpleNamespace(nodes={}, looked_at=990.0)
    records: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: 1000.0))
    forecasts = Forecasts(records, fleet, SeriesStore(), Simulator(), runs_to_follow, [], interval_s=5.0)
    await forecasts.follow_runs()
    assert forecasts.known_words(runs[0].id) == "not predicted: no node takes requests"
    await forecasts.follow_runs()
    runs[0] = replace(runs[0], status=RunStatus.SUCCEEDED)
    await forecasts.follow_runs()
    await forecasts.follow_runs()
    assert asked == [[], [runs[0].id], [runs[0].id], []]


@pytest.mark.anyio
async def test_a_new_controller_predicts_nothing_of_nodes_that_it_has_not_looked_at_and_asks_again() -> None:
    """It said "no node takes requests" of three that serve. What waits for an answer is predicted once it can be."""
    run, now = make_run(RunStatus.PROPOSED), 1000.0

    async def runs_to_follow(_: Collection[str]) -> list[Run]:
        return [run]

    fleet: Any = SimpleNamespace(nodes={}, looked_at=None)
    records: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: now))
    forecasts = Forecasts(records, fleet, SeriesStore(), Simulator(), runs_to_follow, [], interval_s=5.0)
    await forecasts.follow_runs()
    assert forecasts.known_words(run.id) == ""
    assert "has not looked at the nodes yet" in await forecasts.words_of(run)
    fleet.looked_at = 1001.0
    await forecasts.follow_runs()
    assert forecasts.known_words(run.id) == "not predicted: no node takes requests"
    spec = SimpleNamespace(pool="default", model="demo")
    fleet.nodes = dict.fromkeys(("node-1", "node-2"), SimpleNamespace(is_serving=True, row=SimpleNamespace(spec=spec)))
    now += 20
    await forecasts.follow_runs()
    assert "node-1 does not tell" in forecasts.known_words(run.id)


@pytest.mark.anyio
async def test_prediction_of_a_dry_run_is_held_against_the_run_that_follows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, node, store = 1000.0, "node-1", SeriesStore()
    told: list[dict[str, Any]] = []
    run = replace(make_run(RunStatus.RUNNING), id="real")

    async def append(kind: str, words: str, **more: Any) -> None:
        told.append({"kind": kind, "words": words, **more})

    async def runs_to_follow(run_ids: Collection[str]) -> list[Run]:
        return [replace(run, status=RunStatus.SUCCEEDED)] if run.id in run_ids else []

    spec = SimpleNamespace(pool="default", model="demo")
    serving = SimpleNamespace(is_serving=True, row=SimpleNamespace(spec=spec))
    fleet: Any = SimpleNamespace(nodes=dict.fromkeys((node, "node-2"), serving), looked_at=990.0)
    clock = SimpleNamespace(now=lambda: now)
    records: Any = SimpleNamespace(clock=clock, timeline=SimpleNamespace(append=append))
    forecasts = Forecasts(records, fleet, store, Simulator(), runs_to_follow, [], interval_s=5.0)
    figures = Figures(ttft_p50_s=0.1, ttft_p95_s=0.6, queue=0, kv_ratio=0.1, attained_ratio=1.0)

    async def found(*_: object) -> Prediction:
        return Prediction(figures, figures)

    monkeypatch.setattr("fleetctl.controller.autoscaler.forecasts.observe", lambda *_, **__: None)
    monkeypatch.setattr("fleetctl.controller.autoscaler.forecasts.predict", found)
    await forecasts.words_of(replace(run, id="dry", dry_run=True))
    forecasts.note_started(run)
    assert forecasts.known_words("real").startswith("predicted p95 TTFT 0.60 s")
    await forecasts.follow_runs()  # sees its end
    for second in range(62):
        lines = (f'vllm:time_to_first_token_seconds_bucket{{le="{le}"}} {second * num}' for le, num in BUCKETS)
        store.ingest({"node": node, "job": "nodes"}, "\n".join(lines) + "\n", 1000.0 + second)
    now = 1061.0
    await forecasts.follow_runs()
    assert [one["kind"] for one in told] == ["prediction.checked"]
    assert told[0]["run_id"] == "real"
    assert told[0]["data"]["error"] == pytest.approx(0.25, rel=0.1)  # measured: 95 % within 0.8 s
    assert "earlier predictions: median error 2" in forecasts.known_words("real")


@pytest.mark.anyio
async def test_simulation_that_runs_out_of_time_answers_with_the_part_that_it_did() -> None:
    slow = "echo '{\"measured\": 1}'; exec sleep 60"  # by a shell, which starts at once on a busy machine too
    simulator = Simulator(command=("sh", "-c", slow), deadline_s=5.0)
    assert await simulator.simulate({}, {}, {}) == {"measured": 1}
