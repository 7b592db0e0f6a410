"""`kernels.layer_ops.store_rows`: rows to their places in one pass, in recorded steps too."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import INT64
from kernels.cpu.memory import carray, copy
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion, threads_for
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer

CHUNK_ROWS = 8


class StoreRowsTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows."""

    rows: int
    row_bytes: int
    source: Tensor  # [rows, width]
    target: Tensor  # [any, width]
    places: Tensor  # [rows], int64


AT = offsets_of(StoreRowsTask)


def store_rows(rows: Tensor, target: Tensor, places: Tensor) -> None:
    """Shapes as in `kernels.layer_ops.store_rows`. Bytes moved: rows once in, once out."""
    rows = rows.contiguous()
    row_bytes = rows.shape[1] * rows.element_size()
    _region.launch(threads_for(rows.numel()), StoreRowsTask(rows.shape[0], row_bytes, rows, target, places))


def _body(task):
    enter(task)
    _store(task)
    leave(task)


_region = ParallelRegion(_body)


@njit(**EXACT)
def _store(task):
    rows, row_bytes = field(task, AT.rows), field(task, AT.row_bytes)
    source, target = field(task, AT.source), field(task, AT.target)
    places = carray(pointer(task, AT.places, INT64), (rows,))
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            copy(source + i * row_bytes, target + places[i] * row_bytes, row_bytes)
        first = next_chunk(task) * CHUNK_ROWS
