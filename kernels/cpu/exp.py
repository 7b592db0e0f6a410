"""Exponentials of float32 in compiled code, without a call, so that loops over them become vector code.

Where a product and a sum are one instruction is said (`fused`), so that the bits are the same in every loop.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.numba_options import EXACT

__all__ = ["EXP_LIMITS", "EXP_LN2", "EXP_LOG2_E", "EXP_SHIFT", "EXP_TERMS", "exp2", "exp32", "fused"]

# Of `exp32`: limits of x, log2(e), 1.5 x 2^23 (adding it rounds to an integer), ln(2) in two parts, and the
# polynomial's coefficients, highest power first.
EXP_LIMITS = (-87.0, 88.0)
EXP_LOG2_E = 1.44269504
EXP_SHIFT = 12582912.0
EXP_LN2 = (0.693359375, -2.12194440e-4)
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


@intrinsic
def fused(context, left, right, added):
    """`left * right + added` of float32, rounded once where the CPU can; compiled code only."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.f32"), arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@njit(**EXACT)
def exp32(x):
    """`e ** x` of a float32, within 2 ulp; x is clamped to `EXP_LIMITS`, NaN stays NaN.

    Range reduction and the degree-6 polynomial of Cephes' `expf` (Moshier, netlib.org/cephes).
    """
    # Comparisons, not min and max: numba makes those of two float32 a float64.
    limited = x if x > np.float32(EXP_LIMITS[0]) else np.float32(EXP_LIMITS[0])
    limited = limited if limited < np.float32(EXP_LIMITS[1]) else np.float32(EXP_LIMITS[1])
    shifted = fused(limited, np.float32(EXP_LOG2_E), np.float32(EXP_SHIFT))
    whole = shifted - np.float32(EXP_SHIFT)
    rest = fused(whole, np.float32(-EXP_LN2[0]), limited)
    rest = fused(whole, np.float32(-EXP_LN2[1]), rest)
    sum_ = np.float32(EXP_TERMS[0])
    sum_ = fused(sum_, rest, np.float32(EXP_TERMS[1]))
    sum_ = fused(sum_, rest, np.float32(EXP_TERMS[2]))
    sum_ = fused(sum_, rest, np.float32(EXP_TERMS[3]))
    sum_ = fused(sum_, rest, np.float32(EXP_TERMS[4]))
    sum_ = fused(sum_, rest, np.float32(EXP_TERMS[5]))
    sum_ = fused(np.float32(sum_ * rest), rest, rest) + np.float32(1.0)
    exponent = np.uint32(np.float32(shifted).view(np.uint32) - np.uint32(0x4B400000) + np.uint32(127))
    return sum_ * np.uint32(exponent << np.uint32(23)).view(np.float32) if x == x else x


@njit(**EXACT)
def exp2(x):
    """`2 ** x` of a float32 that is not positive, relative error 4e-6; x is clamped to -126, NaN stays NaN.

    Range reduction to [-1/2, 1/2] and a degree-4 Chebyshev polynomial: enough where the result is rounded to bfloat16.
    """
    limited = np.float32(-126.0) if x < np.float32(-126.0) else x
    shifted = limited + np.float32(EXP_SHIFT)
    rest = limited - (shifted - np.float32(EXP_SHIFT))
    sum_ = np.float32(9.66637e-3)
    sum_ = fused(sum_, rest, np.float32(5.592198e-2))
    sum_ = fused(sum_, rest, np.float32(2.4022349e-1))
    sum_ = fused(sum_, rest, np.float32(6.9312105e-1))
    sum_ = fused(sum_, rest, np.float32(1.0))
    power = np.float32(shifted).view(np.uint32) << np.uint32(23)
    return np.uint32(np.float32(sum_).view(np.uint32) + power).view(np.float32)
