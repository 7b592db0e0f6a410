"""The dtypes of compiled kernels: float32, and bfloat16 as its bits.

numba has no bfloat16. Its bits are the upper half of a float32, so kernels take them as uint16, widen on load and round
on store; all arithmetic is float32. `widen` and `narrow` are told apart by dtype at compile time.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from kernels.cpu.numba_options import EXACT

__all__ = [
    "FLOAT32",
    "FLOAT64",
    "FOURS",
    "INT32",
    "INT64",
    "PAIRED",
    "PAIRS",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "has_kernels",
    "narrow",
    "widen",
]

# For compiled code's arguments `like`, which say what lies at an address: constants, as kernels allocate nothing.
FLOAT32, FLOAT64 = np.empty(0, np.float32), np.empty(0, np.float64)
INT32, INT64 = np.empty(0, np.int32), np.empty(0, np.int64)
UINT8, UINT32, UINT64 = np.empty(0, np.uint8), np.empty(0, np.uint32), np.empty(0, np.uint64)
UINT16 = np.empty(0, np.uint16)  # bfloat16
# bfloat16 too, where vector registers multiply pairs of them (`vdpbf16ps`): other dtypes, to be told from it.
PAIRED, PAIRS = np.empty(0, np.int16), np.empty(0, np.uint32)  # one of them, both
FOURS = np.empty((0, 0), np.uint32)  # pairs that lie as Arm's `bfmmla` takes two of them at once

_DTYPES = ({torch.float32}, {torch.bfloat16})


def has_kernels(*tensors: Tensor) -> bool:
    """Whether the kernels of this folder take these tensors: on a CPU, all float32 or all bfloat16."""
    return {t.dtype for t in tensors} in _DTYPES and all(t.device.type == "cpu" for t in tensors)


def widen(value):
    """A stored element as float32; compiled code only."""
    raise NotImplementedError("inside compiled code only")


def narrow(value, like):
    """A float32 as it is stored in an array of elements like `like`: rounded to nearest, ties to even.

    Compiled code only. NaN stays NaN.
    """
    raise NotImplementedError("inside compiled code only")


@overload(widen, jit_options=EXACT)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(narrow, jit_options=EXACT)
def _narrow(value, like):
    if like == types.uint16:
        return lambda value, like: _round(value)
    return lambda value, like: np.float32(value)


@njit(**EXACT)
def _round(value):
    bits = np.float32(value).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Adding to a NaN's bits could carry into infinity.
    return np.uint16(0x7FC0) if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else np.uint16(rounded)
