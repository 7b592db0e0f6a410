"""Memory from inside compiled code: cache-line-aligned scratch, copies, prefetches.

Addresses are integers (`array.ctypes.data`), sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.numba_options import EXACT

__all__ = ["aligned_zeros", "copy", "emit_prefetch", "prefetch_l1", "prefetch_l2"]

_BYTE = ir.IntType(8)
_LOCALITY_L1, _LOCALITY_L2 = 3, 2  # as LLVM numbers the cache that a line should come to


@njit(**EXACT)
def aligned_zeros(num_rows, width, like):
    """[num_rows, width] zeros of `like`'s dtype, from the start of a cache line on.

    numba frees an array after the last statement that names it: its address is good only as long as the array is used.
    """
    whole = np.zeros(num_rows * width + 64, like.dtype)
    start = np.uintp((64 - whole.ctypes.data % 64) // like.itemsize)
    return whole[start : start + np.uintp(num_rows * width)].reshape(num_rows, width)


@intrinsic
def copy(context, source, target, num_bytes):
    """Copies bytes between places that don't overlap."""

    def generate(context, builder, signature, arguments):
        source, target = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value, locality: int = _LOCALITY_L2) -> None:
    """The instruction that asks for the cache line at an address."""
    number = ir.IntType(32)
    signature = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), number, number, number])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    at = builder.inttoptr(address, _BYTE.as_pointer())
    builder.call(function, [at, number(0), number(locality), number(1)])


def _prefetch(locality: int) -> Callable[[int, int], None]:
    @intrinsic
    def prefetch(context, address, num_bytes):
        def generate(context, builder, signature, arguments):
            address, num_bytes = arguments
            with cgutils.for_range_slice(builder, num_bytes.type(0), num_bytes, num_bytes.type(64)) as (offset, _):
                emit_prefetch(builder, builder.add(address, offset), locality)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), generate

    return prefetch


# Both ask for the cache lines of some bytes from an address on.
prefetch_l1 = _prefetch(_LOCALITY_L1)  # what is read next
prefetch_l2 = _prefetch(_LOCALITY_L2)  # what is read soon, but not next
