"""A weight in bfloat16 for the matrix registers: packed once, each step reads it in order, once for `GROUP_ROWS` rows.

A row of a product is summed in the order of the weight's columns, whatever else is in the batch: any number of rows
gives the same bits. Few rows cost what reading the weight costs: up to 16 take as long as one.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu import amx
from kernels.cpu.crew import Crew, field, take_piece
from kernels.cpu.number import EXACT, lines
from kernels.cpu.vector import copy, store_rounded

GROUP_ROWS = 512  # their inputs stay in the second cache while the weight goes by
PANEL = 32  # columns of the result that one pass over the rows computes


class TileMatrix:
    """A weight `[out, width]`, width a multiple of 32, on a CPU with matrix registers (`amx.has_amx`)."""

    __slots__ = ("_packed", "dtype", "shape")

    def __init__(self, weight: Tensor) -> None:
        self.shape, self.dtype = weight.shape, weight.dtype
        out, width = weight.shape
        whole = torch.nn.functional.pad(weight, (0, 0, 0, -out % PANEL))
        # [panel, step of 32 columns, half of the panel, pair of columns, row of the weight, one of the pair]
        self._packed = whole.view(-1, 2, 16, width // 32, 16, 2).permute(0, 3, 1, 4, 2, 5).contiguous()

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, added before it is rounded. Shapes: x: [num_rows, width]; bias: [out]."""
        x = x.contiguous()
        rows, (out, width) = x.shape[0], self.shape
        result = torch.empty((rows, out), dtype=torch.bfloat16)
        added = None if bias is None else torch.nn.functional.pad(bias.float(), (0, -out % PANEL))
        panels = self._packed.shape[0]
        pieces = panels * -(-rows // GROUP_ROWS)
        addresses = (x.data_ptr(), self._packed.data_ptr(), 0 if added is None else added.data_ptr(), result.data_ptr())
        _crew(pieces if panels * PANEL * width * rows >= 1 << 18 else 1, pieces, panels, rows, width, out, *addresses)
        return result


def _work(task):
    _multiply(task)


_crew = Crew(_work)
_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_upper, _load_lower, _load_left, _load_right = (amx.load(i) for i in range(4, 8))
_dot_0, _dot_1, _dot_2, _dot_3 = (amx.dot(i, 4 + i // 2, 6 + i % 2) for i in range(4))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))
_LINE = PANEL * 4  # bytes of a panel's row in float32


@njit(**EXACT)
def _multiply(task):
    """Pieces are the panels of one group of rows, then of the next."""
    pieces, panels, rows, width, out = field(task, 1), field(task, 2), field(task, 3), field(task, 4), field(task, 5)
    x, weight, bias, result = field(task, 6), field(task, 7), field(task, 8), field(task, 9)
    line = width * 2
    whole = rows // 16 * 16
    rest = lines(16 if whole < rows else 0, width, np.empty(0, np.uint16))
    copy(x + whole * line, rest.ctypes.data, (rows - whole) * line)
    sums, nothing = lines(PANEL, PANEL, np.empty(0, np.float32)), lines(1, PANEL, np.empty(0, np.float32))
    before = np.zeros(64, np.uint8)
    amx.save(before.ctypes.data)
    amx.configure(amx.TILES_OF_16.ctypes.data)
    piece = take_piece(task)
    while piece < pieces:
        group, panel = divmod(piece, panels)
        first_column = panel * PANEL
        columns = min(out - first_column, PANEL)
        added = nothing.ctypes.data if bias == 0 else bias + first_column * 4
        for row in range(group * GROUP_ROWS, min((group + 1) * GROUP_ROWS, rows), PANEL):
            count = min(rows - row, PANEL)
            upper = x + row * line if row < whole else rest.ctypes.data
            lower = x + (row + 16) * line if row + 16 < whole else rest.ctypes.data
            _sum_panel(upper, lower, count > 16, weight + first_column * line, line, sums.ctypes.data)
            for i in range(count):
                source, target = sums.ctypes.data + i * _LINE, result + ((row + i) * out + first_column) * 2
                if columns == PANEL:
                    store_rounded(source, added, target)
                    store_rounded(source + 64, added + 64, target + 32)
                else:
                    store_rounded(source, added, source)
                    store_rounded(source + 64, added + 64, source + 32)
                    copy(source, target, columns * 2)
        piece = take_piece(task)
    amx.configure(before.ctypes.data)


@njit(**EXACT)
def _sum_panel(upper, lower, has_lower, weight, line, into):
    """Sixteen rows each at `upper` and at `lower` times a panel of the weight: [16 or 32, 32], float32."""
    _clear_0()
    _clear_1()
    if not has_lower:
        for step in range(0, line, 64):
            _load_upper(upper + step, line)
            _load_left(weight + step * 32, 64)
            _load_right(weight + step * 32 + 1024, 64)
            _dot_0()
            _dot_1()
    else:
        _clear_2()
        _clear_3()
        for step in range(0, line, 64):
            _load_upper(upper + step, line)
            _load_left(weight + step * 32, 64)
            _dot_0()
            _load_lower(lower + step, line)
            _dot_2()
            _load_right(weight + step * 32 + 1024, 64)
            _dot_1()
            _dot_3()
        _store_2(into + 16 * _LINE, _LINE)
        _store_3(into + 16 * _LINE + 64, _LINE)
    _store_0(into, _LINE)
    _store_1(into + 64, _LINE)
