"""A weight in blocks whose inputs are bfloat16, for CPUs that multiply pairs of it (`vdpbf16ps`).

Nothing is rounded: codes are numbers that bfloat16 has. A group's columns are added up in pairs, in their order, then
scaled and added to the groups before it, an offset times the sum of the group's inputs after that: any number of rows
gives the same bits. Few rows are multiplied straight from the blocks; of more, a strip of a panel becomes pairs in the
L1 cache first, while the next one is asked for.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numba import njit
from numba.extending import overload
from torch import Tensor

from kernels.block_weight import INT4_MID, BlockWeight
from kernels.cpu.block_matrix import KINDS, BlockMatrix
from kernels.cpu.block_vectors import GROUP, PANEL, layout_of
from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.memory import array_at, carray, copy, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.pair_block_vectors import PAIRS_BYTES, pair_block_product, scaled_product, sum_groups, unpack_pairs
from kernels.cpu.panel_matrix import AT, epilogue, part_of
from kernels.cpu.parallel_region import RegionOfType, region_of
from kernels.cpu.task import chunk_after, enter, field, leave, pointer

BLOCK_ROWS = 4
DIRECT_ROWS, DIRECT_ROWS_OF_BYTES = 8, 4  # are multiplied from the blocks themselves, of four and of eight bits
STRIP_GROUPS = 8  # of a panel that become pairs together: 32 KB


class PairBlockMatrix(BlockMatrix):
    """For bfloat16, of any rows and a width that is a multiple of 32."""

    __slots__ = ()
    element_bytes, block_rows = 2, BLOCK_ROWS

    def __init__(self, weight: BlockWeight, *, is_gated: bool = False) -> None:
        super().__init__(weight, torch.bfloat16, is_gated=is_gated)

    @property
    def region(self) -> RegionOfType:
        return _REGIONS[self._kind]

    def _pack_blocks(self, weight: BlockWeight) -> Tensor:
        """[panel, group, bytes], uint8: see `pair_block_vectors.py`."""
        if weight.kind == "int4 with zeros" and weight.offsets is not None:
            weight = replace(weight, offsets=INT4_MID - weight.offsets)
        return super()._pack_blocks(weight)

    def _words(self, codes: Tensor) -> Tensor:
        parts = codes.unflatten(-1, (-1, 2, 2, 2))  # [..., eight, two pairs, pair, one of it]
        halves = parts[..., 0, :] | (parts[..., 1, :] << 4)  # a byte is one column of two neighbouring pairs
        return halves.transpose(-1, -2).flatten(-2)

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        whole, strip = min(group_rows, rows) + BLOCK_ROWS, (STRIP_GROUPS * PAIRS_BYTES, 1, 1)
        sums = whole, width // GROUP * _sums_of_group(KINDS[self._kind].dtype), 4
        return scratch_bytes((whole, PANEL, 4), (1, PANEL, 4), (BLOCK_ROWS, width, 2), strip, sums)


def _sums_of_group(kind: np.dtype) -> int:
    """How many sums of a group's inputs are multiplied with offsets."""
    layout = layout_of(kind)
    return layout.halves if layout.second else 0


def _counts_of(kind):
    """Of a kind's dummy: bytes of a group of a panel, bytes of its inputs' sums, rows that are multiplied directly;
    compiled code only.
    """
    raise NotImplementedError("inside compiled code only")


@overload(_counts_of, jit_options=EXACT)
def _counts_of_kind(kind):
    layout = layout_of(kind.dtype)
    size, sums = layout.num_bytes, 4 * _sums_of_group(kind.dtype)
    direct = DIRECT_ROWS if layout.codes == "int4" else DIRECT_ROWS_OF_BYTES
    return lambda kind: (size, sums, direct)


_store_result = epilogue(PANEL)
_single, _few = pair_block_product(1, PANEL // 16), pair_block_product(BLOCK_ROWS, PANEL // 16)
_many = scaled_product(BLOCK_ROWS, PANEL // 16)


@njit(**EXACT)
def _multiply_panel(source, beyond, x, rest, row_bytes, totals, sums, strip, count, groups, kind):
    """`sums` of `count` rows from `x` on, by a panel's blocks; the last of them, where they are no four, are `rest`.

    `totals`: the sums of the rows' groups, where offsets are multiplied with them. What is read after these blocks lies
    `beyond`.
    """
    size, sum_bytes, direct = _counts_of(kind)
    step, totals_bytes = groups if count <= direct else STRIP_GROUPS, groups * sum_bytes
    blocks_of_rows = (count + BLOCK_ROWS - 1) // BLOCK_ROWS
    lines = ((size + 63) // 64 + blocks_of_rows - 1) // blocks_of_rows  # of a group, with each block of rows
    for at in range(0, groups, step):
        some = min(step, groups - at)
        blocks, depth, asked = source + at * size, at * GROUP * 2, 0
        following = blocks + some * size if at + some < groups else beyond
        if count > direct:
            unpack_pairs(blocks, some, strip, kind)
        for row in range(0, count, BLOCK_ROWS):
            left = (x + row * row_bytes if count - row >= BLOCK_ROWS else rest) + depth
            into, own = sums[row].ctypes.data, totals + row * totals_bytes + at * sum_bytes
            if count > direct:
                of_each, ahead = lines if asked < some * size else 0, following + asked
                args = (left, row_bytes, own, totals_bytes, strip, blocks, some, into, PANEL * 4, at, ahead, of_each)
                _many(*args, kind)
                asked += some * lines * 64
            elif count - row == 1:
                _single(left, row_bytes, own, totals_bytes, blocks, some, 0, into, PANEL * 4, beyond, kind)
            else:
                _few(left, row_bytes, own, totals_bytes, blocks, some, 0, into, PANEL * 4, beyond, kind)


@njit(**EXACT)
def _multiply(task, space, kind):
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    if rows == 0:  # an expert that no row chose
        return
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    x, packed, result = field(task, AT.x), field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    columns, groups = PANEL // 2 if is_gated else PANEL, width // GROUP
    size, sum_bytes, _ = _counts_of(kind)
    row_bytes, panel_bytes, stride = width * 2, groups * size, out_width * 2
    whole, totals_of_row = min(group_rows, rows) + BLOCK_ROWS, groups * sum_bytes // 4
    sums, space = array_at(space, whole, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    rest, space = zeros_at(space, BLOCK_ROWS, width, UINT16)
    strip, space = array_at(space, STRIP_GROUPS * PAIRS_BYTES // 4, 1, FLOAT32)
    totals, space = array_at(space, whole, totals_of_row, FLOAT32)
    biases = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL))
    read = -1  # the group whose last rows are in `rest`
    run = field(task, AT.run)
    chunk, last = chunk_after(task, -1, 0, run)
    while chunk < num_chunks:
        following, last = chunk_after(task, chunk, last, run)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        count = min(group_rows, rows - begin)
        own = x + begin * row_bytes
        if read != begin:
            over = count % BLOCK_ROWS
            copy(own + (count - over) * row_bytes, rest.ctypes.data, over * row_bytes)
            for row in range(count if totals_of_row > 0 else 0):
                sum_groups(own + row * row_bytes, groups, totals[row].ctypes.data, kind)
            read = begin
        source = packed + panel * panel_bytes
        beyond = packed + (following % num_panels if following < num_chunks else panel) * panel_bytes
        lasts, all_, pairs = rest.ctypes.data, totals.ctypes.data, strip.ctypes.data
        _multiply_panel(source, beyond, own, lasts, row_bytes, all_, sums, pairs, count, groups, kind)
        bias = biases[panel] if has_bias else no_bias[0]
        target = result + begin * stride + panel * columns * 2
        _store_result(sums[:count], bias, target, stride, min(out_width - panel * columns, columns), is_gated, UINT16)
        chunk = following


@njit(**EXACT)
def _run(task, like, kind):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        _multiply(part_of(task, i), space, kind)
    leave(task)


_REGIONS = {kind: region_of(kind, _run, held) for kind, held in KINDS.items()}
