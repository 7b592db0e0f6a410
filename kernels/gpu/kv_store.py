"""Writes new keys and values into the paged cache, both in one launch; rows of one tensor into those of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant, power_of_two, type_name

_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}
ROW_BLOCK = 1024  # columns of a program


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
    launch_store(_store_kv_kernel, k, v, k_cache, v_cache, slots, {**_constants(*k.shape[1:]), **_OPTIONS})


@triton.jit
def _store_rows_kernel(row_ptr, target_ptr, place_ptr, num_places, row_stride, width, BLOCK: tl.constexpr):
    """target[places[row]] = rows[row], a block of columns. A place outside of the target is left out."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(place_ptr + row)
    if (place >= 0) & (place < num_places):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = column < width
        tl.store(
            target_ptr + place * width + column, tl.load(row_ptr + row * row_stride + column, mask=mask), mask=mask
        )


def store_rows(rows: Tensor, target: Tensor, places: Tensor) -> None:
    """Puts row i of `rows` at row `places[i]` of target. A negative place writes nothing, as in `store_kv`.

    Shapes: rows: [num_rows, width], any row stride; target: [any, width], contiguous, of the same dtype; places:
    [num_rows], int64, no place twice. Bytes moved: rows once in, once out.
    """
    if rows.dtype != target.dtype:
        raise TypeError(f"store_rows: rows are {rows.dtype}, the target is {target.dtype}")
    if not rows.numel():
        return
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    grid = (rows.shape[0], triton.cdiv(rows.shape[1], ROW_BLOCK))
    _store_rows_kernel[grid](
        rows, target, places, target.shape[0], rows.stride(0), rows.shape[1], BLOCK=ROW_BLOCK, **_OPTIONS
    )


def launch_store(
    kernel: Any, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, constants: Mapping[str, Any]
) -> None:
    """Launches a kernel that puts rows of k and v at slots of caches, one program for each token, shapes as above."""
    if k.shape[0] == 0:
        return
    k = k if k.stride(-1) == 1 else k.contiguous()
    v = v if v.stride(-1) == 1 else v.contiguous()
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    kernel[k.shape[:1]](k, v, k_cache, v_cache, slots, num_slots, *k.stride()[:2], *v.stride()[:2], **constants)


def store_types(dtype: torch.dtype, cache: torch.dtype) -> dict[str, str]:
    """The arguments' types of such a kernel, for a `Variant`: of keys and values, and of caches."""
    return {
        **dict.fromkeys(("k_ptr", "v_ptr"), POINTERS[dtype]),
        **dict.fromkeys(("k_cache_ptr", "v_cache_ptr"), POINTERS[cache]),
        "slot_ptr": "*i64",
        "num_slots": "i32",
        **dict.fromkeys(("k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride"), "i32:16"),
    }


def _constants(kv_heads: int, head_dim: int) -> dict[str, int]:
    return {"WIDTH": kv_heads * head_dim, "HEAD_DIM": head_dim, "BLOCK": power_of_two(kv_heads * head_dim)}


def variants(arch: int) -> Iterator[Variant]:
    """KV heads and sizes of common models."""
    for kv_heads, head_dim, dtype in [(4, 64, torch.float32), (8, 128, torch.bfloat16), (32, 128, torch.float16)]:
        yield Variant(
            f"{type_name(dtype)} kv_heads={kv_heads} head_dim={head_dim}",
            _store_kv_kernel,
            store_types(dtype, dtype),
            _constants(kv_heads, head_dim),
            _OPTIONS,
        )
    yield Variant(
        "bfloat16 rows",
        _store_rows_kernel,
        {
            **dict.fromkeys(("row_ptr", "target_ptr"), "*bf16"),
            "place_ptr": "*i64",
            "num_places": "i32",
            **dict.fromkeys(("row_stride", "width"), "i32:16"),
        },
        {"BLOCK": ROW_BLOCK},
        _OPTIONS,
    )
