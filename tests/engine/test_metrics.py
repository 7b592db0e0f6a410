"""Metrics: vLLM's names with exact counts, our own for fates and state, present from the start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures_engine import EngineNode, start_node, wait_for
from prometheus_client.parser import text_string_to_metric_families

from engine.metrics import length_buckets

PROMPT_TOKENS = 7


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    with start_node(tmp_path_factory.mktemp("metrics")) as running:
        yield running


def test_after_ten_requests_of_ten_tokens_every_count_is_exact(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--block-size", "4")) as fresh:
        for _ in range(10):
            body = {"prompt": list(range(3, 3 + PROMPT_TOKENS)), "max_tokens": 10, "ignore_eos": True}
            assert fresh.http.post("/v1/completions", json=body).status_code == 200
        counts = {
            "vllm:request_success_total": 10,
            "vllm:prompt_tokens_total": 10 * PROMPT_TOKENS,
            "vllm:generation_tokens_total": 100,
            "vllm:time_to_first_token_seconds_count": 10,
            "vllm:inter_token_latency_seconds_count": 90,
            "vllm:request_time_per_output_token_seconds_count": 10,
            "vllm:e2e_request_latency_seconds_count": 10,
            "vllm:request_queue_time_seconds_count": 10,
            "vllm:request_prefill_time_seconds_count": 10,
            "vllm:request_decode_time_seconds_count": 10,
            "vllm:request_inference_time_seconds_count": 10,
            "vllm:request_prompt_tokens_sum": 10 * PROMPT_TOKENS,
            "vllm:request_generation_tokens_sum": 100,
            "vllm:iteration_tokens_total_count": 100,
            "vllm:prefix_cache_queries_total": 10 * PROMPT_TOKENS,
            "vllm:prefix_cache_hits_total": 9 * 4,  # one full block of 4, for all but the first
            "vllm:num_preemptions_total": 0,
            "vllm:num_requests_running": 0,
            "vllm:num_requests_waiting": 0,
            "vllm:kv_cache_usage_perc": 0,
        }
        text = fresh.http.get("/metrics").text
        found = {f: s.value for m in text_string_to_metric_families(text) for s in m.samples for f in [s.name]}
        reasons = {
            s.labels["finished_reason"]: s.value
            for m in text_string_to_metric_families(text)
            for s in m.samples
            if s.name == "vllm:request_success_total"
        }
        assert reasons == {"stop": 0, "length": 10, "abort": 0, "error": 0}
        found["vllm:request_success_total"] = sum(reasons.values())
        assert {name: found[name] for name in counts} == counts
        assert fresh.metric("engine_requests_total", state="finished") == 10
        assert fresh.metric("engine_step_seconds_count", kind="decode") == 90


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
