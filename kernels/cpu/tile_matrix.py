"""A bfloat16 weight for the matrix registers (AMX): packed once, each step reads it in order, once for a group of rows.

A row of a product is summed in the order of the weight's columns, whatever else is in the batch: any number of rows
gives the same bits. Few rows cost what reading the weight costs: up to 16 take as long as one.
"""

from __future__ import annotations

from numba import njit
from torch import Tensor

from kernels.cpu import amx
from kernels.cpu.byte_rows import OUTLIERS_AT
from kernels.cpu.dtypes import FLOAT32, UINT8, UINT16
from kernels.cpu.memory import carray, copy, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, add_outliers, epilogue, part_of, scale_sums
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave, next_chunk, pointer

MAX_GROUP_ROWS = 512
STRIP_BYTES = 256 * 2 * 32  # of a panel that stay in the L1 cache while a group's rows go by: 1.3 times as fast
PANEL = 32  # rows of the weight, and of the input, that one pass multiplies


class TileMatrix(PanelMatrix):
    """In bfloat16, its width a multiple of 32, on a CPU with matrix registers (`amx.has_amx`)."""

    __slots__ = ()
    panel = PANEL
    element_bytes = 2
    block_rows, max_group_rows = PANEL, MAX_GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        # [panel, step of 32 columns, half of the panel, pair of columns, row of the weight, one of the pair]
        return weight.view(-1, 2, 16, weight.shape[1] // 32, 16, 2).permute(0, 3, 1, 4, 2, 5)

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        return scratch_bytes((16, width, 2), (min(group_rows, rows + PANEL), PANEL, 4), (1, PANEL, 4), (1, 64, 1))


def _body(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        multiply(part_of(task, i), space, UINT16, _sum_pairs, 2)
    leave(task)


TileMatrix.region = ParallelRegion(_body)
_store_result = epilogue(PANEL)
_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_upper, _load_lower, _load_left, _load_right = (amx.load(i) for i in range(4, 8))
_resume_0, _resume_1, _resume_2, _resume_3 = (amx.load(i) for i in range(4))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))
_SUMS_STRIDE = PANEL * 4  # bytes of one row's float32 sums of a panel


@njit(**EXACT)
def multiply(task, space, like, sum_strip, element_bytes, tail=0, row_tail=0):
    """Takes chunks until none is left. The result's elements are like `like`'s; those of the inputs and of the packed
    weight have so many bytes, which `sum_strip` multiplies. `tail`, `row_tail`: as in
    `vector_matrix.multiply`.
    """
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    if rows == 0:  # an expert that no row chose
        return
    x, weight, result = field(task, AT.x), field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated, row_bytes = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0, width * element_bytes
    columns = PANEL // 2 if is_gated else PANEL  # of the result, for each panel
    stride, panel_bytes = row_bytes + row_tail, PANEL * (row_bytes + tail)
    whole = rows // 16 * 16
    rest, space = zeros_at(space, 16, stride, UINT8)
    copy(x + whole * stride, rest.ctypes.data, (rows - whole) * stride)
    sums, space = zeros_at(space, min(group_rows, rows + PANEL), PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    before, space = zeros_at(space, 1, 64, UINT8)  # how the registers were set up
    biases = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL))
    amx.save(before.ctypes.data)
    amx.configure(amx.TILES_OF_16.ctypes.data)
    chunk = next_chunk(task)
    while chunk < num_chunks:
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        bias = biases[panel] if has_bias else no_bias[0]
        last = min(begin + group_rows, rows)
        for first_byte in range(0, row_bytes, STRIP_BYTES // PANEL):
            last_byte = min(first_byte + STRIP_BYTES // PANEL, row_bytes)
            for row in range(begin, last, PANEL):
                upper = x + row * stride if row < whole else rest.ctypes.data
                lower = x + (row + 16) * stride if row + 16 < whole else rest.ctypes.data
                into = sums[row - begin].ctypes.data
                panel_at = weight + panel * panel_bytes
                sum_strip(upper, lower, last - row > 16, panel_at, stride, first_byte, last_byte, into)
                if last_byte == row_bytes:
                    target = result + (row * out_width + panel * columns) * like.itemsize
                    found = sums[row - begin : min(last - begin, row - begin + PANEL)]
                    used = min(out_width - panel * columns, columns)
                    if tail:
                        tails = panel_at + PANEL * row_bytes
                        scale_sums(found[:16], upper + row_bytes, stride, tails)
                        add_outliers(found[:16], upper + row_bytes + OUTLIERS_AT, stride, panel_at, tails, True)
                        scale_sums(found[16:], lower + row_bytes, stride, tails)
                        add_outliers(found[16:], lower + row_bytes + OUTLIERS_AT, stride, panel_at, tails, True)
                    _store_result(found, bias, target, out_width * like.itemsize, used, is_gated, like)
        chunk = next_chunk(task)
    amx.configure(before.ctypes.data)


def strip_sums(dot):
    """Compiled code for `multiply`'s strips, with one of `amx`'s products."""
    dot_0, dot_1, dot_2, dot_3 = (dot(i, 4 + i // 2, 6 + i % 2) for i in range(4))

    @njit(**EXACT)
    def sum_strip(upper, lower, has_lower, weight, row_bytes, first, last, into):
        """Adds bytes `first` to `last` of sixteen rows at `upper` and at `lower`, times those of a panel, to `into`."""
        if first == 0:
            _clear_0()
            _clear_1()
            _clear_2()
            _clear_3()
        else:
            _resume_0(into, _SUMS_STRIDE)
            _resume_1(into + 64, _SUMS_STRIDE)
            _resume_2(into + 16 * _SUMS_STRIDE, _SUMS_STRIDE)
            _resume_3(into + 16 * _SUMS_STRIDE + 64, _SUMS_STRIDE)
        if has_lower:
            for at in range(first, last, 64):
                _load_upper(upper + at, row_bytes)
                _load_left(weight + at * PANEL, 64)
                dot_0()
                _load_lower(lower + at, row_bytes)
                dot_2()
                _load_right(weight + at * PANEL + 1024, 64)
                dot_1()
                dot_3()
            _store_2(into + 16 * _SUMS_STRIDE, _SUMS_STRIDE)
            _store_3(into + 16 * _SUMS_STRIDE + 64, _SUMS_STRIDE)
        else:
            for at in range(first, last, 64):
                _load_upper(upper + at, row_bytes)
                _load_left(weight + at * PANEL, 64)
                _load_right(weight + at * PANEL + 1024, 64)
                dot_0()
                dot_1()
        _store_0(into, _SUMS_STRIDE)
        _store_1(into + 64, _SUMS_STRIDE)

    return sum_strip


_sum_pairs = strip_sums(amx.dot)
