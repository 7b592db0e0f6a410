"""Faults for drills: each has its real effect, shows while it is on, and goes away with null."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from engine.node.faults import Faults, MetricsFaults
from tests.fixtures.engine import EngineNode, sample, start_node, wait_for


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineNode]:
    args = ("--num-kv-blocks", "400", "--block-size", "4", "--max-model-len", "400")
    with start_node(tmp_path_factory.mktemp("faults"), extra_args=args) as node:
        yield node


@pytest.fixture
def node(running: EngineNode) -> Iterator[EngineNode]:
    running.wait_ready()
    yield running
    off = dict.fromkeys(Faults.__struct_fields__)
    assert running.http.post("/admin/faults", json=off).json() == {"slow_steps": None}


def inject(node: EngineNode, **faults: Any) -> dict[str, Any]:
    answer = node.http.post("/admin/faults", json=faults)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def complete(node: EngineNode, **body: Any) -> Any:
    body = {"prompt": "hello", "max_tokens": 8, "seed": 1, "ignore_eos": True, "return_token_ids": True, **body}
    return node.http.post("/v1/completions", json=body)


def test_what_is_on_is_shown_and_the_rest_stays(node: EngineNode) -> None:
    assert inject(node, slow_steps=2) == {"slow_steps": 2}
    assert inject(node, prefix_cache_off=True) == {"slow_steps": 2, "prefix_cache_off": True}
    assert inject(node, slow_steps=None) == {"slow_steps": None, "prefix_cache_off": True}
    assert node.http.get("/admin/faults").json() == {"slow_steps": None, "prefix_cache_off": True}
    assert inject(node, prefix_cache_off=None) == {"slow_steps": None}


@pytest.mark.parametrize(
    "body",
    [{"oom_next": 0}, {"kv_leak": -1}, {"slow_tokenizer": 0}, {"metrics_nan": []}, {"metrics_missing": True}, {"x": 1}],
)
def test_bad_values_are_refused_and_change_nothing(node: EngineNode, body: dict[str, Any]) -> None:
    answer = node.http.post("/admin/faults", json=body)
    assert answer.status_code == 400
    assert next(iter(body)) in answer.json()["error"]["message"]
    assert node.http.get("/admin/faults").json() == {"slow_steps": None}


def test_wrong_numbers_change_the_tokens(node: EngineNode) -> None:
    right = complete(node).json()["choices"][0]["token_ids"]
    inject(node, wrong_numbers=True)
    assert complete(node).json()["choices"][0]["token_ids"] != right
    inject(node, wrong_numbers=None)
    assert complete(node).json()["choices"][0]["token_ids"] == right


def test_out_of_memory_ends_one_request_and_is_counted_down(node: EngineNode) -> None:
    before = node.metric("engine_oom_caught_total") or 0
    assert inject(node, oom_next=1)["oom_next"] == 1
    failed = complete(node)
    assert (failed.status_code, failed.headers["X-Fleet-Refused"]) == (503, "out_of_memory"), "another node may take it"
    assert "out of memory" in failed.json()["error"]["message"]
    assert node.metric("engine_oom_caught_total") == before + 1
    assert "oom_next" not in node.http.get("/admin/faults").json()
    assert complete(node).status_code == 200


def test_leaked_blocks_are_found_by_the_books(node: EngineNode) -> None:
    assert node.metric("engine_integrity_ok") == 1
    inject(node, kv_leak=2)
    complete(node, max_tokens=20)
    inject(node, kv_leak=None)
    wait_for(lambda: node.metric("engine_integrity_ok") == 0, "the leak to be found")
    wait_for(lambda: node.metric("vllm:kv_cache_usage_perc") == 0, "the blocks to be back")
    assert complete(node).status_code == 200


def test_nothing_is_found_in_a_prefix_cache_that_is_off(node: EngineNode) -> None:
    prompt = list(range(3, 67))
    complete(node, prompt=prompt)

    def hits_of_one_more() -> float:
        before = node.metric("vllm:prefix_cache_hits_total") or 0
        queries = node.metric("vllm:prefix_cache_queries_total") or 0
        complete(node, prompt=prompt)
        assert node.metric("vllm:prefix_cache_queries_total") == queries + len(prompt)
        return (node.metric("vllm:prefix_cache_hits_total") or 0) - before

    assert hits_of_one_more() > 50
    inject(node, prefix_cache_off=True)
    assert hits_of_one_more() == 0
    inject(node, prefix_cache_off=None)
    assert hits_of_one_more() > 50


def test_a_slow_tokenizer_delays_the_first_token(node: EngineNode) -> None:
    inject(node, slow_tokenizer=0.5)
    answer = node.http.post("/tokenize", json={"prompt": "hello"})
    assert answer.elapsed.total_seconds() >= 0.5
    names = (
        "vllm:time_to_first_token_seconds_sum",
        "engine_frontend_seconds_sum",
        "vllm:request_queue_time_seconds_sum",
    )
    before = [node.metric(name) or 0 for name in names]
    complete(node)
    ttft, frontend, queued = ((node.metric(name) or 0) - was for name, was in zip(names, before, strict=True))
    assert frontend >= 0.5
    assert frontend + queued <= ttft, "what is spent on tokenising counts once, and as no queue"


def test_frozen_metrics_stand_still(node: EngineNode) -> None:
    inject(node, metrics_frozen=True)
    first = node.http.get("/metrics").text
    complete(node)
    assert node.http.get("/metrics").text == first
    inject(node, metrics_frozen=None)
    assert node.http.get("/metrics").text != first


def test_series_can_be_missing_nan_and_renamed(node: EngineNode) -> None:
    inject(
        node,
        metrics_missing=["vllm:num_requests_running"],
        metrics_nan=["vllm:kv_cache_usage"],
        metrics_renamed=["vllm:generation_tokens", "vllm:time_to_first"],
    )
    text = node.http.get("/metrics").text
    assert "vllm:num_requests_running" not in text
    assert math.isnan(node.metric("vllm:kv_cache_usage_perc") or 0)
    assert node.metric("vllm:generation_tokens_total") is None
    assert node.metric("vllm:generation_tokens_renamed_total") is not None
    assert node.metric("vllm:time_to_first_token_seconds_renamed_bucket", le="0.1") is not None
    assert node.metric("vllm:num_requests_waiting") == 0


def test_labels_with_spaces_survive_renaming() -> None:
    text = b'# HELP a_total A b.\n# TYPE a_total counter\na_total{x="b c} d"} 1.0\nb 2\n'
    spoilt = MetricsFaults().apply(text, Faults(metrics_renamed=("a",), metrics_nan=("b",))).decode()
    assert spoilt == (
        '# HELP a_renamed_total A b.\n# TYPE a_renamed_total counter\na_renamed_total{x="b c} d"} 1.0\nb NaN\n'
    )
    assert sample(spoilt, "a_renamed_total", {}) == 1.0


def test_faults_of_the_core_die_with_it_and_others_do_not() -> None:
    faults = Faults(slow_steps=2.0, hung_core=True, metrics_frozen=True, slow_tokenizer=1.0)
    assert faults.without_core().shown() == {"slow_steps": None, "metrics_frozen": True, "slow_tokenizer": 1.0}


def test_a_share_of_the_requests_fails_with_an_error_of_the_server(node: EngineNode) -> None:
    inject(node, failing_share=1.0)
    failed = complete(node)
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_error")
    inject(node, failing_share=None)
    assert complete(node).status_code == 200
