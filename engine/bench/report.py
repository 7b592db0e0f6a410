"""The table: one row for each engine, dtype and concurrency, with date, hardware and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from engine.bench.figures import SLO_ITL_S, SLO_TTFT_S, Figures
from engine.bench.roofline import MachineRates

HEADER = (
    "| engine | dtype | at once | requests | output tokens/s | of roofline | TTFT p50 / p95 ms "
    "| ITL p50 / p95 / p99 ms | goodput req/s | within SLO |\n|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One engine at one concurrency: its figures, or why there are none."""

    engine: str
    version: str
    dtype: str
    concurrency: int
    figures: Figures | str
    roofline_tokens_per_s: float | None = None  # for the requests that were answered


def render(
    rows: Sequence[ReportRow],
    rooflines: Mapping[tuple[str, int], float],
    left_out: Sequence[str],
    machine: str,
    *,
    num_requests: int,
    limit_s: float,
    note: str = "",
) -> str:
    """Markdown. Unknown figures are a dash. `rooflines`: for all requests, by dtype and concurrency."""
    lines = [machine, ""]
    versions = sorted({f"{row.engine} {row.version}" for row in rows if row.version})
    lines.append(f"Versions: {', '.join(versions) or 'none'}; torch {version('torch')}.")
    lines.append(
        f"Objective: TTFT <= {SLO_TTFT_S:g} s and mean ITL <= {SLO_ITL_S * 1e3:g} ms. {num_requests} requests each, "
        f"in the same order; none was sent after {limit_s:g} s, and transformers is cut off then."
    )
    lines += ["", HEADER.rstrip()]
    lines += [_line(row, num_requests) for row in rows]
    roofline_text = "; ".join(f"{dtype} x{c}: {value:.0f}" for (dtype, c), value in rooflines.items())
    lines += ["", f"Roofline of all {num_requests} requests, output tokens/s: {roofline_text or 'not measured'}."]
    lines += [f"Left out: {why}." for why in left_out]
    if note:
        lines += ["", f"**{note}**"]
    return "\n".join(lines) + "\n"


def describe_machine(machines: Mapping[str, MachineRates]) -> str:
    """Date, CPU, threads, load and measured rates, in one line."""
    measured = "; ".join(
        f"{dtype} products {m.flops_per_s / 1e9:.0f} GFLOP/s, memory read {m.read_bytes_per_s / 1e9:.1f} GB/s"
        for dtype, m in machines.items()
    )
    threads = next((m.num_threads for m in machines.values()), 0)
    load = os.getloadavg()[0]
    device = next((f"{m.device}, " for m in machines.values() if m.device), "")
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {device}{_cpu_name()}, {len(os.sched_getaffinity(0))} CPUs, {threads} threads, "
        f"{platform.system()} {platform.machine()}, load average {load:.1f}. "
        f"Measured in this run: {measured or 'nothing'}."
    )


def _line(row: ReportRow, num_requests: int) -> str:
    start = f"| {row.engine} | {row.dtype} | {row.concurrency} "
    f = row.figures
    if isinstance(f, str):
        return f"{start}| not measured: {f.replace('|', '/')} | - | - | - | - | - | - |"
    roofline = row.roofline_tokens_per_s
    share = "-" if not roofline else f"{f.output_tokens_per_s / roofline:.0%}"
    count = str(num_requests) if f.num_requests == num_requests else f"{f.num_requests} of {num_requests}"
    return (
        f"{start}| {count} | {f.output_tokens_per_s:.1f} | {share} "
        f"| {_ms(f.ttft_p50_s)} / {_ms(f.ttft_p95_s)} | {_ms(f.itl_p50_s)} / {_ms(f.itl_p95_s)} / {_ms(f.itl_p99_s)} "
        f"| {'-' if f.goodput_per_s is None else f'{f.goodput_per_s:.2f}'} "
        f"| {'-' if f.good_ratio is None else f'{f.good_ratio:.0%}'} |"
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown CPU"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else "unknown CPU"
