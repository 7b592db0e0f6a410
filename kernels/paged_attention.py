"""Causal attention over the paged cache, for a ragged batch: chunks of prompts and decoding sequences in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from kernels.cpu import paged_attention as on_cpu
from kernels.cpu.dtypes import has_kernels
from kernels.kv_codes import dequantised, head_dim_of, is_quantised, plain_parts

if TYPE_CHECKING:
    from kernels.gpu.attention_plan import GpuAttentionPlan


AttentionPlan: TypeAlias = "on_cpu.CpuAttentionPlan | GpuAttentionPlan"


def plan_attention(
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    sliding_window: int | None,
    device: torch.device | str = "cpu",
) -> AttentionPlan:
    """What `paged_attention` needs to know of a batch beyond its tensors: made once a step, used by every layer."""
    shapes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "sliding_window": sliding_window}
    if torch.device(device).type == "cuda":
        from kernels.gpu.attention_plan import plan_attention as plan_for_gpu

        return plan_for_gpu(block_tables, seq_lens, query_starts, **shapes, device=device)
    return on_cpu.plan_attention(block_tables, seq_lens, query_starts, **shapes)


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
    plan: AttentionPlan | None = None,
) -> Tensor:
    """`softmax(scale q k^T) v`, each query over its sequence's keys up to its own position; the cache holds them.

    The last query of sequence i is at position `seq_lens[i] - 1`. A window of w shows the latest w positions. On a
    CPU in float32 and bfloat16 a query's bits depend on its sequence up to there, and on nothing else in the batch.
    Computed in float32.

    Shapes: q: [num_tokens, num_heads, head_dim]; caches: [num_blocks, block_size, kv_heads, head_dim], on a CPU in
    tiles where `kernels.cpu.kv_layout` says so, or codes with scales (`kernels.kv_codes`); block_tables: [num_seqs,
    max_blocks], int32; seq_lens: [num_seqs], int32, this step's tokens counted; query_starts: [num_seqs + 1], int32,
    first row of each sequence. Result: like q.
    `plan` is that of `plan_attention` for the same batch and window, to share it between layers.
    """
    batch = (block_tables, seq_lens, query_starts)
    if not q.is_cuda and not has_kernels(q):
        return attend_plainly(q, k_cache, v_cache, *batch, scale=scale, sliding_window=sliding_window)
    if plan is None:
        heads = {"num_heads": q.shape[1], "num_kv_heads": k_cache.shape[2]}
        plan = plan_attention(*batch, **heads, sliding_window=sliding_window, device=q.device)
    if q.is_cuda:
        from kernels.gpu import paged_attention as on_gpu

        return on_gpu.paged_attention(
            q, k_cache, v_cache, *batch, scale=scale, sliding_window=sliding_window, plan=plan
        )
    return on_cpu.paged_attention(q, k_cache, v_cache, plan, scale)


def attend_plainly(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """`paged_attention` in torch: what the faster forms are held to. Last bits may vary with how a prompt is cut.

    Caches are never in tiles, those of codes as on a GPU.
    """
    out = torch.zeros_like(q)
    block_size, kv_heads, width = *k_cache.shape[1:3], head_dim_of(k_cache)
    starts = query_starts.tolist()
    for i, length in enumerate(seq_lens.tolist()):
        rows = slice(starts[i], starts[i + 1])
        blocks = block_tables[i, : -(-length // block_size)].long().to(q.device)
        keys, values = (
            _numbers(cache[blocks]).view(-1, kv_heads, width)[:length].transpose(0, 1) for cache in (k_cache, v_cache)
        )
        own = (
            q[rows].float().unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
        )  # [kv_heads, heads_per_kv, queries, head_dim]
        positions = torch.arange(length - own.shape[2], length, device=q.device)[:, None]
        at = torch.arange(length, device=q.device)
        hidden = at > positions
        if sliding_window is not None:
            hidden |= at <= positions - sliding_window
        scores = (own @ keys[:, None].transpose(2, 3) * scale).masked_fill_(hidden, -torch.inf)
        found = scores.softmax(-1) @ values[:, None]
        out[rows] = found.permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)
    return out


def _numbers(blocks: Tensor) -> Tensor:
    return dequantised(*plain_parts(blocks)) if is_quantised(blocks) else blocks.float()
