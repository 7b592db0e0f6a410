"""The autoscaler on recorded traffic, in a closed loop with the simulator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from fleetctl.controller.autoscaler.backtest import SMALL_GPU, BacktestSetup, run_backtest
from fleetctl.controller.autoscaler.judgement import Bounds
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.autoscaler.trace import TracedRequest, as_day, read_trace
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.settings.autoscaler import AutoscalerSettings
from tests.fixtures import DATA

MOONCAKE = DATA / "traces" / "mooncake_synthetic_trace.jsonl.gz"
QUICK = AutoscalerSettings(out_for_s=15.0, queue_for_s=15.0, cooldown_out_s=30.0, cooldown_in_s=60.0, in_for_s=30.0)


def setup_of(requests: list[TracedRequest]) -> BacktestSetup:
    few_seats = {**SMALL_GPU, "limits": {**SMALL_GPU["limits"], "max_num_seqs": 4}}
    return BacktestSetup(requests, few_seats, QUICK, Bounds(1, 4), start_s=20.0, begin_nodes=1)


@pytest.mark.anyio
async def test_seats_that_are_full_are_seen_where_the_kv_rule_alone_sees_nothing() -> None:
    requests = [TracedRequest(float(number), 200, 150) for number in range(240)]
    results = {one.name: one for one in await run_backtest(setup_of(requests), Simulator(deadline_s=60))}
    judged, kv_alone = results["autoscaler"], results["KV rule alone"]
    assert (kv_alone.scalings, kv_alone.largest) == (0, 1)
    assert judged.largest > 1
    assert judged.attained_ratio > kv_alone.attained_ratio
    most = results[f"fixed, {judged.largest} nodes"]
    assert judged.node_hours < most.node_hours
    assert most.attained_ratio >= judged.attained_ratio


@pytest.mark.anyio
async def test_backtest_without_a_simulator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.controller.autoscaler.simulator.find_spec", lambda _: None)
    with pytest.raises(FleetctlError, match="no simulator here"):
        await run_backtest(setup_of([TracedRequest(0.0, 10, 10)]), Simulator())


def test_trace_becomes_a_day_whose_middle_has_the_rate_of_the_trace() -> None:
    steady = [TracedRequest(float(number), 100 + number, 10) for number in range(600)]
    day = as_day(steady, 1.0, 0.2)
    hourly = [sum(begin <= row.at_s < begin + 360 for row in day) for begin in range(0, 3600, 360)]
    assert hourly[0] == pytest.approx(0.2 * 360, rel=0.2)
    assert hourly[4] == pytest.approx(360, rel=0.05)
    assert hourly == pytest.approx(hourly[::-1], abs=3)
    assert [row.prompt_tokens for row in day[:3]] == [100, 101, 102]
    assert day == sorted(day, key=lambda row: row.at_s)
    assert len(as_day(steady, 1.0, 0.2, 1.5)) == pytest.approx(1.5 * len(day), abs=2)
    with pytest.raises(BadInputError, match="no length"):
        as_day(steady[:1], 1.0, 0.2)


def test_traces_of_both_formats_are_read_and_bad_lines_are_named(tmp_path: Path) -> None:
    first = read_trace(MOONCAKE, minutes=1)[0]
    assert asdict(first) == {"at_s": 0.0, "prompt_tokens": 40160, "output_tokens": 6}
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n"
    )
    assert [(round(row.at_s, 3), row.prompt_tokens, row.output_tokens) for row in read_trace(azure)] == [
        (0.0, 374, 44),
        (4.315, 396, 1),
    ]
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,374,44\n")
    with pytest.raises(BadInputError, match="line 2"):
        read_trace(azure)
    with pytest.raises(BadInputError, match="nothing"):
        read_trace(tmp_path / "nothing.csv")
