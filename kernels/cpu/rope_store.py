"""`kernels.rope_store` in one pass: head norms, rotation, and keys and values into the cache."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import EXACT, SUMS, array, narrow, widen
from kernels.cpu.rms_norm import inverse_rms
from kernels.cpu.threads import over_rows


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
    kv_heads, width = k_cache.shape[2:]
    rows = array(qkv).reshape(qkv.shape[0], -1, width)
    q = torch.empty((qkv.shape[0], rows.shape[1] - 2 * kv_heads, width), dtype=qkv.dtype)
    none = array(qkv[0, :0])
    caches = (array(k_cache).reshape(-1, kv_heads, width), array(v_cache).reshape(-1, kv_heads, width))
    norms = (none if q_norm is None else array(q_norm), none if k_norm is None else array(k_norm), np.float32(eps))
    over_rows(_store, rows.shape[0], rows.size, rows, array(cos), array(sin), *caches, slots.numpy(), *norms, array(q))
    return q


@njit(**EXACT)
def _store(begin, end, qkv, cos, sin, k_cache, v_cache, slots, q_norm, k_norm, eps, q):
    heads, kv_heads = q.shape[1], k_cache.shape[1]
    for i in range(begin, end):
        for head in range(heads):
            _turn(qkv[i, head], cos[i], sin[i], q_norm, eps, q[i, head])
        if i >= slots.shape[0]:
            continue  # padding
        slot = slots[i]
        for head in range(kv_heads):
            _turn(qkv[i, heads + head], cos[i], sin[i], k_norm, eps, k_cache[slot, head])
            v_cache[slot, head, :] = qkv[i, heads + kv_heads + head]


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
