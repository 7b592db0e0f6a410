"""The bench's figures as a Markdown table."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from fleetctl.bench.contest import BenchPlan, BenchRow


def render(plan: BenchPlan, rows: Sequence[BenchRow], note: str) -> str:
    """The table, with what it was measured on above and a note below."""
    lines = [
        f"{describe_machine()}. Scraped every 5 s, rules evaluated every 5 s or as the column says, which holds for "
        f"both; measured for at least {plan.measure_s:g} s after {plan.warm_s:g} s, one after the other. Ratios are "
        "ours to Prometheus'.",
        "",
        "| nodes | who | rules every | series | CPU s/min | ratio | memory MB (peak) | ratio | rules ms | ratio | load "
        "| notes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    peers = {row.nodes: row for row in rows if row.who == "prometheus"}
    for row in rows:
        peer = peers.get(row.nodes) if row.who == "fleetctl" else None
        lines.append(
            f"| {row.nodes} | {row.who} | {row.rules_every_s:g} s | {row.series} "
            f"| {row.cpu_s_per_min:.1f} | {_ratio(row, peer, 'cpu_s_per_min')} "
            f"| {row.memory_mb:.0f} ({row.peak_mb:.0f}) | {_ratio(row, peer, 'memory_mb')} "
            f"| {row.evaluation_ms:.1f} | {_ratio(row, peer, 'evaluation_ms')} "
            f"| {row.load_before:.1f} | {row.note} |"
        )
    return "\n".join([*lines, *(["", note] if note else []), ""])


def _ratio(own: BenchRow, peer: BenchRow | None, figure: str) -> str:
    return f"{getattr(own, figure) / getattr(peer, figure):.2f}" if peer is not None else ""


def describe_machine() -> str:
    """Date, processor and how many of them."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{dt.date.today().isoformat()}, {model}, {os.cpu_count()} CPUs"
