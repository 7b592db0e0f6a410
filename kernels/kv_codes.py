"""Keys and values in eight bits: whole numbers (int8) or E4M3 (fp8), with a scale for each token and head.

A block is written token by token, and shared by sequences that came to it in different steps. So a scale may depend on
one token alone: one for a block would have to grow with its tokens, and what a key is rounded to would tell in which
order they came. The scale is a bfloat16, rounded up, in the two bytes after a head's numbers: `[num_blocks,
block_size, kv_heads, head_dim + 2]` of bytes by shape, so that what copies or swaps blocks need not know.

In a block lie, on a GPU, first all codes, [block_size, kv_heads, head_dim], then all scales, [block_size, kv_heads]. On
a CPU every 16 slots hold, head by head, their codes, of keys as [head_dim, 16], of values as [16, head_dim], and then
sixteen scales: what the registers load, with nothing to rearrange.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SCALE_BYTES = 2
TILE_KEYS = 16
LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}  # codes; E4M3 is kept as its bits
SMALLEST = 2.0**-90  # rows whose largest number is below are zeros: a scale's inverse must be a number
DTYPES: dict[str, torch.dtype] = {"int8": torch.int8, "fp8": torch.uint8}
KvCacheDtype = Literal["auto", "int8", "fp8"]


def is_quantised(cache: Tensor) -> bool:
    """Whether a cache holds codes and scales."""
    return cache.dtype in LARGEST


def kv_format(kind: KvCacheDtype, dtype: torch.dtype, head_dim: int) -> tuple[torch.dtype, int]:
    """A cache's dtype and the length of its last axis, for a model that computes in `dtype`."""
    return (dtype, head_dim) if kind == "auto" else (DTYPES[kind], row_bytes(head_dim))


def row_bytes(head_dim: int) -> int:
    """Of one head of one token in a quantised cache, its scale among them."""
    return head_dim + SCALE_BYTES


def head_dim_of(cache: Tensor) -> int:
    """Numbers of a head; a quantised cache's last axis is longer."""
    return cache.shape[-1] - (SCALE_BYTES if is_quantised(cache) else 0)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes of a cache of this dtype, like x, and scales, bfloat16, without the last axis."""
    wide = x.float()
    peak = wide.abs().amax(-1)
    scales = torch.where(peak < SMALLEST, 0.0, _rounded_up(peak / LARGEST[dtype]))
    inverse = torch.where(scales > 0, 1.0 / scales, 0.0)
    codes = (wide * inverse[..., None]).clamp(-LARGEST[dtype], LARGEST[dtype])
    if dtype == torch.int8:
        return codes.round().to(torch.int8), scales.bfloat16()
    return codes.to(torch.float8_e4m3fn).view(torch.uint8), scales.bfloat16()


def dequantised(codes: Tensor, scales: Tensor) -> Tensor:
    """The numbers, float32."""
    wide = codes.float() if codes.dtype == torch.int8 else codes.view(torch.float8_e4m3fn).float()
    return wide * scales.float()[..., None]


def plain_parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a GPU's cache: codes [num_blocks, block_size, kv_heads, head_dim], scales without the last axis."""
    num_blocks, block_size, kv_heads, row = cache.shape
    flat, count = cache.reshape(num_blocks, -1), block_size * kv_heads * (row - SCALE_BYTES)
    codes = flat[:, :count].unflatten(1, (block_size, kv_heads, -1))
    return codes, flat[:, count:].view(torch.bfloat16).unflatten(1, (block_size, kv_heads))


def tiled_parts(cache: Tensor, *, are_keys: bool) -> tuple[Tensor, Tensor]:
    """Views of a CPU's cache: codes [num_slots / 16, kv_heads, 16, head_dim], scales without the last axis."""
    num_blocks, block_size, kv_heads, row = cache.shape
    flat = cache.reshape(num_blocks * block_size // TILE_KEYS, kv_heads, TILE_KEYS * row)
    count = TILE_KEYS * (row - SCALE_BYTES)
    codes = flat[..., :count]
    tiles = codes.unflatten(2, (-1, TILE_KEYS)).transpose(2, 3) if are_keys else codes.unflatten(2, (TILE_KEYS, -1))
    return tiles, flat[..., count:].view(torch.bfloat16)


def in_tiles(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of a GPU's caches as a CPU has them."""
    found = []
    for cache, are_keys in ((k_cache, True), (v_cache, False)):
        target = torch.empty_like(cache)
        for into, part in zip(tiled_parts(target, are_keys=are_keys), plain_parts(cache), strict=True):
            tail = part.shape[2:]  # [slots, heads, ...] to [tiles, heads, 16, ...]
            into.copy_(part.reshape(-1, TILE_KEYS, *tail).transpose(1, 2))
        found.append(target)
    return found[0], found[1]


def in_plain(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of a CPU's caches as a GPU has them."""
    found = []
    for cache, are_keys in ((k_cache, True), (v_cache, False)):
        target = torch.empty_like(cache)
        for into, part in zip(plain_parts(target), tiled_parts(cache, are_keys=are_keys), strict=True):
            into.copy_(part.transpose(1, 2).reshape(into.shape))
        found.append(target)
    return found[0], found[1]


def _rounded_up(x: Tensor) -> Tensor:
    """The smallest bfloat16 that is not below, as float32; x is not negative. NaN stays NaN."""
    bits = x.contiguous().view(torch.int32)
    up = ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32)
    return torch.where(x.isfinite(), up, x)
