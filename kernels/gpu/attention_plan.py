"""Which tile of queries reads which keys: made on the host once a step, in one copy to the device, for all layers.

A tile's queries are packed with the query heads that share a KV head into the rows of one matrix product. Sequences
whose queries fit one tile (decoding, short chunks) have their keys split at fixed positions, 0, 512, 1024 and so on,
so that a few long contexts fill the machine; longer chunks have enough tiles and read their keys in one go. Both
choices look at one sequence alone, so no result depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.one_copy import in_one_copy

SPLIT = 512  # keys of one part. Partial results then are 2 % of the bytes of a 4-fold shared 16-bit cache
KEY_ALIGN = 128  # first keys are multiples of it, as of every key tile's width
SMALL_ROWS, LARGE_ROWS = 16, 64  # the least that mma.sync multiplies, and wgmma


class ItemColumns(NamedTuple):
    """A row of `TileGroup.items`: one program's queries and keys."""

    seq: int
    first_row: int  # of q
    num_queries: int
    first_position: int  # of the first query
    first_key: int
    end_key: int
    partial: int  # where its partial result goes, or `WHOLE`
    unused: int  # rows are 32 bytes


class MergeColumns(NamedTuple):
    """A row of `TileGroup.merges`: queries whose keys were split."""

    first_row: int  # of q
    num_queries: int
    first_partial: int
    num_partials: int


ITEM, MERGE = ItemColumns(*range(8)), MergeColumns(*range(4))
WHOLE = -1  # as a partial: this item is the only one for its queries
_NO_ITEMS, _NO_MERGES = np.zeros((0, len(ITEM)), dtype=np.int32), np.zeros((0, len(MERGE)), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Items of one tile size: one launch, and a second one that merges partial results."""

    rows: int  # of a tile; each query takes as many as query heads share a KV head, to the next power of two
    items: Tensor  # [num_items, 8], int32, by `ItemColumns`
    merges: Tensor  # [num_merges, 4], int32, by `MergeColumns`
    num_partials: int
    max_queries: int  # of one merge


@dataclass(frozen=True, slots=True)
class GpuAttentionPlan:
    """The work of one batch, on the device."""

    block_tables: Tensor  # [num_seqs, max_blocks], int32, on the device
    groups: tuple[TileGroup, ...]
    num_tokens: int  # rows of q that are real
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class HostGroup:
    """A `TileGroup` whose tables are still on the host; it may have no items."""

    rows: int
    queries: int  # that a tile has room for
    items: np.ndarray
    merges: np.ndarray
    num_partials: int
    max_queries: int


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The work of one batch, still on the host."""

    block_tables: np.ndarray  # [num_seqs, max_blocks], int32
    groups: tuple[HostGroup, HostGroup]  # of small and of large tiles
    num_tokens: int
    most_queries: int  # of one sequence
    has_chunks: bool  # whether a sequence's queries fill several tiles
    sliding_window: int | None

    def placed(self, device: torch.device | str) -> GpuAttentionPlan:
        """The same on the device: one copy, which is not waited for."""
        filled = [group for group in self.groups if len(group.items)]
        parts = [self.block_tables, *(part for group in filled for part in (group.items, group.merges))]
        moved = iter(in_one_copy([torch.from_numpy(part) for part in parts], device))
        tables = next(moved)
        groups = tuple(
            TileGroup(group.rows, next(moved), next(moved), group.num_partials, group.max_queries) for group in filled
        )
        return GpuAttentionPlan(tables, groups, self.num_tokens, self.sliding_window)


def plan_attention(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None = None,
    device: torch.device | str,
) -> GpuAttentionPlan:
    """The plan of one batch. Shapes as in `paged_attention`, all on the CPU."""
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return plan_on_host(block_tables, seq_lens, query_starts, **heads, sliding_window=sliding_window).placed(device)


def plan_on_host(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None = None,
) -> HostPlan:
    """The plan of one batch, of which nothing is on the device yet."""
    lens, starts = seq_lens.numpy().astype(np.int64), query_starts.numpy().astype(np.int64)
    counts = np.diff(starts)
    head_rows = 1 << (num_heads // num_kv_heads - 1).bit_length()
    small, large = max(SMALL_ROWS, head_rows), max(LARGE_ROWS, head_rows)
    fits_small, fits_large = counts * head_rows <= small, counts * head_rows <= large
    tables = np.ascontiguousarray(block_tables.numpy(), dtype=np.int32)
    groups = []
    batch = _Batch(lens, counts, starts, sliding_window)
    for rows, split, whole in (
        (small, np.flatnonzero(fits_small & (counts > 0)), None),
        (large, np.flatnonzero(fits_large & ~fits_small), np.flatnonzero(~fits_large)),
    ):
        items, merges, num_partials = batch.split_items(split)
        if whole is not None and len(whole):
            items = np.concatenate([items, batch.whole_items(whole, rows // head_rows)])
        most = int(merges[:, MERGE.num_queries].max(initial=0))
        groups.append(HostGroup(rows, rows // head_rows, items, merges, num_partials, most))
    most_queries, has_chunks = int(counts.max(initial=0)), not bool(fits_large.all())
    return HostPlan(tables, (groups[0], groups[1]), int(starts[-1]), most_queries, has_chunks, sliding_window)


@dataclass(frozen=True, slots=True)
class _Batch:
    lens: np.ndarray
    counts: np.ndarray
    starts: np.ndarray
    window: int | None

    def split_items(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Items of sequences of one tile each, merges of those that have several parts, and the number of partials."""
        if not len(members):
            return _NO_ITEMS, _NO_MERGES, 0
        lens, counts = self.lens[members], self.counts[members]
        first = self._first_keys(lens - counts)
        first_part = first // SPLIT
        parts = (lens - 1) // SPLIT - first_part + 1
        if parts.max() == 1:
            return self._items(members, np.maximum(first_part * SPLIT, first), lens), _NO_MERGES, 0
        is_split = parts > 1
        partial_ends = np.cumsum(np.where(is_split, parts, 0))
        first_partial = partial_ends - np.where(is_split, parts, 0)
        owner = np.repeat(np.arange(len(members)), parts)
        rank = np.arange(len(owner)) - (np.cumsum(parts) - parts)[owner]
        begin = (first_part[owner] + rank) * SPLIT
        first_keys, end_keys = np.maximum(begin, first[owner]), np.minimum(begin + SPLIT, lens[owner])
        items = self._items(members[owner], first_keys, end_keys)
        items[:, ITEM.partial] = np.where(is_split[owner], first_partial[owner] + rank, WHOLE)
        columns = MergeColumns(self.starts[members], counts, first_partial, parts)
        merges = np.stack(columns, axis=1)[is_split].astype(np.int32)
        return items, merges, int(partial_ends[-1])

    def _items(self, owners: np.ndarray, first_keys: np.ndarray, end_keys: np.ndarray) -> np.ndarray:
        """One for all queries of each owner, over a range of its keys."""
        items = np.zeros((len(owners), len(ITEM)), dtype=np.int32)
        items[:, ITEM.seq] = owners
        items[:, ITEM.first_row] = self.starts[owners]
        items[:, ITEM.num_queries] = self.counts[owners]
        items[:, ITEM.first_position] = (self.lens - self.counts)[owners]
        items[:, ITEM.first_key] = first_keys
        items[:, ITEM.end_key] = end_keys
        items[:, ITEM.partial] = WHOLE
        return items

    def whole_items(self, members: np.ndarray, queries: int) -> np.ndarray:
        """One item for each `queries` queries of each sequence, those with most keys first."""
        counts = self.counts[members]
        tiles = -(-counts // queries)
        owner = np.repeat(np.arange(len(members)), tiles)
        offset = (np.arange(len(owner)) - (np.cumsum(tiles) - tiles)[owner]) * queries
        size = np.minimum(queries, counts[owner] - offset)
        position = (self.lens[members] - counts)[owner] + offset
        items = np.zeros((len(owner), len(ITEM)), dtype=np.int32)
        items[:, ITEM.seq] = members[owner]
        items[:, ITEM.first_row] = self.starts[members][owner] + offset
        items[:, ITEM.num_queries] = size
        items[:, ITEM.first_position] = position
        items[:, ITEM.first_key] = self._first_keys(position)
        items[:, ITEM.end_key] = position + size
        items[:, ITEM.partial] = WHOLE
        return items[np.argsort(items[:, ITEM.first_key] - items[:, ITEM.end_key], kind="stable")]

    def _first_keys(self, positions: np.ndarray) -> np.ndarray:
        if self.window is None:
            return np.zeros_like(positions)
        return np.maximum(positions - self.window + 1, 0) // KEY_ALIGN * KEY_ALIGN
