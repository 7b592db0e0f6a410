"""What the compiled kernels of this folder share: numbers of two types, `exp`, and arrays that begin a cache line.

numba has no bfloat16. Its bits are the upper half of a float32, so kernels take them as uint16, widen on load and round
on store; all arithmetic is float32. The functions are told apart by type at compile time.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numba
import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

__all__ = ["EXACT", "FUSED", "SUMS", "exp32", "has_kernels", "lines", "narrow", "widen"]


def _cache_folder() -> Path:
    """Beside the source where that may be written, else with the user's other caches. NUMBA_CACHE_DIR wins."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen)
    here = Path(__file__).parent
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()[:16]
    beside = here / "__pycache__"
    if os.access(beside if beside.exists() else here, os.W_OK):
        return beside / f"compiled-{sources}"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fleetctl" / f"kernels-{sources}"


# Compiled once on a machine: loading takes milliseconds. numba looks at one file's age, not at what it calls, so what
# was compiled from other sources lies in another folder.
numba.config.CACHE_DIR = str(_cache_folder())
# `fastmath` is always said: a function without it takes its first caller's, and `exp32` is wrong when regrouped.
EXACT = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": False}
# A product and a sum may be one instruction: the same one in every loop that the function is part of.
FUSED = {**EXACT, "fastmath": {"contract"}}
# Sums may be grouped into vectors. How, is settled when the kernel is compiled: a row's bits depend on that row alone.
SUMS = {**EXACT, "fastmath": {"reassoc", "contract", "nsz"}}
_TYPES = ({torch.float32}, {torch.bfloat16})


def has_kernels(*tensors: Tensor) -> bool:
    """Whether the kernels of this folder take these tensors: on a CPU, all float32 or all bfloat16."""
    return {t.dtype for t in tensors} in _TYPES and all(t.device.type == "cpu" for t in tensors)


def widen(value):
    """A stored number as float32."""
    raise NotImplementedError("inside compiled code only")


def narrow(value, like):
    """A float32 as it is stored in an array whose elements are like `like`: rounded to even."""
    raise NotImplementedError("inside compiled code only")


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(narrow)
def _narrow(value, like):
    if like == types.uint16:
        return lambda value, like: _round(value)
    return lambda value, like: np.float32(value)


@njit(**EXACT)
def lines(num_lines, width, like):
    """[num_lines, width] zeros like `like`'s elements, from the start of a cache line on.

    numba frees an array after the last line that names it: an address of it is good only as long as the array is used.
    """
    whole = np.zeros(num_lines * width + 64, like.dtype)
    start = np.uintp((64 - whole.ctypes.data % 64) // like.itemsize)
    return whole[start : start + np.uintp(num_lines * width)].reshape(num_lines, width)


@njit(**EXACT)
def _round(value):
    bits = np.float32(value).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Adding to a NaN's bits could carry into infinity.
    return np.uint16(0x7FC0) if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else np.uint16(rounded)


# Of `exp32`: limits of x, log2(e), 1.5 x 2^23 (adding it rounds to a whole number), ln(2) in two parts, and the terms
# of the polynomial, falling.
EXP_LIMITS = (-87.0, 88.0)
EXP_LOG2_E = 1.44269504
EXP_SHIFT = 12582912.0
EXP_LN2 = (0.693359375, -2.12194440e-4)
EXP_TERMS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


@njit(**FUSED)
def exp32(x):
    """`e ** x` of a float32 to 2 units in the last place, without a call, so that loops over it become vector code.

    Range reduction and the degree-6 polynomial of Cephes' `expf` (Moshier, netlib.org/cephes). NaN stays NaN.
    """
    # Comparisons, not min and max: numba makes those of two float32 a float64.
    limited = x if x > np.float32(EXP_LIMITS[0]) else np.float32(EXP_LIMITS[0])
    limited = limited if limited < np.float32(EXP_LIMITS[1]) else np.float32(EXP_LIMITS[1])
    shifted = limited * np.float32(EXP_LOG2_E) + np.float32(EXP_SHIFT)
    whole = shifted - np.float32(EXP_SHIFT)
    rest = limited - whole * np.float32(EXP_LN2[0])
    rest = rest - whole * np.float32(EXP_LN2[1])
    sum_ = np.float32(EXP_TERMS[0])
    sum_ = sum_ * rest + np.float32(EXP_TERMS[1])
    sum_ = sum_ * rest + np.float32(EXP_TERMS[2])
    sum_ = sum_ * rest + np.float32(EXP_TERMS[3])
    sum_ = sum_ * rest + np.float32(EXP_TERMS[4])
    sum_ = sum_ * rest + np.float32(EXP_TERMS[5])
    sum_ = sum_ * rest * rest + rest + np.float32(1.0)
    exponent = np.uint32(np.float32(shifted).view(np.uint32) - np.uint32(0x4B400000) + np.uint32(127))
    return sum_ * np.uint32(exponent << np.uint32(23)).view(np.float32) if x == x else x
