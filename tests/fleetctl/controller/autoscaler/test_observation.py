"""What is read of nodes' series: limits, arrivals, lengths and step prices; and what is not known."""

from __future__ import annotations

import pytest

from alerts.series.store import SeriesStore
from fleetctl.controller.autoscaler.observation import Observation, SimLimits, observe
from fleetctl.controller.autoscaler.unknown import Unknown

FIXED_S, TOKEN_S, DECODE_S = 0.02, 1e-4, 1e-3


def scrape(second: int) -> str:
    """A node that got 2 requests a second of 200 prompt tokens and 11 of output, at loads that change."""
    prefills = 2 * second
    decodes = sum(5 + at % 7 for at in range(second)) * 3
    seconds = {
        "prefill": FIXED_S * prefills + TOKEN_S * 200 * prefills,
        "decode": FIXED_S * 20 * second + DECODE_S * decodes,
    }
    counts = {"prefill": prefills, "decode": 20 * second}
    steps = "".join(
        f'engine_step_seconds_{suffix}{{kind="{kind}"}} {values[kind]}\n'
        for suffix, values in (("count", counts), ("sum", seconds))
        for kind in counts
    )
    return steps + "".join(
        f"{line}\n"
        for line in (
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",kv_cache_max_concurrency="2.00"} 1',
            'engine_limit{limit="max_num_seqs"} 8',
            "vllm:kv_cache_usage_perc 0",
            f"engine_requests_admitted_total {prefills}",
            f"vllm:iteration_tokens_total_sum {200 * prefills + decodes}",
            f"vllm:generation_tokens_total {decodes + prefills}",
            f"vllm:time_to_first_token_seconds_count {prefills}",
            f'vllm:time_to_first_token_seconds_bucket{{le="0.1"}} {prefills}',
            f'vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {prefills}',
            f'vllm:request_prompt_tokens_bucket{{le="200"}} {prefills}',
            f'vllm:request_prompt_tokens_bucket{{le="+Inf"}} {prefills}',
            f"vllm:request_prompt_tokens_sum {200 * prefills}",
            f'vllm:request_generation_tokens_bucket{{le="20"}} {prefills}',
            f'vllm:request_generation_tokens_bucket{{le="+Inf"}} {prefills}',
            f"vllm:request_generation_tokens_sum {11 * prefills}",
        )
    )


def watched(seconds: int) -> SeriesStore:
    store = SeriesStore()
    for second in range(seconds + 1):
        for node in ("a", "b"):
            store.ingest({"node": node, "job": "nodes"}, scrape(second), 1000.0 + second)
    return store


def test_arrivals_lengths_limits_and_step_prices_are_those_of_the_nodes() -> None:
    seen = observe(watched(120), ["a", "b"], 1120.0)
    assert isinstance(seen, Observation)
    assert seen.limits["a"] == SimLimits(100, 16, 802, 8, 2048, 512)  # the concurrency has two digits
    assert seen.traffic.rate == pytest.approx(4.0, rel=0.1)
    assert seen.traffic.prompt.mean == pytest.approx(200, rel=0.01)
    assert seen.traffic.output.mean == pytest.approx(11, rel=0.01)
    prices = seen.costs.of("a")
    assert prices.prompt_token_s == pytest.approx(TOKEN_S, rel=0.2)
    assert 20 * prices.fixed_s + 24 * prices.decode_s == pytest.approx(20 * FIXED_S + 24 * DECODE_S, rel=0.05)


def test_what_was_not_watched_for_long_enough_or_is_not_told_is_unknown() -> None:
    short = observe(watched(12), ["a", "b"], 1012.0)
    assert isinstance(short, Unknown)
    assert "20 s are needed" in short.why
    stranger = observe(watched(120), ["a", "c"], 1120.0)
    assert stranger == Unknown("c does not tell its KV cache and its limits (engine_limit)")
    assert observe(watched(5), [], 1005.0) == Unknown("no node takes requests")
