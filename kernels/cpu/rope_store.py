"""`kernels.rope_store` in one pass: head norms, rotation, and keys and values into the cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from kernels.cpu.crew import Crew, as_number, field, pieces_of, pointer, take_piece
from kernels.cpu.number import EXACT, SUMS, narrow, widen
from kernels.cpu.rms_norm import inverse_rms

PIECE_ROWS = 4


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
    q = torch.empty((qkv.shape[0], heads, width), dtype=qkv.dtype)
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    norms = (0 if norm is None else norm.data_ptr() for norm in (q_norm, k_norm))
    numbers = (qkv.shape[0], heads, kv_heads, width, slots.shape[0], num_slots, as_number(eps))
    tensors = (qkv, cos, sin, k_cache, v_cache, slots, q)
    _crew(pieces_of(qkv.numel()), qkv.element_size(), *numbers, *(t.data_ptr() for t in tensors), *norms)
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
    num_tokens, num_slots, eps = field(task, 6), field(task, 7), np.int32(field(task, 8)).view(np.float32)
    number = np.empty(0, np.float32)
    qkv = carray(pointer(task, 9, like), (rows, heads + 2 * kv_heads, width))
    cos, sin = carray(pointer(task, 10, number), (rows, width)), carray(pointer(task, 11, number), (rows, width))
    k_cache = carray(pointer(task, 12, like), (num_slots, kv_heads, width))
    v_cache = carray(pointer(task, 13, like), (num_slots, kv_heads, width))
    slots = carray(pointer(task, 14, np.empty(0, np.int64)), (num_tokens,))
    q = carray(pointer(task, 15, like), (rows, heads, width))
    q_norm = carray(pointer(task, 16, like), (width if field(task, 16) != 0 else 0,))
    k_norm = carray(pointer(task, 17, like), (width if field(task, 17) != 0 else 0,))
    first = take_piece(task) * PIECE_ROWS
    while first < rows:
        for i in range(first, min(first + PIECE_ROWS, rows)):
            for head in range(heads):
                _turn(qkv[i, head], cos[i], sin[i], q_norm, eps, q[i, head])
            if i >= num_tokens:
                continue  # padding
            for head in range(kv_heads):
                _turn(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, k_cache[slots[i], head])
                v_cache[slots[i], head, :] = qkv[i, heads + kv_heads + head]
        first = take_piece(task) * PIECE_ROWS


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
