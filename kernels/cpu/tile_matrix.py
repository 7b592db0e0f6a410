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
from kernels.cpu.crew import Crew, field, pointer, take_piece
from kernels.cpu.number import EXACT, lines
from kernels.cpu.vector import copy, store_gated, store_rounded

GROUP_BYTES = 1 << 20  # of inputs that stay in the second cache while the weight goes by
GROUP_ROWS = 512  # at most
CHUNK = 256 * 2 * 32  # bytes of a panel that stay in the first cache while a group's rows go by: 1.3 times as fast
PANEL = 32  # rows of the weight, and of the input, that one pass multiplies
ALONE_PRODUCTS = 1 << 18  # fewer multiplications are not worth a second thread


class TileMatrix:
    """A weight `[out, width]`, width a multiple of 32, on a CPU with matrix registers (`amx.has_amx`).

    Of a gated one the first half of the rows are gates: `silu(gate) * up` is computed before it is rounded and written.
    """

    __slots__ = ("_added", "_bias", "_packed", "dtype", "is_gated", "shape")

    def __init__(self, weight: Tensor, *, is_gated: bool = False) -> None:
        self.shape, self.dtype, self.is_gated = weight.shape, weight.dtype, is_gated
        self._bias: Tensor | None = None  # of the last call, and `_added` what it is by panel: a layer has one
        self._added: Tensor | None = None
        width = weight.shape[1]
        whole = self._by_panel(weight)
        # [panel, step of 32 columns, half of the panel, pair of columns, row of the weight, one of the pair]
        self._packed = whole.view(-1, 2, 16, width // 32, 16, 2).permute(0, 3, 1, 4, 2, 5).contiguous()

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, added before it is rounded.

        Shapes: x: [num_rows, width]; bias: [out]; result: [num_rows, out], half as wide when gated.
        """
        x = x.contiguous()
        rows, (out, width) = x.shape[0], self.shape
        out //= 1 + self.is_gated
        result = torch.empty((rows, out), dtype=torch.bfloat16)
        if bias is not self._bias:
            self._bias, self._added = bias, None if bias is None else self._by_panel(bias.float()[:, None])
        added = self._added
        panels = self._packed.shape[0]
        group = max(min(GROUP_BYTES // (2 * width), GROUP_ROWS) // PANEL * PANEL, PANEL)
        pieces = panels * -(-rows // group)
        addresses = (x.data_ptr(), self._packed.data_ptr(), 0 if added is None else added.data_ptr(), result.data_ptr())
        threads = pieces if self._packed.numel() * rows >= ALONE_PRODUCTS else 1
        _crew(threads, pieces, panels, rows, width, out, group, *addresses, self.is_gated)
        return result

    def _by_panel(self, weight: Tensor) -> Tensor:
        """Rows in the order of the panels, zeros in the last one; of a gated weight 16 gates, then their 16 ups."""
        parts = weight.unflatten(0, (1 + self.is_gated, -1))
        size = PANEL // parts.shape[0]
        whole = torch.nn.functional.pad(parts, (0, 0, 0, -parts.shape[1] % size))
        return whole.unflatten(1, (-1, size)).transpose(0, 1).reshape(-1, weight.shape[1])


def _work(task):
    _multiply(task)


_crew = Crew(_work)
_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_upper, _load_lower, _load_left, _load_right = (amx.load(i) for i in range(4, 8))
_dot_0, _dot_1, _dot_2, _dot_3 = (amx.dot(i, 4 + i // 2, 6 + i % 2) for i in range(4))
_resume_0, _resume_1, _resume_2, _resume_3 = (amx.load(i) for i in range(4))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))
_LINE = PANEL * 4  # bytes of a panel's row in float32


@njit(**EXACT)
def _multiply(task):
    """Pieces are the panels of one group of rows, then of the next."""
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
                    if is_gated:
                        _round_gated(found, added, target, out * 2, min(out - panel * columns, columns))
                    else:
                        _round(found, added, target, out * 2, min(out - panel * columns, columns))
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


@njit(**EXACT)
def _round(sums, added, target, stride, columns):
    """Puts each row's sums, with what is added to all, where they belong. Changes `sums`."""
    more = added.ctypes.data
    for i in range(sums.shape[0]):
        source, row = sums[i].ctypes.data, target + i * stride
        if columns == PANEL:
            store_rounded(source, more, row)
            store_rounded(source + 64, more + 64, row + 32)
        else:
            store_rounded(source, more, source)
            store_rounded(source + 64, more + 64, source + 32)
            copy(source, row, columns * 2)


@njit(**EXACT)
def _round_gated(sums, added, target, stride, columns):
    """`_round` of what the gates, the first half of each row, let through of the second. Changes `sums`."""
    more = added.ctypes.data
    for i in range(sums.shape[0]):
        source, row = sums[i].ctypes.data, target + i * stride
        if columns == 16:
            store_gated(source, more, source + 64, more + 64, row)
        else:
            store_gated(source, more, source + 64, more + 64, source)
            copy(source, row, columns * 2)
