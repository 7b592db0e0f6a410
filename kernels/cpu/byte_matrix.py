"""A weight in eight bits whose inputs have eight bits too: whole numbers are multiplied, scales come at the end (W8A8).

Four columns are one step of `vector_matrix`'s product. Sums of whole numbers are exact, so a row has the same bits in
every batch, and on every CPU whatever instructions it has: only its scales, and outliers that are not rounded, are
floating-point numbers, and those are added in the order of their columns.
"""

from __future__ import annotations

import torch
from numba import njit
from torch import Tensor

from kernels.block_weight import BlockWeight
from kernels.cpu.byte_rows import ROW_TAIL, TAIL, round_rows
from kernels.cpu.byte_vectors import QUADS
from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.instructions import ByteDots, byte_dots
from kernels.cpu.large_pages import in_large_pages
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT, PanelMatrix, part_of
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import enter, field, leave
from kernels.cpu.vector_matrix import BLOCK_ROWS, MAX_GROUP_ROWS, PANEL, multiply, product_scratch_bytes


class ByteMatrix(PanelMatrix):
    """Of any rows and a width that is a multiple of 4; `dtype` is that of inputs and results."""

    __slots__ = ("_dots", "_fixed", "_is_symmetric", "_keeps_outliers")
    panel, element_bytes = PANEL, 1
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def __init__(
        self, weight: BlockWeight, dtype: torch.dtype, *, is_gated: bool = False, dots: ByteDots | None = None
    ) -> None:
        assert weight.is_byte_kind
        self._is_symmetric, self._fixed = weight.kind != "w8a8 asymmetric", weight.fixed_inputs()
        self._keeps_outliers = weight.kind == "w8a8 with outliers"
        self._dots = dots or byte_dots()
        self.shape, self.dtype, self.is_gated = weight.shape, dtype, is_gated
        self._bias = self._panel_bias = None
        self._packed = in_large_pages(self._pack_rows(weight))

    @property
    def region(self) -> ParallelRegion:
        return _REGIONS[self._dots]

    def _pack_rows(self, weight: BlockWeight) -> Tensor:
        """[panel, bytes], uint8: the codes, scales of the rows, sums of their codes."""
        codes = self._by_panel(weight.codes)
        words = self._words(codes)
        scales = self._by_panel(weight.scales.float()).view(-1, self.panel)
        totals = codes.sum(1, dtype=torch.int32).view(-1, self.panel)
        parts = (words.contiguous().view(len(scales), -1), scales.contiguous(), totals.contiguous())
        return torch.cat([part.view(torch.uint8) for part in parts], dim=1)

    @property
    def layout(self) -> tuple[object, ...]:
        return *super().layout, self._is_symmetric, self._fixed, self._keeps_outliers

    def _words(self, codes: Tensor) -> Tensor:
        """[panel, ...]: four columns of each row, then the next four."""
        return codes.unflatten(1, (-1, 4)).unflatten(0, (-1, PANEL)).transpose(1, 2)

    def empty_inputs(self, x: Tensor) -> Tensor:
        return empty_result((x.shape[0], x.shape[1] + ROW_TAIL), torch.uint8)

    def inputs(self, x: Tensor, into: Tensor) -> Tensor:
        round_rows(x, into, is_symmetric=self._is_symmetric, fixed=self._fixed, keeps_outliers=self._keeps_outliers)
        return into

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        return product_scratch_bytes(rows, (width + ROW_TAIL) // 4, group_rows)


@njit(**EXACT)
def _run(task, held):
    space = enter(task)
    is_narrow = field(task, AT.itemsize) == 2
    for i in range(field(task, AT.num_parts)):
        if is_narrow:
            multiply(part_of(task, i), space, UINT16, held, 4, TAIL, ROW_TAIL)
        else:
            multiply(part_of(task, i), space, FLOAT32, held, 4, TAIL, ROW_TAIL)
    leave(task)


_PLAIN, _WORDS, _VNNI_256, _VNNI, _I8MM = (QUADS[way] for way in ByteDots)


def _plain_body(task):
    _run(task, _PLAIN)


def _words_body(task):
    _run(task, _WORDS)


def _vnni_256_body(task):
    _run(task, _VNNI_256)


def _vnni_body(task):
    _run(task, _VNNI)


def _i8mm_body(task):
    _run(task, _I8MM)


_REGIONS = {
    ByteDots.PLAIN: ParallelRegion(_plain_body),
    ByteDots.WORDS: ParallelRegion(_words_body),
    ByteDots.VNNI_256: ParallelRegion(_vnni_256_body),
    ByteDots.VNNI: ParallelRegion(_vnni_body),
    ByteDots.I8MM: ParallelRegion(_i8mm_body),
}
