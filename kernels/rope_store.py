"""From a layer's query-key-value product to its attention: head norms, rotation, the write to the cache."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.scalars import has_kernels
from kernels.kv_store import store_kv
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope


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
    """The rotated queries, [num_rows, num_heads, head_dim]. Keys, rotated, and values go to `slots` of the caches.

    Shapes: qkv: [num_rows, (num_heads + 2 kv_heads) x head_dim]; cos, sin: [num_rows, head_dim], float32, as for
    `apply_rope`; caches: [num_blocks, block_size, kv_heads, head_dim], on a CPU perhaps in tiles (`kv_layout`); slots:
    [num_rows], int64; q_norm, k_norm: [head_dim], an RMSNorm of each head with `eps` before the rotation.
    Bytes moved: qkv once in, once out.
    """
    if has_kernels(qkv, k_cache):
        from kernels.cpu import rope_store as on_cpu

        return on_cpu.rope_store(qkv, cos, sin, k_cache, v_cache, slots, q_norm, k_norm, eps)
    kv_heads, width = k_cache.shape[2:]
    heads = qkv.view(qkv.shape[0], -1, width)
    q, k, v = heads.split([heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    q, k = apply_rope(q, k, cos, sin)
    store_kv(k, v, k_cache, v_cache, slots)
    return q
