"""What `kernels.cpu.paged_attention` does besides where caches hold keys and values in eight bits (`kv_codes`).

Codes become numbers without their scales, exactly, block of keys by block of keys: in tiles of bfloat16 that the other
modules' steps then take for the cache, or in float32 where they expect them packed. A key's scale multiplies its
scores, a value's scale its probs: one number for a row of the product instead of one for each element.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import overload

from kernels.cpu.kv_codes import load_scales, spread_as_floats, spread_as_pairs, tile_of_codes
from kernels.cpu.memory import prefetch_l2
from kernels.cpu.numba_options import EXACT
from kernels.kv_codes import SCALE_BYTES, TILE_KEYS

__all__ = ["open_keys", "open_values", "scale_probs", "scale_scores"]

_LANES = 16


@njit(**EXACT)
def _ask(block, width, kv_heads):
    """Asks for all tiles of a block."""
    cache, head, slots, count = block
    bytes_ = width + SCALE_BYTES
    for first in range(0, count, TILE_KEYS):
        prefetch_l2(tile_of_codes(cache.ctypes.data, slots[first], head, kv_heads, bytes_), TILE_KEYS * bytes_)


@njit(**EXACT)
def _keys_as_pairs(block, sizes, keys, spread, scales):
    (cache, head, slots, count), (width, kv_heads, kind) = block, sizes
    padded, at = spread.shape[2], cache.ctypes.data
    load_scales(at, slots, head, kv_heads, count, width, kind, scales)
    for first in range(0, count, TILE_KEYS):
        tile = tile_of_codes(at, slots[first], head, kv_heads, width + SCALE_BYTES)
        target = spread.ctypes.data + first * padded * 2
        spread_as_pairs(tile, tile + TILE_KEYS, 2 * TILE_KEYS, target, width // 2, kind)


@njit(**EXACT)
def _values_as_pairs(block, sizes, values, spread, scales):
    (cache, head, slots, count), (width, kv_heads, kind) = block, sizes
    padded, at, vectors = spread.shape[2], cache.ctypes.data, (width + _LANES - 1) // _LANES
    load_scales(at, slots, head, kv_heads, count, width, kind, scales)
    for first in range(0, count, TILE_KEYS):
        tile = tile_of_codes(at, slots[first], head, kv_heads, width + SCALE_BYTES)
        target = spread.ctypes.data + first * padded * 2
        for pair in range(TILE_KEYS // 2):
            row = tile + 2 * pair * width
            spread_as_pairs(row, row + width, _LANES, target + pair * padded * 4, vectors, kind)


@njit(**EXACT)
def _keys_as_floats(block, sizes, keys, scales):
    """As the right operand of `q k^T`: [dimensions, keys]. Past the last key lies something."""
    (cache, head, slots, count), (width, kv_heads, kind) = block, sizes
    at, stride = cache.ctypes.data, scales.shape[0] * 4
    load_scales(at, slots, head, kv_heads, count, width, kind, scales)
    for first in range(0, count, TILE_KEYS):
        tile = tile_of_codes(at, slots[first], head, kv_heads, width + SCALE_BYTES)
        spread_as_floats(tile, TILE_KEYS, keys.ctypes.data + first * 4, stride, width, kind)


@njit(**EXACT)
def _values_as_floats(block, sizes, values, scales):
    """As the right operand of `p v`: [keys, dimensions]. Past the last key lie numbers, which meet probs of 0."""
    (cache, head, slots, count), (width, kv_heads, kind) = block, sizes
    at, padded, vectors = cache.ctypes.data, values.shape[0] // scales.shape[0], (width + _LANES - 1) // _LANES
    load_scales(at, slots, head, kv_heads, count, width, kind, scales)
    for first in range(0, count, TILE_KEYS):
        tile = tile_of_codes(at, slots[first], head, kv_heads, width + SCALE_BYTES)
        for i in range(TILE_KEYS):
            target = values.ctypes.data + (first + i) * padded * 4
            spread_as_floats(tile + i * width, _LANES, target, 4 * _LANES, vectors, kind)


def _opening(as_pairs, as_floats):
    """A step in compiled code: a block of a cache as what the next steps take for one, its scales beside it.

    A cache of numbers is that itself. `spread` is [KEY_BLOCK, 1, width] for tiles of bfloat16, with slots of its own.
    """

    def open_block(block, sizes, packed, spread, own_slots, scales):
        raise NotImplementedError("inside compiled code only")

    @overload(open_block, strict=False, jit_options=EXACT)
    def choose(block, sizes, packed, spread, own_slots, scales):
        if block[0].dtype != types.uint8:
            return lambda block, sizes, packed, spread, own_slots, scales: block
        if packed.dtype == types.float32:

            def in_floats(block, sizes, packed, spread, own_slots, scales):
                _ask(block, sizes[0], sizes[1])
                as_floats(block, sizes, packed, scales)
                return block

            return in_floats

        def in_pairs(block, sizes, packed, spread, own_slots, scales):
            _ask(block, sizes[0], sizes[1])
            as_pairs(block, sizes, packed, spread, scales)
            return spread, 0, own_slots, block[3]

        return in_pairs

    return open_block


open_keys = _opening(_keys_as_pairs, _keys_as_floats)
open_values = _opening(_values_as_pairs, _values_as_floats)


def scale_scores(cache, scores, scales):
    """Multiplies each score with its key's scale; compiled code only, as all that follows."""
    raise NotImplementedError("inside compiled code only")


def scale_probs(cache, probs, scores, scales):
    """Multiplies each prob with its value's scale, from what it was before it was rounded, if `scores` has that."""
    raise NotImplementedError("inside compiled code only")


@overload(scale_scores, jit_options=EXACT)
def _scale_scores(cache, scores, scales):
    if cache.dtype != types.uint8:
        return lambda cache, scores, scales: None

    def multiply(cache, scores, scales):
        for j in range(np.uintp(scores.shape[0])):
            scores[j] *= scales[j]

    return multiply


@overload(scale_probs, jit_options=EXACT)
def _scale_probs(cache, probs, scores, scales):
    if cache.dtype != types.uint8:
        return lambda cache, probs, scores, scales: None
    if probs.dtype == types.float32:

        def multiply(cache, probs, scores, scales):
            for j in range(np.uintp(probs.shape[0])):
                probs[j] *= scales[j]

        return multiply

    def round_again(cache, probs, scores, scales):
        for j in range(np.uintp(probs.shape[0])):
            # Half rounds up: they are never negative. A scale's NaN has an empty lower half, a prob's is in the sum.
            bits = np.float32(scores[j] * scales[j]).view(np.uint32)
            probs[j] = np.uint16((bits + np.uint32(0x8000)) >> np.uint32(16))

    return round_again
