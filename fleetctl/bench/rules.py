"""The built-in rule files as both sides load them: as they are, or with their shortest intervals raised."""

from __future__ import annotations

from pathlib import Path

import yaml

from alerts.duration import parse_duration_s
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from fleetctl.bench.fleet import INTERVAL_S


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
