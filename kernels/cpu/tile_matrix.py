"""A weight in bfloat16 for the matrix registers: packed once, each step reads it in order, once for `GROUP_ROWS` rows.

A row of a product is summed in the order of the weight's columns, whatever else is in the batch: any number of rows
gives the same bits. Few rows cost what reading the weight costs: up to 16 take as long as one.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from kernels.cpu import amx
from kernels.cpu.panel_matrix import PanelMatrix, writer
from kernels.cpu.scalars import EXACT, lines
from kernels.cpu.thread_team import Crew, field, pointer, take_piece
from kernels.cpu.vector import copy

GROUP_ROWS = 512  # at most
CHUNK = 256 * 2 * 32  # bytes of a panel that stay in the first cache while a group's rows go by: 1.3 times as fast
PANEL = 32  # rows of the weight, and of the input, that one pass multiplies


class TileMatrix(PanelMatrix):
    """In bfloat16, its width a multiple of 32, on a CPU with matrix registers (`amx.has_amx`)."""

    __slots__ = ()
    panel = PANEL
    input_dtype = torch.bfloat16
    rows, most_rows = PANEL, GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        # [panel, step of 32 columns, half of the panel, pair of columns, row of the weight, one of the pair]
        return weight.view(-1, 2, 16, weight.shape[1] // 32, 16, 2).permute(0, 3, 1, 4, 2, 5).contiguous()


def _work(task):
    _multiply(task)


TileMatrix.crew = Crew(_work)
_write = writer(PANEL)
_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_upper, _load_lower, _load_left, _load_right = (amx.load(i) for i in range(4, 8))
_dot_0, _dot_1, _dot_2, _dot_3 = (amx.dot(i, 4 + i // 2, 6 + i % 2) for i in range(4))
_resume_0, _resume_1, _resume_2, _resume_3 = (amx.load(i) for i in range(4))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))
_LINE = PANEL * 4  # bytes of a panel's row in float32


@njit(**EXACT)
def _multiply(task):
    pieces, panels, rows, width, out = field(task, 1), field(task, 2), field(task, 3), field(task, 4), field(task, 5)
    group, x, weight, bias, result = field(task, 6), field(task, 7), field(task, 8), field(task, 9), field(task, 10)
    is_gated, line = field(task, 11) != 0, width * 2
    columns = PANEL // 2 if is_gated else PANEL  # of the result, for each panel
    whole = rows // 16 * 16
    rest = lines(16 if whole < rows else 0, width, np.empty(0, np.uint16))
    copy(x + whole * line, rest.ctypes.data, (rows - whole) * line)
    number = np.empty(0, np.float32)
    sums, nothing = lines(min(group, (rows + PANEL - 1) // PANEL * PANEL), PANEL, number), lines(1, PANEL, number)
    biases = carray(pointer(task, 9, number), (panels, PANEL))
    before = np.zeros(64, np.uint8)
    amx.save(before.ctypes.data)
    amx.configure(amx.TILES_OF_16.ctypes.data)
    piece = take_piece(task)
    while piece < pieces:
        begin, panel = piece // panels * group, piece % panels
        added = nothing[0] if bias == 0 else biases[panel]
        last = min(begin + group, rows)
        for first_byte in range(0, line, CHUNK // PANEL):
            last_byte = min(first_byte + CHUNK // PANEL, line)
            for row in range(begin, last, PANEL):
                upper = x + row * line if row < whole else rest.ctypes.data
                lower = x + (row + 16) * line if row + 16 < whole else rest.ctypes.data
                into = sums[row - begin].ctypes.data
                panel_at = weight + panel * PANEL * line
                _sum_chunk(upper, lower, last - row > 16, panel_at, line, first_byte, last_byte, into)
                if last_byte == line:
                    target = result + (row * out + panel * columns) * 2
                    found = sums[row - begin : min(last - begin, row - begin + PANEL)]
                    _write(found, added, target, out * 2, min(out - panel * columns, columns), is_gated, rest)
        piece = take_piece(task)
    amx.configure(before.ctypes.data)


@njit(**EXACT)
def _sum_chunk(upper, lower, has_lower, weight, line, first, last, into):
    """Adds bytes `first` to `last` of sixteen rows each at `upper` and `lower`, times those of a panel, to `into`."""
    if first == 0:
        _clear_0()
        _clear_1()
        _clear_2()
        _clear_3()
    else:
        _resume_0(into, _LINE)
        _resume_1(into + 64, _LINE)
        _resume_2(into + 16 * _LINE, _LINE)
        _resume_3(into + 16 * _LINE + 64, _LINE)
    if has_lower:
        for at in range(first, last, 64):
            _load_upper(upper + at, line)
            _load_left(weight + at * PANEL, 64)
            _dot_0()
            _load_lower(lower + at, line)
            _dot_2()
            _load_right(weight + at * PANEL + 1024, 64)
            _dot_1()
            _dot_3()
        _store_2(into + 16 * _LINE, _LINE)
        _store_3(into + 16 * _LINE + 64, _LINE)
    else:
        for at in range(first, last, 64):
            _load_upper(upper + at, line)
            _load_left(weight + at * PANEL, 64)
            _load_right(weight + at * PANEL + 1024, 64)
            _dot_0()
            _dot_1()
    _store_0(into, _LINE)
    _store_1(into + 64, _LINE)
