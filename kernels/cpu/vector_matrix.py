"""A weight for the vector registers: packed once, each step reads it in order, once for a group of rows.

A row is summed in the order of the weight's columns, each product and sum one instruction, whether six rows are taken
together or four, and whether in one go or in chunks. Few rows cost what reading the weight costs: up to 12 take as long
as one. bfloat16 is widened in registers: all arithmetic is float32.
"""

from __future__ import annotations

import torch
from llvmlite.binding import get_host_cpu_features
from numba import carray, njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.memory import copy, prefetch_l1, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, epilogue
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave, next_chunk, pointer
from kernels.cpu.vector import resumed_product

MAX_GROUP_ROWS = 504
STRIP_BYTES = 1 << 15  # of a panel that stay in the L1 cache while a group's rows go by
PANEL = 64  # rows of the weight that one pass multiplies
BLOCK_ROWS, SMALL_BLOCK_ROWS = 6, 4  # of the input, held in registers together
# Columns of a panel at a time: six rows of sums fill 24 of AVX-512's 32 registers, else 12 of AVX2's 16 or 24 of ARM's.
BLOCK_COLUMNS = PANEL if get_host_cpu_features().get("avx512f") else 16


class VectorMatrix(PanelMatrix):
    """In float32 or bfloat16, of any shape."""

    __slots__ = ()
    panel = PANEL
    input_dtype = torch.float32
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()  # [panel, column, row of the weight]

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        return scratch_bytes((min(group_rows, rows) + BLOCK_ROWS, PANEL, 4), (1, PANEL, 4), (BLOCK_ROWS, width, 4))


def _body(task):
    space = enter(task)
    if field(task, AT.itemsize) == 2:
        _multiply(task, space, UINT16)
    else:
        _multiply(task, space, FLOAT32)
    leave(task)


VectorMatrix.region = ParallelRegion(_body)
_store_result = epilogue(PANEL)
_product, _small_product = (
    resumed_product(count, BLOCK_COLUMNS // 16, PANEL) for count in (BLOCK_ROWS, SMALL_BLOCK_ROWS)
)


@njit(**EXACT)
def _next_block(left):
    """How many of the rows that are left are taken together: sixes, then fours, so that few are computed in vain."""
    return SMALL_BLOCK_ROWS if left <= 4 or left == 7 or left == 8 else BLOCK_ROWS


@njit(**EXACT)
def _multiply(task, space, like):
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    x, weight, result = field(task, AT.x), field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    row_bytes, column_bytes = width * 4, PANEL * like.itemsize
    columns = PANEL // 2 if is_gated else PANEL  # of the result, for each panel
    strip = STRIP_BYTES // column_bytes
    sums, space = zeros_at(space, min(group_rows, rows) + BLOCK_ROWS, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    rest, space = zeros_at(space, BLOCK_ROWS, width, FLOAT32)  # the last rows, where they are too few
    biases, whole = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL)), rows
    at = max(rows - 1, 0) // group_rows * group_rows
    while at < rows:
        if at + _next_block(rows - at) > rows:
            whole = at
            copy(x + at * row_bytes, rest.ctypes.data, (rows - at) * row_bytes)
        at += _next_block(rows - at)
    chunk = next_chunk(task)
    while chunk < num_chunks:
        following = next_chunk(task)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        next_panel = following % num_panels if following < num_chunks else panel
        bias = biases[panel] if has_bias else no_bias[0]
        last = min(begin + group_rows, rows)
        # A line or two of the next strip with each column. Two, where there are too few rows to ask for all of it.
        blocks = (last - begin + BLOCK_ROWS - 1) // BLOCK_ROWS * (PANEL // BLOCK_COLUMNS)
        pace = 128 if blocks * 64 < column_bytes else 64
        for first in range(0, width, strip):
            depth = min(strip, width - first)
            source = weight + (panel * width + first) * column_bytes
            next_strip = source + depth * column_bytes
            ahead = next_strip if first + depth < width else weight + next_panel * width * column_bytes
            asked, row = 0, begin
            while row < last:
                count = _next_block(last - row)
                left = (x + row * row_bytes if row < whole else rest.ctypes.data) + first * 4
                found = sums[row - begin : row - begin + count]
                for i in range(row + count, min(row + 2 * count, last)):
                    prefetch_l1(x + i * row_bytes + first * 4, depth * 4)
                for column in range(0, PANEL, BLOCK_COLUMNS):
                    into, right = found.ctypes.data + column * 4, source + column * like.itemsize
                    place = ahead + depth * asked if asked < column_bytes else source  # which is in the L1 cache
                    beyond = place + depth * 64 if pace == 128 else source
                    if count == BLOCK_ROWS:
                        _product(left, row_bytes, right, depth, into, PANEL * 4, first, place, beyond, like)
                    else:
                        _small_product(left, row_bytes, right, depth, into, PANEL * 4, first, place, beyond, like)
                    asked += pace
                if first + depth == width:
                    target = result + (row * out_width + panel * columns) * like.itemsize
                    real, stride = found[: last - row], out_width * like.itemsize
                    _store_result(real, bias, target, stride, min(out_width - panel * columns, columns), is_gated, like)
                row += count
        chunk = following
