"""`kernels.silu_mul` in one pass."""

from __future__ import annotations

import numpy as np
from numba import carray, njit
from torch import Tensor

from kernels.cpu.scalars import EXACT, exp32, narrow, widen
from kernels.cpu.thread_team import Crew, empty, field, pieces_of, pointer, take_piece

PIECE_ROWS = 4


def silu_mul(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = empty((*gate_up.shape[:-1], width), gate_up.dtype)
    rows = gate_up.numel() // (2 * width)
    _crew(pieces_of(gate_up.numel()), gate_up.element_size(), rows, width, gate_up.data_ptr(), out.data_ptr())
    return out


def _work(task):
    if field(task, 1) == 2:
        _multiply(task, np.empty(0, np.uint16))
    else:
        _multiply(task, np.empty(0, np.float32))


_crew = Crew(_work)


@njit(**EXACT)
def _multiply(task, like):
    rows, width = field(task, 2), field(task, 3)
    gate_up, out = carray(pointer(task, 4, like), (rows, 2, width)), carray(pointer(task, 5, like), (rows, width))
    first = take_piece(task) * PIECE_ROWS
    while first < rows:
        for i in range(first, min(first + PIECE_ROWS, rows)):
            _multiply_row(gate_up[i, 0], gate_up[i, 1], out[i])
        first = take_piece(task) * PIECE_ROWS


@njit(**EXACT)
def _multiply_row(gates, ups, out):
    for j in range(np.uintp(out.shape[0])):  # unsigned: an index that may be negative is not made vector code
        gate = widen(gates[j])
        out[j] = narrow(gate / (np.float32(1) + exp32(-gate)) * widen(ups[j]), gates[j])
