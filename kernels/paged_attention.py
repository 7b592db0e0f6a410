"""Causal attention over the paged cache, for a ragged batch: chunks of prompts and decoding sequences in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.attention_plan import (
    KEY_TILE,
    MASKED,
    AttentionPlan,
    Chunk,
    DecodeGroup,
    KeySpan,
    QueryTile,
    padded_share,
    plan_attention,
)
from kernels.gathered_attention import GatheredPlan, attend_gathered
from kernels.row_tiles import MIN_ROWS, Product

if TYPE_CHECKING:
    from kernels.gpu.attention_plan import GpuAttentionPlan


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
    plan: AttentionPlan | GpuAttentionPlan | None = None,
) -> Tensor:
    """`softmax(scale q k^T) v`, each query over its sequence's keys up to its own position; the cache holds them.

    The last query of sequence i is at position `seq_lens[i] - 1`. A window of w shows the latest w positions. A
    query's bits depend on its sequence up to there, and on nothing else in the batch. Computed in float32.

    Shapes: q: [num_tokens, num_heads, head_dim]; caches: [num_blocks, block_size, kv_heads, head_dim];
    block_tables: [num_seqs, max_blocks], int32; seq_lens: [num_seqs], int32, this step's tokens counted;
    query_starts: [num_seqs + 1], int32, first row of each sequence; rows of q past the last are padding, with result 0.
    Result: like q. `plan` is that of `plan_attention` for the same batch and window, to share it between layers, or
    that of `plan_gathered` on a CPU where it was measured to be exact.
    """
    if isinstance(plan, GatheredPlan):
        return attend_gathered(q, k_cache, v_cache, plan, scale)
    if q.is_cuda:
        from kernels.gpu import paged_attention as on_gpu

        shapes = (block_tables, seq_lens, query_starts)
        return on_gpu.paged_attention(
            q, k_cache, v_cache, *shapes, scale=scale, sliding_window=sliding_window, plan=plan
        )
    if plan is None:
        plan = plan_attention(
            block_tables,
            seq_lens,
            query_starts,
            block_size=k_cache.shape[1],
            num_heads=q.shape[1],
            num_kv_heads=k_cache.shape[2],
            sliding_window=sliding_window,
            device=q.device,
        )
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    q = q.float()
    k_rows, v_rows = k_cache.view(-1, k_cache.shape[-1]), v_cache.view(-1, v_cache.shape[-1])
    for group in plan.groups:
        _decode(group, q, k_rows, v_rows, out, k_cache.shape[2], scale)
    for chunk in plan.chunks:
        _prefill(chunk, q, k_rows, v_rows, out, k_cache.shape[2], scale, plan.sliding_window)
    return out


def attention_products(head_dim: int) -> Iterator[tuple[Product, int, torch.dtype]]:
    """The two products of attention, to be given to `agreeing_tiles`."""
    generator = torch.Generator().manual_seed(2)
    keys = torch.randn((3, KEY_TILE, head_dim), generator=generator)
    yield lambda rows: torch.bmm(rows.expand(3, *rows.shape), keys.transpose(1, 2))[1], head_dim, torch.float32
    yield lambda rows: torch.bmm(rows.expand(3, *rows.shape), keys)[1], KEY_TILE, torch.float32


def _decode(
    group: DecodeGroup, q: Tensor, k_rows: Tensor, v_rows: Tensor, out: Tensor, kv_heads: int, scale: float
) -> None:
    heads, width = q.shape[1:]
    share, batch = heads // kv_heads, group.num_seqs * kv_heads
    rows = max(padded_share(heads, kv_heads), MIN_ROWS)
    padded = torch.zeros((batch, rows, width), device=q.device)
    torch.mul(q[group.queries].reshape(batch, share, width), scale, out=padded[:, :share])
    merged: _Merged | None = None
    for span, mask in zip(group.spans, group.masks, strict=True):
        keys, values = _read(span, k_rows, v_rows, batch)
        scores = _scores(padded, keys)[:, :share] + mask  # the softmax of padding would cost more than its products
        merged = _merge(merged, scores, values, rows, is_only=len(group.spans) == 1)
    out[group.queries] = merged.out.reshape(group.num_seqs, heads, width).to(out.dtype)


def _prefill(
    chunk: Chunk,
    q: Tensor,
    k_rows: Tensor,
    v_rows: Tensor,
    out: Tensor,
    kv_heads: int,
    scale: float,
    window: int | None,
) -> None:
    heads, width = q.shape[1:]
    share, padded = heads // kv_heads, padded_share(heads, kv_heads)
    count = chunk.queries.stop - chunk.queries.start
    total = chunk.tiles[-1].start + chunk.tiles[-1].size
    by_head = torch.zeros((kv_heads, total, padded, width), device=q.device)
    own = q[chunk.queries].reshape(count, kv_heads, share, width).transpose(0, 1)
    torch.mul(own, scale, out=by_head[:, :count, :share])
    by_head = by_head.view(kv_heads, total * padded, width)
    merged: list[_Merged | None] = [None] * len(chunk.tiles)
    for span in chunk.spans:
        keys, values = _read(span, k_rows, v_rows, kv_heads)
        for i, tile in enumerate(chunk.tiles):
            seen = _keys_seen(tile, span, window)
            if seen is None:
                continue
            low, high = seen
            scores = _scores(by_head[:, tile.start * padded : (tile.start + tile.size) * padded], keys[:, low:high])
            _mask(scores, tile, span.first_key + low, padded, window)
            merged[i] = _merge(merged[i], scores, values[:, low:high], scores.shape[1], is_only=len(chunk.spans) == 1)
    whole = torch.cat([m.out for m in merged], dim=1).view(kv_heads, total, padded, width)[:, :count, :share]
    out[chunk.queries] = whole.transpose(0, 1).reshape(count, heads, width).to(out.dtype)


def _read(span: KeySpan, k_rows: Tensor, v_rows: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Gathered keys and values, [batch, num_keys, head_dim] in float32."""
    shape = (batch, span.num_keys, k_rows.shape[-1])
    keys, values = k_rows.index_select(0, span.rows), v_rows.index_select(0, span.rows)
    return keys.view(shape).float(), values.view(shape).float()


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """[batch, rows, num_keys], one product of fixed shape per key tile."""
    parts = [torch.bmm(queries, part.transpose(1, 2)) for part in keys.split(KEY_TILE, dim=1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _keys_seen(tile: QueryTile, span: KeySpan, window: int | None) -> tuple[int, int] | None:
    """Columns of the span, in whole key tiles, that any query of the tile sees."""
    high = min(span.num_keys, (tile.last_position - span.first_key) // KEY_TILE * KEY_TILE + KEY_TILE)
    low = 0 if window is None else max(tile.first_position - window + 1 - span.first_key, 0) // KEY_TILE * KEY_TILE
    return None if low >= high else (low, high)


def _mask(scores: Tensor, tile: QueryTile, first_key: int, share: int, window: int | None) -> None:
    """Hides later keys, and keys before the window. Touches only columns that some query must not see."""
    num_keys = scores.shape[-1]
    device = scores.device
    positions = torch.arange(tile.first_position, tile.first_position + tile.size, device=device)
    positions = positions.repeat_interleave(share)[:, None]
    late = max(tile.first_position + 1 - first_key, 0)
    if late < num_keys:
        keys = torch.arange(first_key + late, first_key + num_keys, device=device)
        scores[..., late:].masked_fill_(keys > positions, MASKED)
    early = 0 if window is None else min(tile.last_position - window + 1 - first_key, num_keys)
    if early > 0:
        keys = torch.arange(first_key, first_key + early, device=device)
        scores[..., :early].masked_fill_(keys <= positions - window, MASKED)


class _Merged:
    """Attention over the spans so far: its result, and the logarithm of its softmax' denominator (float64)."""

    __slots__ = ("log_sum", "out")

    def __init__(self, out: Tensor, log_sum: Tensor | None) -> None:
        self.out, self.log_sum = out, log_sum


def _merge(before: _Merged | None, scores: Tensor, values: Tensor, rows: int, *, is_only: bool) -> _Merged:
    """Adds one span. Partial sums run over key tiles in order, so masked tiles after the end add exact zeros.

    The products have `rows` rows, of which only those of the scores are kept.
    """
    count = scores.shape[1]
    softmax = torch.softmax(scores, dim=-1)
    shares = torch.nn.functional.pad(softmax, (0, 0, 0, rows - count)) if count < rows else softmax
    out = torch.bmm(shares[..., :KEY_TILE], values[:, :KEY_TILE])
    for start in range(KEY_TILE, scores.shape[-1], KEY_TILE):
        out += torch.bmm(shares[..., start : start + KEY_TILE], values[:, start : start + KEY_TILE])
    out = out[:, :count]
    if is_only:
        return _Merged(out, None)
    # The largest share is exp(0) / denominator: maxima are exact where another sum would round by its length.
    log_sum = scores.amax(-1, keepdim=True).double() - softmax.amax(-1, keepdim=True).double().log()
    if before is None:
        return _Merged(out, log_sum)
    total = torch.logaddexp(before.log_sum, log_sum)
    old, new = (before.log_sum - total).exp().float(), (log_sum - total).exp().float()
    return _Merged(before.out.mul_(old).add_(out.mul_(new)), total)
