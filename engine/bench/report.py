"""The table: one row for each engine, number type and concurrency, with date, hardware and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from engine.bench.floor import Machine
from engine.bench.measure import SLO_ITL_S, SLO_TTFT_S, Figures

HEADER = (
    "| engine | dtype | at once | output tokens/s | of floor | TTFT p50 / p95 ms | ITL p50 / p95 / p99 ms "
    "| goodput req/s | within SLO |\n|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Row:
    engine: str
    version: str
    dtype: str
    concurrency: int
    figures: Figures


def render(
    rows: Sequence[Row],
    floors: Mapping[tuple[str, int], float],
    skipped: Sequence[str],
    machine: str,
    *,
    num_requests: int,
) -> str:
    """Markdown. Unknown figures are a dash."""
    lines = [machine, ""]
    versions = sorted({f"{row.engine} {row.version}" for row in rows})
    lines.append(f"Versions: {', '.join(versions)}, torch {version('torch')}.")
    lines.append(
        f"Objective: TTFT <= {SLO_TTFT_S:g} s and mean ITL <= {SLO_ITL_S * 1e3:g} ms. {num_requests} requests each."
    )
    lines += ["", HEADER.rstrip()]
    lines += [_line(row, floors.get((row.dtype, row.concurrency))) for row in rows]
    floor_text = "; ".join(f"{dtype} x{c}: {value:.0f}" for (dtype, c), value in floors.items())
    lines += ["", f"Floor, output tokens/s: {floor_text}."]
    lines += [f"Left out: {why}." for why in skipped]
    return "\n".join(lines) + "\n"


def describe_machine(machines: Mapping[str, Machine]) -> str:
    rates = "; ".join(
        f"{dtype} GEMM {m.gemm_flops_per_s / 1e9:.0f} GFLOP/s, memory read {m.read_bytes_per_s / 1e9:.1f} GB/s"
        for dtype, m in machines.items()
    )
    threads = next(iter(machines.values())).num_threads
    load = os.getloadavg()[0]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {_cpu_name()}, {len(os.sched_getaffinity(0))} CPUs, {threads} threads, "
        f"{platform.system()} {platform.machine()}, load average {load:.1f}. Measured in this run: {rates}."
    )


def _line(row: Row, floor: float | None) -> str:
    f = row.figures
    share = "-" if not floor else f"{f.output_tokens_per_s / floor:.0%}"
    return (
        f"| {row.engine} | {row.dtype} | {row.concurrency} | {f.output_tokens_per_s:.1f} | {share} "
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
