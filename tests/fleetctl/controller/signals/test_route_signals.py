"""What routing is told of nodes' signals: with its age, and unknown where an engine says nothing."""

from __future__ import annotations

from alerts.sample import Sample
from fleetctl.controller.signals import route_signals as module
from fleetctl.controller.signals.route_signals import route_signals

ANSWERS = {
    "max by (node) (llm:kv_ratio)": [Sample({"node": "a"}, 0.25, 990.0)],
    "vllm:cache_config_info": [
        Sample(
            {"node": "a", "num_gpu_blocks": "1000", "block_size": "16", "kv_cache_max_concurrency": "2.00"}, 1.0, 995.0
        ),
        Sample({"node": "b", "num_gpu_blocks": "None", "block_size": "16"}, 1.0, 995.0),
        Sample(  # of vLLM 0.32.0 on a CPU with --max-model-len 4096
            {"node": "d", "num_gpu_blocks": "4096", "block_size": "128", "kv_cache_max_concurrency": "128.0"},
            1.0,
            995.0,
        ),
    ],
    "sglang:max_total_num_tokens": [Sample({"node": "c"}, 5000.0, 995.0)],
    "vllm:lora_requests_info": [Sample({"node": "a", "running_lora_adapters": "sql,fr"}, 1.0, 995.0)],
}


def test_signals_carry_their_age_and_what_is_not_exported_is_unknown(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "evaluate", lambda expression, store, now: ANSWERS[expression])
    a, b, c, d = route_signals(None, ["a", "b", "c", "d"], 1000.0)  # type: ignore[arg-type]
    assert (a.age_s, a.kv_ratio, a.cache_tokens, a.adapters) == (10.0, 0.25, 16_000, ["fr", "sql"])
    assert a.max_model_len is not None
    assert 8000 <= a.max_model_len <= 8030, "rounded up: nothing is left out wrongly"
    assert (b.age_s, b.kv_ratio, b.cache_tokens, b.adapters) == (None, None, None, None)
    assert (c.age_s, c.cache_tokens) == (None, 5000)
    assert (d.cache_tokens, d.max_model_len) == (524_288, 4096)
