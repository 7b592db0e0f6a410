"""What may wait: so many requests, the tokens that they will need, and for so long."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.node.generation_request import GenerationRequest
from engine.node.inflight import InflightRequest
from engine.node.limits import LiveLimits
from engine.node.queue_guard import LEAST_OUTPUT_TOKENS, QueueGuard
from engine.node.refusal import RefusedError
from engine.protocol.step import SamplingParams
from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import EngineNode, read_stream, start_node, wait_for

LIMITS = LiveLimits(4, 512, None, max_num_queued_reqs=10, max_num_queued_tokens=1000, max_queue_wait_s=None)


def ask_of(prompt_tokens: int, max_tokens: int, n: int = 1) -> GenerationRequest:
    prompt = tuple(range(prompt_tokens))
    return GenerationRequest(
        "i", "r", "completion", "m", 0, (prompt,), n, SamplingParams(max_tokens=max_tokens, seed=1)
    )


def waiting(request: GenerationRequest) -> InflightRequest:
    return InflightRequest(request=request, choices=[], arrived_at=0.0)


def test_a_request_is_predicted_to_need_its_prompt_and_what_answers_came_to() -> None:
    guard = QueueGuard()
    assert guard.tokens_of(ask_of(100, 500)) == 100 + LEAST_OUTPUT_TOKENS
    for _ in range(50):
        guard.note_finished(200)
    assert guard.tokens_of(ask_of(100, 500)) == 300
    assert guard.tokens_of(ask_of(100, 50)) == 150, "no answer is longer than was asked for"
    assert guard.tokens_of(ask_of(100, 500, n=3)) == 700, "choices share their prompt"


def guard_of(*held: InflightRequest) -> QueueGuard:
    guard = QueueGuard()
    for inflight in held:
        guard.note_changed(inflight)
    return guard


def test_long_answers_fill_the_queue_as_long_prompts_do() -> None:
    guard = guard_of(*(waiting(ask_of(10, 400)) for _ in range(3)))
    guard.check(ask_of(10, 400), LIMITS, 4096, 0.0)
    for _ in range(50):
        guard.note_finished(400)
    with pytest.raises(RefusedError, match="max_num_queued_tokens") as refused:
        guard.check(ask_of(10, 400), LIMITS, 4096, 100.0)
    assert refused.value.limit == "max_num_queued_tokens"
    assert refused.value.retry_after_s == 12, "1,230 tokens at 100 a second"


def test_the_first_to_wait_is_never_refused() -> None:
    QueueGuard().check(ask_of(5000, 500), LIMITS, 100, 0.0)


def test_without_a_limit_four_times_the_cache_may_wait() -> None:
    limits = replace(LIMITS, max_num_queued_tokens=None)
    guard = guard_of(waiting(ask_of(350, 1)))
    guard.check(ask_of(40, 1), limits, 100, 0.0)
    with pytest.raises(RefusedError):
        guard.check(ask_of(60, 1), limits, 100, 0.0)


def keep_busy(node: EngineNode) -> threading.Thread:
    """One request that runs for long, so that others wait."""
    node.http.post("/admin/faults", json={"slow_steps": 100})
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    thread = threading.Thread(
        target=lambda: httpx.post(f"{node.url}/v1/completions", verify=NO_TLS, json=body, timeout=60)
    )
    thread.start()
    wait_for(lambda: node.metric("vllm:num_requests_running") == 1, "one to run")
    return thread


def test_a_request_that_waits_too_long_ends_and_says_when_to_come_back(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--max-num-seqs", "1", "--max-queue-wait", "0.3")) as node:
        assert node.http.get("/admin/limits").json()["max_queue_wait_s"] == 0.3
        node.http.post("/admin/limits", json={"max_queue_wait_s": None})  # a busy machine may let the first wait too
        busy = keep_busy(node)
        node.http.post("/admin/limits", json={"max_queue_wait_s": 0.3})
        body: dict[str, Any] = {"prompt": "y", "max_tokens": 1}
        whole = node.http.post("/v1/completions", json=body)
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "queue_timeout")
        assert int(whole.headers["Retry-After"]) >= 1
        streamed = read_stream(node, "/v1/completions", body | {"stream": True})
        assert (streamed.status, json.loads(streamed.body)["error"]["code"]) == (503, "queue_timeout")
        assert int(streamed.headers["Retry-After"]) >= 1
        assert node.metric("engine_admission_rejected_total", reason="queue_timeout") == 2
        assert node.metric("vllm:num_requests_running") == 1, "what runs is not ended"
        assert node.http.post("/admin/limits", json={"max_queue_wait_s": None}).json()["max_queue_wait_s"] is None
        waits = threading.Thread(
            target=lambda: httpx.post(f"{node.url}/v1/completions", verify=NO_TLS, json=body, timeout=60)
        )
        waits.start()
        wait_for(lambda: (node.metric("engine_oldest_waiting_seconds") or 0) > 0.6, "it to wait for ever")
        node.http.post("/admin/abort", json={"request_ids": None})
        busy.join(60)
        waits.join(60)


def blocks_held(node: EngineNode) -> dict[str, int] | None:
    """By the state of who holds them; None: the core did not answer in time."""
    told = node.http.get("/admin/requests").json()
    return None if "kv_blocks_unknown" in told else {row["state"]: row["kv_blocks"] for row in told["requests"]}


def test_which_limit_was_reached_is_counted_under_vllms_name(tmp_path: Path) -> None:
    with start_node(tmp_path, extra_args=("--max-num-seqs", "1", "--max-num-queued-reqs", "1")) as node:
        busy = keep_busy(node)
        body = {"prompt": "y", "max_tokens": 1}
        waits = threading.Thread(
            target=lambda: httpx.post(f"{node.url}/v1/completions", verify=NO_TLS, json=body, timeout=60)
        )
        waits.start()
        wait_for(lambda: node.metric("vllm:num_requests_waiting") == 1, "one to wait")
        assert node.http.post("/v1/completions", json=body).status_code == 429
        assert node.metric("vllm:admission_rejections_total", model_name="tiny", reason="max_num_queued_reqs") == 1
        assert node.metric("vllm:admission_rejections_total", model_name="tiny", reason="max_num_queued_tokens") == 0
        held = wait_for(lambda: blocks_held(node), "the core to say what they hold")
        assert held["waiting"] == 0
        assert held["running"] >= 1
        node.http.post("/admin/abort", json={"request_ids": None})
        busy.join(60)
        waits.join(60)
