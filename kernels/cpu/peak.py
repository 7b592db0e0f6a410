"""The vector registers' own rate: the innermost part of a product, again and again on operands in the L1 cache.

No product on vector registers is faster, as it also has to fetch its operands: what benchmarks hold products against.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from numba import njit
from torch import Tensor

from kernels.cpu import instructions
from kernels.cpu.dtypes import FLOAT32, PAIRS
from kernels.cpu.memory import array_at, scratch_bytes
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of
from kernels.cpu.vector_matrix import BLOCK_COLUMNS, BLOCK_ROWS, PANEL, STRIP_BYTES, block_product

STEPS = STRIP_BYTES // (PANEL * 4)  # of depth: a strip of a panel, in pairs or in float32


class PeakTask(NamedTuple):
    """A chunk is the strip times a block of rows, `rounds` times."""

    num_chunks: int
    rounds: int
    rows: Tensor  # [BLOCK_ROWS, STEPS], 32 bits each
    strip: Tensor  # [STEPS, PANEL], likewise


AT = offsets_of(PeakTask)


def multiply_in_cache(dtype: torch.dtype, *, chunks: int, rounds: int) -> int:
    """Floating-point operations that were done, by all threads together.

    In bfloat16 pairs are multiplied where the CPU does that; else, as in float32, one number at a time.
    """
    is_paired = dtype == torch.bfloat16 and instructions.has_dot()
    rows, strip = torch.zeros(BLOCK_ROWS, STEPS), torch.zeros(STEPS, PANEL)
    task = PeakTask(chunks, rounds, rows, strip)
    (_in_pairs if is_paired else _in_float32).launch(chunks, task, scratch_bytes((BLOCK_ROWS, PANEL, 4)))
    return 2 * (1 + is_paired) * BLOCK_ROWS * STEPS * PANEL * chunks * rounds


def _body_in_pairs(task):
    _multiply(task, enter(task), PAIRS)
    leave(task)


def _body_in_float32(task):
    _multiply(task, enter(task), FLOAT32)
    leave(task)


_in_pairs, _in_float32 = ParallelRegion(_body_in_pairs), ParallelRegion(_body_in_float32)


@njit(**EXACT)
def _multiply(task, space, held):
    left, strip, rounds = field(task, AT.rows), field(task, AT.strip), field(task, AT.rounds)
    sums, space = array_at(space, BLOCK_ROWS, PANEL, FLOAT32)
    while next_chunk(task) < field(task, AT.num_chunks):
        for _ in range(rounds):
            for column in range(0, PANEL, BLOCK_COLUMNS):
                into, right = sums.ctypes.data + column * 4, strip + column * 4
                block_product(left, STEPS * 4, right, STEPS, into, PANEL * 4, 0, strip, strip, held)
