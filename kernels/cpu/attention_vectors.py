"""The parts of `kernels.cpu.paged_attention` in float32: for caches in float32, and for others in bfloat16 than
`attention_tiles` takes.

A row of a product depends on that row alone, and is summed in the order of its dimensions or keys. Packed rows have a
multiple of 32 numbers, zeros past a head's width; counts of keys are padded to 32.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.number import EXACT, exp32, widen
from kernels.cpu.vector import PRODUCT_COLUMNS, PRODUCT_ROWS, product, transpose


def begin(shares, before):
    pass


def end(shares, before):
    pass


@njit(**EXACT)
def _widen_row(target, source):
    for j in range(np.uintp(source.shape[0])):
        target[j] = widen(source[j])


def take(target, source):
    _widen_row(target, source)


def pack_keys(keys, cache, head, slots, count, staged):
    """Keys as the right operand of `q k^T`: [dimensions, keys]; zeros past the last key."""
    width = staged.shape[1]
    stride = keys.shape[0] // width * 4
    for first in range(0, (count + 31) // 32 * 32, 16):
        for i in range(16):
            if first + i < count:
                _widen_row(staged[i], cache[slots[first + i], head])
            else:
                staged[i, :] = 0
        for part in range(0, width, 16):
            target = keys.ctypes.data + part * stride + first * 4
            transpose(staged.ctypes.data + part * 4, width * 4, target, stride)


def pack_values(values, cache, head, slots, count, staged):
    """Values as the right operand of `p v`: [keys, dimensions]; zeros past the last key."""
    width = staged.shape[1]
    for i in range((count + 31) // 32 * 32):
        line = values[i * width : (i + 1) * width]
        if i < count:
            _widen_row(line, cache[slots[i], head])
        else:
            line[:] = 0


def score(queries, keys, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`."""
    width, num_keys = queries.shape[1], scores.shape[1]
    for row in range(0, num_rows, PRODUCT_ROWS):
        for first in range(0, padded, PRODUCT_COLUMNS):
            product(
                queries[row].ctypes.data,
                width * 4,
                keys.ctypes.data + first * 4,
                num_keys * 4,
                width,
                scores[row].ctypes.data + first * 4,
                num_keys * 4,
            )


def share_out(shares, scores, peak, scale):
    """`exp(scale (s - peak))` of each, and their sum."""
    total = np.float32(0)
    for j in range(np.uintp(scores.shape[0])):
        share = exp32((scores[j] - peak) * scale)
        total += share
        shares[j] = share
    return total


def weigh(shares, values, num_rows, padded, added):
    """`added = shares[:, :padded] @ values`."""
    width, num_keys = added.shape[1], shares.shape[1]
    for row in range(0, num_rows, PRODUCT_ROWS):
        for first in range(0, width, PRODUCT_COLUMNS):
            product(
                shares[row].ctypes.data,
                num_keys * 4,
                values.ctypes.data + first * 4,
                width * 4,
                padded,
                added[row].ctypes.data + first * 4,
                width * 4,
            )
