"""A bfloat16 weight for CPUs that multiply pairs of it on the vector registers (`vdpbf16ps`): packed in those pairs.

Two columns are one step of `vector_matrix`'s product, in half the instructions of float32. A row is summed in the order
of the weight's pairs of columns, whatever else is in the batch: any number of rows gives the same bits.
"""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.dtypes import PAIRS, UINT16
from kernels.cpu.panel_matrix import AT, PanelMatrix, part_of
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave
from kernels.cpu.vector_matrix import BLOCK_ROWS, MAX_GROUP_ROWS, PANEL, multiply, product_scratch_bytes


class PairMatrix(PanelMatrix):
    """In bfloat16, its width even, on a CPU with dot products (`instructions.has_dot`)."""

    __slots__ = ()
    panel, element_bytes = PANEL, 2
    block_rows, max_group_rows = BLOCK_ROWS, MAX_GROUP_ROWS

    def _pack(self, weight: Tensor) -> Tensor:
        # [panel, pair of columns, row of the weight, one of the pair]
        return weight.unflatten(1, (-1, 2)).unflatten(0, (-1, PANEL)).transpose(1, 2)

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        return product_scratch_bytes(rows, width // 2, group_rows)


def _body(task):
    space = enter(task)
    for i in range(field(task, AT.num_parts)):
        multiply(part_of(task, i), space, UINT16, PAIRS, 2)
    leave(task)


PairMatrix.region = ParallelRegion(_body)
