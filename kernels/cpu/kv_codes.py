"""Keys and values in eight bits, in compiled code: rounding them on the way into the cache, reading them back.

The layout is that of `kernels.kv_codes`, and so are the roundings, to the bit. Codes become numbers without their
scales, exactly, in float32 and in bfloat16; an E4M3's come out smaller by `FP8_FACTOR`, which its scale makes good.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu.block_vectors import FP8_FACTOR, widen_e4m3, widen_whole
from kernels.cpu.dtypes import UINT8, UINT16, widen
from kernels.cpu.memory import carray, copy, elements_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.vector import LANES
from kernels.kv_codes import LARGEST, SCALE_BYTES, SMALLEST, TILE_KEYS, is_quantised

__all__ = ["code_of", "load_scales", "spread_as_floats", "spread_as_pairs", "store_codes", "tile_of_codes"]

NONE, INT8, FP8 = 0, 1, 2  # what a task says of its caches
_INT8_MAX, _FP8_MAX = (np.float32(LARGEST[dtype]) for dtype in (torch.int8, torch.uint8))
_SMALLEST_BITS = np.float32(SMALLEST).view(np.uint32)
_SHIFT = np.float32(12582912.0)  # 1.5 x 2^23: added, it rounds to a whole number, whose low byte is the sum's
_SMALLEST_NORMAL, _SUBNORMALS = np.float32(2.0**-6), np.float32(2.0**9)  # of E4M3, and what makes those whole
_BIAS = np.uint32((127 - 7) << 3)  # between the exponents of float32 and E4M3, above its three bits
_FACTOR = np.float32(FP8_FACTOR)
_BYTES, _FLOATS = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.FloatType(), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)


def code_of(cache: Tensor) -> int:
    """What a task says of such a cache."""
    return NONE if not is_quantised(cache) else INT8 if cache.dtype == torch.int8 else FP8


@njit(**EXACT)
def tile_of_codes(cache, slot, head, kv_heads, row):
    """The address of a head's codes for the sixteen slots from `slot` on; `row` is bytes of a head of a token."""
    return cache + (slot * kv_heads + head * TILE_KEYS) * row


@njit(**EXACT)
def _rounded_up(value):
    bits = np.float32(value).view(np.uint32)
    if bits >= np.uint32(0x7F800000):
        return np.float32(value)
    return np.uint32((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


@njit(**EXACT)
def _whole(value):
    """The nearest whole number's low byte, ties to even."""
    return np.uint32(np.float32(value + _SHIFT).view(np.uint32) & np.uint32(0xFF))


@njit(**EXACT)
def _e4m3(value):
    """The bits of the nearest E4M3, ties to even, of what is not larger than the largest."""
    bits = np.float32(value).view(np.uint32)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    number = size.view(np.float32)
    rounded = np.uint32((size + np.uint32(0x7FFFF) + ((size >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)) - _BIAS
    found = rounded if number >= _SMALLEST_NORMAL else _whole(number * _SUBNORMALS)
    return np.uint32(found | ((bits >> np.uint32(24)) & np.uint32(0x80)))


@njit(**EXACT)
def _encode(row, codes, kind):
    """Codes of a row of a head, and its scale. What is not finite makes the scale so too."""
    width, peak = np.uintp(row.shape[0]), np.uint32(0)
    for j in range(width):
        size = np.float32(widen(row[j])).view(np.uint32) & np.uint32(0x7FFFFFFF)  # as whole numbers: NaN is the largest
        peak = size if size > peak else peak
    largest = _INT8_MAX if kind == INT8 else _FP8_MAX
    scale = _rounded_up(np.uint32(peak).view(np.float32) / largest) if peak >= _SMALLEST_BITS else np.float32(0)
    inverse = np.float32(1) / scale if scale > np.float32(0) else np.float32(0)
    if kind == INT8:
        for j in range(width):
            value = widen(row[j]) * inverse
            value = value if value > -largest else -largest  # also of NaN
            codes[j] = np.uint8(_whole(value if value < largest else largest))
    else:
        for j in range(width):
            value = widen(row[j]) * inverse
            value = value if value > -largest else -largest
            codes[j] = np.uint8(_e4m3(value if value < largest else largest))
    return scale


@njit(**EXACT)
def store_codes(row, cache, slot, head, kv_heads, are_keys, codes, kind):
    """A head's key or value into a cache, which is an address. Changes `codes`, [head_dim], uint8."""
    width, bytes_ = np.uintp(row.shape[0]), row.shape[0] + SCALE_BYTES
    first, own = slot // TILE_KEYS * TILE_KEYS, slot % TILE_KEYS
    base = tile_of_codes(cache, first, head, kv_heads, bytes_)
    scale = _encode(row, codes, kind)
    if are_keys:
        tile = carray(elements_at(base + own, UINT8), (TILE_KEYS * row.shape[0],))
        for j in range(width):
            tile[np.uintp(TILE_KEYS) * j] = codes[j]
    else:
        copy(codes.ctypes.data, base + own * row.shape[0], row.shape[0])
    scales = carray(elements_at(base + TILE_KEYS * row.shape[0], UINT16), (TILE_KEYS,))
    scales[own] = np.uint16(np.float32(scale).view(np.uint32) >> np.uint32(16))


@njit(**EXACT)
def load_scales(cache, slots, head, kv_heads, count, head_dim, kind, scales):
    """Scales of so many keys, or values, from the first one's slot on, as float32: what numbers are multiplied with."""
    factor = _FACTOR if kind == FP8 else np.float32(1)
    for first in range(0, count, TILE_KEYS):
        base = tile_of_codes(cache, slots[first], head, kv_heads, head_dim + SCALE_BYTES)
        own = carray(elements_at(base + TILE_KEYS * head_dim, UINT16), (TILE_KEYS,))
        for j in range(np.uintp(TILE_KEYS)):
            scales[np.uintp(first) + j] = widen(own[j]) * factor


def _numbers(builder: ir.IRBuilder, address: ir.Value, kind: int) -> ir.Value:
    codes = builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)
    return (widen_whole if kind == INT8 else widen_e4m3)(builder, codes)


def _spread_as_floats(kind: int) -> Callable[..., None]:
    @intrinsic
    def spread(context, source, source_step, target, target_step, count):
        def generate(context, builder, signature, arguments):
            source, source_step, target, target_step, count = arguments
            with cgutils.for_range(builder, count) as loop:
                found = _numbers(builder, builder.add(source, builder.mul(loop.index, source_step)), kind)
                into = builder.add(target, builder.mul(loop.index, target_step))
                builder.store(found, builder.inttoptr(into, _FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return spread


def _spread_as_pairs(kind: int) -> Callable[..., None]:
    @intrinsic
    def spread(context, lower, upper, source_step, target, count):
        def generate(context, builder, signature, arguments):
            lower, upper, source_step, target, count = arguments
            sixteen, high = (ir.Constant(_WORDS, [word] * LANES) for word in (16, 0xFFFF0000))
            with cgutils.for_range(builder, count) as loop:
                offset = builder.mul(loop.index, source_step)
                low, up = (
                    builder.bitcast(_numbers(builder, builder.add(base, offset), kind), _WORDS)
                    for base in (lower, upper)
                )
                words = builder.or_(builder.lshr(low, sixteen), builder.and_(up, high))
                into = builder.add(target, builder.mul(loop.index, count.type(4 * LANES)))
                builder.store(words, builder.inttoptr(into, _WORDS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 5), generate

    return spread


_int8_floats, _fp8_floats = _spread_as_floats(INT8), _spread_as_floats(FP8)
_int8_pairs, _fp8_pairs = _spread_as_pairs(INT8), _spread_as_pairs(FP8)


@njit(**EXACT)
def spread_as_floats(source, source_step, target, target_step, count, kind):
    """So many times sixteen codes as float32; addresses, and steps between them in bytes."""
    if kind == INT8:
        _int8_floats(source, source_step, target, target_step, count)
    else:
        _fp8_floats(source, source_step, target, target_step, count)


@njit(**EXACT)
def spread_as_pairs(lower, upper, source_step, target, count, kind):
    """So many times sixteen codes and sixteen others as pairs of bfloat16, one after the other."""
    if kind == INT8:
        _int8_pairs(lower, upper, source_step, target, count)
    else:
        _fp8_pairs(lower, upper, source_step, target, count)
