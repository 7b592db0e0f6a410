"""What both sides are told about the fleet: names, labels, and how often it is scraped."""

from __future__ import annotations

INTERVAL_S = 5.0
NUM_KINDS = 40  # nodes whose numbers differ; node n serves the texts of kind n modulo this
ENGINE_OF = ("vllm", "vllm", "vllm", "fleetctl")


def labels_of(number: int) -> dict[str, str]:
    """Of one node."""
    engine = ENGINE_OF[number % NUM_KINDS % len(ENGINE_OF)]
    address = f"10.0.{number // 250}.{number % 250}:8000"
    return {
        "node": f"node-{number}", "pool": f"pool-{number % 8}", "model": "demo", "zone": f"zone-{number % 3}",
        "engine": engine, "revision": "r1", "instance": address, "job": "llm-node",
    }  # fmt: skip
