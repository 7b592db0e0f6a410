"""`kernels.rms_norm` in one pass over each row."""

from __future__ import annotations

import numpy as np
from numba import carray, njit
from torch import Tensor

from kernels.cpu.scalars import EXACT, SUMS, narrow, widen
from kernels.cpu.thread_team import Crew, as_number, empty, field, pieces_of, pointer, take_piece

PIECE_ROWS = 8


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    x, out = x.contiguous(), empty(x.shape, x.dtype)
    width = weight.shape[0]
    rows = x.numel() // width
    task = (x.element_size(), rows, width, as_number(eps), x.data_ptr(), weight.data_ptr(), out.data_ptr())
    if residual is None:
        _crew(pieces_of(x.numel()), *task, 0, 0)
        return out
    residual, added = residual.contiguous(), empty(x.shape, x.dtype)
    _crew(pieces_of(x.numel()), *task, residual.data_ptr(), added.data_ptr())
    return out, added


def _work(task):
    if field(task, 1) == 2:
        _norm(task, np.empty(0, np.uint16))
    else:
        _norm(task, np.empty(0, np.float32))


_crew = Crew(_work)


@njit(**EXACT)
def _norm(task, like):
    rows, width, eps = field(task, 2), field(task, 3), np.int32(field(task, 4)).view(np.float32)
    x, weight = carray(pointer(task, 5, like), (rows, width)), carray(pointer(task, 6, like), (width,))
    out, has_residual = carray(pointer(task, 7, like), (rows, width)), field(task, 8) != 0
    residual, added = carray(pointer(task, 8, like), (rows, width)), carray(pointer(task, 9, like), (rows, width))
    first = take_piece(task) * PIECE_ROWS
    while first < rows:
        for i in range(first, min(first + PIECE_ROWS, rows)):
            if has_residual:
                _add(x[i], residual[i], added[i])
                _norm_row(added[i], weight, eps, out[i])
            else:
                _norm_row(x[i], weight, eps, out[i])
        first = take_piece(task) * PIECE_ROWS


@njit(**EXACT)
def _add(x, residual, out):
    for j in range(np.uintp(out.shape[0])):
        out[j] = narrow(widen(x[j]) + widen(residual[j]), x[j])


@njit(**SUMS)
def _norm_row(row, weight, eps, out):
    scale = inverse_rms(row, eps)
    for j in range(np.uintp(row.shape[0])):
        out[j] = narrow(widen(row[j]) * scale * widen(weight[j]), row[j])


@njit(**SUMS)
def inverse_rms(row, eps):
    """`1 / sqrt(mean(row^2) + eps)`, inside compiled code."""
    width = row.shape[0]
    squares = np.float32(0)
    for j in range(np.uintp(width)):
        value = widen(row[j])
        squares += value * value
    return np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
