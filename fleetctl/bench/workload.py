"""What both sides are given: the fleet's names, labels and scrape interval, and the rule files."""

from __future__ import annotations

from pathlib import Path

import yaml

from alerts.duration import parse_duration_s
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files

INTERVAL_S = 5.0
NUM_KINDS = 40  # nodes whose numbers differ; node n serves the texts of kind n modulo this
ENGINE_OF = ("vllm", "vllm", "vllm", "fleetctl")


def labels_of(number: int) -> dict[str, str]:
    """Of one node."""
    engine = ENGINE_OF[number % NUM_KINDS % len(ENGINE_OF)]
    address = f"10.0.{number // 250}.{number % 250}:8000"
    return {
        "node": f"node-{number}",
        "pool": f"pool-{number % 8}",
        "model": "demo",
        "zone": f"zone-{number % 3}",
        "engine": engine,
        "revision": "r1",
        "instance": address,
        "job": "llm-node",
    }


def rule_files(folder: Path, every_s: float) -> list[Path]:
    """Files in which no group is evaluated more often than each `every_s`; copies in `folder` where that differs."""
    files = [*builtin_signal_files(), *builtin_rule_files()]
    if every_s <= INTERVAL_S:
        return files
    return [_raised(path, folder / f"{path.parent.name}-{path.name}", every_s) for path in files]


def _raised(path: Path, target: Path, every_s: float) -> Path:
    content = yaml.safe_load(path.read_text())
    for group in content["groups"]:
        own_s = parse_duration_s(group["interval"]) if "interval" in group else INTERVAL_S
        group["interval"] = f"{max(own_s, every_s):g}s"
    target.write_text(yaml.safe_dump(content, sort_keys=False))
    return target
