"""Values that nodes told lately, by node; and the matcher of some of them in PromQL. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from alerts.sample import Sample


def fresh_values(samples: Iterable[Sample], now: float, stale_after_s: float) -> dict[str, float]:
    """Node to value. One whose sample is missing, not finite or older than `stale_after_s` is left out: unknown."""
    return {
        sample.labels["node"]: sample.value
        for sample in samples
        if "node" in sample.labels and math.isfinite(sample.value) and now - sample.at <= stale_after_s
    }


def node_matcher(nodes: Collection[str]) -> str:
    """These nodes and no other, as it is written between the braces of a selector."""
    return f'node=~"{"|".join(sorted(nodes))}"'
