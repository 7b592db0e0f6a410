"""Memory from inside compiled code: a launch's scratch, copies, prefetches.

Addresses are integers (`array.ctypes.data`), sizes are bytes. Compiled code allocates nothing: what numba can't
allocate it reports as an exception, which a parallel region has nobody to raise to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

__all__ = [
    "array_at",
    "carray",
    "copy",
    "elements_at",
    "emit_prefetch",
    "prefetch_l1",
    "prefetch_l2",
    "same_bits",
    "scratch_bytes",
    "zeros_at",
]

LINE_BYTES = 64  # of a cache line
_BYTE, _NUMBER = ir.IntType(8), ir.IntType(64)
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


def _array_type(like: types.Array, num_axes: int) -> types.Array:
    return types.Array(like.dtype, num_axes, "C")


def _emit_array(
    context: Any, builder: ir.IRBuilder, kind: types.Array, data: ir.Value, shape: Sequence[ir.Value]
) -> ir.Value:
    """numba's array of what lies at an address; nobody else keeps it alive."""
    itemsize = ir.Constant(_NUMBER, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    found = make_array(kind)(context, builder)
    at = builder.inttoptr(data, context.get_data_type(kind.dtype).as_pointer())
    populate_array(found, data=at, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return found._getvalue()


@intrinsic
def carray(context, pointer, shape):
    """`numba.carray`, which is one more function to compile for each type of elements and of shapes."""
    kind = _array_type(pointer, len(shape))

    def generate(context, builder, signature, arguments):
        data = builder.ptrtoint(arguments[0], _NUMBER)
        lengths = zip(cgutils.unpack_tuple(builder, arguments[1]), shape, strict=True)
        return _emit_array(
            context, builder, kind, data, [context.cast(builder, one, of, types.intp) for one, of in lengths]
        )

    return kind(pointer, shape), generate


@intrinsic
def same_bits(context, array, like):
    """An array as one of elements like those of `like`, which have the same size."""
    assert array.layout == "C", "elements lie one after the other"
    kind = _array_type(like, array.ndim)

    def generate(context, builder, signature, arguments):
        found = make_array(array)(context, builder, arguments[0])
        data = builder.ptrtoint(found.data, _NUMBER)
        return _emit_array(context, builder, kind, data, cgutils.unpack_tuple(builder, found.shape))

    return kind(array, like), generate


def _scratch(is_zeroed: bool) -> Callable[..., Any]:
    @intrinsic
    def of_scratch(context, space, num_rows, width, like):
        kind = _array_type(like, 2)

        def generate(context, builder, signature, arguments):
            space, num_rows, width = arguments[:3]
            itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            size = builder.mul(builder.mul(num_rows, width), _NUMBER(itemsize))
            if is_zeroed:
                cgutils.memset(builder, builder.inttoptr(space, _BYTE.as_pointer()), size, 0)
            lines = builder.add(size, _NUMBER(LINE_BYTES - 1))
            lines = builder.mul(builder.udiv(lines, _NUMBER(LINE_BYTES)), _NUMBER(LINE_BYTES))
            found = _emit_array(context, builder, kind, space, (num_rows, width))
            return context.make_tuple(builder, signature.return_type, (found, builder.add(space, lines)))

        return types.Tuple((kind, types.intp))(types.intp, types.intp, types.intp, like), generate

    return of_scratch


# [num_rows, width] of `like`'s dtype at `space` of a thread's scratch, and where what follows begins: after its last
# cache line. The host has counted the same shapes with `scratch_bytes`. What lies there is left, or made zeros.
array_at, zeros_at = _scratch(is_zeroed=False), _scratch(is_zeroed=True)


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
