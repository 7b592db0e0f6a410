"""Memory from inside compiled code: a launch's scratch, copies, prefetches.

Addresses are integers (`array.ctypes.data`), sizes are bytes. Compiled code allocates nothing: what numba can't
allocate it reports as an exception, which a parallel region has nobody to raise to.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.numba_options import EXACT

__all__ = [
    "array_at",
    "copy",
    "elements_at",
    "emit_prefetch",
    "prefetch_l1",
    "prefetch_l2",
    "scratch_bytes",
    "zeros_at",
]

LINE_BYTES = 64  # of a cache line
_BYTE = ir.IntType(8)
_LOCALITY_L1, _LOCALITY_L2 = 3, 2  # as LLVM numbers the cache that a line should come to


def scratch_bytes(*shapes: tuple[int, int, int]) -> int:
    """What one thread needs for `array_at` and `zeros_at` of these (rows, width, itemsize), one after the other."""
    return sum(-(-rows * width * itemsize // LINE_BYTES) * LINE_BYTES for rows, width, itemsize in shapes)


@intrinsic
def elements_at(context, address, like):
    """An address as that of elements like those of `like`, for `numba.carray`."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, like), generate


@njit(**EXACT)
def array_at(space, num_rows, width, like):
    """[num_rows, width] of `like`'s dtype at `space` of a thread's scratch, and where what follows begins.

    The host has counted the same shapes with `scratch_bytes`. What lies there is left; it begins with a cache line.
    """
    whole = carray(elements_at(space, like), (num_rows, width))
    return whole, space + (num_rows * width * like.itemsize + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES


@njit(**EXACT)
def zeros_at(space, num_rows, width, like):
    """`array_at`, filled with zeros."""
    whole, space = array_at(space, num_rows, width, like)
    whole[:] = 0
    return whole, space


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
