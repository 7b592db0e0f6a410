"""`kernels.layer_ops.silu_mul` in one pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, UINT16, narrow, widen
from kernels.cpu.exp import exp32
from kernels.cpu.memory import carray
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType, threads_for
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer

CHUNK_ROWS = 4


class SiluMulTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows."""

    itemsize: int  # 2: bfloat16, 4: float32
    rows: int
    width: int  # of the result
    gate_up: Tensor  # [rows, 2, width]
    out: Tensor  # [rows, width]


AT = offsets_of(SiluMulTask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` in float32, rounded once.

    Shapes: gate_up: [..., 2 x width], float32 or bfloat16; result: [..., width].
    Bytes moved: 3 x rows x width x itemsize.
    """
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = empty_result((*gate_up.shape[:-1], width), gate_up.dtype)
    task = SiluMulTask(gate_up.element_size(), gate_up.numel() // (2 * width), width, gate_up, out)
    _region.launch(threads_for(gate_up.numel()), task)
    return out


def _body_in_bfloat16(task):
    enter(task)
    _multiply(task, UINT16)
    leave(task)


def _body_in_float32(task):
    enter(task)
    _multiply(task, FLOAT32)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)


@njit(**EXACT)
def _multiply(task, like):
    rows, width = field(task, AT.rows), field(task, AT.width)
    gate_up = carray(pointer(task, AT.gate_up, like), (rows, 2, width))
    out = carray(pointer(task, AT.out, like), (rows, width))
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            _multiply_row(gate_up[i, 0], gate_up[i, 1], out[i])
        first = next_chunk(task) * CHUNK_ROWS


@njit(**EXACT)
def _multiply_row(gates, ups, out):
    for j in range(np.uintp(out.shape[0])):  # unsigned: an index that may be negative is not made vector code
        gate = widen(gates[j])
        out[j] = narrow(gate / (np.float32(1) + exp32(-gate)) * widen(ups[j]), gates[j])
