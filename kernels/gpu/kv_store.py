"""Writes new keys and values into the paged cache, both in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant, power_of_two, type_name

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    num_slots,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """cache[slots[token]] = row token of k, and of v. A slot outside of the cache is left out."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if (slot >= 0) & (slot < num_slots):
        element = tl.arange(0, BLOCK)
        mask = element < WIDTH
        head, dim = element // HEAD_DIM, element % HEAD_DIM
        k = tl.load(k_ptr + token * k_token_stride + head * k_head_stride + dim, mask=mask)
        v = tl.load(v_ptr + token * v_token_stride + head * v_head_stride + dim, mask=mask)
        tl.store(k_cache_ptr + slot * WIDTH + element, k, mask=mask)
        tl.store(v_cache_ptr + slot * WIDTH + element, v, mask=mask)


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Puts row i of k and v at slot `slots[i]`, which is block x block_size + offset. Changes the caches.

    Shapes: k, v: [num_tokens, kv_heads, head_dim], any token and head stride; caches: [num_blocks, block_size,
    kv_heads, head_dim], contiguous, of k's type; slots: [num_tokens], int64, no slot twice. A negative slot writes
    nothing, so that a captured batch can be padded. Bytes moved: k and v once in, once out.
    Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
    """
    if k.dtype != k_cache.dtype or v.dtype != v_cache.dtype:
        raise TypeError(f"store_kv: keys are {k.dtype}, values {v.dtype}, the cache {k_cache.dtype}")
    num_tokens, kv_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    k = k if k.stride(-1) == 1 else k.contiguous()
    v = v if v.stride(-1) == 1 else v.contiguous()
    _store_kv_kernel[(num_tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        k_cache.shape[0] * k_cache.shape[1],
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        WIDTH=kv_heads * head_dim,
        HEAD_DIM=head_dim,
        BLOCK=power_of_two(kv_heads * head_dim),
        **_OPTIONS,
    )


def variants() -> Iterator[Variant]:
    """KV heads and sizes of common models."""
    for kv_heads, head_dim, dtype in [(4, 64, torch.float32), (8, 128, torch.bfloat16), (32, 128, torch.float16)]:
        types = dict.fromkeys(("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr"), POINTERS[dtype])
        strides = ("k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride")
        yield Variant(
            f"{type_name(dtype)} kv_heads={kv_heads} head_dim={head_dim}",
            _store_kv_kernel,
            {**types, "slot_ptr": "*i64", "num_slots": "i32", **dict.fromkeys(strides, "i32:16")},
            {"WIDTH": kv_heads * head_dim, "HEAD_DIM": head_dim, "BLOCK": power_of_two(kv_heads * head_dim)},
            _OPTIONS,
        )
