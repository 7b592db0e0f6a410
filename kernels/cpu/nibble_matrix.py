"""A weight in four bits whose inputs have eight (W4A8): groups of 32 columns are whole numbers' sums, then scaled.

Inputs are rounded row by row, but for a row's outliers, which are multiplied as they are (`byte_rows.py`). A row's
groups are added up in their order, its outliers after them in that of their columns: any number of rows gives the same
bits, and so does every way to multiply bytes. Few rows are multiplied straight from the blocks; of more, a strip of a
panel becomes bytes in the L1 cache first, while the next one is asked for.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.block_weight import ROUNDED_INT4, BlockWeight
from kernels.cpu.block_vectors import GROUP, PANEL
from kernels.cpu.byte_rows import MAX_OUTLIERS, OUTLIERS_AT, ROW_TAIL, round_row, round_rows
from kernels.cpu.byte_vectors import QUADS
from kernels.cpu.dtypes import FLOAT32, INT32, UINT8
from kernels.cpu.instructions import ByteDots, byte_dots
from kernels.cpu.large_pages import in_large_pages
from kernels.cpu.memory import array_at, carray, elements_at, scratch_bytes, zeros_at
from kernels.cpu.nibble_vectors import (
    BLOCK_BYTES,
    QUADS_BYTES,
    add_nibbles,
    nibble_product,
    scaled_product,
    unpack_nibbles,
)
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, epilogue, part_of
from kernels.cpu.parallel_region import RegionOfType, region_of
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import chunk_after, enter, field, leave, pointer
from kernels.cpu.vector_matrix import BLOCK_COLUMNS, MAX_GROUP_ROWS

BLOCK_ROWS = 4
FEW_ROWS = (
    4  # every thread rounds so many for itself: that takes less than a launch of its own, and waiting for its end
)
DIRECT_ROWS = 8  # are multiplied from the blocks themselves
STRIP_GROUPS = 8  # of a panel that become bytes together: 16 KB
_SCALES_BYTES, _EIGHT = 2 * PANEL, 4 * PANEL  # bytes of a group's scales, of eight columns of its codes


class NibbleMatrix(PanelMatrix):
    """Of any rows and a width that is a multiple of 32; `dtype` is that of inputs and results."""

    __slots__ = ("_dots",)
    panel, element_bytes = PANEL, 1
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def __init__(
        self, weight: BlockWeight, dtype: torch.dtype, *, is_gated: bool = False, dots: ByteDots | None = None
    ) -> None:
        assert weight.kind == ROUNDED_INT4
        self._dots = dots or byte_dots()
        self.shape, self.dtype, self.is_gated = weight.shape, dtype, is_gated
        self._bias = self._panel_bias = None
        self._packed = in_large_pages(self._pack_blocks(weight))

    @property
    def region(self) -> RegionOfType:
        return _REGIONS[self._dots]

    def rounds_itself(self, rows: int) -> bool:
        return rows <= FEW_ROWS

    @property
    def region_of_few(self) -> RegionOfType:
        return _REGIONS_OF_FEW[self._dots]

    def _pack_blocks(self, weight: BlockWeight) -> Tensor:
        """[panel, group, bytes], uint8: see `nibble_vectors.py`."""
        scales = self._by_panel(weight.scales).unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
        codes = self._by_panel(weight.codes).unflatten(0, (-1, 4, 16)).unflatten(3, (-1, GROUP // 8, 2, 4))
        pairs = codes[..., 0, :] | (codes[..., 1, :] << 4)  # [panel, 4, 16, group, eight, byte of a word]
        words = pairs.permute(0, 3, 4, 1, 2, 5).flatten(2)
        return torch.cat([scales.view(torch.uint8), words], dim=2).contiguous()

    def empty_inputs(self, x: Tensor) -> Tensor:
        return empty_result((x.shape[0], x.shape[1] + ROW_TAIL), torch.uint8)

    def inputs(self, x: Tensor, into: Tensor) -> Tensor:
        round_rows(x, into, keeps_outliers=True)
        return into

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        whole = min(group_rows, rows) + BLOCK_ROWS
        own = scratch_bytes((min(rows, FEW_ROWS), width + ROW_TAIL, 1))
        shapes = (whole, PANEL, 4), (1, PANEL, 4), (whole, width, 1), (whole, width // GROUP, 4)
        return own + scratch_bytes(*shapes, (STRIP_GROUPS, QUADS_BYTES, 1))


_VECTORS = BLOCK_COLUMNS // 16
_single, _block = nibble_product(1, _VECTORS), nibble_product(BLOCK_ROWS, _VECTORS)
_many = scaled_product(BLOCK_ROWS, _VECTORS)
_store_result = epilogue(PANEL)


@njit(**EXACT)
def _read_rows(x, row_bytes, count, width, signed, begins):
    """The rows' codes around 0, and what each of their groups' sums begins with, as the weights' stand above 8."""
    for i in range(count):
        row = carray(elements_at(x + i * row_bytes, UINT8), (width,))
        for j in range(np.uintp(width)):
            signed[i, j] = row[j] ^ np.uint8(0x80)
        for group in range(width // GROUP):
            total = np.int32(0)
            for j in range(np.uintp(group * GROUP), np.uintp((group + 1) * GROUP)):
                total += np.int32(row[j]) - np.int32(128)
            begins[i, group] = np.int32(-8) * total


@njit(**EXACT)
def _scale_rows(sums, row, row_bytes, panel):
    """Sums times their rows' scales, and what the rows' outliers make; both lie at `row`, as `byte_rows.py` says."""
    for i in range(sums.shape[0]):
        at = row + i * row_bytes
        scale = carray(elements_at(at, FLOAT32), (1,))[0]
        for j in range(np.uintp(PANEL)):
            sums[i, j] *= scale
        kept = carray(elements_at(at + OUTLIERS_AT, INT32), (2 + 2 * MAX_OUTLIERS,))
        for k in range(kept[0]):
            column, value = np.intp(kept[2 + 2 * k]), np.int32(kept[3 + 2 * k]).view(np.float32)
            block, own = panel + column // GROUP * BLOCK_BYTES, column % GROUP
            codes, shift = block + _SCALES_BYTES + own // 8 * _EIGHT, np.int32(own % 4 * 8 + own % 8 // 4 * 4)
            for first in range(0, PANEL, 16):
                add_nibbles(sums[i].ctypes.data + 4 * first, codes + 4 * first, shift, value, block + 2 * first)


@njit(**EXACT)
def _multiply_panel(source, beyond, signed, begins, sums, strip, count, way):
    """`sums` of the first `count` rows of `signed`, by a panel's blocks; what is read after them lies `beyond`."""
    groups, width = begins.shape[1], signed.shape[1]
    step, blocks_of_rows = groups if count <= DIRECT_ROWS else STRIP_GROUPS, (count + BLOCK_ROWS - 1) // BLOCK_ROWS
    lines = (BLOCK_BYTES // 64 + blocks_of_rows - 1) // blocks_of_rows  # of a group, with each block of rows
    for at in range(0, groups, step):
        some = min(step, groups - at)
        blocks, asked = source + at * BLOCK_BYTES, 0
        following = blocks + some * BLOCK_BYTES if at + some < groups else beyond
        if count > DIRECT_ROWS:
            unpack_nibbles(blocks, some, strip)
        for row in range(0, count, BLOCK_ROWS):
            left, start = signed[row].ctypes.data + at * GROUP, begins[row].ctypes.data + at * 4
            into = sums[row].ctypes.data
            for first in range(0, PANEL, BLOCK_COLUMNS):
                if count > DIRECT_ROWS:
                    of_each = lines if asked < some * BLOCK_BYTES and first == 0 else 0
                    args = (left, width, start, groups * 4, strip, some, first, into, PANEL * 4)
                    _many(*args, at, following + asked, of_each, way)
                elif count - row == 1:
                    _single(left, width, start, groups * 4, blocks, some, first, into, PANEL * 4, beyond, way)
                else:
                    _block(left, width, start, groups * 4, blocks, some, first, into, PANEL * 4, beyond, way)
            asked += some * lines * 64


@njit(**EXACT)
def _multiply(task, x, space, like, way):
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    if rows == 0:  # an expert that no row chose
        return
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    packed, result = field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    columns, groups = PANEL // 2 if is_gated else PANEL, width // GROUP
    row_bytes, panel_bytes, stride = width + ROW_TAIL, groups * BLOCK_BYTES, out_width * like.itemsize
    whole = min(group_rows, rows) + BLOCK_ROWS
    sums, space = zeros_at(space, whole, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    signed, space = zeros_at(space, whole, width, UINT8)  # the group's rows; past the last one, some or zeros
    begins, space = zeros_at(space, whole, groups, INT32)
    strip, space = array_at(space, STRIP_GROUPS, QUADS_BYTES, UINT8)
    biases = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL))
    read = -1  # the group whose rows are in `signed`
    run = field(task, AT.run)
    chunk, last = chunk_after(task, -1, 0, run)
    while chunk < num_chunks:
        following, last = chunk_after(task, chunk, last, run)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        count = min(group_rows, rows - begin)
        if read != begin:
            _read_rows(x + begin * row_bytes, row_bytes, count, width, signed, begins)
            read = begin
        source = packed + panel * panel_bytes
        beyond = packed + (following % num_panels if following < num_chunks else panel) * panel_bytes
        _multiply_panel(source, beyond, signed, begins, sums, strip.ctypes.data, count, way)
        _scale_rows(sums[:count], x + begin * row_bytes + width, row_bytes, source)
        bias = biases[panel] if has_bias else no_bias[0]
        target = result + begin * stride + panel * columns * like.itemsize
        _store_result(sums[:count], bias, target, stride, min(out_width - panel * columns, columns), is_gated, like)
        chunk = following


@njit(**EXACT)
def _run(task, like, way):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        part = part_of(task, i)
        _multiply(part, field(part, AT.x), space, like, way)
    leave(task)


@njit(**EXACT)
def _run_few(task, like, way):
    """Of few rows, which lie as they are."""
    space, rows, width = enter(task), field(task, AT.rows), field(task, AT.width)
    x = carray(pointer(task, AT.x, like), (rows, width))
    own, space = array_at(space, rows, width + ROW_TAIL, UINT8)
    for i in range(rows):
        round_row(x[i], True, own[i].ctypes.data)
    _multiply(task, own.ctypes.data, space, like, way)
    leave(task)


_REGIONS = {way: region_of(way.name.lower(), _run, QUADS[way]) for way in ByteDots}
_REGIONS_OF_FEW = {way: region_of(f"few {way.name.lower()}", _run_few, QUADS[way]) for way in ByteDots}
