"""What routing asks of the nodes' signals: free KV, cache size, context length, adapters, with their age."""

from __future__ import annotations

import math
from collections.abc import Iterable

from alerts.promql import evaluate
from alerts.sample import Sample
from alerts.series.store import SeriesStore
from fleetctl.wire.routing import RouteSignals

_ROUNDING = 0.005  # of the label below, which has two digits behind the point


def route_signals(store: SeriesStore, nodes: Iterable[str], now: float) -> list[RouteSignals]:
    """One for each node, as its last scrape told. What an engine does not export stays None."""
    kv = {one.labels["node"]: one for one in evaluate("max by (node) (llm:kv_ratio)", store, now)}
    sizes: dict[str, tuple[int, int | None]] = {}
    for one in evaluate("vllm:cache_config_info", store, now):
        if (told := _size(one)) is not None and "node" in one.labels:
            sizes[one.labels["node"]] = told
    for one in evaluate("sglang:max_total_num_tokens", store, now):
        if "node" in one.labels and math.isfinite(one.value):
            sizes[one.labels["node"]] = (int(one.value), None)
    adapters: dict[str, set[str]] = {}
    for one in evaluate("vllm:lora_requests_info", store, now):
        if "node" in one.labels:
            names = one.labels.get("running_lora_adapters", "").split(",")
            adapters.setdefault(one.labels["node"], set()).update(name for name in names if name)
    found = []
    for node in nodes:
        ratio = kv.get(node)
        size, context = sizes.get(node, (None, None))
        known = ratio is not None and math.isfinite(ratio.value)
        found.append(
            RouteSignals(
                node=node,
                age_s=max(0.0, now - ratio.at) if ratio is not None else None,
                kv_ratio=ratio.value if known and ratio is not None else None,
                cache_tokens=size,
                max_model_len=context,
                adapters=sorted(adapters[node]) if node in adapters else None,
            )
        )
    return found


def _size(sample: Sample) -> tuple[int, int | None] | None:
    """Tokens of the KV cache, and the longest context as far as it can be told; None when the labels have no size."""
    try:
        size = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
    except (KeyError, ValueError):
        return None
    try:
        concurrency = float(sample.labels["kv_cache_max_concurrency"])
    except (KeyError, ValueError):
        return size, None
    if concurrency <= _ROUNDING:
        return size, None
    return size, math.floor(size / (concurrency - _ROUNDING))  # not below the true one, which is whole
