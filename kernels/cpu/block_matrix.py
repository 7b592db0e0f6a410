"""A weight in blocks for the vector registers: read as it lies, a third to little more than a half of bfloat16's bytes.

Up to four rows are multiplied straight from the blocks. More share the work of dequantising: a strip of a panel becomes
float32 in the L1 cache, and is multiplied as `vector_matrix.py` does. Either way a row is summed in the order of the
columns, each weight the float32 that its block says: the bits are those of a `VectorMatrix` of these numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from numba.extending import overload
from torch import Tensor

from kernels.block_weight import BlockWeight, Kind
from kernels.cpu.block_vectors import (
    FP8,
    FP8_FACTOR,
    GROUP,
    INT4,
    INT4_OFFSETS,
    INT4_WIDE_OFFSETS,
    INT4_ZEROS,
    INT8,
    INT8_SIXTEENS,
    INT8_SIXTEENS_OFFSETS,
    INT8_WIDE,
    INT8_WIDE_OFFSETS,
    PANEL,
    block_bytes,
    block_product,
    unpack,
)
from kernels.cpu.dtypes import FLOAT32
from kernels.cpu.large_pages import in_large_pages
from kernels.cpu.memory import array_at, carray, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, epilogue, part_of
from kernels.cpu.parallel_region import RegionOfType, region_of
from kernels.cpu.recorder import empty_result
from kernels.cpu.take_columns import take_columns
from kernels.cpu.task import chunk_after, enter, field, leave, pointer
from kernels.cpu.vector import resumed_product
from kernels.cpu.vector_matrix import BLOCK_COLUMNS, BLOCK_ROWS, MAX_GROUP_ROWS, widen_rows

DIRECT_ROWS = 4  # are multiplied from the blocks themselves
STRIP_GROUPS = 4  # of a panel that become float32 together: 32 KB


class BlockMatrix(PanelMatrix):
    """Of any rows and a width that is a multiple of 32; `dtype` is that of inputs and results."""

    __slots__ = ("_kind", "_order")
    panel, element_bytes = PANEL, 4
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def __init__(self, weight: BlockWeight, dtype: torch.dtype, *, is_gated: bool = False) -> None:
        self._kind, self._order = weight.kind, weight.order
        self.shape, self.dtype, self.is_gated = weight.shape, dtype, is_gated
        self._bias = self._panel_bias = None
        self._packed = in_large_pages(self._pack_blocks(weight))

    @property
    def region(self) -> RegionOfType:
        return _REGIONS[self._kind]

    @property
    def layout(self) -> tuple[object, ...]:
        return *super().layout, None if self._order is None else id(self._order)

    def empty_inputs(self, x: Tensor) -> Tensor:
        return x if self._order is None else empty_result(tuple(x.shape), x.dtype)

    def inputs(self, x: Tensor, into: Tensor) -> Tensor:
        if self._order is not None:
            take_columns(x, self._order, into)
        return into

    def _pack_blocks(self, weight: BlockWeight) -> Tensor:
        """[panel, group, bytes], uint8: see `block_vectors.py`."""
        scales = weight.scales * FP8_FACTOR if weight.kind == "fp8" else weight.scales
        groups = weight.shape[1] // GROUP
        parts = [bytes_by_group(self._by_panel(scales), groups)]
        if weight.offsets is not None:
            parts.append(bytes_by_group(self._by_panel(weight.offsets), groups))
        codes = (
            self._by_panel(weight.codes).unflatten(0, (-1, PANEL)).unflatten(2, (-1, GROUP))
        )  # [panel, 64, group, 32]
        if not weight.kind.startswith("int4"):
            parts.append(codes.permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2))
        else:
            parts.append(self._words(codes).unflatten(1, (4, 16)).permute(0, 3, 4, 1, 2, 5).flatten(2))
        return torch.cat(parts, dim=2).contiguous()

    def _words(self, codes: Tensor) -> Tensor:
        """Codes of four bits, [..., 32], as the bytes of words of eight columns: [..., 4, 4]."""
        return (codes[..., 0::2] | (codes[..., 1::2] << 4)).unflatten(-1, (4, 4))

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        whole = min(group_rows, rows) + BLOCK_ROWS
        return scratch_bytes((whole, PANEL, 4), (1, PANEL, 4), (whole, width, 4), (STRIP_GROUPS * GROUP, PANEL, 4))


def bytes_by_group(by_panel: Tensor, groups: int) -> Tensor:
    """Scales of the rows of all panels as bytes: [panel, group, 64 x bytes of one], twice as many of halves."""
    own = by_panel.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous().view(torch.uint8)
    return own.unflatten(1, (groups, -1)).flatten(2)


_store_result = epilogue(PANEL)
_VECTORS = BLOCK_COLUMNS // 16
_single, _few = block_product(1, _VECTORS), block_product(DIRECT_ROWS, _VECTORS)
_product, _small_product = (resumed_product(count, _VECTORS, PANEL) for count in (BLOCK_ROWS, DIRECT_ROWS))


def _bytes_of(kind):
    """`block_bytes` in compiled code, by a kind's dummy."""
    raise NotImplementedError("inside compiled code only")


@overload(_bytes_of, jit_options=EXACT)
def _bytes_of_kind(kind):
    size = block_bytes(kind.dtype)
    return lambda kind: size


@njit(**EXACT)
def _multiply_panel(source, beyond, wide, sums, strip, count, groups, kind):
    """`sums` of the first `count` rows of `wide`, by a panel's blocks; of no dtype but float32, to be compiled once."""
    row_bytes, block = groups * GROUP * 4, _bytes_of(kind)
    if count <= DIRECT_ROWS:
        for first in range(0, PANEL, BLOCK_COLUMNS):
            if count == 1:
                _single(wide.ctypes.data, row_bytes, source, groups, first, sums.ctypes.data, PANEL * 4, beyond, kind)
            else:
                _few(wide.ctypes.data, row_bytes, source, groups, first, sums.ctypes.data, PANEL * 4, beyond, kind)
        return
    for at in range(0, groups, STRIP_GROUPS):
        some = min(STRIP_GROUPS, groups - at)
        unpack(source + at * block, some, strip.ctypes.data, kind)
        for row in range(0, count, BLOCK_ROWS):
            left = wide.ctypes.data + row * row_bytes + at * GROUP * 4
            for column in range(0, PANEL, BLOCK_COLUMNS):
                right, into = strip.ctypes.data + column * 4, sums[row].ctypes.data + column * 4
                if count - row <= DIRECT_ROWS:
                    _small_product(left, row_bytes, right, some * GROUP, into, PANEL * 4, at, left, left, FLOAT32)
                else:
                    _product(left, row_bytes, right, some * GROUP, into, PANEL * 4, at, left, left, FLOAT32)


@njit(**EXACT)
def _multiply(task, space, like, kind):
    num_chunks, num_panels, rows = field(task, AT.num_chunks), field(task, AT.num_panels), field(task, AT.rows)
    if rows == 0:  # an expert that no row chose
        return
    width, out_width, group_rows = field(task, AT.width), field(task, AT.out_width), field(task, AT.group_rows)
    packed, result = field(task, AT.packed), field(task, AT.result)
    has_bias, is_gated = field(task, AT.bias) != 0, field(task, AT.is_gated) != 0
    columns, groups = PANEL // 2 if is_gated else PANEL, width // GROUP
    panel_bytes, stride = groups * _bytes_of(kind), out_width * like.itemsize
    whole = min(group_rows, rows) + BLOCK_ROWS
    sums, space = zeros_at(space, whole, PANEL, FLOAT32)
    no_bias, space = zeros_at(space, 1, PANEL, FLOAT32)
    wide, space = zeros_at(space, whole, width, FLOAT32)  # the group's rows; past the last one, some or zeros
    strip, space = array_at(space, STRIP_GROUPS * GROUP, PANEL, FLOAT32)
    x = carray(pointer(task, AT.x, like), (rows, width))
    biases = carray(pointer(task, AT.bias, FLOAT32), (num_panels, PANEL))
    widened = -1  # the group whose rows are in `wide`
    run = field(task, AT.run)
    chunk, last = chunk_after(task, -1, 0, run)
    while chunk < num_chunks:
        following, last = chunk_after(task, chunk, last, run)  # now, to know what to prefetch
        begin, panel = chunk // num_panels * group_rows, chunk % num_panels
        count = min(group_rows, rows - begin)
        if widened != begin:
            widen_rows(x, wide, begin, count, width)
            widened = begin
        beyond = packed + (following % num_panels if following < num_chunks else panel) * panel_bytes
        _multiply_panel(packed + panel * panel_bytes, beyond, wide, sums, strip, count, groups, kind)
        bias = biases[panel] if has_bias else no_bias[0]
        target = result + begin * stride + panel * columns * like.itemsize
        _store_result(sums[:count], bias, target, stride, min(out_width - panel * columns, columns), is_gated, like)
        chunk = following


@njit(**EXACT)
def _run(task, like, kind):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        _multiply(part_of(task, i), space, like, kind)
    leave(task)


KINDS: dict[Kind, np.ndarray] = {
    "int8": INT8,
    "int4": INT4,
    "int4 with offsets": INT4_OFFSETS,
    "int4 with zeros": INT4_ZEROS,
    "int8 with wide scales": INT8_WIDE,
    "fp8": FP8,
    "int4 with wide offsets": INT4_WIDE_OFFSETS,
    "int8 with wide offsets": INT8_WIDE_OFFSETS,
    "int8 by sixteens": INT8_SIXTEENS,
    "int8 by sixteens with wide offsets": INT8_SIXTEENS_OFFSETS,
}
_REGIONS = {kind: region_of(kind, _run, held) for kind, held in KINDS.items()}
