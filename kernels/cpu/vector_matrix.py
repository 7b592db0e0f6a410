"""A weight for the vector registers: packed once, each step reads it in order, once for `GROUP_ROWS` rows.

A row is summed in the order of the weight's columns, each product and sum one instruction, whether six rows are taken
together or four, and whether in one go or in chunks. Few rows cost what reading the weight costs: up to 12 take as long
as one. bfloat16 is widened in registers: all arithmetic is float32.
"""

from __future__ import annotations

import numpy as np
import torch
from llvmlite.binding import get_host_cpu_features
from numba import carray, njit
from torch import Tensor

from kernels.cpu.panel_matrix import PanelMatrix, writer
from kernels.cpu.scalars import EXACT, lines
from kernels.cpu.thread_team import Crew, field, pointer, take_piece
from kernels.cpu.vector import copy, prefetch_next, resumed_product

GROUP_ROWS = 504  # at most
CHUNK_BYTES = 1 << 15  # of a panel that stay in the first cache while a group's rows go by
PANEL = 64  # rows of the weight that one pass multiplies
MOST_ROWS, FEWER_ROWS = 6, 4  # of the input, taken together
# Of a panel at a time: six rows of sums fill 24 of AVX-512's 32 registers, else 12 of AVX2's 16 or 24 of ARM's 32.
STRIP = PANEL if get_host_cpu_features().get("avx512f") else 16


class VectorMatrix(PanelMatrix):
    """In float32 or bfloat16, of any shape."""

    __slots__ = ()
    panel = PANEL
    input_dtype = torch.float32
    rows, most_rows = MOST_ROWS, GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()  # [panel, column, row of the weight]


def _work(task):
    if field(task, 12) == 2:
        _multiply(task, np.empty(0, np.uint16))
    else:
        _multiply(task, np.empty(0, np.float32))


VectorMatrix.crew = Crew(_work)
_write = writer(PANEL)
_most, _fewer = (resumed_product(count, STRIP // 16, PANEL) for count in (MOST_ROWS, FEWER_ROWS))


@njit(**EXACT)
def _take(left):
    """How many of the rows that are left are taken together: sixes, then fours, so that few are computed in vain."""
    return FEWER_ROWS if left <= 4 or left == 7 or left == 8 else MOST_ROWS


@njit(**EXACT)
def _multiply(task, like):
    pieces, panels, rows, width, out = field(task, 1), field(task, 2), field(task, 3), field(task, 4), field(task, 5)
    group, x, weight, bias, result = field(task, 6), field(task, 7), field(task, 8), field(task, 9), field(task, 10)
    is_gated, line, column = field(task, 11) != 0, width * 4, PANEL * like.itemsize
    columns = PANEL // 2 if is_gated else PANEL  # of the result, for each panel
    chunk = CHUNK_BYTES // column
    number = np.empty(0, np.float32)
    sums, nothing = lines(min(group, rows) + MOST_ROWS, PANEL, number), lines(1, PANEL, number)
    biases = carray(pointer(task, 9, number), (panels, PANEL))
    whole, rest = rows, lines(MOST_ROWS, width, number)  # the last rows, where they are too few
    at = max(rows - 1, 0) // group * group
    while at < rows:
        if at + _take(rows - at) > rows:
            whole = at
            copy(x + at * line, rest.ctypes.data, (rows - at) * line)
        at += _take(rows - at)
    piece = take_piece(task)
    while piece < pieces:
        following = take_piece(task)  # now, to know what to ask the memory for
        begin, panel = piece // panels * group, piece % panels
        next_panel = following % panels if following < pieces else panel
        added = nothing[0] if bias == 0 else biases[panel]
        last = min(begin + group, rows)
        # Of the next chunk a line or two with each column. Two, where there are too few rows to ask for all of it.
        blocks = (last - begin + MOST_ROWS - 1) // MOST_ROWS * (PANEL // STRIP)
        pace = 128 if blocks * 64 < column else 64
        for first in range(0, width, chunk):
            depth = min(chunk, width - first)
            source = weight + (panel * width + first) * column
            ahead = source + depth * column if first + depth < width else weight + next_panel * width * column
            asked, row = 0, begin
            while row < last:
                count = _take(last - row)
                left = (x + row * line if row < whole else rest.ctypes.data) + first * 4
                found = sums[row - begin : row - begin + count]
                for i in range(row + count, min(row + 2 * count, last)):
                    prefetch_next(x + i * line + first * 4, depth * 4)
                for strip in range(0, PANEL, STRIP):
                    into, right = found.ctypes.data + strip * 4, source + strip * like.itemsize
                    place = ahead + depth * asked if asked < column else source  # which the first cache has
                    beyond = place + depth * 64 if pace == 128 else source
                    if count == MOST_ROWS:
                        _most(left, line, right, depth, into, PANEL * 4, first, place, beyond, like)
                    else:
                        _fewer(left, line, right, depth, into, PANEL * 4, first, place, beyond, like)
                    asked += pace
                if first + depth == width:
                    target = result + (row * out + panel * columns) * like.itemsize
                    real, stride = found[: last - row], out * like.itemsize
                    _write(real, added, target, stride, min(out - panel * columns, columns), is_gated, like)
                row += count
        piece = following
