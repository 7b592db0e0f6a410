"""Attention's plan of a captured step: its tensors stay where they are, and each batch's tables go over them.

A CUDA graph has the addresses and the grids that it was captured with. So a plan has room for more items, merges and
blocks than a batch has; what is left over has no query, and its program ends at once.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.gpu.attention_plan import ITEM, MERGE, WHOLE, GpuAttentionPlan, HostGroup, HostPlan, TileGroup
from kernels.gpu.launch import power_of_two

MIN_BLOCKS = 256  # of a sequence: 4,096 tokens in blocks of 16. A table of 32 such rows is copied in 2 us
MIN_SEQUENCES = 32  # beside chunks of prompts


class GroupRoom(NamedTuple):
    """How much of a `TileGroup` there can be."""

    tile_rows: int
    items: int
    merges: int
    queries: int  # of one merge


class PlanRoom(NamedTuple):
    """How much a plan can hold: equal for batches that one graph can compute."""

    sequences: int
    blocks: int  # of one sequence
    groups: tuple[GroupRoom | None, ...]  # as the plan's; None: such tiles have no items, and are not launched


def decoding_room(plan: HostPlan, sequences: int) -> PlanRoom | None:
    """The room for a batch of at most so many sequences, in powers of two; None where it is no decoding step.

    That has tiles of one size, and no queries that fill several.
    """
    if plan.has_chunks or sum(len(group.items) > 0 for group in plan.groups) != 1:
        return None

    def room(group: HostGroup) -> GroupRoom | None:
        if not len(group.items):
            return None
        least = power_of_two(sequences)
        if not len(group.merges):
            return GroupRoom(group.rows, max(power_of_two(len(group.items)), least), 0, 0)
        return GroupRoom(group.rows, max(power_of_two(len(group.items)), 2 * least), sequences, plan.most_queries)

    return PlanRoom(sequences, _blocks(plan), tuple(room(group) for group in plan.groups))


def mixed_room(plan: HostPlan, num_tokens: int) -> PlanRoom:
    """The room for batches of at most so many tokens, chunks of prompts among them: few different ones.

    As far as it can it depends on the number of tokens alone: programs without a query end at once, and another graph
    would be another capture.
    """
    small, large = plan.groups
    sequences = max(power_of_two(len(plan.block_tables)), MIN_SEQUENCES)
    short = GroupRoom(
        small.rows,
        max(power_of_two(len(small.items)), 2 * sequences),
        sequences,
        1 if small.max_queries <= 1 else small.queries,
    )
    tiles = -(-num_tokens // large.queries) + sequences  # each sequence's last one may be partly filled
    long = GroupRoom(
        large.rows,
        tiles if len(large.items) <= tiles else power_of_two(len(large.items)),
        sequences if len(large.merges) else 0,
        large.queries if len(large.merges) else 0,
    )
    return PlanRoom(sequences, _blocks(plan), (short, long))


def _blocks(plan: HostPlan) -> int:
    return max(power_of_two(plan.block_tables.shape[1]), MIN_BLOCKS)


class FixedPlan:
    """`plan`, whose tensors hold the latest batch that it was filled with."""

    def __init__(
        self, room: PlanRoom, num_tokens: int, sliding_window: int | None, numbers: Tensor, on_host: Tensor
    ) -> None:
        """`numbers`: [num_numbers(room)], int32, on the device; `on_host`: the same there, where a batch is filled in.

        `num_tokens`: rows of q, those that pad it counted.
        """
        self._is_launched = [own is not None for own in room.groups]
        self._numbers = on_host.numpy()
        self._tables, *self._parts = (part.numpy() for part in _parts(room, on_host))
        tables, *parts = _parts(room, numbers)
        groups = [
            TileGroup(own.tile_rows, items, merges, own.items if own.merges else 0, own.queries)
            for own, items, merges in zip(_launched(room), parts[::2], parts[1::2], strict=True)
        ]
        self.plan = GpuAttentionPlan(tables, tuple(groups), num_tokens, sliding_window)

    def fill(self, plan: HostPlan) -> None:
        """Writes a batch's tables, for which there is room; the caller copies them to the device."""
        self._numbers.fill(0)
        self._tables[: plan.block_tables.shape[0], : plan.block_tables.shape[1]] = plan.block_tables
        own = [group for group, is_launched in zip(plan.groups, self._is_launched, strict=True) if is_launched]
        for group, items, merges in zip(own, self._parts[::2], self._parts[1::2], strict=True):
            items[: len(group.items)] = group.items
            items[len(group.items) :, ITEM.partial] = WHOLE
            merges[: len(group.merges)] = group.merges


def num_numbers(room: PlanRoom) -> int:
    """How many int32 a plan takes: a multiple of four, so that what lies behind is aligned to 16 bytes."""
    return sum(rows * columns for rows, columns in _shapes(room))


def _launched(room: PlanRoom) -> list[GroupRoom]:
    return [own for own in room.groups if own is not None]


def _shapes(room: PlanRoom) -> list[tuple[int, int]]:
    tables = [(room.sequences, room.blocks)]
    return tables + [shape for own in _launched(room) for shape in ((own.items, len(ITEM)), (own.merges, len(MERGE)))]


def _parts(room: PlanRoom, numbers: Tensor) -> list[Tensor]:
    shapes = _shapes(room)
    split = numbers.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(split, shapes, strict=True)]
