"""The canonical signals that lists and views show of each node, with their ages."""

from __future__ import annotations

import math

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from fleetctl.wire.node import Signal

SIGNALS = {
    "running": "llm:running",
    "seats": "llm:seats",
    "waiting": "llm:waiting",
    "kv_ratio": "llm:kv_ratio",
    "ttft_s": "llm:ttft_seconds:mean",
    "ttft_p99_s": "llm:ttft_seconds:p99",
    "itl_s": "llm:itl_seconds:mean",
    "step_s": "llm:step_seconds:mean",
    "requests_per_s": "llm:requests:rate",
    "first_tokens_per_s": "llm:first_tokens:rate",
    "tokens_per_s": "llm:generation_tokens:rate",
    "prompt_tokens_per_s": "llm:prompt_tokens:rate",
    "prefix_hit_ratio": "llm:prefix_hit_ratio",
    "preemptions_per_s": "llm:preemptions:rate",
    "preemption_ratio": "llm:preemption_ratio",
}
"""Field of `wire.node.Node` to the series."""

Signals = dict[str, dict[str, Signal]]
"""Node name to signal name to value and age."""


def signals_by_node(store: SeriesStore, now: float) -> Signals:
    """What each node told. A node or signal without data is left out."""
    found: Signals = {}
    for name, series in SIGNALS.items():
        for sample in evaluate(series, store, now):
            node = sample.labels.get("node")
            if node and math.isfinite(sample.value):
                signal = Signal(value=sample.value, age_s=max(0.0, now - sample.at))
                found.setdefault(node, {})[name] = signal
    return found
