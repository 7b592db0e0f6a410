"""Keys and values in eight bits: rounding them into the paged cache, and reading codes as numbers in registers.

Layout and rounding are those of `kernels.kv_codes`: in a block lie first all codes, then all scales.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.kv_store import launch_store, store_types
from kernels.gpu.launch import Variant, power_of_two, type_name
from kernels.kv_codes import LARGEST, SCALE_BYTES, SMALLEST

NONE, INT8, FP8 = 0, 1, 2  # what a kernel's KV says of the caches
CODES = {torch.int8: INT8, torch.uint8: FP8}
_INT8, _FP8 = tl.constexpr(INT8), tl.constexpr(FP8)
_INT8_MAX, _FP8_MAX = (tl.constexpr(LARGEST[dtype]) for dtype in (torch.int8, torch.uint8))
_SMALLEST = tl.constexpr(SMALLEST)
_SCALE_BYTES = tl.constexpr(SCALE_BYTES)
_SHIFT = tl.constexpr(12582912.0)  # 1.5 x 2^23: added, it rounds to a whole number, ties to even
# No fused multiplication and addition: a code must be that of the rounded product, as on a CPU.
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def as_numbers(codes, KV: tl.constexpr):
    """Codes as float32, without their scales. An E4M3's bits, moved, are a float16's that is smaller by 2^8."""
    if KV == _INT8:
        return codes.to(tl.float32)
    wide = codes.to(tl.int16) & 0xFF
    bits = ((wide & 0x7F) << 7) | ((wide & 0x80) << 8)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def scale_of(cache_ptr, block, offset, kv_head, kv_heads, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """The addresses of the scales of tokens in blocks of a cache, whose pointer is to bytes."""
    width = kv_heads * HEAD_DIM
    first = block * (BLOCK_SIZE * (width + _SCALE_BYTES * kv_heads)) + BLOCK_SIZE * width
    byte = first + (offset * kv_heads + kv_head) * _SCALE_BYTES
    return (cache_ptr + byte).to(tl.pointer_type(tl.bfloat16))


@triton.jit
def _encode(x, KV: tl.constexpr):
    """Codes of rows, in the lowest byte, and their scales as float32: rows of heads."""
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # as whole numbers: NaN is the largest
    peak = tl.max(size, axis=1).to(tl.float32, bitcast=True)
    largest = _INT8_MAX if KV == _INT8 else _FP8_MAX
    exact = tl.div_rn(peak, tl.zeros_like(peak) + largest)
    up = ((exact.to(tl.int32, bitcast=True) + 0xFFFF) & -65536).to(tl.float32, bitcast=True)
    scale = tl.where(peak < _SMALLEST, 0.0, tl.where(exact < float("inf"), up, exact))
    inverse = tl.where(scale > 0, tl.div_rn(tl.zeros_like(scale) + 1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    y = x * inverse[:, None]
    y = tl.where(y > -largest, y, -largest)  # also of NaN
    y = tl.where(y < largest, y, largest)
    if KV == _INT8:
        return (y + _SHIFT).to(tl.int32, bitcast=True), scale
    bits = y.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960  # (127 - 7) x 8: exponents, above three bits
    small = (size.to(tl.float32, bitcast=True) * 512.0 + _SHIFT).to(tl.int32, bitcast=True) & 0xFF
    found = tl.where(size.to(tl.float32, bitcast=True) >= 0.015625, normal, small)
    return found | ((bits >> 24) & 0x80), scale


@triton.jit
def _store_codes_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    num_slots,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    KV: tl.constexpr,
):
    """Codes and scales of row `token` of k, and of v, into slots[token]. A slot outside of the cache is left out."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if (slot >= 0) & (slot < num_slots):
        head, dim = tl.arange(0, HEADS), tl.arange(0, DIMS)
        mask = (head < KV_HEADS)[:, None] & (dim < HEAD_DIM)[None, :]
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        first = block * (BLOCK_SIZE * KV_HEADS * (HEAD_DIM + _SCALE_BYTES))
        place = first + (offset * KV_HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
        k = tl.load(k_ptr + token * k_token_stride + head[:, None] * k_head_stride + dim[None, :], mask=mask, other=0.0)
        codes, scale = _encode(k.to(tl.float32), KV)
        tl.store(k_cache_ptr + place, codes.to(k_cache_ptr.dtype.element_ty), mask=mask)
        at = scale_of(k_cache_ptr, block, offset, head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        tl.store(at, scale.to(tl.bfloat16), mask=head < KV_HEADS)
        v = tl.load(v_ptr + token * v_token_stride + head[:, None] * v_head_stride + dim[None, :], mask=mask, other=0.0)
        codes, scale = _encode(v.to(tl.float32), KV)
        tl.store(v_cache_ptr + place, codes.to(v_cache_ptr.dtype.element_ty), mask=mask)
        at = scale_of(v_cache_ptr, block, offset, head, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        tl.store(at, scale.to(tl.bfloat16), mask=head < KV_HEADS)


def store_codes(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """`store_kv` into caches of codes, [num_blocks, block_size, kv_heads, head_dim + 2], int8 or uint8. Changes them.

    Shapes: k, v: [num_tokens, kv_heads, head_dim], any token and head stride; slots: [num_tokens], int64, no slot
    twice; a negative one writes nothing. Bytes moved: k and v once in, half of that out.
    """
    constants = _constants(k.shape[1], k.shape[2], k_cache.shape[1], CODES[k_cache.dtype])
    launch_store(_store_codes_kernel, k, v, k_cache, v_cache, slots, {**constants, **_OPTIONS})


def _constants(kv_heads: int, head_dim: int, block_size: int, kv: int) -> dict[str, int]:
    sizes = {"KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size}
    return {**sizes, "HEADS": power_of_two(kv_heads), "DIMS": power_of_two(head_dim), "KV": kv}


def variants(arch: int) -> Iterator[Variant]:
    """KV heads and sizes of common models, both kinds of codes."""
    for kv_heads, head_dim, dtype in [(4, 64, torch.float32), (8, 128, torch.bfloat16), (32, 128, torch.float16)]:
        for codes, kv in CODES.items():
            yield Variant(
                f"{type_name(dtype)} to {'int8' if kv == INT8 else 'fp8'} kv_heads={kv_heads} head_dim={head_dim}",
                _store_codes_kernel,
                store_types(dtype, codes),
                _constants(kv_heads, head_dim, 16, kv),
                _OPTIONS,
            )
