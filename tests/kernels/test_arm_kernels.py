"""On an Arm CPU with BF16 and I8MM products and attention use its dot products; compiled here, run by an emulator.

The emulated ones need Debian's cross compiler and QEMU: `pytest -m bench tests/kernels/test_arm_kernels.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.block_weight import quantised
from kernels.cpu import amx, instructions, paged_attention
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.instructions import OPTION, ByteDots
from kernels.cpu.kv_layout import in_tiles
from kernels.cpu.nibble_matrix import NibbleMatrix
from kernels.cpu.paged_attention import AttentionTask
from kernels.cpu.pair_matrix import PairMatrix
from kernels.cpu.panel_matrix import ProductTask
from kernels.cpu.quad_matrix import QuadMatrix
from tests.fixtures.arm_program import ArmProgram, launched

# A process that is told that its CPU is Arm's, with these capabilities.
ON_ARM = """
import sys
import numba
from llvmlite import binding
from kernels.cpu import instructions
binding.get_host_cpu_features = binding.targets.FeatureMap
instructions._arm_capabilities = lambda: int(sys.argv[1])
instructions.limit_compiler()
print(instructions.has_dot(), int(instructions.byte_dots()), numba.config.CPU_FEATURES or "", sep="\\n")
"""
KERNELS = {
    "pair_matrix:_body": "bfdot",
    "quad_matrix:_body": "bfmmla",
    "paged_attention:_body_in_pairs": "bfdot",
    "byte_matrix:_i8mm_body": "usdot",
    "nibble_matrix:i8mm_in_float32": "usdot",
}
PAIRS, FOURS, ATTENTION, BYTES, NIBBLES = KERNELS
MATRICES = {PairMatrix: PAIRS, QuadMatrix: FOURS}
RESULT, OUT = ProductTask._fields.index("result"), AttentionTask._fields.index("out")


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compile_to_the_dot_products_of_an_arm_cpu(kernel: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fixtures.arm_compile", str(tmp_path), kernel]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(told.stdout)
    assert found[KERNELS[kernel]] >= 64, found


@pytest.mark.parametrize(
    ("capabilities", "said", "wanted"),
    [
        (1 << 14 | 1 << 13, None, (True, ByteDots.I8MM)),
        (1 << 14, "dot", (True, ByteDots.PLAIN)),
        (1 << 13, "amx", (False, ByteDots.I8MM)),
        (0, None, (False, ByteDots.PLAIN)),
        (1 << 14 | 1 << 13, "vectors", (False, ByteDots.PLAIN)),
    ],
)
def test_an_arm_cpu_takes_what_the_system_says_that_it_has(
    capabilities: int, said: str | None, wanted: tuple[bool, ByteDots]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != OPTION}
    command = [sys.executable, "-c", ON_ARM, str(capabilities)]
    told = subprocess.run(
        command, env=environment | ({} if said is None else {OPTION: said}), check=True, capture_output=True, text=True
    )
    has_dot, dots, features = told.stdout.split("\n")[:3]
    assert (has_dot, dots) == (str(wanted[0]), str(int(wanted[1])))
    assert ("+bf16" in features) == wanted[0]
    assert ("+i8mm" in features) == (wanted[1] is ByteDots.I8MM)


def _result(after: bytes, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(after), dtype=dtype).view(shape).float()


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_emulated_products_are_those_of_their_numbers_in_pairs_and_in_fours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {kind: ArmProgram(tmp_path / kind.__name__, name) for kind, name in MATRICES.items()}
    for (out, width), is_gated in (((70, 100), False), ((130, 352), True)):
        weight, bias = torch.randn(out, width).bfloat16(), torch.randn(out)
        together, found = torch.randn(31, width).bfloat16(), {}
        for kind, program in programs.items():
            matrix = kind(weight, is_gated=is_gated)
            for rows in (1, 6, 31):
                work = partial(matrix, together[:rows], bias)
                after = program.run(*launched(kind.region, work, monkeypatch), {})[RESULT]
                found[kind, rows] = _result(after, torch.bfloat16, rows, matrix.out_width)
            assert torch.equal(found[kind, 1][0], found[kind, 31][0]), "a row's bits do not depend on the batch"
            assert torch.equal(found[kind, 6], found[kind, 31][:6])
        assert torch.equal(found[PairMatrix, 31], found[QuadMatrix, 31])
        wanted = together.double() @ weight.double().T + bias
        if is_gated:
            gate, up = wanted.chunk(2, dim=1)
            wanted = torch.nn.functional.silu(gate) * up
        torch.testing.assert_close(found[QuadMatrix, 31].double(), wanted, atol=2**-8, rtol=2**-8)


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_emulated_products_of_bytes_have_the_bits_of_this_cpu(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ArmProgram(tmp_path, BYTES)
    weight = quantised(torch.randn(70, 96), "w8a8")
    here, there = ByteMatrix(weight, dtype), ByteMatrix(weight, dtype, dots=ByteDots.I8MM)
    for rows in (1, 7, 20):
        x, bias = torch.randn(rows, 96).to(dtype), torch.randn(70)
        task, scratch_bytes = launched(there.region, partial(there, x, bias), monkeypatch)
        after = program.run(task, scratch_bytes, {})[RESULT]
        assert torch.equal(_result(after, dtype, rows, 70), here(x, bias).float())


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_emulated_products_of_nibbles_have_the_bits_of_this_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ArmProgram(tmp_path, NIBBLES)
    weight = quantised(torch.randn(70, 96), "w4a8")
    here, there = NibbleMatrix(weight, torch.float32), NibbleMatrix(weight, torch.float32, dots=ByteDots.I8MM)
    region = there.region._regions[torch.float32.itemsize]
    for rows in (5, 20):
        x, bias = torch.randn(rows, 96), torch.randn(70)
        x[2, 5] = 90.0  # an outlier
        task, scratch_bytes = launched(region, partial(there, x, bias), monkeypatch)
        after = program.run(task, scratch_bytes, {})[RESULT]
        assert torch.equal(_result(after, torch.float32, rows, 70), here(x, bias))


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_emulated_attention_in_pairs_is_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ArmProgram(tmp_path, ATTENTION)
    monkeypatch.setattr(amx, "has_amx", lambda: False)
    monkeypatch.setattr(instructions, "has_dot", lambda: True)
    lens, counts, scale = [37, 100, 300], [5, 1, 1], 0.2
    tables = torch.arange(3 * 19, dtype=torch.int32).view(3, 19)
    q, k, v = (torch.randn(n, heads, 32).bfloat16() for n, heads in ((7, 4), (57 * 16, 2), (57 * 16, 2)))
    starts = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    shape = {"num_heads": 4, "num_kv_heads": 2, "sliding_window": None}
    plan = paged_attention.plan_attention(tables, torch.tensor(lens, dtype=torch.int32), starts, **shape)
    caches = in_tiles(*(part.view(57, 16, 2, 32) for part in (k, v)))
    task, scratch_bytes = launched(
        paged_attention._in_pairs, lambda: paged_attention.paged_attention(q, *caches, plan, scale), monkeypatch
    )
    known = {part.ctypes.data: part for part in plan.arrays if isinstance(part, np.ndarray)}
    found = _result(program.run(task, scratch_bytes, known)[OUT], torch.bfloat16, 7, 4, 32)
    row = 0
    for i, (length, count) in enumerate(zip(lens, counts, strict=True)):
        first = i * 19 * 16
        for position in range(length - count, length):
            keys, values = (part[first : first + position + 1].double() for part in (k, v))
            for head in range(4):
                shares = (keys[:, head // 2] @ q[row, head].double() * scale).softmax(0)
                wanted = shares @ values[:, head // 2]
                torch.testing.assert_close(found[row, head].double(), wanted, atol=2**-7, rtol=2**-7)
            row += 1
