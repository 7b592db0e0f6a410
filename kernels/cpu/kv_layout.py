"""How keys and values lie in a cache, [num_blocks, block_size, kv_heads, head_dim] by shape.

Plain: as the shape says. In tiles, where attention multiplies bfloat16 on the matrix registers or in pairs, and in
float32: every 16 slots of a block hold, head by head, the operands that the registers load, so that nothing is
rearranged when they are read:

* keys as [pairs of dimensions, 16 keys, 2], the right operand of `q k^T`; in float32 [dimensions, 16 keys];
* values as [pairs of keys, dimensions, 2], the right operand of `p v`; in float32 [16 keys, dimensions].

Blocks stay whole either way: what copies or swaps them need not know. A key's write touches more cache lines; a
decoding step reads hundreds of keys for each that it writes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu import amx, instructions

TILE_KEYS = 16


def is_tiled(cache: Tensor) -> bool:
    """Whether this cache, [num_blocks, block_size, kv_heads, head_dim], is kept in tiles on this machine."""
    block_size, _, head_dim = cache.shape[1:]
    fits = cache.device.type == "cpu" and block_size % TILE_KEYS == 0 and head_dim % 32 == 0
    if cache.dtype == torch.bfloat16:
        return fits and (amx.has_amx() or instructions.has_dot())
    return fits and cache.dtype == torch.float32


def in_tiles(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of two plain caches that fit, in tiles."""
    shape = k_cache.shape
    (kv_heads, head_dim), together = shape[2:], _together(k_cache)
    keys = k_cache.reshape(-1, TILE_KEYS, kv_heads, head_dim // together, together).permute(0, 2, 3, 1, 4)
    values = v_cache.reshape(-1, TILE_KEYS // together, together, kv_heads, head_dim).permute(0, 3, 1, 4, 2)
    return keys.reshape(shape), values.reshape(shape)


def in_plain(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of two caches in tiles, plain: for what reads them by the shape."""
    shape = k_cache.shape
    (kv_heads, head_dim), together = shape[2:], _together(k_cache)
    keys = k_cache.reshape(-1, kv_heads, head_dim // together, TILE_KEYS, together).permute(0, 3, 1, 2, 4)
    values = v_cache.reshape(-1, kv_heads, TILE_KEYS // together, head_dim, together).permute(0, 2, 4, 1, 3)
    return keys.reshape(shape), values.reshape(shape)


def _together(cache: Tensor) -> int:
    """Elements that one multiplication takes."""
    return 2 if cache.dtype == torch.bfloat16 else 1
