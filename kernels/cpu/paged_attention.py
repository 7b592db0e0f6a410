"""Paged attention on a CPU, straight from the cache: one kernel for chunks of prompts and for decoding.

A query's bits depend on its sequence up to itself, and on nothing else. Keys are taken in blocks of `KEY_BLOCK` that
begin at multiples of it, rows of the products don't depend on one another (`attention_tiles`, `attention_pairs`,
`attention_vectors`), and keys that a row does not see add exact zeros. So it can't show how a prompt was cut into
chunks, which of its keys were computed one by one, or what runs beside it.

Formula: softmax(scale q k^T) v with a running maximum (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022,
FlashAttention, arXiv:2205.14135). Bytes moved: the keys and values that are seen, once for each `GROUP_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from kernels.cpu import amx, attention_floats, attention_pairs, attention_tiles, attention_vectors, instructions
from kernels.cpu.attention_codes import open_keys, open_values, scale_probs, scale_scores
from kernels.cpu.dtypes import FLOAT32, INT32, INT64, PAIRED, UINT8, UINT16, narrow
from kernels.cpu.exp import exp32
from kernels.cpu.kv_codes import code_of
from kernels.cpu.kv_layout import is_tiled
from kernels.cpu.memory import array_at, carray, elements_at, same_bits, scratch_bytes, zeros_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.recorder import empty_result
from kernels.cpu.task import chunk_after, enter, field, float32_field, leave, offsets_of, pointer
from kernels.kv_codes import SCALE_BYTES, head_dim_of

__all__ = ["CpuAttentionPlan", "paged_attention", "plan_attention"]

KEY_BLOCK = 256  # keys of one round of the softmax: their scores, probs and packed forms fit the L1 and L2 caches
TILE_ROWS = 16  # rows (queries x heads that share keys) of one product
GROUP_ROWS = 32 * TILE_ROWS  # rows that share one packing of keys and values
ADDRESSES = 32  # of tiles, a block's and the next one's: what is kept of keys that are read as they lie
RUNS_OF_THREAD = 3  # at least: where there is less work than that, items are taken one by one


class PlanDescriptor(NamedTuple):
    """What a plan is to the kernel: addresses and sizes, read at each launch."""

    items: np.ndarray  # [num_items, 4], int64: sequence, KV head, first row, last row + 1
    block_tables: np.ndarray  # [num_seqs, table_width], int32
    seq_lens: np.ndarray  # [num_seqs], int32
    query_starts: np.ndarray  # [num_seqs + 1], int32
    num_items: int
    table_width: int  # blocks
    num_seqs: int
    max_rows: int  # of an item
    run: int  # items that a thread takes together: of few rows a sequence's heads, whose keys lie side by side


class AttentionTask(NamedTuple):
    """A chunk is an item of the plan."""

    q: Tensor  # [num_tokens, heads, head_dim]
    k_cache: Tensor  # [num_blocks, block_size, kv_heads, head_dim], perhaps in tiles, or codes
    v_cache: Tensor  # like k_cache
    out: Tensor  # like q
    plan: np.ndarray  # `CpuAttentionPlan.descriptor`
    num_tokens: int
    heads: int
    num_blocks: int
    block_size: int
    kv_heads: int
    head_dim: int
    window: int  # positions that a query sees, its own included; 0: all
    codes: int  # the caches', as `kv_codes.code_of` says
    scale: float


AT, AT_PLAN = offsets_of(AttentionTask), offsets_of(PlanDescriptor, first=0)


@dataclass(frozen=True, slots=True)
class CpuAttentionPlan:
    """The work of one batch. A row is a query with one of the heads that share keys.

    A task holds the address of `descriptor` and nothing else of the plan: where a step is recorded, `redirect` has the
    next replay read another batch's plan.
    """

    arrays: PlanDescriptor  # keeps alive what the descriptor points to
    descriptor: np.ndarray  # [9], int64: a `PlanDescriptor` of addresses
    sliding_window: int | None

    @property
    def num_items(self) -> int:
        """Chunks of work: sequence x KV head x at most `GROUP_ROWS` rows; costly ones come first."""
        return self.arrays.num_items

    def with_room(self, num_rows: int) -> CpuAttentionPlan:
        """The same work, in launches that can be redirected to plans with items of so many rows."""
        room = max(self.arrays.max_rows, min(num_rows, GROUP_ROWS))
        descriptor = self.descriptor.copy()
        descriptor[AT_PLAN.max_rows] = room
        return replace(self, arrays=self.arrays._replace(max_rows=room), descriptor=descriptor)

    def grown(self, count: int) -> CpuAttentionPlan:
        """The same queries so many positions later: of a plan with one query of each sequence, a decoding step's."""
        lens = self.arrays.seq_lens + np.int32(count)
        descriptor = self.descriptor.copy()
        descriptor[AT_PLAN.seq_lens] = lens.ctypes.data
        return replace(self, arrays=self.arrays._replace(seq_lens=lens), descriptor=descriptor)

    def redirect(self, plan: CpuAttentionPlan) -> None:
        """Makes recorded launches of this plan carry out `plan`, which must live until they have.

        Raises:
            ValueError: the windows differ, which are in the launches' own tasks, or `plan` needs more scratch than they
                have.
        """
        if plan.arrays.max_rows > self.arrays.max_rows:
            raise ValueError(f"a launch of items of {self.arrays.max_rows} rows can't carry out {plan.arrays.max_rows}")
        if plan.sliding_window != self.sliding_window:
            raise ValueError(f"a launch with window {self.sliding_window} can't carry out one of {plan.sliding_window}")
        self.descriptor[:] = plan.descriptor


def plan_attention(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None,
) -> CpuAttentionPlan:
    """The plan of one batch. Shapes as in `kernels.paged_attention`."""
    tables, lens, starts = (tensor.contiguous().numpy() for tensor in (block_tables, seq_lens, query_starts))
    heads_per_kv = num_heads // num_kv_heads
    if starts[-1] == len(lens) and heads_per_kv <= GROUP_ROWS:  # a decoding step, whose plans are alike
        order = np.argsort(-lens, kind="stable") if len(lens) > 1 else np.zeros(len(lens), dtype=np.int64)
        items = _single_queries(order.tobytes(), num_kv_heads, heads_per_kv)
        return _plan_of(items, tables, lens, starts, heads_per_kv, sliding_window)
    rows = np.diff(starts).astype(np.int64) * heads_per_kv
    parts = -(-rows // GROUP_ROWS)
    seqs = np.repeat(np.arange(len(rows)), parts)
    first = (np.arange(len(seqs)) - np.repeat(np.cumsum(parts) - parts, parts)) * GROUP_ROWS
    last = np.minimum(first + GROUP_ROWS, rows[seqs])
    seen = lens[seqs] - (rows[seqs] - last) // heads_per_kv
    cost = seen * (8 + (last - first) // TILE_ROWS)  # packing a key costs what eight tiles of products do
    order = np.argsort(-cost, kind="stable")
    # Not `[order]`: where memory is lacking numpy may raise a SystemError there, which says nothing.
    items = np.stack([seqs, np.zeros_like(seqs), first, last], axis=1).take(order, axis=0)
    items = np.repeat(items, num_kv_heads, axis=0)
    items[:, 1] = np.tile(np.arange(num_kv_heads), len(seqs))
    return _plan_of(items, tables, lens, starts, int((last - first).max(initial=0)), sliding_window)


@lru_cache(maxsize=64)
def _single_queries(order: bytes, num_kv_heads: int, heads_per_kv: int) -> np.ndarray:
    """Items of sequences with one query each, in this order: the same from step to step, as all grow alike."""
    seqs = np.frombuffer(order, dtype=np.int64)
    items = np.zeros((len(seqs), num_kv_heads, 4), dtype=np.int64)
    items[:, :, 0], items[:, :, 1], items[:, :, 3] = seqs[:, None], np.arange(num_kv_heads), heads_per_kv
    return items.reshape(-1, 4)


def _plan_of(
    items: np.ndarray,
    tables: np.ndarray,
    lens: np.ndarray,
    starts: np.ndarray,
    max_rows: int,
    sliding_window: int | None,
) -> CpuAttentionPlan:
    arrays = PlanDescriptor(
        items=items,
        block_tables=tables,
        seq_lens=lens,
        query_starts=starts,
        num_items=len(items),
        table_width=tables.shape[1],
        num_seqs=len(lens),
        max_rows=max_rows if len(items) else 0,
        run=_run(len(items), len(lens)) if max_rows <= TILE_ROWS else 1,
    )
    addresses = (part.ctypes.data if isinstance(part, np.ndarray) else part for part in arrays)
    return CpuAttentionPlan(arrays, np.array([*addresses], dtype=np.int64), sliding_window)


def _run(num_items: int, num_seqs: int) -> int:
    """All heads of a sequence, or fewer, so that every thread has several runs."""
    fitting = num_items // (RUNS_OF_THREAD * torch.get_num_threads())
    return max(min(fitting, num_items // max(num_seqs, 1)), 1)


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: CpuAttentionPlan, scale: float) -> Tensor:
    """`kernels.paged_attention` by a plan: [num_tokens, heads, head_dim], float32 or bfloat16, as q."""
    q, out = q.contiguous(), empty_result(q.shape, q.dtype)
    codes = code_of(k_cache)
    in_tiles = codes == 0 and is_tiled(k_cache)
    region = _float32_of_codes if codes != 0 else _floats_in_tiles if in_tiles else _in_float32
    if q.dtype == torch.bfloat16:
        region = _widened if codes == 0 else _widened_of_codes
        if amx.has_amx() and (codes != 0 or in_tiles):
            region = _in_tiles if codes == 0 else _tiles_of_codes
        elif instructions.has_dot() and (codes != 0 or in_tiles):
            region = _in_pairs if codes == 0 else _pairs_of_codes
    sizes = (*q.shape[:2], *k_cache.shape[:3], head_dim_of(k_cache), plan.sliding_window or 0, codes)
    task = AttentionTask(q, k_cache, v_cache, out, plan.descriptor, *sizes, float(scale))
    packs = region in (_in_float32, _float32_of_codes, _widened, _widened_of_codes)
    itemsize = 4 if packs or region is _floats_in_tiles else 2
    scratch = _scratch_bytes(plan.arrays.max_rows, q.shape[2], itemsize, packs=packs, has_codes=codes != 0)
    region.launch(plan.num_items, task, scratch)
    return out


def _scratch_bytes(max_rows: int, head_dim: int, itemsize: int, *, packs: bool, has_codes: bool) -> int:
    """What a thread needs for items of so many rows: the shapes of `_attend`, in its order."""
    width, max_rows = _padded_width(head_dim), _padded_rows(max_rows)
    packed = (1, KEY_BLOCK * width if packs else ADDRESSES * 8 // itemsize, itemsize)
    tile, rows = (TILE_ROWS, KEY_BLOCK), (max_rows, width)
    spread = (2 * KEY_BLOCK if has_codes and itemsize == 2 else 0, width, itemsize)
    return scratch_bytes(
        (2, KEY_BLOCK, 8),
        packed,
        packed,
        (TILE_ROWS, width, itemsize),
        (*tile, 4),
        (*tile, itemsize),
        (TILE_ROWS, width, 4),
        (*rows, itemsize),
        (*rows, 4),
        (1, max_rows, 4),
        (1, max_rows, 4),
        (1, 64, 1),
        spread,
        (1, KEY_BLOCK, 8),
        (2, KEY_BLOCK, 4),
    )


def _padded_width(head_dim: int) -> int:
    return (head_dim + 31) // 32 * 32


def _padded_rows(max_rows: int) -> int:
    return (max_rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS


_STEPS = {
    types.uint16: attention_tiles,
    types.int16: attention_pairs,
    types.int32: attention_floats,
    types.float32: attention_vectors,
}


def _step_of(name: str) -> Callable:
    """A step in compiled code, of the module that the dtype of its first argument names."""

    def step(*arguments):
        raise NotImplementedError("inside compiled code only")

    @overload(step, strict=False, jit_options=EXACT)
    def choose(*arguments):
        if name in ("pack_keys", "pack_values", "ask", "look_ahead") and arguments[1][0].dtype == types.uint8:
            return lambda *arguments: None  # codes were packed, and asked for, when their block was opened
        return getattr(_STEPS[arguments[0].dtype], name)

    return step


_configure, _restore, _load_query = _step_of("configure"), _step_of("restore"), _step_of("load_query")
_find_slots, _pack_keys, _pack_values = _step_of("find_slots"), _step_of("pack_keys"), _step_of("pack_values")
_width, _rows = (njit(**EXACT)(size) for size in (_padded_width, _padded_rows))
_score, _exponentiate, _weigh_values = _step_of("score"), _step_of("exponentiate"), _step_of("weigh_values")
_ask, _look_ahead = _step_of("ask"), _step_of("look_ahead")


def _packed_elements(width, packed):
    """Of a block of keys or values, packed; what lies in tiles is not, and needs their addresses alone."""
    raise NotImplementedError("inside compiled code only")


@overload(_packed_elements, jit_options=EXACT)
def _where_blocks_are_packed(width, packed):
    if packed.dtype == types.float32:
        return lambda width, packed: KEY_BLOCK * width
    return lambda width, packed: ADDRESSES * 8 // packed.itemsize


@njit(**EXACT)
def _span(item, seq_lens, starts, heads_per_kv, window):
    """Of an item's sequence: the first query's position, the first key that is seen, and where keys end."""
    seq, first_row, last_row = item[0], item[2], item[3]
    first_position = seq_lens[seq] - (starts[seq + 1] - starts[seq])
    lowest = 0 if window == 0 else max(first_position + first_row // heads_per_kv - window + 1, 0)
    return first_position, lowest // KEY_BLOCK * KEY_BLOCK, first_position + (last_row - 1) // heads_per_kv + 1


@njit(**EXACT)
def _attend(task, space, like, stored, packed):
    """Takes items until none is left. Queries are like `like`, caches like `stored`, what is multiplied `packed`."""
    plan, num_tokens, heads = field(task, AT.plan), field(task, AT.num_tokens), field(task, AT.heads)
    num_slots, kv_heads = field(task, AT.num_blocks) * field(task, AT.block_size), field(task, AT.kv_heads)
    block_size, head_dim = field(task, AT.block_size), field(task, AT.head_dim)
    window, scale = field(task, AT.window), float32_field(task, AT.scale)
    num_items, table_width = field(plan, AT_PLAN.num_items), field(plan, AT_PLAN.table_width)
    num_seqs, max_rows = field(plan, AT_PLAN.num_seqs), field(plan, AT_PLAN.max_rows)
    q = carray(pointer(task, AT.q, like), (num_tokens, heads, head_dim))
    codes = field(task, AT.codes)
    row = head_dim + SCALE_BYTES if codes != 0 else head_dim
    k_cache = carray(pointer(task, AT.k_cache, stored), (num_slots, kv_heads, row))
    v_cache = carray(pointer(task, AT.v_cache, stored), (num_slots, kv_heads, row))
    out = carray(pointer(task, AT.out, like), (num_tokens, heads, head_dim))
    items = carray(pointer(plan, AT_PLAN.items, INT64), (num_items, 4))
    tables = carray(pointer(plan, AT_PLAN.block_tables, INT32), (num_seqs, table_width))
    seq_lens = carray(pointer(plan, AT_PLAN.seq_lens, INT32), (num_seqs,))
    starts = carray(pointer(plan, AT_PLAN.query_starts, INT32), (num_seqs + 1,))
    heads_per_kv, width, max_rows = heads // kv_heads, _width(head_dim), _rows(max_rows)
    all_slots, space = zeros_at(space, 2, KEY_BLOCK, INT64)
    all_keys, space = zeros_at(space, 1, _packed_elements(width, packed), packed)
    all_values, space = zeros_at(space, 1, _packed_elements(width, packed), packed)
    staged, space = zeros_at(space, TILE_ROWS, width, packed)
    scores, space = zeros_at(space, TILE_ROWS, KEY_BLOCK, FLOAT32)
    probs, space = zeros_at(space, TILE_ROWS, KEY_BLOCK, packed)
    product, space = zeros_at(space, TILE_ROWS, width, FLOAT32)
    queries, space = zeros_at(space, max_rows, width, packed)
    sums, space = zeros_at(space, max_rows, width, FLOAT32)
    all_row_max, space = zeros_at(space, 1, max_rows, FLOAT32)
    all_totals, space = zeros_at(space, 1, max_rows, FLOAT32)
    all_before, space = zeros_at(space, 1, 64, UINT8)
    num_spread = KEY_BLOCK if codes != 0 and packed.itemsize == 2 else 0
    all_spread, space = array_at(space, 2 * num_spread, width, packed)
    all_own_slots, space = zeros_at(space, 1, KEY_BLOCK, INT64)
    all_scales, space = zeros_at(space, 2, KEY_BLOCK, FLOAT32)
    if width != head_dim:
        all_spread[:] = 0  # past a head's width
    spread_at, own_slots = all_spread.ctypes.data, all_own_slots[0]
    k_spread = carray(elements_at(spread_at, packed), (num_spread, 1, width))
    v_spread = carray(elements_at(spread_at + num_spread * width * packed.itemsize, packed), (num_spread, 1, width))
    for j in range(KEY_BLOCK):
        own_slots[j] = j
    k_scales, v_scales, code_sizes = all_scales[0], all_scales[1], (head_dim, kv_heads, codes)
    slots, next_slots, keys, values, before = all_slots[0], all_slots[1], all_keys[0], all_values[0], all_before[0]
    row_max, totals = all_row_max[0], all_totals[0]
    _configure(probs, before)
    run, is_found = field(plan, AT_PLAN.run), False
    item, last_item = chunk_after(task, -1, 0, run)
    while item < num_items:
        seq, head, first_row, last_row = items[item]
        first_position, lowest, seen_by_last = _span(items[item], seq_lens, starts, heads_per_kv, window)
        item, last_item = chunk_after(task, item, last_item, run)
        num_rows, first_query = last_row - first_row, starts[seq]
        for row in range(num_rows):
            query, own = divmod(first_row + row, heads_per_kv)
            _load_query(queries[row], q[first_query + query, head * heads_per_kv + own])
        sums[:num_rows] = 0
        row_max[:num_rows] = -np.inf
        totals[:num_rows] = 0
        for start in range(lowest, seen_by_last, KEY_BLOCK):
            count = min(KEY_BLOCK, seen_by_last - start)
            if not is_found:
                _find_slots(keys, tables[seq], start, count, block_size, slots)
                _ask(keys, (k_cache, head, slots, count))
            # What comes next: more of this item's keys, or the next item's.
            next_seq, next_head, next_start, end, is_found = seq, head, start + KEY_BLOCK, seen_by_last, True
            if next_start >= end and item < num_items:
                next_seq, next_head = items[item, 0], items[item, 1]
                _, next_start, end = _span(items[item], seq_lens, starts, heads_per_kv, window)
            next_count = max(min(KEY_BLOCK, end - next_start), 0)
            _find_slots(keys, tables[next_seq], next_start, next_count, block_size, next_slots)
            _look_ahead(values, (k_cache, next_head, next_slots, next_count))
            k_block = open_keys((k_cache, head, slots, count), code_sizes, keys, k_spread, own_slots, k_scales)
            v_block = open_values((v_cache, head, slots, count), code_sizes, values, v_spread, own_slots, v_scales)
            _pack_keys(keys, k_block, staged)
            _pack_values(values, v_block, staged)
            for top in range(0, num_rows, TILE_ROWS):
                bottom = min(top + TILE_ROWS, num_rows)
                seen = min(first_position + (first_row + bottom - 1) // heads_per_kv + 1 - start, count)
                if seen <= 0:
                    continue
                padded = (seen + 31) // 32 * 32
                _score(queries[top:], keys, values, k_block, bottom - top, padded, scores)
                for row in range(top, bottom):
                    position = first_position + (first_row + row) // heads_per_kv
                    low = 0 if window == 0 else max(position - window + 1 - start, 0)
                    high = min(position + 1 - start, count)
                    own_probs = probs[row - top]
                    if high <= low:
                        own_probs[:padded] = 0
                        continue
                    own_probs[:low] = 0
                    own_probs[high:padded] = 0
                    seen_scores = scores[row - top, low:high]
                    scale_scores(k_cache, seen_scores, k_scales[low:high])
                    larger = _max(seen_scores)
                    larger = larger if larger > row_max[row] else row_max[row]
                    rescale = exp32((row_max[row] - larger) * scale)
                    total = _exponentiate(own_probs[low:high], seen_scores, larger, scale)
                    scale_probs(k_cache, own_probs[low:high], seen_scores, v_scales[low:high])
                    totals[row] = totals[row] * rescale + total
                    row_max[row] = larger
                    for j in range(width):
                        sums[row, j] *= rescale
                _weigh_values(probs, values, v_block, staged, bottom - top, padded, product)
                for row in range(top, bottom):
                    for j in range(width):
                        sums[row, j] += product[row - top, j]
            slots, next_slots = next_slots, slots
        for row in range(num_rows):
            query, own = divmod(first_row + row, heads_per_kv)
            target = out[first_query + query, head * heads_per_kv + own]
            inverse = np.float32(1) / totals[row]
            for j in range(np.uintp(target.shape[0])):
                target[j] = narrow(sums[row, j] * inverse, target[j])
    _restore(probs, before)


def _body_in_tiles(task):
    _attend(task, enter(task), UINT16, UINT16, UINT16)
    leave(task)


def _body_in_pairs(task):
    _attend(task, enter(task), UINT16, UINT16, PAIRED)
    leave(task)


def _body_widened(task):
    _attend(task, enter(task), UINT16, UINT16, FLOAT32)
    leave(task)


def _body_of_floats_in_tiles(task):
    _attend(task, enter(task), FLOAT32, FLOAT32, INT32)
    leave(task)


def _body_in_float32(task):
    _attend(task, enter(task), FLOAT32, FLOAT32, FLOAT32)
    leave(task)


def _body_tiles_of_codes(task):
    _attend(task, enter(task), UINT16, UINT8, UINT16)
    leave(task)


def _body_pairs_of_codes(task):
    _attend(task, enter(task), UINT16, UINT8, PAIRED)
    leave(task)


def _body_widened_of_codes(task):
    _attend(task, enter(task), UINT16, UINT8, FLOAT32)
    leave(task)


def _body_float32_of_codes(task):
    _attend(task, enter(task), FLOAT32, UINT8, FLOAT32)
    leave(task)


_in_tiles, _in_pairs = ParallelRegion(_body_in_tiles), ParallelRegion(_body_in_pairs)
_widened, _in_float32 = ParallelRegion(_body_widened), ParallelRegion(_body_in_float32)
_floats_in_tiles = ParallelRegion(_body_of_floats_in_tiles)
_tiles_of_codes, _pairs_of_codes = ParallelRegion(_body_tiles_of_codes), ParallelRegion(_body_pairs_of_codes)
_widened_of_codes, _float32_of_codes = ParallelRegion(_body_widened_of_codes), ParallelRegion(_body_float32_of_codes)


@njit(**EXACT)
def _max(scores):
    """The largest of them, by their bits in an integers' order: a maximum of floats is not made vector code."""
    bits = same_bits(scores, INT32)
    peak = np.int32(-0x7FFFFFFF)
    for j in range(np.uintp(bits.shape[0])):
        ordered = bits[j] ^ ((bits[j] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        peak = ordered if ordered > peak else peak
    return np.int32(peak ^ ((peak >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
