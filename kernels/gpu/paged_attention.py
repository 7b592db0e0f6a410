"""Causal attention over the paged cache for a ragged batch: prompt chunks and decoding sequences in one call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.attention_plan import (
    ITEM,
    LARGE_ROWS,
    MERGE,
    SMALL_ROWS,
    GpuAttentionPlan,
    TileGroup,
    plan_attention,
)
from kernels.gpu.kv_codes import CODES, NONE, as_numbers, scale_of
from kernels.gpu.launch import HOPPER, POINTERS, Variant, arch_of, dot_type, power_of_two, type_name
from kernels.kv_codes import SCALE_BYTES

_NUMBERS, _SCALE_BYTES = tl.constexpr(NONE), tl.constexpr(SCALE_BYTES)
MERGE_CHUNK = 16  # partial results that a merge reads at a time
_ITEM_COLUMNS, _MERGE_COLUMNS = tl.constexpr(len(ITEM)), tl.constexpr(len(MERGE))
_SEQ, _FIRST_ROW, _NUM_QUERIES = (tl.constexpr(i) for i in (ITEM.seq, ITEM.first_row, ITEM.num_queries))
_FIRST_POSITION, _FIRST_KEY = (tl.constexpr(i) for i in (ITEM.first_position, ITEM.first_key))
_END_KEY, _PARTIAL = (tl.constexpr(i) for i in (ITEM.end_key, ITEM.partial))
_MERGE_FIRST_ROW, _MERGE_QUERIES = (tl.constexpr(i) for i in (MERGE.first_row, MERGE.num_queries))
_FIRST_PARTIAL, _NUM_PARTIALS = (tl.constexpr(i) for i in (MERGE.first_partial, MERGE.num_partials))
# The running maximum starts here: finite, so that exp2 of a difference with it never is exp2(inf - inf).
_FLOOR = tl.constexpr(-1.0e30)


@triton.jit(do_not_specialize=["table_stride", "window"])
def _attention_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    table_ptr,
    item_ptr,
    out_ptr,
    partial_ptr,
    log_sum_ptr,
    q_token_stride,
    q_head_stride,
    table_stride,
    kv_heads,
    window,
    scale,
    HEADS_PER_KV: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    DOT: tl.constexpr,
    KV: tl.constexpr,
):
    """Program (item, kv head): ROWS rows of queries x sharing heads, over the item's keys in tiles of KEYS.

    Online softmax in base 2, `scale` being the softmax scale x log2(e). Writes the result, or with a partial's index
    the result of this part (float32) and log2 of its denominator.
    """
    item = item_ptr + tl.program_id(0) * _ITEM_COLUMNS
    kv_head = tl.program_id(1)
    seq = tl.load(item + _SEQ).to(tl.int64)
    first_row = tl.load(item + _FIRST_ROW).to(tl.int64)
    num_queries = tl.load(item + _NUM_QUERIES)
    if num_queries == 0:  # room that no batch needed (`fixed_plan.py`)
        return
    first_position = tl.load(item + _FIRST_POSITION)
    first_key = tl.load(item + _FIRST_KEY)
    end_key = tl.load(item + _END_KEY)
    partial = tl.load(item + _PARTIAL).to(tl.int64)

    row = tl.arange(0, ROWS)
    dim = tl.arange(0, BLOCK_DIM)
    query, head = row // HEAD_ROWS, row % HEAD_ROWS
    is_real = (query < num_queries) & (head < HEADS_PER_KV)
    row_mask = is_real[:, None] & (dim < HEAD_DIM)[None, :]
    q_place = (first_row + query) * q_token_stride + (kv_head * HEADS_PER_KV + head) * q_head_stride
    q = tl.load(q_ptr + q_place[:, None] + dim[None, :], mask=row_mask, other=0.0).to(DOT)
    position = first_position + query

    largest = tl.full([ROWS], _FLOOR, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    out = tl.zeros([ROWS, BLOCK_DIM], dtype=tl.float32)
    for start in range(first_key, end_key, KEYS):
        key = start + tl.arange(0, KEYS)
        # Past the end lie other sequences' values, or none: they may be NaN and must not be read.
        is_inside = key < end_key
        block = tl.load(table_ptr + seq * table_stride + key // BLOCK_SIZE, mask=is_inside, other=0).to(tl.int64)
        place = ((block * BLOCK_SIZE + key % BLOCK_SIZE) * kv_heads + kv_head) * HEAD_DIM
        if KV != _NUMBERS:
            place += block * (BLOCK_SIZE * kv_heads * _SCALE_BYTES)  # each block's scales lie behind its codes
        k_mask = is_inside[None, :] & (dim < HEAD_DIM)[:, None]
        if KV == _NUMBERS:
            k = tl.load(k_cache_ptr + place[None, :] + dim[:, None], mask=k_mask, other=0.0).to(DOT)
            scores = tl.dot(q, k, input_precision="ieee") * scale
        else:
            codes = tl.load(k_cache_ptr + place[None, :] + dim[:, None], mask=k_mask, other=0)
            at = scale_of(k_cache_ptr, block, key % BLOCK_SIZE, kv_head, kv_heads, HEAD_DIM, BLOCK_SIZE)
            k_scale = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
            scores = tl.dot(q, as_numbers(codes, KV).to(DOT), input_precision="ieee") * (k_scale * scale)[None, :]
        is_seen = is_inside[None, :] & (key[None, :] <= position[:, None])
        if HAS_WINDOW:
            is_seen = is_seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        prob = tl.math.exp2(scores - larger[:, None])
        rescale = tl.math.exp2(largest - larger)
        total = total * rescale + tl.sum(prob, axis=1)
        v_mask = is_inside[:, None] & (dim < HEAD_DIM)[None, :]
        if KV == _NUMBERS:
            v = tl.load(v_cache_ptr + place[:, None] + dim[None, :], mask=v_mask, other=0.0).to(DOT)
        else:
            codes = tl.load(v_cache_ptr + place[:, None] + dim[None, :], mask=v_mask, other=0)
            at = scale_of(v_cache_ptr, block, key % BLOCK_SIZE, kv_head, kv_heads, HEAD_DIM, BLOCK_SIZE)
            v_scale = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
            v = (as_numbers(codes, KV) * v_scale[:, None]).to(DOT)
        out = tl.dot(prob.to(DOT), v, out * rescale[:, None], input_precision="ieee")
        largest = larger

    divisor = tl.where(total > 0, total, 1.0)
    out = out / divisor[:, None]
    if partial < 0:
        place = ((first_row + query) * kv_heads + kv_head) * HEADS_PER_KV + head
        tl.store(out_ptr + place[:, None] * HEAD_DIM + dim[None, :], out.to(out_ptr.dtype.element_ty), mask=row_mask)
    else:
        place = (partial * kv_heads + kv_head) * ROWS + row
        tl.store(partial_ptr + place[:, None] * HEAD_DIM + dim[None, :], out, mask=row_mask)
        log_sum = tl.where(total > 0, largest + tl.math.log2(divisor), float("-inf"))
        tl.store(log_sum_ptr + place, log_sum, mask=is_real)


@triton.jit
def _merge_kernel(
    merge_ptr,
    partial_ptr,
    log_sum_ptr,
    out_ptr,
    heads,
    kv_heads,
    HEADS_PER_KV: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (merge, query, head): out = sum of 2^log_sum x partial / sum of 2^log_sum, parts in order."""
    merge = merge_ptr + tl.program_id(0) * _MERGE_COLUMNS
    query, head = tl.program_id(1), tl.program_id(2)
    if query < tl.load(merge + _MERGE_QUERIES):
        first = tl.load(merge + _FIRST_PARTIAL)
        num_partials = tl.load(merge + _NUM_PARTIALS)
        row = query * HEAD_ROWS + head % HEADS_PER_KV
        dim = tl.arange(0, BLOCK_DIM)
        largest = tl.full([1], _FLOOR, dtype=tl.float32)
        total = tl.zeros([1], dtype=tl.float32)
        out = tl.zeros([BLOCK_DIM], dtype=tl.float32)
        for start in range(0, num_partials, CHUNK):
            part = start + tl.arange(0, CHUNK)
            is_inside = part < num_partials
            place = ((first + part).to(tl.int64) * kv_heads + head // HEADS_PER_KV) * ROWS + row
            log_sum = tl.load(log_sum_ptr + place, mask=is_inside, other=float("-inf"))
            mask = is_inside[:, None] & (dim < HEAD_DIM)[None, :]
            values = tl.load(partial_ptr + place[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0.0)
            larger = tl.maximum(largest, tl.max(log_sum, axis=0))
            weight = tl.math.exp2(log_sum - larger)
            rescale = tl.math.exp2(largest - larger)
            total = total * rescale + tl.sum(weight, axis=0)
            out = out * rescale + tl.sum(values * weight[:, None], axis=0)
            largest = larger
        place = ((tl.load(merge + _MERGE_FIRST_ROW) + query).to(tl.int64) * heads + head) * HEAD_DIM
        tl.store(out_ptr + place + dim, (out / total).to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    plan: GpuAttentionPlan | None = None,
) -> Tensor:
    """`softmax(scale q k^T) v`, each query over its sequence's keys up to its own position, or its window's.

    Shapes: q: [num_tokens, num_heads, head_dim], any token and head stride; caches: [num_blocks, block_size, kv_heads,
    head_dim], contiguous, or codes with scales (`kernels.kv_codes`); block_tables: [num_seqs, max_blocks], int32;
    seq_lens: [num_seqs], int32; query_starts: [num_seqs + 1], int32; these three on the CPU, and read only without a
    plan. Rows of q past the last query give 0.
    Result: like q, contiguous. Sums are float32; the softmax is rounded to q's type before it is multiplied by v.

    Bytes moved: each sequence's keys and values once per tile of queries (decode: 2 x length x kv_heads x head_dim x
    itemsize), q and the result once, and for split sequences 8 x num_heads x head_dim per 512 keys for partial results.
    Sources: Dao et al. 2022, "FlashAttention"; Dao et al. 2023, "Flash-Decoding"; Kwon et al. 2023, "PagedAttention".
    """
    q = q if q.stride(-1) == 1 else q.contiguous()
    num_heads, kv_heads = q.shape[1], k_cache.shape[2]
    if plan is None:
        plan = plan_attention(
            block_tables,
            seq_lens,
            query_starts,
            num_heads=num_heads,
            num_kv_heads=kv_heads,
            sliding_window=sliding_window,
            device=q.device,
        )
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    out[plan.num_tokens :].zero_()
    for group in plan.groups:
        _attend(group, plan, q, k_cache, v_cache, out, scale)
    return out


def _attend(
    group: TileGroup, plan: GpuAttentionPlan, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, scale: float
) -> None:
    num_heads, head_dim, kv_heads = q.shape[1], q.shape[2], k_cache.shape[2]
    shape = (group.num_partials, kv_heads, group.rows)
    partials = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
    log_sums = torch.empty(shape, dtype=torch.float32, device=q.device)
    tile = tile_of(q.dtype, head_dim, group.rows, arch_of(q))
    constants = _head_constants(num_heads, kv_heads, head_dim)
    _attention_kernel[(group.items.shape[0], kv_heads)](
        q,
        k_cache,
        v_cache,
        plan.block_tables,
        group.items,
        out,
        partials,
        log_sums,
        q.stride(0),
        q.stride(1),
        plan.block_tables.stride(0),
        kv_heads,
        plan.sliding_window or 0,
        scale * math.log2(math.e),
        **constants,
        BLOCK_SIZE=k_cache.shape[1],
        ROWS=group.rows,
        KEYS=tile.keys,
        HAS_WINDOW=plan.sliding_window is not None,
        DOT=dot_type(q.dtype),
        KV=CODES.get(k_cache.dtype, NONE),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=True,
    )
    if group.num_partials:
        _merge_kernel[(group.merges.shape[0], group.max_queries, num_heads)](
            group.merges,
            partials,
            log_sums,
            out,
            num_heads,
            kv_heads,
            **constants,
            ROWS=group.rows,
            CHUNK=MERGE_CHUNK,
            **_MERGE_OPTIONS,
        )


class Tile(NamedTuple):
    """How a program is cut: keys per step, warps, depth of the pipeline."""

    keys: int
    num_warps: int
    num_stages: int


def tile_of(dtype: torch.dtype, head_dim: int, rows: int, arch: int) -> Tile:
    """Keys per step, warps and pipeline depth: chosen so that nothing spills and two programs fit an SM of a H100."""
    is_wide, is_small = head_dim > 128, rows <= SMALL_ROWS
    if dtype == torch.float32:  # no tensor cores in full precision: products are made of fused multiply-adds
        return Tile(32 if head_dim <= 64 else 16, 4 if is_small else 16 if 64 < head_dim <= 128 else 8, 2)
    is_older = arch < HOPPER  # its products are a warp's own, and hold their operands in registers
    warps = 8 if not is_small and (is_wide or is_older or rows > LARGE_ROWS) else 4
    # The lookup of a tile's blocks and the tile itself each take half of the stages: with five, two tiles of keys are
    # under way while one is multiplied, which decoding with few programs needs. More would halve the programs per SM.
    deepest = 4 if is_older else 5
    return Tile(32 if is_wide else 64, warps, deepest if is_small else 2 if is_wide or is_older else 3)


_MERGE_OPTIONS = {"num_warps": 2, "enable_fp_fusion": True}


def _head_constants(num_heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    heads_per_kv = num_heads // kv_heads
    return {
        "HEADS_PER_KV": heads_per_kv,
        "HEAD_ROWS": power_of_two(heads_per_kv),
        "HEAD_DIM": head_dim,
        "BLOCK_DIM": max(power_of_two(head_dim), 16),
    }


def variants(arch: int) -> Iterator[Variant]:
    """Decode and prefill tiles for the shapes of common models, the merge among them."""
    for heads_per_kv, head_dim, dtype, rows, has_window, *codes in [
        (3, 64, torch.float32, SMALL_ROWS, False),
        (3, 64, torch.float32, LARGE_ROWS, False),
        (4, 128, torch.float32, SMALL_ROWS, False),
        (4, 128, torch.float32, LARGE_ROWS, False),
        (4, 256, torch.float32, LARGE_ROWS, False),
        (71, 64, torch.bfloat16, 128, False),
        (4, 64, torch.bfloat16, SMALL_ROWS, False),
        (4, 128, torch.bfloat16, SMALL_ROWS, False),
        (8, 128, torch.float16, SMALL_ROWS, True),
        (4, 256, torch.bfloat16, SMALL_ROWS, False),
        (4, 64, torch.bfloat16, LARGE_ROWS, False),
        (4, 128, torch.bfloat16, LARGE_ROWS, False),
        (7, 128, torch.bfloat16, LARGE_ROWS, True),
        (1, 80, torch.float16, LARGE_ROWS, False),
        (4, 256, torch.bfloat16, LARGE_ROWS, False),
        (3, 64, torch.float32, SMALL_ROWS, False, torch.int8),
        (4, 128, torch.bfloat16, SMALL_ROWS, False, torch.int8),
        (4, 128, torch.bfloat16, SMALL_ROWS, False, torch.uint8),
        (8, 128, torch.float16, SMALL_ROWS, True, torch.uint8),
        (4, 64, torch.bfloat16, LARGE_ROWS, False, torch.int8),
        (4, 128, torch.bfloat16, LARGE_ROWS, False, torch.int8),
        (4, 128, torch.bfloat16, LARGE_ROWS, False, torch.uint8),
        (4, 256, torch.bfloat16, LARGE_ROWS, False, torch.int8),
    ]:
        stored = codes[0] if codes else dtype
        kept = "" if stored == dtype else " kv=int8" if stored == torch.int8 else " kv=fp8"
        tile = tile_of(dtype, head_dim, rows, arch)
        window = "yes" if has_window else "no"
        yield Variant(
            f"{type_name(dtype)} rows={rows} head_dim={head_dim} heads_per_kv={heads_per_kv} window={window}{kept}",
            _attention_kernel,
            {
                **dict.fromkeys(("q_ptr", "out_ptr"), POINTERS[dtype]),
                **dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), POINTERS[stored]),
                **dict.fromkeys(("table_ptr", "item_ptr"), "*i32"),
                **dict.fromkeys(("partial_ptr", "log_sum_ptr"), "*fp32"),
                **dict.fromkeys(("q_token_stride", "q_head_stride"), "i32:16"),
                **dict.fromkeys(("table_stride", "kv_heads", "window"), "i32"),
                "scale": "fp32",
            },
            {
                **_head_constants(heads_per_kv, 1, head_dim),
                "BLOCK_SIZE": 16,
                "ROWS": rows,
                "KEYS": tile.keys,
                "HAS_WINDOW": has_window,
                "DOT": dot_type(dtype),
                "KV": CODES.get(stored, NONE),
            },
            {"num_warps": tile.num_warps, "num_stages": tile.num_stages, "enable_fp_fusion": True},
        )
    for head_dim in (64, 128, 256):
        yield Variant(
            f"bfloat16 head_dim={head_dim}",
            _merge_kernel,
            {
                "merge_ptr": "*i32",
                "partial_ptr": "*fp32",
                "log_sum_ptr": "*fp32",
                "out_ptr": "*bf16",
                "heads": "i32",
                "kv_heads": "i32",
            },
            {**_head_constants(4, 1, head_dim), "ROWS": SMALL_ROWS, "CHUNK": MERGE_CHUNK},
            _MERGE_OPTIONS,
        )
