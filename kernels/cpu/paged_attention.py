"""Paged attention on a CPU, straight from the cache: one kernel for chunks of prompts and for decoding.

A query's bits depend on its sequence up to itself, and on nothing else. Keys are taken in blocks of `KEY_BLOCK` that
begin at multiples of it, rows of the products don't depend on one another (`attention_tiles`, `attention_vectors`),
and keys that a row does not see add exact zeros. So it can't show how a prompt was cut into chunks, which of its keys
were computed one by one, or what runs beside it.

Formula: softmax(scale q k^T) v with a running maximum (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
FlashAttention, arXiv:2205.14135). Bytes moved: the keys and values that are seen, once for each `GROUP_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from numba.extending import overload
from torch import Tensor

from kernels.cpu import attention_tiles, attention_vectors
from kernels.cpu.kv_layout import is_tiled
from kernels.cpu.scalars import EXACT, SUMS, exp32, lines, narrow
from kernels.cpu.thread_team import Crew, as_number, empty, field, pointer, take_piece

__all__ = ["CpuAttentionPlan", "paged_attention", "plan_attention"]

KEY_BLOCK = 256  # keys of one round of the softmax: their scores, shares and packed forms fit the first two caches
TILE_ROWS = 16  # rows (queries x heads that share keys) of one product
GROUP_ROWS = 32 * TILE_ROWS  # rows that share one packing of keys and values


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """The work of one batch. A row is a query with one of the heads that share keys.

    The kernel gets no more of it than the address of `numbers`: where a step is recorded, those of the next one are
    written over them.
    """

    items: np.ndarray  # [n, 4], int64: sequence, KV head, first row, last row + 1; costly ones first
    arrays: tuple[np.ndarray, ...]  # block tables, lengths, starts of queries: what `numbers` point to, with the items
    numbers: np.ndarray  # int64: addresses of items and arrays, their sizes, the most rows of an item
    sliding_window: int | None


def plan_attention(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None,
) -> CpuAttentionPlan:
    """Shapes as in `kernels.paged_attention`."""
    tables, lens, starts = (tensor.contiguous().numpy() for tensor in (block_tables, seq_lens, query_starts))
    share = num_heads // num_kv_heads
    rows = np.diff(starts).astype(np.int64) * share
    parts = -(-rows // GROUP_ROWS)
    seqs = np.repeat(np.arange(len(rows)), parts)
    first = (np.arange(len(seqs)) - np.repeat(np.cumsum(parts) - parts, parts)) * GROUP_ROWS
    last = np.minimum(first + GROUP_ROWS, rows[seqs])
    seen = lens[seqs] - (rows[seqs] - last) // share
    cost = seen * (8 + (last - first) // TILE_ROWS)  # packing a key costs what eight tiles of products do
    order = np.argsort(-cost, kind="stable")
    items = np.repeat(np.stack([seqs, np.zeros_like(seqs), first, last], axis=1)[order], num_kv_heads, axis=0)
    items[:, 1] = np.tile(np.arange(num_kv_heads), len(seqs))
    most_rows = int((last - first).max(initial=0))
    arrays = (tables, lens, starts)
    addresses = (array.ctypes.data for array in (items, *arrays))
    numbers = np.array([*addresses, len(items), tables.shape[1], len(lens), most_rows], dtype=np.int64)
    return CpuAttentionPlan(items, arrays, numbers, sliding_window)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: CpuAttentionPlan, scale: float) -> Tensor:
    """`kernels.paged_attention` by a plan."""
    out = empty(q.shape, q.dtype)
    crew = _in_float32
    if q.dtype == torch.bfloat16:
        crew = _in_tiles if is_tiled(k_cache) else _widened
    addresses = (t.data_ptr() for t in (q.contiguous(), k_cache, v_cache, out))
    sizes = (*q.shape[:2], *k_cache.shape, plan.sliding_window or 0, as_number(scale))
    crew(len(plan.items), *addresses, plan.numbers.ctypes.data, *sizes)
    return out


def _either(name: str, options: dict[str, Any] = EXACT) -> Callable:
    """A part in compiled code: that of `attention_tiles` where its first argument holds bfloat16, else the other."""

    def part(*arguments):
        raise NotImplementedError("inside compiled code only")

    @overload(part, strict=False, jit_options=options)
    def choose(*arguments):
        return getattr(attention_tiles if arguments[0].dtype == types.uint16 else attention_vectors, name)

    return part


_begin, _end, _take, _find = _either("begin"), _either("end"), _either("take"), _either("find")
_pack_keys, _pack_values = _either("pack_keys"), _either("pack_values")
_score, _share_out, _weigh = _either("score"), _either("share_out", SUMS), _either("weigh")


@njit(**EXACT)
def _attend(task, like, packed):
    """Takes items until none is left. The caches hold numbers like `like`'s, what is multiplied those of `packed`."""
    plan, num_tokens, heads, num_blocks = field(task, 5), field(task, 6), field(task, 7), field(task, 8)
    block_size, kv_heads, head_dim, window = field(task, 9), field(task, 10), field(task, 11), field(task, 12)
    scale = np.int32(field(task, 13)).view(np.float32)
    num_items, table_width, num_seqs, most_rows = field(plan, 4), field(plan, 5), field(plan, 6), field(plan, 7)
    q = carray(pointer(task, 1, like), (num_tokens, heads, head_dim))
    k_cache = carray(pointer(task, 2, like), (num_blocks * block_size, kv_heads, head_dim))
    v_cache = carray(pointer(task, 3, like), (num_blocks * block_size, kv_heads, head_dim))
    out = carray(pointer(task, 4, like), (num_tokens, heads, head_dim))
    int32, number = np.empty(0, np.int32), np.empty(0, np.float32)
    items = carray(pointer(plan, 0, np.empty(0, np.int64)), (num_items, 4))
    tables = carray(pointer(plan, 1, int32), (num_seqs, table_width))
    seq_lens, starts = carray(pointer(plan, 2, int32), (num_seqs,)), carray(pointer(plan, 3, int32), (num_seqs + 1,))
    share, width = heads // kv_heads, (head_dim + 31) // 32 * 32
    slots = np.empty(KEY_BLOCK, np.int64)
    keys, values = lines(1, KEY_BLOCK * width, packed)[0], lines(1, KEY_BLOCK * width, packed)[0]
    staged = lines(TILE_ROWS, width, packed)
    scores, shares = lines(TILE_ROWS, KEY_BLOCK, number), lines(TILE_ROWS, KEY_BLOCK, packed)
    added = lines(TILE_ROWS, width, number)
    most_rows = (most_rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    queries, sums = lines(most_rows, width, packed), lines(most_rows, width, number)
    peaks, totals = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    before = np.zeros(64, np.uint8)
    _begin(shares, before)
    item = take_piece(task)
    while item < num_items:
        seq, head, first_row, last_row = items[item]
        item = take_piece(task)
        num_rows, first_query = last_row - first_row, starts[seq]
        first_position = seq_lens[seq] - (starts[seq + 1] - first_query)
        for row in range(num_rows):
            query, own = divmod(first_row + row, share)
            _take(queries[row], q[first_query + query, head * share + own])
        sums[:num_rows] = 0
        peaks[:num_rows] = -np.inf
        totals[:num_rows] = 0
        lowest = 0 if window == 0 else max(first_position + first_row // share - window + 1, 0)
        seen_by_last = first_position + (last_row - 1) // share + 1
        for start in range(lowest // KEY_BLOCK * KEY_BLOCK, seen_by_last, KEY_BLOCK):
            count = min(KEY_BLOCK, seen_by_last - start)
            _find(keys, tables[seq], start, count, block_size, slots)
            k_block, v_block = (k_cache, head, slots, count), (v_cache, head, slots, count)
            _pack_keys(keys, k_block, staged)
            _pack_values(values, v_block, staged)
            for top in range(0, num_rows, TILE_ROWS):
                bottom = min(top + TILE_ROWS, num_rows)
                seen = min(first_position + (first_row + bottom - 1) // share + 1 - start, count)
                if seen <= 0:
                    continue
                padded = (seen + 31) // 32 * 32
                _score(queries[top:], keys, k_block, bottom - top, padded, scores)
                for row in range(top, bottom):
                    position = first_position + (first_row + row) // share
                    low = 0 if window == 0 else max(position - window + 1 - start, 0)
                    high = min(position + 1 - start, count)
                    line = shares[row - top]
                    if high <= low:
                        line[:padded] = 0
                        continue
                    line[:low] = 0
                    line[high:padded] = 0
                    seen_scores = scores[row - top, low:high]
                    peak = _peak(seen_scores)
                    peak = peak if peak > peaks[row] else peaks[row]
                    fade = exp32((peaks[row] - peak) * scale)
                    totals[row] = totals[row] * fade + _share_out(line[low:high], seen_scores, peak, scale)
                    peaks[row] = peak
                    for j in range(width):
                        sums[row, j] *= fade
                _weigh(shares, values, v_block, staged, bottom - top, padded, added)
                for row in range(top, bottom):
                    for j in range(width):
                        sums[row, j] += added[row - top, j]
        for row in range(num_rows):
            query, own = divmod(first_row + row, share)
            target = out[first_query + query, head * share + own]
            inverse = np.float32(1) / totals[row]
            for j in range(np.uintp(target.shape[0])):
                target[j] = narrow(sums[row, j] * inverse, target[j])
    _end(shares, before)


def _work_in_tiles(task):
    _attend(task, np.empty(0, np.uint16), np.empty(0, np.uint16))


def _work_widened(task):
    _attend(task, np.empty(0, np.uint16), np.empty(0, np.float32))


def _work_in_float32(task):
    _attend(task, np.empty(0, np.float32), np.empty(0, np.float32))


_in_tiles, _widened, _in_float32 = Crew(_work_in_tiles), Crew(_work_widened), Crew(_work_in_float32)


@njit(**EXACT)
def _peak(scores):
    """The largest of them, by their bits in an integers' order: a maximum of floats is not made vector code."""
    bits = scores.view(np.int32)
    peak = np.int32(-0x7FFFFFFF)
    for j in range(np.uintp(bits.shape[0])):
        ordered = bits[j] ^ ((bits[j] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        peak = ordered if ordered > peak else peak
    return np.int32(peak ^ ((peak >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
