"""`kernels.rope_store` in one pass: head norms, rotation, and keys and values into the cache."""

from __future__ import annotations

import numpy as np
from numba import carray, njit
from torch import Tensor

from kernels.cpu.kv_layout import TILE_KEYS, is_tiled
from kernels.cpu.rms_norm import inverse_rms
from kernels.cpu.scalars import EXACT, SUMS, narrow, widen
from kernels.cpu.thread_team import Crew, as_number, empty, field, pieces_of, pointer, take_piece

PIECE_ROWS = 32  # neighbours in a prompt write to the same cache lines: with 4, two threads take three times as long


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
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    kv_heads, width = k_cache.shape[2:]
    heads = qkv.shape[1] // width - 2 * kv_heads
    q = empty((qkv.shape[0], heads, width), qkv.dtype)
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    norms = (0 if norm is None else norm.data_ptr() for norm in (q_norm, k_norm))
    numbers = (qkv.shape[0], heads, kv_heads, width, num_slots, as_number(eps))
    tensors = (qkv, cos, sin, k_cache, v_cache, slots, q)
    _crew(
        pieces_of(qkv.numel()),
        qkv.element_size(),
        *numbers,
        *(t.data_ptr() for t in tensors),
        *norms,
        is_tiled(k_cache),
    )
    return q


def _work(task):
    if field(task, 1) == 2:
        _store(task, np.empty(0, np.uint16))
    else:
        _store(task, np.empty(0, np.float32))


_crew = Crew(_work)


@njit(**EXACT)
def _store(task, like):
    rows, heads, kv_heads, width = field(task, 2), field(task, 3), field(task, 4), field(task, 5)
    num_slots, eps = field(task, 6), np.int32(field(task, 7)).view(np.float32)
    number = np.empty(0, np.float32)
    qkv = carray(pointer(task, 8, like), (rows, heads + 2 * kv_heads, width))
    cos, sin = carray(pointer(task, 9, number), (rows, width)), carray(pointer(task, 10, number), (rows, width))
    k_cache = carray(pointer(task, 11, like), (num_slots, kv_heads, width))
    v_cache = carray(pointer(task, 12, like), (num_slots, kv_heads, width))
    slots = carray(pointer(task, 13, np.empty(0, np.int64)), (rows,))
    q = carray(pointer(task, 14, like), (rows, heads, width))
    q_norm = carray(pointer(task, 15, like), (width if field(task, 15) != 0 else 0,))
    k_norm = carray(pointer(task, 16, like), (width if field(task, 16) != 0 else 0,))
    in_tiles, turned = field(task, 17) != 0, np.empty(width, q.dtype)
    first = take_piece(task) * PIECE_ROWS
    while first < rows:
        for i in range(first, min(first + PIECE_ROWS, rows)):
            for head in range(heads):
                _turn(qkv[i, head], cos[i], sin[i], q_norm, eps, q[i, head])
            for head in range(kv_heads):
                values = qkv[i, heads + kv_heads + head]
                if in_tiles:
                    _turn(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, turned)
                    _store_in_tiles(turned, values, k_cache, v_cache, slots[i], head)
                else:
                    _turn(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, k_cache[slots[i], head])
                    v_cache[slots[i], head, :] = values
        first = take_piece(task) * PIECE_ROWS


@njit(**EXACT)
def _store_in_tiles(keys, values, k_cache, v_cache, slot, head):
    """Puts one head's numbers where `kv_layout` says."""
    kv_heads, width = np.uintp(k_cache.shape[1]), np.uintp(k_cache.shape[2])
    tile, own = np.uintp(slot) // np.uintp(TILE_KEYS), np.uintp(slot) % np.uintp(TILE_KEYS)
    begin = (tile * kv_heads + np.uintp(head)) * np.uintp(TILE_KEYS) * width
    k_flat, v_flat = k_cache.reshape(-1), v_cache.reshape(-1)
    at = begin + np.uintp(2) * own
    for pair in range(width >> np.uintp(1)):
        k_flat[at] = keys[np.uintp(2) * pair]
        k_flat[at + np.uintp(1)] = keys[np.uintp(2) * pair + np.uintp(1)]
        at += np.uintp(2 * TILE_KEYS)
    at = begin + (own >> np.uintp(1)) * np.uintp(2) * width + (own & np.uintp(1))
    for dimension in range(width):
        v_flat[at + np.uintp(2) * dimension] = values[dimension]


@njit(**SUMS)
def _turn(row, cos, sin, norm, eps, out):
    half = np.uintp(row.shape[0]) >> np.uintp(1)  # unsigned: an index that may be negative is not made vector code
    if norm.shape[0] == 0:
        for j in range(half):
            first, second = widen(row[j]), widen(row[half + j])
            out[j] = narrow(first * cos[j] + second * sin[j], row[j])
            out[half + j] = narrow(second * cos[half + j] + first * sin[half + j], row[j])
        return
    scale = inverse_rms(row, eps)
    for j in range(half):
        first, second = widen(row[j]) * scale * widen(norm[j]), widen(row[half + j]) * scale * widen(norm[half + j])
        out[j] = narrow(first * cos[j] + second * sin[j], row[j])
        out[half + j] = narrow(second * cos[half + j] + first * sin[half + j], row[j])
