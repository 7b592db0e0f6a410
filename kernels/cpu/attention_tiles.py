"""The parts of `kernels.cpu.paged_attention` on the matrix registers: bfloat16, as uint16.

A row of a product depends on that row alone, and is summed in the order of its dimensions or keys. `width` is a
multiple of 32; counts of keys are padded to 32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu import amx
from kernels.cpu.number import FUSED
from kernels.cpu.vector import copy, interleave, prefetch, transpose

AHEAD = 32  # keys between what is packed and what is asked from memory: 22 ms where none and 128 take 27
LOG2_E = np.float32(1.4426950408889634)

_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_left = amx.load(4)
_load_0, _load_1, _load_2, _load_3 = (amx.load(i) for i in (5, 6, 7, 5))
_dot_0, _dot_1, _dot_2, _dot_3 = (amx.dot(i, 4, right) for i, right in enumerate((5, 6, 7, 5)))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))


def begin(shares, before):
    """Sets the registers up; `before` [64] keeps how they were, for torch's products on the same thread."""
    amx.save(before.ctypes.data)
    amx.configure(amx.TILES_OF_16.ctypes.data)


def end(shares, before):
    amx.configure(before.ctypes.data)


def take(target, source):
    target[:] = source


def pack_keys(keys, cache, head, slots, count, staged):
    """Keys as the right operand of `q k^T`: [tiles of 16 keys, pairs of dimensions, 16, 2]; zeros past the last key."""
    line = cache.shape[2] * 2
    stride = cache.shape[1] * line
    base = cache.ctypes.data + head * line
    for first in range(0, (count + 31) // 32 * 32, 16):
        for i in range(first + AHEAD, min(first + AHEAD + 16, count)):
            prefetch(base + slots[i] * stride, line)
        here = max(min(count - first, 16), 0)
        source, step = base + slots[first] * stride, stride
        if here < 16 or slots[first + 15] - slots[first] != 15:
            staged[:] = 0
            for i in range(here):
                copy(base + slots[first + i] * stride, staged[i].ctypes.data, line)
            source, step = staged.ctypes.data, line
        target = keys.ctypes.data + first * line
        for part in range(0, line, 64):
            transpose(source + part, step, target + part * 16, 64)


def pack_values(values, cache, head, slots, count, staged):
    """Values as the right operand of `p v`: [pairs of keys, dimensions, 2]; zeros past the last key."""
    line = cache.shape[2] * 2
    stride = cache.shape[1] * line
    base = cache.ctypes.data + head * line
    staged[0, :] = 0
    nothing = staged.ctypes.data
    for first in range(0, (count + 31) // 32 * 32, 2):
        for i in range(first + AHEAD, min(first + AHEAD + 2, count)):
            prefetch(base + slots[i] * stride, line)
        low = base + slots[first] * stride if first < count else nothing
        high = base + slots[first + 1] * stride if first + 1 < count else nothing
        target = values.ctypes.data + first * line
        for part in range(0, line, 32):
            interleave(low + part, high + part, target + part * 2)


def score(queries, keys, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`, two tiles of keys at a time."""
    line = queries.shape[1] * 2
    stride = scores.shape[1] * 4
    for first in range(0, padded, 32):
        left, right = queries.ctypes.data, keys.ctypes.data + first * line
        _clear_0()
        _clear_1()
        for part in range(0, line, 64):
            _load_left(left + part, line)
            _load_0(right + part * 16, 64)
            _load_1(right + (line + part) * 16, 64)
            _dot_0()
            _dot_1()
        into = scores.ctypes.data + first * 4
        _store_0(into, stride)
        _store_1(into + 64, stride)


def share_out(shares, scores, peak, scale):
    """`exp(scale (s - peak))` of each, as stored, and their sum before they were rounded."""
    total, steps = np.float32(0), np.float32(scale * LOG2_E)
    for j in range(np.uintp(scores.shape[0])):
        share = _exp2((scores[j] - peak) * steps)
        total += share
        # Half rounds up: shares are never negative, and what is NaN is NaN in the sum.
        shares[j] = np.uint16((np.float32(share).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16))
    return total


@njit(**FUSED)
def _exp2(x):
    """`2 ** x` of a float32 that is not positive, to 4e-6 of it: Chebyshev's polynomial around a whole number."""
    limited = np.float32(-126.0) if x < np.float32(-126.0) else x
    shifted = limited + np.float32(12582912.0)  # 1.5 x 2^23: rounds to a whole number
    rest = limited - (shifted - np.float32(12582912.0))
    sum_ = np.float32(9.66637e-3)
    sum_ = sum_ * rest + np.float32(5.592198e-2)
    sum_ = sum_ * rest + np.float32(2.4022349e-1)
    sum_ = sum_ * rest + np.float32(6.9312105e-1)
    sum_ = sum_ * rest + np.float32(1.0)
    power = np.float32(shifted).view(np.uint32) << np.uint32(23)
    return np.uint32(np.float32(sum_).view(np.uint32) + power).view(np.float32)


def weigh(shares, values, num_rows, padded, added):
    """`added = shares[:, :padded] @ values`, 64 dimensions at a time, and the last 32."""
    width = added.shape[1]
    left, stride, step = shares.ctypes.data, shares.shape[1] * 2, width * 4
    for part in range(0, width, 64):
        right, into = values.ctypes.data + part * 4, added.ctypes.data + part * 4
        _clear_0()
        _clear_1()
        if part + 64 > width:
            for first in range(0, padded, 32):
                _load_left(left + first * 2, stride)
                _load_0(right + first // 2 * step, step)
                _load_1(right + first // 2 * step + 64, step)
                _dot_0()
                _dot_1()
            _store_0(into, step)
            _store_1(into + 64, step)
            continue
        _clear_2()
        _clear_3()
        for first in range(0, padded, 32):
            at = right + first // 2 * step
            _load_left(left + first * 2, stride)
            _load_0(at, step)
            _load_1(at + 64, step)
            _load_2(at + 128, step)
            _dot_0()
            _dot_1()
            _dot_2()
            _load_3(at + 192, step)
            _dot_3()
        _store_0(into, step)
        _store_1(into + 64, step)
        _store_2(into + 128, step)
        _store_3(into + 192, step)
