"""A weight for the vector registers: packed once, each step reads it in order, once for a group of rows.

A row is summed in the order of the weight's columns, each product and sum one instruction, whether six rows are taken
together or four, and whether in one go or in chunks. Few rows cost what reading the weight costs: up to 12 take as long
as one. bfloat16 is widened: all arithmetic is float32. `pair_matrix.py` multiplies pairs of it where the CPU does.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from kernels.cpu.byte_rows import OUTLIERS_AT
from kernels.cpu.dtypes import FLOAT32, UINT16, widen
from kernels.cpu.instructions import has_avx512
from kernels.cpu.memory import array_at, carray, copy, prefetch_l1, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, add_outliers, epilogue, part_of, scale_sums
from kernels.cpu.parallel_region import RegionOfType
from kernels.cpu.task import enter, field, leave, next_chunk, pointer
from kernels.cpu.vector import resumed_product

MAX_GROUP_ROWS = 504
STRIP_BYTES = 1 << 15  # of a panel that stay in the L1 cache while a group's rows go by
PANEL = 64  # rows of the weight that one pass multiplies
BLOCK_ROWS, SMALL_BLOCK_ROWS = 6, 4  # of the input, held in registers together
# Columns of a panel at a time: six rows of sums fill 24 of AVX-512's 32 registers, else 12 of AVX2's 16 or 24 of ARM's.
BLOCK_COLUMNS = PANEL if has_avx512() else 16


class VectorMatrix(PanelMatrix):
    """In float32 or bfloat16, of any shape."""

    __slots__ = ()
    panel, element_bytes = PANEL, 4
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, PANEL)).transpose(1, 2)  # [panel, column, row of the weight]

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        held = rows if self.dtype.itemsize == 2 else 0
        return product_scratch_bytes(rows, width, group_rows) + scratch_bytes((min(group_rows, held), width, 4))


def product_scratch_bytes(rows: int, steps: int, group_rows: int) -> int:
    """What a thread of `multiply` needs where it need not widen its inputs, whose rows are so many words."""
    return scratch_bytes((min(group_rows, rows) + BLOCK_ROWS, PANEL, 4), (1, PANEL, 4), (BLOCK_ROWS, steps, 4))


def _body_in_bfloat16(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        multiply(part_of(task, i), space, UINT16, UINT16)
    leave(task)


def _body_in_float32(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        multiply(part_of(task, i), space, FLOAT32, FLOAT32)
    leave(task)


VectorMatrix.region = RegionOfType(_body_in_bfloat16, _body_in_float32)
_store_result = epilogue(PANEL)
block_product, _small_product, _single_product = (
    resumed_product(count, BLOCK_COLUMNS // 16, PANEL) for count in (BLOCK_ROWS, SMALL_BLOCK_ROWS, 1)
)


@njit(**EXACT)
def _next_block(left, least):
    """How many of the rows that are left are taken together: sixes, then fours, so that few are computed in vain. One
    by itself is not, where the weight's layout allows that: a fifth of its time was for the three beside it.
    """
    if left == 1:
        return least
    return SMALL_BLOCK_ROWS if left <= 4 or left == 7 or left == 8 else BLOCK_ROWS


@njit(**EXACT)
def widen_rows(x, target, first, count, width):
    """Rows of a matrix from `first` on as float32, to the beginning of another."""
    for i in range(count):
        for j in range(np.uintp(width)):
            target[i, j] = widen(x[first + i, j])


def _scale_bytes(sums, row, row_bytes, codes, tails, held):
    """Makes float32 of the sums of bytes, their outliers added; compiled code only."""
    raise NotImplementedError("inside compiled code only")


@overload(_scale_bytes, jit_options=EXACT)
def _where_bytes_are_held(sums, row, row_bytes, codes, tails, held):
    if held.dtype != types.int32:  # who multiplies numbers compiles nothing of this
        return lambda sums, row, row_bytes, codes, tails, held: None

    def scale(sums, row, row_bytes, codes, tails, held):
        scale_sums(sums, row, row_bytes, tails)
        add_outliers(sums, row + OUTLIERS_AT, row_bytes, codes, tails, False)

    return scale


@njit(**EXACT)
def multiply(task, space, like, held, columns_of_step=1, tail=0, row_tail=0, least=1):
    """Takes chunks until none is left. The result's elements are like `like`'s, those of the packed weight like
    `held`'s: float32, bfloat16 to be widened with its inputs, or words of two of it or of four bytes, which are
    multiplied as they are. Behind a panel of bytes lie scale and zero of each of its rows, `tail` bytes, and behind a
    row of the inputs its own and its outliers, `row_tail`. `least`: rows that one of the inputs is computed with.
    """
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    if rows == 0:  # an expert that no row chose
        return
    out_width, group_rows = field(task, AT.out_width), field(task, AT.group_rows)
    x, weight, result = field(task, AT.x), field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    widens, width = held.itemsize == 2, field(task, AT.width)
    steps = width // columns_of_step
    row_bytes, step_bytes = steps * 4 + row_tail, PANEL * held.itemsize
    panel_bytes = steps * step_bytes + PANEL * tail
    columns = PANEL // 2 if is_gated else PANEL  # of the result, for each panel
    strip = STRIP_BYTES // step_bytes
    sums, space = zeros_at(space, min(group_rows, rows) + BLOCK_ROWS, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    rest, space = zeros_at(space, BLOCK_ROWS, row_bytes // 4, FLOAT32)  # the last rows, where they are too few
    wide, space = array_at(space, min(group_rows, rows) if widens else 0, width, FLOAT32)  # a group's rows
    narrow = carray(pointer(task, AT.x, like), (rows, width))
    biases, whole, widened = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL)), rows, -1
    at = max(rows - 1, 0) // group_rows * group_rows
    while at < rows:
        if at + _next_block(rows - at, least) > rows:
            whole = at
            if widens:
                widen_rows(narrow, rest, at, rows - at, width)
            else:
                copy(x + at * row_bytes, rest.ctypes.data, (rows - at) * row_bytes)
        at += _next_block(rows - at, least)
    chunk = next_chunk(task)
    while chunk < num_chunks:
        following = next_chunk(task)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        next_panel = following % num_panels if following < num_chunks else panel
        bias = biases[panel] if has_bias else no_bias[0]
        last = min(begin + group_rows, rows)
        if widens and widened != begin:
            widen_rows(narrow, wide, begin, last - begin, width)
            widened = begin
        group = wide.ctypes.data if widens else x + begin * row_bytes
        # A line or two of the next strip with each step. Two, where there are too few rows to ask for all of it.
        blocks = (last - begin + BLOCK_ROWS - 1) // BLOCK_ROWS * (PANEL // BLOCK_COLUMNS)
        pace = 128 if blocks * 64 < step_bytes else 64
        for first in range(0, steps, strip):
            depth = min(strip, steps - first)
            source = weight + panel * panel_bytes + first * step_bytes
            next_strip = source + depth * step_bytes
            ahead = next_strip if first + depth < steps else weight + next_panel * panel_bytes
            asked, row = 0, begin
            while row < last:
                count = _next_block(last - row, least)
                own = group + (row - begin) * row_bytes if row < whole else rest.ctypes.data
                left = own + first * 4
                found = sums[row - begin : row - begin + count]
                for i in range(row + count, min(row + 2 * count, last)):
                    prefetch_l1(group + (i - begin) * row_bytes + first * 4, depth * 4)
                for column in range(0, PANEL, BLOCK_COLUMNS):
                    into, right = found.ctypes.data + column * 4, source + column * held.itemsize
                    place = ahead + depth * asked if asked < step_bytes else source  # which is in the L1 cache
                    beyond = place + depth * 64 if pace == 128 else source
                    if count == BLOCK_ROWS:
                        block_product(left, row_bytes, right, depth, into, PANEL * 4, first, place, beyond, held)
                    elif count == 1:
                        _single_product(left, row_bytes, right, depth, into, PANEL * 4, first, place, beyond, held)
                    else:
                        _small_product(left, row_bytes, right, depth, into, PANEL * 4, first, place, beyond, held)
                    asked += pace
                if first + depth == steps:
                    target = result + (row * out_width + panel * columns) * like.itemsize
                    real, stride = found[: last - row], out_width * like.itemsize
                    codes = weight + panel * panel_bytes
                    _scale_bytes(real, own + steps * 4, row_bytes, codes, codes + panel_bytes - PANEL * tail, held)
                    _store_result(real, bias, target, stride, min(out_width - panel * columns, columns), is_gated, like)
                row += count
        chunk = following
