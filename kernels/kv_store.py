"""Writes new keys and values into the paged cache."""

from __future__ import annotations

from torch import Tensor


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts row i of k and v at slot `slots[i]`, which is block x block_size + offset. Changes the caches.

    Shapes: k, v: [num_tokens, kv_heads, head_dim]; caches: [num_blocks, block_size, kv_heads, head_dim], contiguous;
    slots: [num_tokens], int64, no slot twice. Bytes moved: k and v once in, once out.
    """
    if k.is_cuda:
        from kernels.gpu import kv_store as on_gpu

        on_gpu.store_kv(k, v, k_cache, v_cache, slots)
        return
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)
