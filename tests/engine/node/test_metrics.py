"""Metrics: vLLM's names with exact counts, our own for fates and state, present from the start."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.node.metrics import length_buckets
from tests.fixtures.engine import EngineNode, read_stream, start_node, wait_for

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
        sequences, requests = 10, 5 if form == "two-choices" else 10
        route = "/v1/chat/completions" if form == "chat" else "/v1/completions"
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
            "vllm:prompt_tokens_cached_total": sequences * prompt_tokens - computed,
            "vllm:prompt_tokens_by_source_total{local_cache_hit}": sequences * prompt_tokens - computed,
            "vllm:prompt_tokens_by_source_total{local_compute}": computed,
            "vllm:request_prefill_kv_computed_tokens_sum": computed,
            "vllm:request_max_num_generation_tokens_sum": 10 * requests,
            "vllm:request_params_max_tokens_sum": 100,
            "vllm:request_params_n_sum": 10,
            f"http_requests_total{{{route},POST,2xx}}": requests,
            f"http_request_duration_seconds_count{{{route},POST}}": requests,
            f"http_request_duration_seconds_bucket_inf{{{route},POST}}": requests,
            "vllm:generation_tokens_total": 100,
            "vllm:prefix_cache_queries_total": sequences * prompt_tokens,
            "vllm:prefix_cache_hits_total": sequences * prompt_tokens - computed,
            "vllm:request_prompt_tokens_sum": sequences * prompt_tokens,
            "vllm:request_generation_tokens_sum": 100,
            "vllm:iteration_tokens_total_sum": computed + 90,  # the first token of each comes with its prompt
            "engine_requests_total{finished}": requests,
            "engine_requests_admitted_total": requests,
            "engine_frontend_seconds_count": requests,
            "engine_frontend_seconds_bucket_inf": requests,
            "engine_queue_wait_seconds_count": 10,
            "engine_queue_wait_seconds_bucket_inf": 10,
            "engine_golden_runs_total{passed}": 1,  # at the start
        }
        for name, count in {
            **dict.fromkeys(("time_to_first_token_seconds", "request_time_per_output_token_seconds"), 10),
            **dict.fromkeys((f"request_{p}_time_seconds" for p in ("queue", "prefill", "decode", "inference")), 10),
            **dict.fromkeys(("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"), 10),
            **dict.fromkeys(("request_prefill_kv_computed_tokens", "request_params_max_tokens"), 10),
            **dict.fromkeys(("request_params_n", "request_max_num_generation_tokens"), requests),
            "request_num_preemptions": 10,
            "inter_token_latency_seconds": 90,
            "iteration_tokens_total": steps,
        }.items():
            exact |= {f"vllm:{name}_count": count, f"vllm:{name}_bucket_inf": count}
        found = counts_of(fresh.http.get("/metrics").text)
        by_kind = {kind: found.pop(f"engine_step_seconds_count{{{kind}}}") for kind in ("prefill", "decode", "mixed")}
        for kind in by_kind:
            del found[f"engine_step_seconds_bucket_inf{{{kind}}}"]
            for part in ("count", "sum", "bucket_inf"):  # of the steps that can be compared with earlier ones
                del found[f"engine_step_slowness_ratio_{part}{{{kind}}}"]
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
        before = fresh.metric("engine_frontend_seconds_sum") or 0.0
        assert first == pytest.approx(before + sums["queue"] + sums["prefill"])
        whole = fresh.metric("vllm:e2e_request_latency_seconds_sum")
        assert whole is not None
        assert whole >= before + sums["queue"] + sums["inference"]


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
    assert config.labels["enable_prefix_caching"] == "True"
    assert config.labels["cache_dtype"] == "none", "what the fake runner computes in"
    assert int(config.labels["num_gpu_blocks"]) * int(config.labels["block_size"]) == int(
        config.labels["kv_cache_size_tokens"]
    )


LATENCY = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
TOKEN = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
LENGTH = "1 2 5 10 20 50 100 200 500 1000 2000 5000"  # up to the longest sequence, 8192 here
# Families of vLLM 0.33 whose signal we have: type, labels beside model_name and engine, bounds.
VLLM: dict[str, tuple[str, set[str], str]] = {
    **dict.fromkeys(("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"), ("gauge", set[str](), "")),
    "num_requests_waiting_by_reason": ("gauge", {"reason"}, ""),
    "engine_sleep_state": ("gauge", {"sleep_state"}, ""),
    **dict.fromkeys(
        (
            *("num_preemptions", "prompt_tokens", "prompt_tokens_cached", "generation_tokens"),
            *("prefix_cache_queries", "prefix_cache_hits"),
        ),
        ("counter", set[str](), ""),
    ),
    "request_success": ("counter", {"finished_reason"}, ""),
    "prompt_tokens_by_source": ("counter", {"source"}, ""),
    "time_to_first_token_seconds": (
        *("histogram", set()),
        "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    ),
    **dict.fromkeys(
        ("inter_token_latency_seconds", "request_time_per_output_token_seconds"), ("histogram", set[str](), TOKEN)
    ),
    **dict.fromkeys(
        (
            *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
            *("request_decode_time_seconds", "request_inference_time_seconds"),
        ),
        ("histogram", set[str](), LATENCY),
    ),
    **dict.fromkeys(
        (
            *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
            *("request_params_max_tokens", "request_prefill_kv_computed_tokens"),
        ),
        ("histogram", set[str](), LENGTH),
    ),
    "request_params_n": ("histogram", set(), "1 2 5 10 20"),
    "request_num_preemptions": ("histogram", set(), "1 2 3 4 5 10 20"),
    "iteration_tokens_total": ("histogram", set(), "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"),
}


@pytest.mark.parametrize("name", VLLM)
def test_vllms_families_have_its_type_labels_and_bounds(node: EngineNode, name: str) -> None:
    """Kept by hand from vLLM 0.33's own source; its dashboards and rules are written for these."""
    kind, labels, bounds = VLLM[name]
    families = {m.name: m for m in text_string_to_metric_families(node.http.get("/metrics").text)}
    family = families[f"vllm:{name}"]
    assert family.type == kind
    assert {k for s in family.samples for k in s.labels} - {"le"} == {"model_name", "engine"} | labels
    found = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
    assert found == [*(str(float(bound)) for bound in bounds.split()), *(["+Inf"] if bounds else [])]


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


def test_http_requests_are_counted_by_our_routes_and_no_words_of_strangers(tmp_path: Path) -> None:
    with start_node(tmp_path) as fresh:
        for method, path in (
            ("GET", "/v1/models/tiny"),
            ("GET", "/my/secret"),
            ("PUT", "/v1/models"),
            ("GET", "/health"),
        ):
            fresh.http.request(method, path)
        fresh.http.post("/v1/completions", json={"prompt": 5})
        families = {m.name: m for m in text_string_to_metric_families(fresh.http.get("/metrics").text)}
        found = {tuple(s.labels.values()) for s in families["http_requests"].samples if s.value}
        known = ("handler", "status", "method")
        assert {k for s in families["http_requests"].samples for k in s.labels} == set(known)
        assert {tuple(sorted(labels)) for labels in found} == {
            tuple(sorted(labels))
            for labels in (
                ("/v1/models/{model:path}", "2xx", "GET"),
                ("none", "4xx", "none"),
                ("/v1/models", "4xx", "none"),
                ("/v1/completions", "4xx", "POST"),
            )
        }


def test_the_size_of_a_prompts_parts_is_a_start_option(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--prefill-chunk-tokens", "48")) as node:
        assert node.http.get("/admin/limits").json()["prefill_chunk_tokens"] == 48
        assert node.metric("engine_limit", limit="prefill_chunk_tokens") == 48


def test_one_long_prompt_is_seen_while_it_is_prefilled(node: EngineNode) -> None:
    prompt = list(range(3, 203)) * 20

    def ask() -> None:
        with contextlib.suppress(httpx.TransportError):
            node.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "ignore_eos": True})

    chunk = node.http.get("/admin/limits").json()["prefill_chunk_tokens"]
    node.http.post("/admin/limits", json={"prefill_chunk_tokens": 32})
    node.http.post("/admin/faults", json={"slow_steps": 1000})
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_for(lambda: node.metric("engine_prefill_requests") == 1, "its prefill to begin")
        assert node.metric("engine_longest_prompt_tokens", stage="prefill") == len(prompt)
        assert node.metric("engine_prefill_backlog_tokens") == len(prompt)
        assert node.metric("engine_node_state", state="ready") == 1
        assert node.metric("vllm:request_prompt_tokens_count") == 0, "the histogram tells of it when it is over"
    finally:
        node.http.post("/admin/faults", json={"slow_steps": None})
        node.http.post("/admin/abort", json={"request_ids": None})
        node.http.post("/admin/limits", json={"prefill_chunk_tokens": chunk})
        thread.join(60)
    assert node.metric("engine_longest_prompt_tokens", stage="prefill") == 0
    assert node.metric("engine_prefill_backlog_tokens") == 0


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


def test_a_copy_draws_as_its_request_does_and_is_marked_in_the_log(node: EngineNode) -> None:
    def answer(headers: dict[str, str]) -> str:
        body = {"prompt": "hello", "max_tokens": 8, "temperature": 1, "ignore_eos": True}
        text = node.http.post("/v1/completions", json=body, headers=headers).json()["choices"][0]["text"]
        return str(text)

    own = answer({"X-Request-Id": "users"})
    assert answer({"X-Request-Id": "shadow-users", "X-Fleet-Shadow": "users"}) == own
    assert answer({"X-Request-Id": "other", "X-Fleet-Shadow": "no/id"}) != own

    def marks() -> dict[str, str | None]:
        return {e["request_id"]: e["shadow_of"] for e in node.events("request.finished")}

    wait_for(lambda: {"users", "shadow-users", "other"} <= set(marks()), "the lines")
    assert marks() | {"users": None, "shadow-users": "users", "other": None} == marks()


@pytest.mark.parametrize(
    ("max_model_len", "expected"),
    [(1, (1,)), (10, (1, 2, 5, 10)), (1024, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))],
)
def test_length_buckets_end_with_the_longest_sequence(max_model_len: int, expected: tuple[int, ...]) -> None:
    assert length_buckets(max_model_len) == expected
