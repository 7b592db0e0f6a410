"""Every kernel compiles for A100, H100 and B200 here, without a GPU, and keeps its values in registers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="needs Triton")


ARCHS = [80, 90, 100]
KERNELS = (
    "rms_norm",
    "rope",
    "silu_mul",
    "store_kv",
    "store_rows",
    "store_codes",
    "attention",
    "merge",
    "copy_blocks",
    "penalties",
    "extremes",
    "likeliest",
    "scores",
    "draw",
    "search",
    "settle",
    "hide",
    "block_product",
    "merge_splits",
    "expand",
)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_largest_variant_of_each_gpu_kernel_compiles_without_spills(arch: int) -> None:
    rows = _report("--last", "--arch", str(arch))
    assert {row[0] for row in rows} == {f"| {arch}"}
    assert [row[1] for row in rows] == list(KERNELS)


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ARCHS)
def test_every_variant_of_the_gpu_kernels_compiles_without_spills(arch: int) -> None:
    assert {row[1] for row in _report("--arch", str(arch))} == set(KERNELS)


def _report(*arguments: str) -> list[list[str]]:
    # In a process of its own: this one may have imported Triton for the interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.compile_report", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert all(row[-1] == "0 |" for row in rows), done.stdout
    return rows


def test_spilling_kernel_is_an_error() -> None:
    from kernels.compile_report import Resources

    fits = Resources(90, "k", "v", 4, 255, 1024, 0, 0)
    assert not fits.has_spills
    assert not fits.is_too_large
    assert Resources(90, "k", "v", 4, 255, 1024, 16, 0).has_spills
    assert Resources(90, "k", "v", 4, 255, 1024, 0, 8).has_spills
    assert Resources(90, "k", "v", 4, 32, 228 * 1024, 0, 0).is_too_large
    assert Resources(80, "k", "v", 4, 32, 200 * 1024, 0, 0).is_too_large
    assert not Resources(90, "k", "v", 4, 32, 200 * 1024, 0, 0).is_too_large
