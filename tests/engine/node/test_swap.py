"""Swap space: KV of preempted requests waits in host memory, and their tokens are as if nothing had happened."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.core.runner_loader import NoKvMemoryError, load_runner
from engine.protocol.core_config import CoreConfig
from tests.fixtures.engine import EngineNode, start_node, tiny_model_dir, wait_for

pytestmark = pytest.mark.e2e

NUM_REQUESTS = 5
SMALL_KV = ("--num-kv-blocks", "24", "--max-model-len", "384", "--no-enable-prefix-caching")


def _complete(node: EngineNode, number: int) -> str:
    body = {
        "prompt": f"{number} and on " * 12,
        "max_tokens": 160,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": number,
    }
    answer = node.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("kept", ["auto", "int8"])
def test_a_preempted_request_is_swapped_and_goes_on_with_the_same_tokens(tmp_path: Path, kept: str) -> None:
    options = (*SMALL_KV, "--swap-space", "0.1", "--kv-cache-dtype", kept)
    with start_node(tmp_path, runner="torch", extra_args=options) as node:
        # All at once first: once answers have ended, their length is foreseen and no more are begun than fit.
        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            with node.slowed(1000):  # however busy the machine: none ends before the last has come
                asked = [pool.submit(_complete, node, number) for number in range(NUM_REQUESTS)]
                wait_for(lambda: len(node.http.get("/admin/requests").json()["requests"]) == NUM_REQUESTS, "all")
            together = [answer.result() for answer in asked]
        preemptions = node.metric("vllm:num_preemptions_total") or 0
        assert preemptions > 0
        alone = [_complete(node, number) for number in range(NUM_REQUESTS)]
        assert node.metric("vllm:num_preemptions_total") == preemptions
        assert together == alone
        swapped = {way: node.metric("engine_swapped_blocks_total", direction=way) for way in ("out", "in")}
        assert swapped["out"]
        assert swapped["out"] >= (swapped["in"] or 0) > 0
        assert node.metric("engine_swap_blocks_used") == 0, "all of it was given back"
        metrics, info = node.http.get("/metrics").text, node.http.get("/info").json()
        assert 'num_cpu_blocks="0"' not in metrics
        assert info["kv_cache_dtype"] == kept
        assert f'cache_dtype="{info["dtype"] if kept == "auto" else kept}"' in metrics
        assert any(event["how"] == "swap" for event in node.events("sequence.preempted"))


def test_swap_space_is_counted_in_blocks_and_refused_where_it_holds_none() -> None:
    config = CoreConfig(model_dir=str(tiny_model_dir()), runner="fake", swap_space_bytes=2**30)
    assert load_runner(config, lambda phase, done: None).limits.num_host_blocks == 1024
    with pytest.raises(NoKvMemoryError, match="--swap-space: 7 bytes hold not one KV block"):
        load_runner(CoreConfig(model_dir=config.model_dir, runner="fake", swap_space_bytes=7), lambda phase, done: None)
