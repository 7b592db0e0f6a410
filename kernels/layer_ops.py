"""The small operations of a decoder layer: RMSNorm, the gated activation, rotation, and what lies before attention.

Each goes to a Triton kernel for CUDA tensors (`kernels.gpu`), to a compiled one for the dtypes that a CPU has any for
(`kernels.cpu`), and is the formula in torch for all others. On CUDA and in compiled code a row's bits depend on that
row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.dtypes import has_kernels
from kernels.kv_cache import store_kv
from kernels.kv_codes import head_dim_of, is_quantised


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * h / sqrt(mean(h^2) + eps)` over the last axis, with h = x, or x + residual; then also h is returned.

    Shapes: x, residual: [..., width]; weight: [width]. Bytes moved: x, residual and both results once.
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    if x.is_cuda:
        from kernels.gpu import rms_norm as on_gpu

        return on_gpu.rms_norm(x, weight, eps, residual)
    if has_kernels(x, weight):
        from kernels.cpu import rms_norm as on_cpu

        return on_cpu.rms_norm(x, weight, eps, residual)
    if residual is None:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    h = x + residual
    return torch.nn.functional.rms_norm(h, weight.shape, weight, eps), h


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, with gate the first and up the second half of the last axis.

    Shapes: gate_up: [..., 2 x width]; result: [..., width]. Bytes moved: both once.
    Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU).
    """
    if gate_up.is_cuda:
        from kernels.gpu import silu_mul as on_gpu

        return on_gpu.silu_mul(gate_up)
    if has_kernels(gate_up):
        from kernels.cpu import silu_mul as on_cpu

        return on_cpu.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding, in the half-split form of Llama and Qwen. New tensors.

    Rotates each pair (a, b) = (i, i + head_dim / 2) of each head by its position's angle:
    `(a cos - b sin, b cos + a sin)`. Computed in float32 when q is narrower.

    Shapes: q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim]; cos, sin: [num_tokens,
    head_dim], float32, rows gathered by position from tables that hold each angle twice, the first half of sin
    negated (`full_tables`). Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    if q.is_cuda:
        from kernels.gpu import rope as on_gpu

        return on_gpu.apply_rope(q, k, cos, sin)
    heads = q.shape[1]
    both = rotate(torch.cat([q, k], dim=1), cos.unsqueeze(1), sin.unsqueeze(1))
    return both[:, :heads], both[:, heads:]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`apply_rope` of one tensor, in torch. Shapes: x: [..., head_dim]; cos, sin: likewise, or broadcast to it."""
    wide = x.float()
    return torch.addcmul(wide * cos, wide.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)


def store_rows(rows: Tensor, target: Tensor, places: Tensor) -> None:
    """Puts row i of `rows` at row `places[i]` of target.

    Shapes: rows: [num_rows, width]; target: [any, width], contiguous, of the same dtype; places: [num_rows], int64, no
    place twice. On a GPU a negative place writes nothing. Bytes moved: rows once in, once out.
    """
    if rows.is_cuda:
        from kernels.gpu import kv_store as on_gpu

        on_gpu.store_rows(rows, target, places)
        return
    if has_kernels(rows, target):
        from kernels.cpu import store_rows as on_cpu

        on_cpu.store_rows(rows, target, places)
        return
    target.index_copy_(0, places, rows)


def full_tables(angles: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin, each [..., head_dim] and times `factor`, of angles in radians, [..., head_dim / 2]."""
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rope_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """From a layer's query-key-value product to its attention: head norms, rotation, the write to the cache.

    Returns the rotated queries, [num_rows, num_heads, head_dim]. Keys, rotated, and values go to `slots` of the caches.

    Shapes: qkv: [num_rows, (num_heads + 2 kv_heads) x head_dim]; cos, sin: [num_rows, head_dim], float32, as for
    `apply_rope`; caches: [num_blocks, block_size, kv_heads, head_dim], on a CPU perhaps in tiles (`kv_layout`); slots:
    [num_rows], int64; q_norm, k_norm: [head_dim], an RMSNorm of each head with `eps` before the rotation.
    Bytes moved: qkv once in, once out.
    """
    if has_kernels(qkv) and (has_kernels(qkv, k_cache) or is_quantised(k_cache)) and not k_cache.is_cuda:
        from kernels.cpu import rope_store as on_cpu

        return on_cpu.rope_store(qkv, cos, sin, k_cache, v_cache, slots, q_norm, k_norm, eps)
    kv_heads, width = k_cache.shape[2], head_dim_of(k_cache)
    heads = qkv.view(qkv.shape[0], -1, width)
    q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    q, k = apply_rope(q, k, cos, sin)
    store_kv(k, v, k_cache, v_cache, slots)
    return q
