"""Paged attention on a CPU at the speed of its GEMMs: whole blocks are gathered, torch's flash kernel does the rest.

The kernel walks keys in blocks of 512 from the first one it is given, with float32 sums, and skips what is masked
exactly. So a query's bits depend on its position alone as long as keys start at a multiple of 512 and the kernel's own
products do not change with the number of rows or of keys in the last block. `measure_shape` finds out at start on
this machine; where even that fails, `paged_attention` keeps to its own slower products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KEY_BLOCK = 512  # of torch's kernel
TAILS = (128, 256, 384, 512)  # key counts that the last block may be padded to
QUERY_TILE = 128  # queries of a chunk in one call: what lies after a tile's last query is not read
ROW_STEPS = (4, 16)  # a call's rows (queries x heads that share keys) are padded to a multiple of one of them
GROUP_KEYS = 1 << 15  # bound of one decoding group's gathered keys, and with it of its memory


@dataclass(frozen=True, slots=True)
class CallShape:
    """Rows of a call are a multiple of `row_step`; keys in its last block are one of `tails`, rising."""

    row_step: int
    tails: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """Keys [first_key, first_key + num_keys) of some sequences, as blocks of the cache."""

    blocks: Tensor  # [num_seqs x blocks each], int64
    num_seqs: int
    skipped: int  # positions of the first block before `first_key`
    num_keys: int
    foreign: Tensor | None  # rows of the gathered positions that the sequence has not written: set to 0


@dataclass(frozen=True, slots=True)
class DecodeCall:
    """Sequences with one query each."""

    queries: Tensor | slice  # rows of the batch
    keys: Gather
    mask: Tensor  # [num_seqs, 1, 1, num_keys], 0 or -inf


@dataclass(frozen=True, slots=True)
class ChunkCall:
    """Several queries of one sequence, in tiles of (first row, last row + 1, keys seen, mask [1, 1, rows, keys])."""

    queries: slice
    keys: Gather
    tiles: tuple[tuple[int, int, int, Tensor], ...]


@dataclass(frozen=True, slots=True)
class GatheredPlan:
    calls: tuple[DecodeCall | ChunkCall, ...]
    sliding_window: int | None
    row_step: int


def measure_shape(dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int) -> CallShape | None:
    """The shapes in which the kernel's bits depend on a query's position alone; None when there are none here."""
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    share = num_heads // num_kv_heads
    for step in ROW_STEPS:
        probe = _Probe(dtype, head_dim, -(-QUERY_TILE * share // step) * step)
        if all(probe.agrees_by(rows) for rows in {_up(share, step), step, _up(33 * share, step)}):
            return CallShape(step, tuple(tail for tail in TAILS if tail == KEY_BLOCK or probe.agrees_with_tail(tail)))
    return None


class _Probe:
    """One attention over random keys, with every row's keys ending elsewhere, to compare parts of it with."""

    def __init__(self, dtype: torch.dtype, head_dim: int, num_rows: int) -> None:
        generator = torch.Generator().manual_seed(3)
        num_keys = 2 * KEY_BLOCK
        self.q = torch.randn((2, 1, num_rows, head_dim), generator=generator).to(dtype)
        self.k, self.v = (torch.randn((2, 1, num_keys, head_dim), generator=generator).to(dtype) for _ in "kv")
        self.lengths = torch.randint(1, num_keys + 1, (num_rows,), generator=generator)
        hidden = torch.arange(num_keys) >= self.lengths[:, None]
        self.mask = torch.zeros((1, 1, num_rows, num_keys)).masked_fill_(hidden, -math.inf)
        self.whole = self._of(torch.arange(num_rows), num_keys)

    def agrees_by(self, rows: int) -> bool:
        """Whether calls of so many rows, in either order, give each row the bits that it has among all."""
        order = torch.arange(self.q.shape[2])
        parts = [part for part in (*order.split(rows), *order.flip(0).split(rows)) if len(part) == rows]
        return all(torch.equal(self._of(part, self.k.shape[2]), self.whole[:, :, part]) for part in parts)

    def agrees_with_tail(self, tail: int) -> bool:
        """Whether the last block of keys may be cut to `tail`."""
        for first in (0, KEY_BLOCK):
            part = torch.nonzero(self.lengths <= first + tail).squeeze(1)
            part = part[: len(part) // ROW_STEPS[-1] * ROW_STEPS[-1]]
            if len(part) and not torch.equal(self._of(part, first + tail), self.whole[:, :, part]):
                return False
        return True

    def _of(self, rows: Tensor, num_keys: int) -> Tensor:
        mask = self.mask[:, :, rows, :num_keys]
        return _flash(self.q[:, :, rows], self.k[:, :, :num_keys], self.v[:, :, :num_keys], mask, 1.0)


def plan_gathered(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None,
    shape: CallShape,
) -> GatheredPlan:
    """The plan of one batch. Shapes as in `paged_attention`; `shape` is that of `measure_shape`."""
    tables, lens, starts = block_tables.numpy(), seq_lens.numpy().astype(np.int64), query_starts.numpy()
    counts = np.diff(starts)
    share = num_heads // num_kv_heads
    calls: list[DecodeCall | ChunkCall] = [
        _decode_call(tables, lens, starts, members, block_size, sliding_window, shape.tails)
        for members in _similar(np.flatnonzero(counts == 1), lens, sliding_window, shape.tails)
    ]
    calls += [
        _chunk_call(tables, lens, starts, int(i), block_size, share, sliding_window, shape)
        for i in np.flatnonzero(counts > 1)
    ]
    return GatheredPlan(tuple(calls), sliding_window, shape.row_step)


def attend_gathered(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: GatheredPlan, scale: float) -> Tensor:
    """`paged_attention` by a plan. Bytes moved: the keys and values that are seen, in and out once, then read."""
    kv_heads, width = k_cache.shape[2:]
    share = q.shape[1] // kv_heads
    out = torch.zeros(q.shape, dtype=q.dtype)
    for call in plan.calls:
        k, v = _read(k_cache, call.keys), _read(v_cache, call.keys)
        own = q[call.queries]
        if isinstance(call, DecodeCall):
            own = own.reshape(-1, kv_heads, share, width)
            own = _pad_rows(own, plan.row_step)
            found = _flash(own, k, v, call.mask.expand(-1, -1, own.shape[2], -1), scale)[:, :, :share]
            out[call.queries] = found.reshape(-1, q.shape[1], width)
            continue
        rows = own.reshape(-1, kv_heads, share, width).transpose(0, 1).reshape(1, kv_heads, -1, width)
        into = out[call.queries]
        for first, last, seen, mask in call.tiles:
            part = _pad_rows(rows[:, :, first * share : last * share], plan.row_step)
            found = _flash(part, k[:, :, :seen], v[:, :, :seen], mask, scale)[:, :, : (last - first) * share]
            into[first:last] = found.view(kv_heads, -1, share, width).transpose(0, 1).reshape(-1, q.shape[1], width)
    return out


def _up(rows: int, step: int) -> int:
    return -(-rows // step) * step


def _pad_rows(q: Tensor, step: int) -> Tensor:
    missing = -q.shape[2] % step
    return torch.nn.functional.pad(q, (0, 0, 0, missing)) if missing else q


def _flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)[
        0
    ]


def _read(cache: Tensor, keys: Gather) -> Tensor:
    """[num_seqs, kv_heads, num_keys, head_dim], strided."""
    kv_heads, width = cache.shape[2:]
    found = cache.view(cache.shape[0], -1).index_select(0, keys.blocks).view(-1, kv_heads * width)
    if keys.foreign is not None:
        found.index_fill_(0, keys.foreign, 0)
    found = found.view(keys.num_seqs, -1, kv_heads, width)
    return found[:, keys.skipped : keys.skipped + keys.num_keys].transpose(1, 2)


def _padded_keys(keys: int, tails: tuple[int, ...]) -> int:
    whole = (keys - 1) // KEY_BLOCK * KEY_BLOCK
    return whole + next(tail for tail in tails if whole + tail >= keys)


def _similar(decoding: np.ndarray, lens: np.ndarray, window: int | None, tails: tuple[int, ...]) -> list[np.ndarray]:
    """Decoding sequences in groups that read equally many keys to an eighth, of bounded memory."""
    lens = lens[decoding]
    ends = np.array([_padded_keys(int(length), tails) for length in lens], dtype=np.int64)
    firsts = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0) // KEY_BLOCK * KEY_BLOCK
    # Windows lie anywhere; a group reads from one start.
    steps = np.maximum(128, (1 << np.ceil(np.log2(np.maximum(ends, 1))).astype(np.int64)) // 8)
    classes = firsts * (1 << 32) + -(-ends // steps) * steps
    groups = []
    for value in np.unique(classes):
        inside = classes == value
        size = max(GROUP_KEYS // int((ends - firsts)[inside].max()), 1)
        members = decoding[inside]
        groups += [members[i : i + size] for i in range(0, len(members), size)]
    return groups


def _gather(
    tables: np.ndarray, lens: np.ndarray, members: np.ndarray, block_size: int, first_key: int, num_keys: int
) -> Gather:
    own = lens[members, None]
    first = first_key // block_size
    columns = np.arange(first, -(-(first_key + num_keys) // block_size))
    # What lies past a sequence's blocks is read from its first one, and masked.
    wanted = np.where(columns * block_size < own, columns, 0)
    blocks = np.take_along_axis(tables[members], wanted, axis=1).astype(np.int64)
    # Rows of its blocks that it has not written may hold another sequence's non-finite values, and 0 x NaN is NaN.
    positions = wanted[:, :, None] * block_size + np.arange(block_size)
    foreign = np.flatnonzero(positions >= own[:, :, None])
    return Gather(
        blocks=torch.from_numpy(blocks.reshape(-1)),
        num_seqs=len(members),
        skipped=first_key - first * block_size,
        num_keys=num_keys,
        foreign=torch.from_numpy(foreign) if len(foreign) else None,
    )


def _decode_call(
    tables: np.ndarray,
    lens: np.ndarray,
    starts: np.ndarray,
    members: np.ndarray,
    block_size: int,
    window: int | None,
    tails: tuple[int, ...],
) -> DecodeCall:
    own = lens[members]
    first = 0 if window is None else max(int(own.min()) - window, 0) // KEY_BLOCK * KEY_BLOCK
    num_keys = _padded_keys(int(own.max()), tails) - first
    keys = np.arange(first, first + num_keys)
    hidden = keys >= own[:, None]
    if window is not None:
        hidden |= keys < own[:, None] - window
    mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
    rows = starts[members]
    together = rows[-1] - rows[0] == len(rows) - 1
    return DecodeCall(
        queries=slice(int(rows[0]), int(rows[-1]) + 1) if together else torch.from_numpy(rows.astype(np.int64)),
        keys=_gather(tables, lens, members, block_size, first, num_keys),
        mask=torch.from_numpy(mask)[:, None, None],
    )


def _chunk_call(
    tables: np.ndarray,
    lens: np.ndarray,
    starts: np.ndarray,
    index: int,
    block_size: int,
    share: int,
    window: int | None,
    shape: CallShape,
) -> ChunkCall:
    length, count = int(lens[index]), int(starts[index + 1] - starts[index])
    start = length - count
    first_key = 0 if window is None else max(start - window + 1, 0) // KEY_BLOCK * KEY_BLOCK
    tiles = []
    for row in range(0, count, QUERY_TILE):
        last = min(row + QUERY_TILE, count)
        seen = _padded_keys(start + last, shape.tails) - first_key
        keys = torch.arange(first_key, first_key + seen)
        positions = torch.arange(start + row, start + last)[:, None]
        hidden = keys > positions
        if window is not None:
            hidden |= keys <= positions - window
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).repeat_interleave(share, dim=0)
        mask = torch.nn.functional.pad(mask, (0, 0, 0, -mask.shape[0] % shape.row_step))
        tiles.append((row, last, seen, mask[None, None]))
    keys = _gather(tables, lens, np.array([index]), block_size, first_key, max(tile[2] for tile in tiles))
    return ChunkCall(slice(int(starts[index]), int(starts[index + 1])), keys, tuple(tiles))
