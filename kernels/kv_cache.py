"""The paged KV cache: new keys and values into its slots, copies of whole blocks, swaps with host memory.

A cache is [layers, 2, num_blocks, block_size, kv_heads, head_dim]; slot `block x block_size + offset` of a layer holds
one token's keys, or values. Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving
with PagedAttention".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.progress import mark_progress
from kernels.kv_codes import is_quantised, plain_parts, quantised

Pairs = Sequence[tuple[int, int]]
_BYTES_TOGETHER = 1 << 28  # that are copied in one go, through as much memory: a long context has many times that


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts row i of k and v at slot `slots[i]`, which is block x block_size + offset. Changes the caches.

    Shapes: k, v: [num_tokens, kv_heads, head_dim]; caches: [num_blocks, block_size, kv_heads, head_dim], contiguous;
    or codes with scales, as a GPU has them (`kernels.kv_codes`); slots: [num_tokens], int64, no slot twice.
    Bytes moved: k and v once in, once out.
    """
    if k.is_cuda:
        from kernels.gpu import kv_store as on_gpu

        if is_quantised(k_cache):
            from kernels.gpu.kv_codes import store_codes

            store_codes(k, v, k_cache, v_cache, slots)
            return
        on_gpu.store_kv(k, v, k_cache, v_cache, slots)
        return
    if is_quantised(k_cache):
        at = (slots // k_cache.shape[1], slots % k_cache.shape[1])
        for x, cache in ((k, k_cache), (v, v_cache)):
            for into, part in zip(plain_parts(cache), quantised(x, cache.dtype), strict=True):
                into[at] = part
        return
    k_cache.view(-1, *k.shape[1:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v.shape[1:]).index_copy_(0, slots, v)


def copy_blocks(cache: Tensor, pairs: Pairs) -> None:
    """Copies block `source` onto block `target` for each (source, target), as if one after the other.

    Shapes: cache: [layers, 2, num_blocks, ...]. Changes cache.
    """
    swap_blocks(cache, cache, pairs)


def swap_blocks(source: Tensor, target: Tensor, pairs: Pairs) -> None:
    """Copies block `a` of source onto block `b` of target for each (a, b), as if one after the other.

    Shapes: source, target: [layers, 2, num_blocks, ...], equal but for num_blocks; on any two devices.
    Bytes moved: each block in and out.
    """
    if not pairs:
        return
    if _is_within_gpu_reach(source, target):
        from kernels.gpu import block_copy as on_gpu

        on_gpu.swap_blocks(source, target, pairs)
        return
    reads, writes = [a for a, _ in pairs], [b for _, b in pairs]
    ordered = len(set(writes)) < len(writes) or (source is target and not set(reads).isdisjoint(writes))
    if ordered:  # a block is both written and read, or written twice: the order decides
        for a, b in pairs:
            target[:, :, b].copy_(source[:, :, a])
        return
    together = max(_BYTES_TOGETHER // max(source[:, :, 0].nbytes, 1), 1)
    for first in range(0, len(pairs), together):
        own = slice(first, first + together)
        moved = source.index_select(2, torch.tensor(reads[own], device=source.device)).to(target.device)
        target.index_copy_(2, torch.tensor(writes[own], device=target.device), moved)
        mark_progress()


def _is_within_gpu_reach(source: Tensor, target: Tensor) -> bool:
    if not (source.is_cuda or target.is_cuda):
        return False
    return all(cache.is_cuda or cache.is_pinned() for cache in (source, target))
