"""What is written for matrix registers computes what it should where there are none: their instructions in software.

That a compiler makes the real ones of it is looked at beside.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from kernels.block_weight import quantised
from kernels.cpu import amx
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.byte_tiles import ByteTileMatrix
from kernels.linear import pack_blocks
from tests.fixtures.software_tiles import on_software_tiles

MAKES = """
from numba import types
from numba.core.ccallback import CFunc
from kernels.cpu import {module}
compiled = CFunc({module}._body, ((types.intp,), types.void), locals={{}}, options={{}})
compiled.compile()
made = compiled._library.get_asm_str()
print(made.count("{instruction}"), made.count("tileloadd"))
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tile_matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return on_software_tiles("tile_matrix", monkeypatch)


def test_products_of_bfloat16(tile_matrix: ModuleType) -> None:
    for (out, width), is_gated in (((70, 96), False), ((130, 352), True)):
        weight, bias = torch.randn(out, width).bfloat16(), torch.randn(out)
        matrix = tile_matrix.TileMatrix(weight, is_gated=is_gated)
        for rows in (1, 16, 17, 33, 70):
            x = torch.randn(rows, width).bfloat16()
            wanted = x.double() @ weight.double().T + bias
            if is_gated:
                gate, up = wanted.chunk(2, dim=1)
                wanted = torch.nn.functional.silu(gate) * up
            torch.testing.assert_close(matrix(x, bias).double(), wanted, atol=0.05, rtol=0.02)


def test_products_of_bytes_have_the_bits_of_those_on_vector_registers(
    tile_matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiles = on_software_tiles("byte_tiles", monkeypatch).ByteTileMatrix
    for (out, width), is_gated in (((70, 64), False), ((130, 640), True)):
        weight, bias = quantised(torch.randn(out, width), "w8a8"), torch.randn(out)
        for kind in ("w8a8", "w8a8 asymmetric", "w8a8 with outliers"):
            for dtype in (torch.float32, torch.bfloat16):
                own = replace(weight, kind=kind)
                found, wanted = (of(own, dtype, is_gated=is_gated) for of in (tiles, ByteMatrix))
                for rows in (0, 1, 15, 16, 17, 33, 70):
                    x = torch.randn(rows, width)
                    x[::3, 7::31] *= 50  # outliers
                    x = x.to(dtype)
                    assert torch.equal(found(x, bias), wanted(x, bias))


def test_bytes_go_to_tiles_where_a_step_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amx, "has_byte_amx", lambda: True)
    assert isinstance(pack_blocks(torch.randn(8, 64), torch.float32, "w8a8"), ByteTileMatrix)
    assert type(pack_blocks(torch.randn(8, 96), torch.float32, "w8a8")) is ByteMatrix


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="a compiler for another family of CPUs")
@pytest.mark.parametrize(("module", "instruction"), [("tile_matrix", "tdpbf16ps"), ("byte_tiles", "tdpbusd")])
def test_a_compiler_makes_the_instructions(module: str, instruction: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", MAKES.format(module=module, instruction=instruction)],
        env={**os.environ, "NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    dots, loads = map(int, told.stdout.split())
    assert dots >= 6
    assert loads >= 7
