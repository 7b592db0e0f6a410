"""What paged attention on a CPU needs to know of a batch beyond its tensors: made once a step, used by every layer.

Decoding sequences (one query each) of similar length are grouped and computed together. A chunk of a prompt is cut
into tiles of queries. Keys are read in tiles at fixed positions (0, 128, 256, ...) and in spans of sixteen tiles, and
every matrix product has one of few fixed shapes, so that the order of additions for a query depends on its position
only: never on how the prompt was cut, on its neighbours, or on where its blocks lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kernels.row_tiles import ROW_TILES, split_rows

if TYPE_CHECKING:
    from kernels.gpu.attention_plan import GpuAttentionPlan

KEY_TILE = 128  # keys per product
SPAN = 16 * KEY_TILE  # keys per softmax; longer sequences merge the spans' results
GROUP_KEYS = 16 * SPAN  # bound of one decoding group's gathered keys, and with it of its memory
# Finite, so that a span without any visible key still gives finite sums; exp of it is exactly 0 beside a real score.
MASKED = -1e30


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys of one span. `rows` index the cache as [slots x kv_heads, head_dim], in order [sequence, kv head, key]."""

    rows: Tensor  # [num_seqs * kv_heads * num_keys]
    num_keys: int  # a multiple of KEY_TILE
    first_key: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one query each."""

    queries: Tensor | slice  # rows of the batch
    num_seqs: int
    spans: tuple[KeySpan, ...]
    masks: tuple[Tensor, ...]  # per span: [num_seqs * kv_heads, 1, num_keys], 0 or MASKED


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Queries [start, start + size) of a chunk; the last ones may be padding."""

    start: int
    size: int
    first_position: int
    last_position: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several queries of one sequence."""

    queries: slice  # rows of the batch
    tiles: tuple[QueryTile, ...]
    spans: tuple[KeySpan, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]
    sliding_window: int | None


def padded_share(num_heads: int, num_kv_heads: int) -> int:
    """Query heads per KV head, rounded up to a power of two: whole queries fit a row tile then."""
    return 1 << (num_heads // num_kv_heads - 1).bit_length()


def plan_attention(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None = None,
    tiles: tuple[int, ...] = ROW_TILES,
    device: torch.device | str = "cpu",
) -> AttentionPlan | GpuAttentionPlan:
    """The plan of one batch. Shapes as in `paged_attention`, all on the CPU. `tiles` are row counts of products.

    The plan's own tensors are put on `device`, where the cache is; a GPU has its own kind of plan.
    """
    if torch.device(device).type == "cuda":
        from kernels.gpu import attention_plan as on_gpu

        shapes = (block_tables, seq_lens, query_starts)
        heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
        return on_gpu.plan_attention(*shapes, **heads, sliding_window=sliding_window, device=device)
    tables, lens, starts = block_tables.numpy(), seq_lens.numpy(), query_starts.numpy()
    counts = np.diff(starts)
    reader = _Reader(tables, lens, block_size, num_kv_heads, device)
    share = padded_share(num_heads, num_kv_heads)
    sizes = tuple(tile // share for tile in tiles if tile >= share) or (1,)
    decoding = np.flatnonzero(counts == 1)
    groups = [_group(reader, members, starts, sliding_window) for members in _similar(decoding, lens, sliding_window)]
    chunks = [_chunk(reader, i, starts, sliding_window, sizes) for i in np.flatnonzero(counts > 1)]
    return AttentionPlan(tuple(groups), tuple(chunks), sliding_window)


class _Reader:
    """Where keys of sequences lie in the cache."""

    def __init__(
        self, tables: np.ndarray, lens: np.ndarray, block_size: int, num_kv_heads: int, device: torch.device | str
    ) -> None:
        self.tables, self.lens = tables, lens
        self.block_size, self.num_kv_heads, self.device = block_size, num_kv_heads, device

    def spans(self, members: np.ndarray, lowest: int, length: int) -> tuple[KeySpan, ...]:
        """Spans over the key tiles that hold positions [lowest, length)."""
        found, first = [], lowest // KEY_TILE * KEY_TILE
        while first < length:
            end = min(first // SPAN * SPAN + SPAN, _whole_tiles(length))
            found.append(self._span(members, first, end - first))
            first = end
        return tuple(found)

    def _span(self, members: np.ndarray, first_key: int, num_keys: int) -> KeySpan:
        positions = np.arange(first_key, first_key + num_keys)
        # Past the end of a sequence its own first key is read and masked. Any other slot could hold another
        # sequence's non-finite values, and 0 x NaN is NaN.
        positions = np.where(positions < self.lens[members, None], positions, 0)
        blocks = np.take_along_axis(self.tables[members], positions // self.block_size, axis=1).astype(np.int64)
        slots = blocks * self.block_size + positions % self.block_size
        rows = slots[:, None, :] * self.num_kv_heads + np.arange(self.num_kv_heads)[:, None]
        return KeySpan(torch.from_numpy(rows.reshape(-1)).to(self.device), num_keys, first_key)


def _whole_tiles(keys: int) -> int:
    return -(-keys // KEY_TILE) * KEY_TILE


def _similar(decoding: np.ndarray, lens: np.ndarray, window: int | None) -> list[np.ndarray]:
    """Decoding sequences by number of key tiles to the next power of two, in groups of bounded memory."""
    lens = lens[decoding].astype(np.int64)
    if window is not None:
        # Windows lie anywhere; a group reads from its lowest to its highest.
        classes = np.maximum(lens - window, 0) // KEY_TILE * (1 << 32) + (lens - 1) // KEY_TILE
    else:
        classes = np.ceil(np.log2(-(-lens // KEY_TILE))).astype(np.int64)
    groups = []
    for value in np.unique(classes):
        inside = classes == value
        size = max(GROUP_KEYS // min(_whole_tiles(int(lens[inside].max())), SPAN), 1)
        members = decoding[inside]
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def _group(reader: _Reader, members: np.ndarray, starts: np.ndarray, window: int | None) -> DecodeGroup:
    lens = reader.lens[members]
    lowest = 0 if window is None else max(int(lens.min()) - window, 0)
    spans = reader.spans(members, lowest, int(lens.max()))
    masks = []
    for span in spans:
        keys = np.arange(span.first_key, span.first_key + span.num_keys)
        hidden = keys >= lens[:, None]
        if window is not None:
            hidden |= keys < lens[:, None] - window
        mask = np.where(hidden, np.float32(MASKED), np.float32(0))
        masks.append(torch.from_numpy(np.repeat(mask, reader.num_kv_heads, axis=0)[:, None]).to(reader.device))
    rows = starts[members]
    together = rows[-1] - rows[0] == len(rows) - 1
    queries = slice(int(rows[0]), int(rows[-1]) + 1) if together else torch.from_numpy(rows.astype(np.int64))
    return DecodeGroup(queries, len(members), spans, tuple(masks))


def _chunk(reader: _Reader, index: int, starts: np.ndarray, window: int | None, sizes: tuple[int, ...]) -> Chunk:
    length, count = int(reader.lens[index]), int(starts[index + 1] - starts[index])
    first = length - count
    tiles = [
        QueryTile(start, size, first + start, min(first + start + size, length) - 1)
        for start, size in split_rows(count, sizes)
    ]
    lowest = 0 if window is None else max(first - window + 1, 0)
    spans = reader.spans(np.array([index]), lowest, length)
    return Chunk(slice(int(starts[index]), int(starts[index + 1])), tuple(tiles), spans)
