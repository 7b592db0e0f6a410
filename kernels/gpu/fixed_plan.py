"""Attention's plan of a captured step: its tensors stay where they are, and each batch's tables go over them.

A CUDA graph has the addresses and the grids that it was captured with. So a plan has room for more items, merges and
blocks than a batch has; what is left over does nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.gpu.attention_plan import ITEM, MERGE, WHOLE, GpuAttentionPlan, HostPlan, TileGroup
from kernels.gpu.launch import power_of_two

MIN_BLOCKS = 64  # of a sequence: 1,024 tokens in blocks of 16


class PlanRoom(NamedTuple):
    """How much a plan can hold: equal for batches that one graph can compute."""

    tile_rows: int
    sequences: int
    items: int
    merges: int
    queries: int  # of one merge
    blocks: int  # of one sequence


def room_for(plan: HostPlan, sequences: int) -> PlanRoom | None:
    """The room for a batch of at most so many sequences, in powers of two; None where it is no decoding step.

    With tiles of two sizes, or queries that fill several, there would be too many graphs.
    """
    if len(plan.groups) != 1 or plan.has_chunks:
        return None
    (group,) = plan.groups
    items = max(power_of_two(len(group.items)), power_of_two(sequences))
    blocks = max(power_of_two(plan.block_tables.shape[1]), MIN_BLOCKS)
    merges = sequences if len(group.merges) else 0
    return PlanRoom(group.rows, sequences, items, merges, plan.most_queries if merges else 0, blocks)


class FixedPlan:
    """`plan`, whose tensors hold the latest batch that it was filled with."""

    def __init__(self, room: PlanRoom, num_tokens: int, sliding_window: int | None, numbers: Tensor) -> None:
        """`numbers`: [num_numbers(room)], int32, on the device. `num_tokens`: rows of q, those that pad it counted."""
        self._room = room
        tables, items, merges = _parts(room, numbers)
        partials = room.items if room.merges else 0
        group = TileGroup(room.tile_rows, items, merges, partials, room.queries)
        self.plan = GpuAttentionPlan(tables, (group,), num_tokens, sliding_window)

    def fill(self, plan: HostPlan, numbers: Tensor) -> None:
        """Writes a batch's tables, for which there is room: like the device's numbers, but on the host."""
        (group,) = plan.groups
        numbers.zero_()
        tables, items, merges = (part.numpy() for part in _parts(self._room, numbers))
        tables[: plan.block_tables.shape[0], : plan.block_tables.shape[1]] = plan.block_tables
        items[: len(group.items)] = group.items
        items[len(group.items) :, ITEM.partial] = WHOLE  # no query, no key: nothing is written
        merges[: len(group.merges)] = group.merges


def num_numbers(room: PlanRoom) -> int:
    """How many int32 a plan takes: a multiple of four, so that what lies behind is aligned to 16 bytes."""
    return sum(rows * columns for rows, columns in _shapes(room))


def _shapes(room: PlanRoom) -> tuple[tuple[int, int], ...]:
    return (room.sequences, room.blocks), (room.items, len(ITEM)), (room.merges, len(MERGE))


def _parts(room: PlanRoom, numbers: Tensor) -> list[Tensor]:
    shapes = _shapes(room)
    split = numbers.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(split, shapes, strict=True)]
