"""`kernels.layer_ops.rms_norm` in one pass over each row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, UINT16, narrow, widen
from kernels.cpu.memory import carray
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType, threads_for
from kernels.cpu.recorder import empty_result
from kernels.cpu.sums import sum_of_squares
from kernels.cpu.task import enter, field, float32_field, leave, next_chunk, offsets_of, pointer

CHUNK_ROWS = 8


class RmsNormTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows. Without a residual there is no h."""

    itemsize: int  # 2: bfloat16, 4: float32
    rows: int
    width: int
    eps: float
    x: Tensor  # [rows, width]
    weight: Tensor  # [width]
    out: Tensor  # [rows, width]
    residual: Tensor | None = None  # [rows, width]
    h: Tensor | None = None  # [rows, width]: x + residual


AT = offsets_of(RmsNormTask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * h / sqrt(mean(h^2) + eps)` over the last axis in float32, with h = x, or x + residual; then also h.

    Shapes: x, residual: [..., width], float32 or bfloat16; weight: [width], like x.
    Bytes moved: x and the result, with a residual it and h too: 2 or 4 x rows x width x itemsize.
    """
    x, out = x.contiguous(), empty_result(x.shape, x.dtype)
    width = weight.shape[0]
    sizes = (x.element_size(), x.numel() // width, width, float(eps))
    if residual is None:
        _region.launch(threads_for(x.numel()), RmsNormTask(*sizes, x, weight, out))
        return out
    residual, h = residual.contiguous(), empty_result(x.shape, x.dtype)
    _region.launch(threads_for(x.numel()), RmsNormTask(*sizes, x, weight, out, residual, h))
    return out, h


def _body_in_bfloat16(task):
    enter(task)
    _norm(task, UINT16)
    leave(task)


def _body_in_float32(task):
    enter(task)
    _norm(task, FLOAT32)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)


@njit(**EXACT)
def _norm(task, like):
    rows, width, eps = field(task, AT.rows), field(task, AT.width), float32_field(task, AT.eps)
    x, weight = carray(pointer(task, AT.x, like), (rows, width)), carray(pointer(task, AT.weight, like), (width,))
    out, has_residual = carray(pointer(task, AT.out, like), (rows, width)), field(task, AT.residual) != 0
    residual = carray(pointer(task, AT.residual, like), (rows, width))
    h = carray(pointer(task, AT.h, like), (rows, width))
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            if has_residual:
                _add(x[i], residual[i], h[i])
                _norm_row(h[i], weight, eps, out[i])
            else:
                _norm_row(x[i], weight, eps, out[i])
        first = next_chunk(task) * CHUNK_ROWS


@njit(**EXACT)
def _add(x, residual, out):
    for j in range(np.uintp(out.shape[0])):
        out[j] = narrow(widen(x[j]) + widen(residual[j]), x[j])


@njit(**EXACT)
def _norm_row(row, weight, eps, out):
    scale = inverse_rms(row, eps)
    for j in range(np.uintp(row.shape[0])):
        out[j] = narrow(widen(row[j]) * scale * widen(weight[j]), row[j])


@njit(**EXACT)
def inverse_rms(row, eps):
    """`1 / sqrt(mean(row^2) + eps)`, float32; compiled code only."""
    width = row.shape[0]
    squares = sum_of_squares(row.ctypes.data, width, row)
    return np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
