"""The bench's arithmetic and its drive against a real node; no figure is held to a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bench.drive import AnswerError, drive
from engine.bench.floor import Machine, floor_tokens_per_s
from engine.bench.measure import Answer, Figures, figures_of, percentile
from engine.bench.report import Row, render
from engine.bench.servers import Server, ServerError, running
from engine.bench.workload import PREFIX_TOKENS, BenchRequest, make_workload
from engine.make_model import make_model
from engine.model_dir import open_model


def test_half_of_the_workload_shares_one_prefix() -> None:
    requests = make_workload(64)
    shared = {r.prompt[:PREFIX_TOKENS] for r in requests if r.has_prefix}
    assert len(shared) == 1
    assert sum(r.has_prefix for r in requests) == 32
    assert all(16 <= r.output_tokens <= 256 for r in requests)
    own = [len(r.prompt) - PREFIX_TOKENS * r.has_prefix for r in requests]
    assert 180 < sum(own) / len(own) < 220
    assert requests == make_workload(64), "every engine gets the same"


def test_figures_are_those_of_the_answers() -> None:
    steady = Answer(0.0, tuple(0.5 + 0.01 * i for i in range(11)), 11)
    late = Answer(0.0, (1.5, 1.51), 2)
    slow = Answer(0.0, (0.1, 0.9), 2)
    found = figures_of([steady, late, slow], 3.0)
    assert found.output_tokens_per_s == pytest.approx(5.0)
    assert (found.ttft_p50_s, found.ttft_p95_s) == (0.5, 1.5)
    assert found.itl_p99_s == pytest.approx(0.8)
    assert found.good_ratio == pytest.approx(1 / 3), "one late, one slow"
    assert found.goodput_per_s == pytest.approx(1 / 3)


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert percentile([7.0], 0.01) == 7.0


def test_figures_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no answers"):
        figures_of([], 1.0)


def test_floor_is_bytes_over_bandwidth_for_one_request(tmp_path: Path) -> None:
    config = open_model(make_model(tmp_path / "small")).config
    requests = [BenchRequest((5,), 100, has_prefix=False)]
    slow_memory = Machine(read_bytes_per_s=1e6, gemm_flops_per_s=1e18, num_threads=1)
    slow_gemm = Machine(read_bytes_per_s=1e18, gemm_flops_per_s=1e6, num_threads=1)
    by_bytes = floor_tokens_per_s(config, "float32", requests, 1, slow_memory)
    assert floor_tokens_per_s(config, "bfloat16", requests, 1, slow_memory) == pytest.approx(2 * by_bytes)
    by_flops = floor_tokens_per_s(config, "float32", requests, 1, slow_gemm)
    assert floor_tokens_per_s(config, "bfloat16", requests, 1, slow_gemm) == pytest.approx(by_flops)
    many = floor_tokens_per_s(config, "float32", requests * 8, 8, slow_memory)
    assert many > 4 * by_bytes, "weights are read once for all, keys and values for each"


def test_report_shows_unknown_figures_as_a_dash() -> None:
    rows = [Row("fast", "1.0", "float32", 8, Figures(50.0))]
    table = render(rows, {("float32", 8): 100.0}, ["other: not installed"], "a machine", num_requests=4)
    assert "| fast | float32 | 8 | 50.0 | 50% | - / - | - / - / - | - | - |" in table
    assert "Left out: other: not installed." in table


@pytest.mark.anyio
async def test_drives_a_real_node_and_counts_every_token(tmp_path: Path) -> None:
    import sys

    model = make_model(tmp_path / "small")
    command = (sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", "bench")
    node = Server("node", "0", (*command, "--port", "{port}", "--num-kv-blocks", "200"), "/health/ready")
    requests = [BenchRequest(tuple(range(300, 340)), 12, has_prefix=False)] * 3
    with running(node) as url:
        found = await drive(url, "bench", requests, 2)
        with pytest.raises(AnswerError, match="HTTP 400"):
            await drive(url, "bench", [BenchRequest((9_999_999,), 4, has_prefix=False)], 1)
    assert found.output_tokens_per_s > 0
    assert found.ttft_p50_s is not None


def test_a_server_that_ends_at_once_is_reported_with_its_words() -> None:
    import sys

    dead = Server("dead", "0", (sys.executable, "-c", "print('no such model')"), "/health")
    with pytest.raises(ServerError, match="no such model"):
        with running(dead):
            pass
