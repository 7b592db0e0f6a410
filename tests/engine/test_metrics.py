"""Metrics: vLLM's names with exact counts, our own for fates and state, present from the start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_engine import EngineNode, read_stream, start_node, wait_for
from prometheus_client.parser import text_string_to_metric_families

from engine.metrics import length_buckets

PROMPT_TOKENS = 7


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def counts_of(exposition: str) -> dict[str, float]:
    """Every count of requests, tokens, steps or events: `name{what it is of}` to value. No gauges, no seconds."""
    counts = {}
    for family in text_string_to_metric_families(exposition):
        if family.type not in ("counter", "histogram") or family.name.startswith("process_"):
            continue
        for sample in family.samples:
            if sample.name.endswith("_seconds_sum"):
                continue
            labels = ",".join(v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine", "le"))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            if not sample.name.endswith("_bucket"):
                counts[name] = sample.value
            elif sample.labels["le"] == "+Inf":
                counts[name.replace("_bucket", "_bucket_inf")] = sample.value
    return counts


@pytest.mark.parametrize("form", ["completion", "chat", "stream", "two-choices"])
def test_after_ten_requests_of_ten_tokens_every_count_is_exact(tmp_path: Path, form: str) -> None:
    """All series that count anything: one that is not named here must be zero."""
    with start_node(tmp_path, extra_args=("--block-size", "4")) as fresh:
        prompt_tokens = ask_ten_times(fresh, form)
        sequences = 10
        cached = (prompt_tokens - 1) // 4 * 4  # whole blocks of 4; the last token is always computed
        computed = sequences * prompt_tokens - 9 * cached
        steps, mixed = 100, 0
        if form == "two-choices":  # five requests: each second sequence follows the first within its steps
            text = fresh.http.get("/metrics").text
            steps = int(counts_of(text)["vllm:iteration_tokens_total_count"])
            mixed = int(counts_of(text)["engine_step_seconds_count{mixed}"])
            computed = int(counts_of(text)["vllm:iteration_tokens_total_sum"]) - 90
        exact = {
            "vllm:request_success_total{length}": sequences,
            "vllm:prompt_tokens_total": sequences * prompt_tokens,
            "vllm:generation_tokens_total": 100,
            "vllm:prefix_cache_queries_total": sequences * prompt_tokens,
            "vllm:prefix_cache_hits_total": sequences * prompt_tokens - computed,
            "vllm:request_prompt_tokens_sum": sequences * prompt_tokens,
            "vllm:request_generation_tokens_sum": 100,
            "vllm:iteration_tokens_total_sum": computed + 90,  # the first token of each comes with its prompt
            "engine_requests_total{finished}": 5 if form == "two-choices" else 10,
            "engine_golden_runs_total{passed}": 1,  # at the start
        }
        for name, count in {
            **dict.fromkeys(("time_to_first_token_seconds", "request_time_per_output_token_seconds"), 10),
            **dict.fromkeys((f"request_{p}_time_seconds" for p in ("queue", "prefill", "decode", "inference")), 10),
            **dict.fromkeys(("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"), 10),
            "inter_token_latency_seconds": 90,
            "iteration_tokens_total": steps,
        }.items():
            exact |= {f"vllm:{name}_count": count, f"vllm:{name}_bucket_inf": count}
        found = counts_of(fresh.http.get("/metrics").text)
        by_kind = {kind: found.pop(f"engine_step_seconds_count{{{kind}}}") for kind in ("prefill", "decode", "mixed")}
        for kind in by_kind:
            del found[f"engine_step_seconds_bucket_inf{{{kind}}}"]
        assert {name: value for name, value in found.items() if value or name in exact} == exact
        assert sum(by_kind.values()) == steps
        if not mixed and form != "two-choices":
            assert by_kind == {"prefill": 10, "decode": 90, "mixed": 0}
        assert fresh.metric("vllm:num_requests_running") == fresh.metric("vllm:num_requests_waiting") == 0
        assert fresh.metric("vllm:kv_cache_usage_perc") == 0


def ask_ten_times(node: EngineNode, form: str) -> int:
    """Ten sequences of ten tokens, one request after the other; returns the tokens of their prompt."""
    body = {"max_tokens": 10, "ignore_eos": True, "prompt": list(range(3, 3 + PROMPT_TOKENS))}
    match form:
        case "completion":
            answers = [node.http.post("/v1/completions", json=body) for _ in range(10)]
        case "chat":
            chat = {**body, "messages": [{"role": "user", "content": "hi"}]}
            answers = [node.http.post("/v1/chat/completions", json=chat) for _ in range(10)]
        case "two-choices":
            answers = [node.http.post("/v1/completions", json={**body, "n": 2}) for _ in range(5)]
        case _:
            asked = body | {"stream": True, "stream_options": {"include_usage": True}}
            streams = [read_stream(node, "/v1/completions", asked) for _ in range(10)]
            assert all(stream.is_done for stream in streams)
            return int(streams[0].chunks[-1]["usage"]["prompt_tokens"])
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    return int(answers[0].json()["usage"]["prompt_tokens"])


def test_the_parts_of_a_requests_time_add_up(tmp_path: Path) -> None:
    with start_node(tmp_path) as fresh:
        ask_ten_times(fresh, "completion")
        names = ("inference", "prefill", "decode", "queue")
        sums = {n: fresh.metric(f"vllm:request_{n}_time_seconds_sum") or 0.0 for n in names}
        assert sums["inference"] == pytest.approx(sums["prefill"] + sums["decode"])
        assert fresh.metric("vllm:inter_token_latency_seconds_sum") == pytest.approx(sums["decode"])
        assert fresh.metric("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(sums["decode"] / 9)
        first = fresh.metric("vllm:time_to_first_token_seconds_sum")
        assert first == pytest.approx(sums["queue"] + sums["prefill"])
        whole = fresh.metric("vllm:e2e_request_latency_seconds_sum")
        assert whole is not None
        assert whole >= sums["queue"] + sums["inference"]


def test_series_carry_vllms_labels_and_buckets(node: EngineNode) -> None:
    families = {m.name: m for m in text_string_to_metric_families(node.http.get("/metrics").text)}
    ttft = families["vllm:time_to_first_token_seconds"]
    assert ttft.type == "histogram"
    assert all(s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in ttft.samples)
    bounds = [s.labels["le"] for s in ttft.samples if s.name.endswith("_bucket")]
    assert bounds[:3] == ["0.001", "0.005", "0.01"]
    assert bounds[-3:] == ["640.0", "2560.0", "+Inf"]
    config = families["vllm:cache_config_info"].samples[0]
    assert config.value == 1
    assert "model_name" not in config.labels
    assert int(config.labels["num_gpu_blocks"]) * int(config.labels["block_size"]) == int(
        config.labels["kv_cache_size_tokens"]
    )


def test_closed_label_sets_are_there_before_the_first_event(tmp_path: Path) -> None:
    with start_node(tmp_path) as fresh:
        for state in ("finished", "moved", "aborted", "failed", "refused"):
            assert fresh.metric("engine_requests_total", state=state) == 0
        for reason in ("overloaded", "not_ready", "draining"):
            assert fresh.metric("engine_admission_rejected_total", reason=reason) is not None
        for kind in ("prefill", "decode", "mixed"):
            assert fresh.metric("engine_step_seconds_count", kind=kind) == 0
        assert fresh.metric("engine_core_up") == 1
        wait_for(lambda: fresh.metric("engine_integrity_ok") == 1, "the first check of the blocks")


def test_the_text_is_classic_whatever_is_asked_for(node: EngineNode) -> None:
    answer = node.http.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in answer.text
    assert "_created" not in answer.text
    assert node.metric("process_start_time_seconds") is not None


def test_the_drain_state_is_one_of_three(node: EngineNode) -> None:
    def states() -> dict[str, float | None]:
        return {s: node.metric("engine_drain_state", state=s) for s in ("serving", "draining", "drained")}

    assert states() == {"serving": 1, "draining": 0, "drained": 0}
    node.drain(0)
    assert states() == {"serving": 0, "draining": 0, "drained": 1}
    assert node.http.post("/v1/completions", json={"prompt": "x"}).headers["X-Fleet-Refused"] == "draining"
    assert node.metric("engine_admission_rejected_total", reason="draining") == 1
    assert node.http.post("/admin/resume").json()["state"] == "serving"
    assert states() == {"serving": 1, "draining": 0, "drained": 0}


def test_each_request_has_one_line_without_its_text(node: EngineNode) -> None:
    secret = "hello very secret words"
    body = {"prompt": secret, "max_tokens": 5, "ignore_eos": True}
    node.http.post("/v1/completions", json=body, headers={"X-Request-Id": "one-line"})

    def written() -> list[dict[str, Any]]:
        return [e for e in node.events("request.finished") if e["request_id"] == "one-line"]

    lines = wait_for(written, "the line")
    assert len(lines) == 1
    assert (lines[0]["state"], lines[0]["tokens_out"]) == ("finished", 5)
    assert 0 <= lines[0]["queue_s"] <= lines[0]["ttft_s"] <= lines[0]["e2e_s"]
    assert secret not in node.log_text()


@pytest.mark.parametrize(
    ("max_model_len", "expected"),
    [(1, (1,)), (10, (1, 2, 5, 10)), (1024, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))],
)
def test_length_buckets_end_with_the_longest_sequence(max_model_len: int, expected: tuple[int, ...]) -> None:
    assert length_buckets(max_model_len) == expected
