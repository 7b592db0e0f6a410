"""A bfloat16 weight for Arm CPUs, which multiply two rows by two columns of it at once (`bfmmla`): packed in fours.

A row has the bits that `pair_matrix` gives it, whatever else is in the batch: the instruction adds up in its order.
"""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.dtypes import FOURS, UINT16
from kernels.cpu.neon_products import COLUMNS
from kernels.cpu.panel_matrix import AT, PanelMatrix, part_of
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave
from kernels.cpu.vector_matrix import (
    BLOCK_ROWS,
    MAX_GROUP_ROWS,
    PANEL,
    SMALL_BLOCK_ROWS,
    multiply,
    product_scratch_bytes,
)


class QuadMatrix(PanelMatrix):
    """In bfloat16, its width a multiple of four, on an Arm CPU with BF16 (`instructions.has_neon_dot`)."""

    __slots__ = ()
    panel, element_bytes = PANEL, 2
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        # [panel, four columns, half of a vector's rows, vector of the weight's rows, row, one of the four]
        parts = weight.unflatten(1, (-1, 4)).unflatten(0, (-1, PANEL // COLUMNS, 2, COLUMNS // 2))
        return parts.permute(0, 4, 2, 1, 3, 5)

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        return product_scratch_bytes(rows, width // 2, group_rows)


def _body(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        multiply(part_of(task, i), space, UINT16, FOURS, 2, 0, 0, SMALL_BLOCK_ROWS)
    leave(task)


QuadMatrix.region = ParallelRegion(_body)
