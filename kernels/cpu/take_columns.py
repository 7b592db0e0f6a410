"""Columns of a matrix in another order, for weights whose own are not in it: GPTQ's act-order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, INT64, UINT16
from kernels.cpu.memory import carray
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType, threads_for
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer

CHUNK_ROWS = 4


class TakeColumnsTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows."""

    itemsize: int  # 2: bfloat16, 4: float32
    rows: int
    width: int
    x: Tensor  # [rows, width]
    out: Tensor  # [rows, width]
    order: Tensor  # [width], int64


AT = offsets_of(TakeColumnsTask)


def take_columns(x: Tensor, order: Tensor, out: Tensor) -> None:
    """`out = x[:, order]`.

    Shapes: x, out: [rows, width], float32 or bfloat16; order: [width], int64. Bytes moved: x once in, once out.
    """
    rows, width = x.shape
    _region.launch(threads_for(x.numel()), TakeColumnsTask(x.element_size(), rows, width, x, out, order))


def _body_in_bfloat16(task):
    enter(task)
    _take(task, UINT16)
    leave(task)


def _body_in_float32(task):
    enter(task)
    _take(task, FLOAT32)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)


@njit(**EXACT)
def _take(task, like):
    rows, width = field(task, AT.rows), field(task, AT.width)
    x, out = carray(pointer(task, AT.x, like), (rows, width)), carray(pointer(task, AT.out, like), (rows, width))
    order = carray(pointer(task, AT.order, INT64), (width,))
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            for j in range(np.uintp(width)):
                out[i, j] = x[i, np.uintp(order[j])]
        first = next_chunk(task) * CHUNK_ROWS
