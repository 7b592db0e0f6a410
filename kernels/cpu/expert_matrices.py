"""Experts of a layer: which rows go through which of them, and their products, each in one launch.

    router's scores ─> choose ─> deal ─> product of the chosen experts, gated ─> the second one ─> add up

`choose` draws up each row's few best experts, in order of their number. `deal` turns that round: it writes, for each
expert, a product's task of the rows that chose it (a part of a `ProductTask`), and puts these rows side by side. The
products are those of `PanelMatrix`, so a row has the bits that it has alone. An expert that no row chose is not read.
Nothing of it is known to Python, so that it can be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, INT64, UINT8, UINT16, narrow, widen
from kernels.cpu.exp import exp32, fused
from kernels.cpu.memory import array_at, carray, copy, elements_at, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.panel_matrix import AT as AT_PRODUCT
from kernels.cpu.panel_matrix import PART_FIELDS, PanelMatrix
from kernels.cpu.parallel_region import ParallelRegion, RegionOfType, threads_for
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import AT_HEADER, FIELD_BYTES, encode, enter, field, leave, next_chunk, offsets_of, pointer

__all__ = ["AddUpTask", "ChooseTask", "DealTask", "ExpertMatrices", "mix_experts"]

MAX_ROWS = 1024  # that are dealt out at a time: each takes the memory of as many rows as it has experts


class ExpertMatrices:
    """A matrix of each expert, packed alike.

    Threading: one thread at a time, as the parts are rewritten for each product.
    """

    __slots__ = ("matrices", "parts")

    def __init__(self, matrices: Sequence[PanelMatrix]) -> None:
        assert len({matrix.layout for matrix in matrices}) == 1, "experts of one layer are packed alike"
        self.matrices = tuple(matrices)
        self.parts = torch.tensor([encode(matrix.task(0, None, None)).tolist() for matrix in matrices])

    def __getitem__(self, expert: int) -> PanelMatrix:
        return self.matrices[expert]

    def multiply(self, x: Tensor, result: Tensor) -> None:
        """Every expert's product, as `deal` wrote the parts: rows of x, one after the other, to those of the result.

        Bytes moved: x and the result once, of the weights those of experts that have rows, once for a group of them.
        """
        first, rows = self.matrices[0], x.shape[0]
        task = first.task(rows, x, result)._replace(num_parts=len(self.matrices), parts=self.parts)
        num_chunks = min(rows, len(self.matrices)) * task.num_panels
        first.region.launch(first.threads_for(rows, num_chunks), task, first.scratch_bytes(rows))


def mix_experts(
    x: Tensor, scores: Tensor, gate_up: ExpertMatrices, down: ExpertMatrices, *, per_token: int, renormalise: bool
) -> Tensor:
    """Shapes as in `kernels.experts.mix_experts`. Experts are added up in float32, rounded once."""
    out = empty_result(tuple(x.shape), x.dtype)
    for first in range(0, x.shape[0], MAX_ROWS):
        some = slice(first, first + MAX_ROWS)
        _mix(x[some], scores[some], gate_up, down, out[some], per_token, renormalise)
    return out


def _mix(
    x: Tensor,
    scores: Tensor,
    gate_up: ExpertMatrices,
    down: ExpertMatrices,
    out: Tensor,
    per_token: int,
    renormalise: bool,
) -> None:
    rows, width = x.shape
    num_experts, itemsize = scores.shape[1], x.element_size()
    chosen, places = (empty_result((rows, per_token), torch.int64) for _ in range(2))
    shares = empty_result((rows, per_token), torch.float32)
    task = ChooseTask(itemsize, rows, num_experts, per_token, renormalise, scores, chosen, shares)
    _choosing.launch(
        threads_for(scores.numel() * per_token), task, scratch_bytes((1, num_experts, 4), (1, num_experts, 1))
    )
    x = gate_up[0].inputs(x, gate_up[0].empty_inputs(x))
    dealt = empty_result((rows * per_token, x.shape[1]), x.dtype)
    inner = empty_result((rows * per_token, gate_up[0].out_width), down[0].dtype)
    middle = down[0].empty_inputs(inner)
    outer = empty_result((rows * per_token, width), down[0].dtype)
    deal = DealTask(
        num_experts,
        rows,
        per_token,
        x.shape[1] * x.element_size(),
        x,
        chosen,
        places,
        dealt,
        gate_up.parts,
        inner,
        down.parts,
        middle.shape[1] * middle.element_size(),
        middle,
        outer,
    )
    _dealing.launch(threads_for(dealt.numel()), deal)
    gate_up.multiply(dealt, inner)
    down[0].inputs(inner, middle)
    down.multiply(middle, outer)
    adding = AddUpTask(itemsize, rows, per_token, width, shares, places, outer, out)
    _adding.launch(threads_for(outer.numel()), adding, scratch_bytes((1, width, 4)))


class ChooseTask(NamedTuple):
    """A chunk is a row. Of equal scores the first is the higher."""

    itemsize: int  # of scores. 2: bfloat16, 4: float32
    rows: int
    num_experts: int
    per_token: int
    renormalises: bool  # shares of a row sum to 1
    scores: Tensor  # [rows, num_experts], before the softmax
    chosen: Tensor  # [rows, per_token], int64, rising
    shares: Tensor  # [rows, per_token], float32, of the expert at the same place


class DealTask(NamedTuple):
    """A chunk is an expert."""

    num_experts: int
    rows: int
    per_token: int
    row_bytes: int  # of x
    x: Tensor  # [rows, width], or as `PanelMatrix.inputs` makes them
    chosen: Tensor  # [rows, per_token], int64
    places: Tensor  # [rows, per_token], int64: in `dealt` and all that is made of it
    dealt: Tensor  # [rows x per_token, ...], rows of x by expert; one that is alone stays where it is
    first_parts: Tensor  # [num_experts, PART_FIELDS], int64: products with x
    inner: Tensor  # [rows x per_token, out_width], their results
    second_parts: Tensor  # [num_experts, PART_FIELDS], int64: products with these
    middle_row_bytes: int
    middle: Tensor  # [rows x per_token, ...], `inner` or as `PanelMatrix.inputs` makes it
    outer: Tensor  # [rows x per_token, width], their results


class AddUpTask(NamedTuple):
    """A chunk is a row."""

    itemsize: int  # 2: bfloat16, 4: float32
    rows: int
    per_token: int
    width: int
    shares: Tensor  # [rows, per_token], float32
    places: Tensor  # [rows, per_token], int64
    outer: Tensor  # [rows x per_token, width]
    out: Tensor  # [rows, width]


AT_CHOOSE, AT_DEAL, AT_ADD = offsets_of(ChooseTask), offsets_of(DealTask), offsets_of(AddUpTask)


def _choose_in_bfloat16(task):
    space = enter(task)
    _choose(task, space, UINT16)
    leave(task)


def _choose_in_float32(task):
    space = enter(task)
    _choose(task, space, FLOAT32)
    leave(task)


def _deal_body(task):
    enter(task)
    _deal(task)
    leave(task)


def _add_up_in_bfloat16(task):
    space = enter(task)
    _add_up(task, space, UINT16)
    leave(task)


def _add_up_in_float32(task):
    space = enter(task)
    _add_up(task, space, FLOAT32)
    leave(task)


_choosing, _dealing = RegionOfType(_choose_in_bfloat16, _choose_in_float32), ParallelRegion(_deal_body)
_adding = RegionOfType(_add_up_in_bfloat16, _add_up_in_float32)


@njit(**EXACT)
def _choose(task, space, like):
    rows, num_experts, per_token = (
        field(task, AT_CHOOSE.rows),
        field(task, AT_CHOOSE.num_experts),
        field(task, AT_CHOOSE.per_token),
    )
    scores = carray(pointer(task, AT_CHOOSE.scores, like), (rows, num_experts))
    chosen = carray(pointer(task, AT_CHOOSE.chosen, INT64), (rows, per_token))
    shares = carray(pointer(task, AT_CHOOSE.shares, FLOAT32), (rows, per_token))
    weights, space = array_at(space, 1, num_experts, FLOAT32)
    is_chosen, space = array_at(space, 1, num_experts, UINT8)
    row = next_chunk(task)
    while row < rows:
        best = _mark_best(scores[row], is_chosen[0], per_token)
        total = _exponentials(scores[row], widen(scores[row, best]), weights[0])
        _take(weights[0], is_chosen[0], total, field(task, AT_CHOOSE.renormalises) != 0, chosen[row], shares[row])
        row = next_chunk(task)


@njit(**EXACT)
def _mark_best(scores, is_chosen, count):
    """Marks the `count` highest scores, so many also where some are NaN; which is the highest."""
    for i in range(np.uintp(scores.shape[0])):
        is_chosen[i] = 0
    highest = 0
    for k in range(count):
        best = -1
        for i in range(scores.shape[0]):
            if is_chosen[i] == 0 and (best < 0 or widen(scores[i]) > widen(scores[best])):
                best = i
        is_chosen[best] = 1
        if k == 0:
            highest = best
    return highest


@njit(**EXACT)
def _exponentials(scores, highest, weights):
    """Of the scores less the highest; their sum."""
    for i in range(np.uintp(scores.shape[0])):
        weights[i] = exp32(widen(scores[i]) - highest)
    total = np.float32(0)
    for i in range(scores.shape[0]):
        total += weights[i]
    return total


@njit(**EXACT)
def _take(weights, is_chosen, total, renormalises, chosen, shares):
    """What is marked, and its part of the total, or of what is marked; one NaN makes all of them NaN."""
    place, marked = 0, np.float32(0)
    for i in range(weights.shape[0]):
        if is_chosen[i] != 0:
            chosen[place] = i
            shares[place] = weights[i] / total
            marked += shares[place]
            place += 1
    if renormalises:
        for k in range(place):
            shares[k] = shares[k] / marked


@njit(**EXACT)
def _deal(task):
    num_experts, rows, per_token = (
        field(task, AT_DEAL.num_experts),
        field(task, AT_DEAL.rows),
        field(task, AT_DEAL.per_token),
    )
    chosen = carray(pointer(task, AT_DEAL.chosen, INT64), (rows * per_token,))
    places = carray(pointer(task, AT_DEAL.places, INT64), (rows * per_token,))
    row_bytes, progress = field(task, AT_DEAL.row_bytes), field(task, AT_HEADER.progress)
    x, dealt = field(task, AT_DEAL.x), field(task, AT_DEAL.dealt)
    expert = next_chunk(task)
    while expert < num_experts:
        begin, count, only = 0, 0, 0
        for i in range(np.uintp(rows * per_token)):
            begin += chosen[i] < expert
            if chosen[i] == expert:
                only = np.intp(i) // per_token
                count += 1
        place = begin
        for i in range(rows * per_token if count else 0):
            if chosen[i] == expert:
                places[i] = place
                if count > 1:
                    copy(x + i // per_token * row_bytes, dealt + place * row_bytes, row_bytes)
                place += 1
        source = x + only * row_bytes if count == 1 else dealt + begin * row_bytes
        part = field(task, AT_DEAL.first_parts) + expert * PART_FIELDS * FIELD_BYTES
        _write_part(part, count, source, field(task, AT_DEAL.inner), begin, progress)
        source = field(task, AT_DEAL.middle) + begin * field(task, AT_DEAL.middle_row_bytes)
        part = field(task, AT_DEAL.second_parts) + expert * PART_FIELDS * FIELD_BYTES
        _write_part(part, count, source, field(task, AT_DEAL.outer), begin, progress)
        expert = next_chunk(task)


@njit(**EXACT)
def _write_part(address, rows, x, results, begin, progress):
    """A product of so many rows from `x` on, none of whose chunks is taken; its result is row `begin` of `results`."""
    part = carray(elements_at(address, INT64), (PART_FIELDS,))
    group_rows = part[AT_PRODUCT.group_rows]
    result = results + begin * part[AT_PRODUCT.out_width] * part[AT_PRODUCT.itemsize]
    part[AT_HEADER.chunks_taken], part[AT_HEADER.progress] = 0, progress
    part[AT_PRODUCT.num_chunks] = (rows + group_rows - 1) // group_rows * part[AT_PRODUCT.num_panels]
    part[AT_PRODUCT.rows], part[AT_PRODUCT.x], part[AT_PRODUCT.result] = rows, x, result


@njit(**EXACT)
def _add_up(task, space, like):
    rows, per_token, width = field(task, AT_ADD.rows), field(task, AT_ADD.per_token), field(task, AT_ADD.width)
    shares = carray(pointer(task, AT_ADD.shares, FLOAT32), (rows, per_token))
    places = carray(pointer(task, AT_ADD.places, INT64), (rows, per_token))
    outer = carray(pointer(task, AT_ADD.outer, like), (rows * per_token, width))
    out = carray(pointer(task, AT_ADD.out, like), (rows, width))
    sums, _ = zeros_at(space, 1, width, FLOAT32)
    row = next_chunk(task)
    while row < rows:
        for k in range(per_token):
            _add(sums[0], shares[row, k], outer[places[row, k]], k == 0)
        for j in range(np.uintp(width)):
            out[row, j] = narrow(sums[0, j], out[row, j])
        row = next_chunk(task)


@njit(**EXACT)
def _add(sums, share, values, is_first):
    if is_first:
        for j in range(np.uintp(sums.shape[0])):
            sums[j] = share * widen(values[j])
    else:
        for j in range(np.uintp(sums.shape[0])):
            sums[j] = fused(share, widen(values[j]), sums[j])
