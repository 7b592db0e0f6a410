"""`byte_matrix.py` for matrix registers (AMX): the same whole numbers and the same bits, sixteen rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_weight import BlockWeight
from kernels.cpu import amx
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.byte_rows import ROW_TAIL, TAIL
from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.memory import scratch_bytes
from kernels.cpu.panel_matrix import AT, part_of
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave
from kernels.cpu.tile_matrix import MAX_GROUP_ROWS, PANEL, multiply, strip_sums

WIDTH_STEP = 64  # columns of a step


class ByteTileMatrix(ByteMatrix):
    """Of a width that is a multiple of 64, on a CPU with matrix registers for bytes (`amx.has_byte_amx`)."""

    __slots__ = ()
    panel = PANEL
    block_rows, max_group_rows = PANEL, MAX_GROUP_ROWS

    def __init__(self, weight: BlockWeight, dtype: torch.dtype, *, is_gated: bool = False) -> None:
        super().__init__(weight, dtype, is_gated=is_gated)

    @property
    def region(self) -> ParallelRegion:
        return _region

    def _words(self, codes: Tensor) -> Tensor:
        # [panel, step of 64 columns, half of the panel, four columns, row of the weight, one of the four]
        return codes.reshape(-1, 2, 16, codes.shape[1] // WIDTH_STEP, 16, 4).permute(0, 3, 1, 4, 2, 5)

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        sums = min(group_rows, rows + PANEL)
        return scratch_bytes((16, width + ROW_TAIL, 1), (sums, PANEL, 4), (1, PANEL, 4), (1, 64, 1))


_sum_bytes = strip_sums(amx.byte_dot)


def _body(task):
    space = enter(task)
    is_narrow = field(task, AT.itemsize) == 2
    for i in range(field(task, AT.num_parts)):
        if is_narrow:
            multiply(part_of(task, i), space, UINT16, _sum_bytes, 1, TAIL, ROW_TAIL)
        else:
            multiply(part_of(task, i), space, FLOAT32, _sum_bytes, 1, TAIL, ROW_TAIL)
    leave(task)


_region = ParallelRegion(_body)
