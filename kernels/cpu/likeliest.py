"""The likeliest token of each row, and its row of a table: how a recorded chain of drafts goes on by itself."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, INT64, UINT16, widen
from kernels.cpu.memory import carray, copy
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import enter, field, leave, next_chunk, offsets_of, pointer


class LikeliestTask(NamedTuple):
    """A chunk is a row. Of equal logits the first is the highest; where all are NaN it is the first of them."""

    itemsize: int  # of logits. 2: bfloat16, 4: float32
    rows: int
    vocab: int
    row_bytes: int  # of the table
    logits: Tensor  # [rows, vocab]
    names: Tensor | None  # [vocab], int64: the token that each of them stands for; None: they are the same
    tokens: Tensor  # [rows], int64
    table: Tensor  # [any, width]
    out: Tensor  # [rows, width]


AT = offsets_of(LikeliestTask)


def likeliest(logits: Tensor, names: Tensor | None, table: Tensor, tokens: Tensor) -> Tensor:
    """Writes the likeliest tokens, and gives their rows of the table.

    Shapes: logits: [num_rows, vocab], float32 or bfloat16; names: [vocab], int64; table: [any, width]; tokens:
    [num_rows], int64; result: [num_rows, width]. Bytes moved: logits once, a row of the table for each of them twice.
    """
    rows, width = logits.shape[0], table.shape[1]
    out = empty_result((rows, width), table.dtype)
    sizes = (logits.element_size(), *logits.shape, width * table.element_size())
    _region.launch(rows, LikeliestTask(*sizes, logits, names, tokens, table, out))
    return out


def _body_in_bfloat16(task):
    enter(task)
    _find(task, UINT16)
    leave(task)


def _body_in_float32(task):
    enter(task)
    _find(task, FLOAT32)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)


@njit(**EXACT)
def _find(task, like):
    rows, vocab, row_bytes = field(task, AT.rows), field(task, AT.vocab), field(task, AT.row_bytes)
    logits = carray(pointer(task, AT.logits, like), (rows, vocab))
    names, tokens = carray(pointer(task, AT.names, INT64), (vocab,)), carray(pointer(task, AT.tokens, INT64), (rows,))
    row = next_chunk(task)
    while row < rows:
        best = 0
        highest = widen(logits[row, 0])
        for i in range(vocab):
            value = widen(logits[row, i])
            if value > highest or (highest != highest and value == value):
                best, highest = i, value
        token = names[best] if field(task, AT.names) != 0 else best
        tokens[row] = token
        copy(field(task, AT.table) + token * row_bytes, field(task, AT.out) + row * row_bytes, row_bytes)
        row = next_chunk(task)
