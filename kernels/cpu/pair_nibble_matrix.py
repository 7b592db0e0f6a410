"""A weight in four bits whose inputs are bfloat16, for CPUs that multiply pairs of it (`vdpbf16ps`).

Inputs are not rounded: codes are whole numbers that bfloat16 has. A group of 32 columns is added up in pairs, in their
order, then scaled and added to the groups before it, one fused operation: any number of rows gives the same bits. Up to
eight rows are multiplied straight from the blocks; of more, a strip of a panel becomes pairs in the L1 cache first.
"""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from kernels.block_weight import BlockWeight
from kernels.cpu.block_matrix import BlockMatrix, bytes_by_group
from kernels.cpu.block_vectors import GROUP, PANEL
from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.memory import array_at, carray, copy, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.pair_nibble_vectors import BLOCK_BYTES, PAIRS_BYTES, pair_nibble_product, scaled_product, unpack_pairs
from kernels.cpu.panel_matrix import AT, epilogue, part_of
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import chunk_after, enter, field, leave, pointer

BLOCK_ROWS = 4
DIRECT_ROWS = 8  # are multiplied from the blocks themselves
STRIP_GROUPS = 8  # of a panel that become pairs together: 32 KB


class PairNibbleMatrix(BlockMatrix):
    """Of kind "int4", for bfloat16, of any rows and a width that is a multiple of 32."""

    __slots__ = ()
    element_bytes, block_rows = 2, BLOCK_ROWS

    def __init__(self, weight: BlockWeight, *, is_gated: bool = False) -> None:
        assert weight.kind == "int4"
        super().__init__(weight, torch.bfloat16, is_gated=is_gated)

    @property
    def region(self) -> ParallelRegion:
        return _region

    def _pack_blocks(self, weight: BlockWeight) -> Tensor:
        """[panel, group, bytes], uint8: see `pair_nibble_vectors.py`."""
        groups = weight.shape[1] // GROUP
        codes = self._by_panel(weight.codes).unflatten(0, (-1, 4, 16)).unflatten(3, (-1, GROUP // 8, 2, 2, 2))
        # [panel, 4, 16, group, eight, two pairs, pair, one of it]: a byte is one column of two neighbouring pairs
        halves = codes[..., 0, :] | (codes[..., 1, :] << 4)
        words = halves.transpose(-1, -2).flatten(-2)  # [panel, 4, 16, group, eight, byte of a word]
        codes_of_groups = words.permute(0, 3, 4, 1, 2, 5).flatten(2)
        return torch.cat([bytes_by_group(self._by_panel(weight.scales), groups), codes_of_groups], dim=2).contiguous()

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        whole = min(group_rows, rows) + BLOCK_ROWS
        strip = (STRIP_GROUPS * PAIRS_BYTES, 1, 1)
        return scratch_bytes((whole, PANEL, 4), (1, PANEL, 4), (BLOCK_ROWS, width, 2), strip)


_store_result = epilogue(PANEL)
_single, _few = pair_nibble_product(1, PANEL // 16), pair_nibble_product(BLOCK_ROWS, PANEL // 16)
_many = scaled_product(BLOCK_ROWS, PANEL // 16)


@njit(**EXACT)
def _multiply_panel(source, beyond, x, rest, row_bytes, sums, strip, count, groups):
    """`sums` of `count` rows from `x` on, by a panel's blocks; the last of them, where they are no four, are `rest`."""
    step = groups if count <= DIRECT_ROWS else STRIP_GROUPS
    for at in range(0, groups, step):
        some = min(step, groups - at)
        blocks, depth = source + at * BLOCK_BYTES, at * GROUP * 2
        if count > DIRECT_ROWS:
            following = blocks + some * BLOCK_BYTES if at + some < groups else beyond
            unpack_pairs(blocks, some, strip, following)
        for row in range(0, count, BLOCK_ROWS):
            left = (x + row * row_bytes if count - row >= BLOCK_ROWS else rest) + depth
            into = sums[row].ctypes.data
            if count > DIRECT_ROWS:
                _many(left, row_bytes, strip, blocks, some, 0, into, PANEL * 4, at)
            elif count - row == 1:
                _single(left, row_bytes, blocks, some, 0, into, PANEL * 4, beyond)
            else:
                _few(left, row_bytes, blocks, some, 0, into, PANEL * 4, beyond)


@njit(**EXACT)
def _multiply(task, space):
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    if rows == 0:  # an expert that no row chose
        return
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    x, packed, result = field(task, AT.x), field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    columns, groups = PANEL // 2 if is_gated else PANEL, width // GROUP
    row_bytes, panel_bytes, stride = width * 2, groups * BLOCK_BYTES, out_width * 2
    sums, space = array_at(space, min(group_rows, rows) + BLOCK_ROWS, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    rest, strip = zeros_at(space, BLOCK_ROWS, width, UINT16)
    biases = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL))
    read = -1  # the group whose last rows are in `rest`
    run = field(task, AT.run)
    chunk, last = chunk_after(task, -1, 0, run)
    while chunk < num_chunks:
        following, last = chunk_after(task, chunk, last, run)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        count = min(group_rows, rows - begin)
        if read != begin:
            over = count % BLOCK_ROWS
            copy(x + (begin + count - over) * row_bytes, rest.ctypes.data, over * row_bytes)
            read = begin
        source = packed + panel * panel_bytes
        beyond = packed + (following % num_panels if following < num_chunks else panel) * panel_bytes
        own = x + begin * row_bytes
        _multiply_panel(source, beyond, own, rest.ctypes.data, row_bytes, sums, strip, count, groups)
        bias = biases[panel] if has_bias else no_bias[0]
        target = result + begin * stride + panel * columns * 2
        _store_result(sums[:count], bias, target, stride, min(out_width - panel * columns, columns), is_gated, UINT16)
        chunk = following


def _body(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        _multiply(part_of(task, i), space)
    leave(task)


_region = ParallelRegion(_body)
