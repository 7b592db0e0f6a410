"""The steps of `kernels.cpu.paged_attention` in float32: for caches in float32, and for those in bfloat16 that
`attention_tiles` and `attention_pairs` do not take.

A row of a product depends on that row alone, and is summed in the order of its dimensions or keys. Packed rows have a
multiple of 32 elements, zeros past a head's width; counts of keys are padded to 32. Compiled code only.

Shapes, in float32 here and in bfloat16 in the other two: queries: [rows, width]; keys, values: [KEY_BLOCK x width],
one block of keys, packed; staged: [TILE_ROWS, width], scratch; probs: [TILE_ROWS, KEY_BLOCK]. In float32 in all:
scores: [TILE_ROWS, KEY_BLOCK]; product: [TILE_ROWS, width]. `block` is (cache, head, slots of its keys, their count).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.dtypes import widen
from kernels.cpu.exp import exp32
from kernels.cpu.instructions import has_avx512
from kernels.cpu.numba_options import EXACT
from kernels.cpu.sums import sum_of
from kernels.cpu.vector import product as micro_kernel
from kernels.cpu.vector import transpose

# Accumulators stay in registers: sixteen of AVX-512's 32, or eight of AVX2's 16, where twice as many take 1.4 times as
# long. Eight keep two units with four cycles of delay busy; with sixteen each load is used by more of them.
ROWS, COLUMNS = 4, 64 if has_avx512() else 16
_product = micro_kernel(ROWS, COLUMNS // 16)
_rest_product = micro_kernel(ROWS, 2)  # of the last 32 columns


def configure(probs, before):
    """Vector registers need none."""


def restore(probs, before):
    """There is nothing to restore."""


@njit(**EXACT)
def _widen_row(target, source):
    for j in range(np.uintp(source.shape[0])):
        target[j] = widen(source[j])


def ask(keys, block):
    """Nothing is asked for before `pack_keys`."""


def look_ahead(values, block):
    """What is read next is not asked for either."""


def load_query(target, source):
    """Widens a query."""
    _widen_row(target, source)


def find_slots(keys, table, start, count, block_size, slots):
    """Slots of the keys from `start` on."""
    block, offset = divmod(start, block_size)
    for i in range(count):
        slots[i] = table[block] * block_size + offset
        offset += 1
        if offset == block_size:
            block, offset = block + 1, 0


def pack_keys(keys, block, staged):
    """Keys as the right operand of `q k^T`: [dimensions, keys]; zeros past the last key."""
    (cache, head, slots, count), width = block, staged.shape[1]
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


def pack_values(values, block, staged):
    """Values as the right operand of `p v`: [keys, dimensions]; zeros past the last key."""
    (cache, head, slots, count), width = block, staged.shape[1]
    for i in range((count + 31) // 32 * 32):
        row = values[i * width : (i + 1) * width]
        if i < count:
            _widen_row(row, cache[slots[i], head])
        else:
            row[:] = 0


@njit(**EXACT)
def _multiply(left, right, right_stride, num_rows, depth, columns, out):
    """`out[:num_rows, :columns] = left[:num_rows, :depth] @ right`; `right` is an address, its stride in bytes."""
    left_stride, out_stride = left.shape[1] * 4, out.shape[1] * 4
    for row in range(0, num_rows, ROWS):
        own, into = left[row].ctypes.data, out[row].ctypes.data
        first = 0
        while first + COLUMNS <= columns:
            _product(own, left_stride, right + first * 4, right_stride, depth, into + first * 4, out_stride, left)
            first += COLUMNS
        if first < columns:
            _rest_product(own, left_stride, right + first * 4, right_stride, depth, into + first * 4, out_stride, left)


def score(queries, keys, values, block, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`."""
    _multiply(queries, keys.ctypes.data, scores.shape[1] * 4, num_rows, queries.shape[1], padded, scores)


def exponentiate(probs, scores, row_max, scale):
    """`exp(scale (s - row_max))` of each, and their sum."""
    for j in range(np.uintp(scores.shape[0])):
        probs[j] = exp32((scores[j] - row_max) * scale)
    return sum_of(probs.ctypes.data, probs.shape[0], probs)


def weigh_values(probs, values, block, staged, num_rows, padded, product):
    """`product = probs[:, :padded] @ values`."""
    _multiply(probs, values.ctypes.data, product.shape[1] * 4, num_rows, padded, product.shape[1], product)
