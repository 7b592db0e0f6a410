"""`kernels.layer_ops.rope_store` in one pass: head norms, rotation, and keys and values into the cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, INT64, UINT8, UINT16, narrow, widen
from kernels.cpu.exp import fused
from kernels.cpu.kv_codes import code_of, store_codes
from kernels.cpu.kv_layout import TILE_KEYS, is_tiled
from kernels.cpu.memory import array_at, carray, copy, scratch_bytes
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType, threads_for
from kernels.cpu.recorder import empty_result
from kernels.cpu.rms_norm import inverse_rms
from kernels.cpu.task import enter, field, float32_field, leave, next_chunk, offsets_of, pointer
from kernels.kv_codes import head_dim_of

CHUNK_ROWS = 32  # neighbours in a prompt write to the same cache lines: with 4, two threads take three times as long


class RopeStoreTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows. Tensors are in the dtype of qkv where nothing else is said."""

    itemsize: int  # 2: bfloat16, 4: float32
    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    num_slots: int  # of the cache
    eps: float
    qkv: Tensor  # [rows, heads + 2 x kv_heads, head_dim]
    cos: Tensor  # [rows, head_dim], float32
    sin: Tensor  # [rows, head_dim], float32
    k_cache: Tensor  # [num_slots, kv_heads, head_dim], or codes as `kernels.kv_codes` has them
    v_cache: Tensor  # [num_slots, kv_heads, head_dim], likewise
    slots: Tensor  # [rows], int64
    q: Tensor  # [rows, heads, head_dim]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    is_tiled: bool  # the caches, as `kv_layout` says
    codes: int  # the caches', as `kv_codes.code_of` says


AT = offsets_of(RopeStoreTask)


def rope_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """The rotated queries, [rows, heads, head_dim]; rotated keys, and values, are in the caches' slots then.

    Shapes as in `kernels.layer_ops.rope_store`. Bytes moved: qkv once in and once out, cos and sin once.
    """
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    kv_heads, head_dim = k_cache.shape[2], head_dim_of(k_cache)
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    q = empty_result((qkv.shape[0], heads, head_dim), qkv.dtype)
    task = RopeStoreTask(
        itemsize=qkv.element_size(),
        rows=qkv.shape[0],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        num_slots=k_cache.shape[0] * k_cache.shape[1],
        eps=float(eps),
        qkv=qkv,
        cos=cos,
        sin=sin,
        k_cache=k_cache,
        v_cache=v_cache,
        slots=slots,
        q=q,
        q_norm=q_norm,
        k_norm=k_norm,
        is_tiled=is_tiled(k_cache),
        codes=code_of(k_cache),
    )
    region = _region if task.codes == 0 else _region_of_codes
    region.launch(threads_for(qkv.numel()), task, scratch_bytes((1, head_dim, qkv.element_size()), (1, head_dim, 1)))
    return q


def _body_in_bfloat16(task):
    space = enter(task)
    _store(task, space, UINT16, UINT16)
    leave(task)


def _body_in_float32(task):
    space = enter(task)
    _store(task, space, FLOAT32, FLOAT32)
    leave(task)


def _codes_of_bfloat16(task):
    space = enter(task)
    _store(task, space, UINT16, UINT8)
    leave(task)


def _codes_of_float32(task):
    space = enter(task)
    _store(task, space, FLOAT32, UINT8)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)
_region_of_codes = RegionOfType(_codes_of_bfloat16, _codes_of_float32)


def _store_as_codes(keys, values, k_at, v_at, slot, head, kv_heads, encoded, codes, stored):
    """Rounds one head's key and value to codes, where the caches hold such; compiled code only."""
    raise NotImplementedError("inside compiled code only")


@overload(_store_as_codes, jit_options=EXACT)
def _where_codes_are_stored(keys, values, k_at, v_at, slot, head, kv_heads, encoded, codes, stored):
    if stored.dtype != types.uint8:  # who stores numbers compiles no rounding
        return lambda keys, values, k_at, v_at, slot, head, kv_heads, encoded, codes, stored: None

    def store(keys, values, k_at, v_at, slot, head, kv_heads, encoded, codes, stored):
        store_codes(keys, k_at, slot, head, kv_heads, True, encoded, codes)
        store_codes(values, v_at, slot, head, kv_heads, False, encoded, codes)

    return store


@njit(**EXACT)
def _store(task, space, like, stored):
    """Rows are of elements like those of `like`; the caches hold the same, or codes, as `stored` says."""
    rows, heads, kv_heads = field(task, AT.rows), field(task, AT.heads), field(task, AT.kv_heads)
    width, num_slots, eps = field(task, AT.head_dim), field(task, AT.num_slots), float32_field(task, AT.eps)
    qkv = carray(pointer(task, AT.qkv, like), (rows, heads + 2 * kv_heads, width))
    cos = carray(pointer(task, AT.cos, FLOAT32), (rows, width))
    sin = carray(pointer(task, AT.sin, FLOAT32), (rows, width))
    k_cache = carray(pointer(task, AT.k_cache, like), (num_slots, kv_heads, width))
    v_cache = carray(pointer(task, AT.v_cache, like), (num_slots, kv_heads, width))
    slots = carray(pointer(task, AT.slots, INT64), (rows,))
    q = carray(pointer(task, AT.q, like), (rows, heads, width))
    q_norm = carray(pointer(task, AT.q_norm, like), (width if field(task, AT.q_norm) != 0 else 0,))
    k_norm = carray(pointer(task, AT.k_norm, like), (width if field(task, AT.k_norm) != 0 else 0,))
    k_flat = carray(pointer(task, AT.k_cache, like), (num_slots * kv_heads * width,))
    v_flat = carray(pointer(task, AT.v_cache, like), (num_slots * kv_heads * width,))
    in_tiles, codes = field(task, AT.is_tiled) != 0, field(task, AT.codes)
    all_rotated, space = array_at(space, 1, width, like)
    all_codes, space = array_at(space, 1, width, UINT8)
    rotated, encoded = all_rotated[0], all_codes[0]
    k_at, v_at = field(task, AT.k_cache), field(task, AT.v_cache)
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            for head in range(heads):
                _rotate(qkv[i, head], cos[i], sin[i], q_norm, eps, q[i, head])
            for head in range(kv_heads):
                values = qkv[i, heads + kv_heads + head]
                if codes != 0:
                    _rotate(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, rotated)
                    _store_as_codes(rotated, values, k_at, v_at, slots[i], head, kv_heads, encoded, codes, stored)
                elif in_tiles:
                    _rotate(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, rotated)
                    _store_in_tiles(rotated, values, k_flat, v_flat, slots[i], head, kv_heads)
                else:
                    _rotate(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, k_cache[slots[i], head])
                    copy(values.ctypes.data, v_cache[slots[i], head].ctypes.data, width * like.itemsize)
        first = next_chunk(task) * CHUNK_ROWS


@njit(**EXACT)
def _store_in_tiles(keys, values, k_flat, v_flat, slot, head, kv_heads):
    """Puts one head's key and value where `kv_layout` says; the caches are flat."""
    kv_heads, width = np.uintp(kv_heads), np.uintp(keys.shape[0])
    tile, own = np.uintp(slot) // np.uintp(TILE_KEYS), np.uintp(slot) % np.uintp(TILE_KEYS)
    begin = (tile * kv_heads + np.uintp(head)) * np.uintp(TILE_KEYS) * width
    if keys.itemsize == 4:
        for dimension in range(width):
            k_flat[begin + dimension * np.uintp(TILE_KEYS) + own] = keys[dimension]
            v_flat[begin + own * width + dimension] = values[dimension]
        return
    at = begin + np.uintp(2) * own
    for pair in range(width >> np.uintp(1)):
        k_flat[at] = keys[np.uintp(2) * pair]
        k_flat[at + np.uintp(1)] = keys[np.uintp(2) * pair + np.uintp(1)]
        at += np.uintp(2 * TILE_KEYS)
    at = begin + (own >> np.uintp(1)) * np.uintp(2) * width + (own & np.uintp(1))
    for dimension in range(width):
        v_flat[at + np.uintp(2) * dimension] = values[dimension]


@njit(**EXACT)
def _rotate(row, cos, sin, norm, eps, out):
    half = np.uintp(row.shape[0]) >> np.uintp(1)  # unsigned: an index that may be negative is not made vector code
    if norm.shape[0] == 0:
        for j in range(half):
            first, second = widen(row[j]), widen(row[half + j])
            out[j] = narrow(fused(first, cos[j], second * sin[j]), row[j])
            out[half + j] = narrow(fused(second, cos[half + j], first * sin[half + j]), row[j])
        return
    scale = inverse_rms(row, eps)
    for j in range(half):
        first, second = widen(row[j]) * scale * widen(norm[j]), widen(row[half + j]) * scale * widen(norm[half + j])
        out[j] = narrow(fused(first, cos[j], second * sin[j]), row[j])
        out[half + j] = narrow(fused(second, cos[half + j], first * sin[half + j]), row[j])
