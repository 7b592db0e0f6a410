"""The numbers of `kernels.uniform`, computed in a kernel: SplitMix64 over (seed, position)."""

from __future__ import annotations

import triton
import triton.language as tl

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_A = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_B = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * tl.full([1], _MIX_A, dtype=tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([1], _MIX_B, dtype=tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def uniform_number(seed, position):
    """A float64 in [0, 1), of shape [1], for an int64 seed and position; the bits of the seed are what counts."""
    step = tl.full([1], _STEP, dtype=tl.uint64)
    start = _mix(seed.to(tl.uint64) + step)
    bits = _mix(start + (position + 1).to(tl.uint64) * step)
    return (bits >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)
