"""Sums along a row in one fixed order, written as LLVM's vectors: 64 columns at a time, then 16, then one.

A sum that a compiler may regroup (`fastmath`) has other bits when it is inlined or vectorised another way. Here column
i goes to lane i % 64 of four vectors, these are added pairwise, lanes are halved, and what is past the last whole
vector is added one by one: the same for any compiler and any CPU that fuses a product and a sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.vector import LANES, fuse, load_as_floats

__all__ = ["sum_of", "sum_of_squares", "wide_sum_of"]

_PARALLEL = 4  # vectors of partial sums: as many as hide the delay of an addition


def _sum(squares: bool, element: ir.Type, result: types.Type) -> Callable[[int, int, np.ndarray], float]:
    @intrinsic
    def total(context, address, count, like):
        def generate(context, builder, signature, arguments):
            address, count = arguments[:2]
            dtype, vector = like.dtype, ir.VectorType(element, LANES)
            itemsize = 4 if dtype == types.float32 else 2

            def add(sum_: ir.Value, value: ir.Value) -> ir.Value:
                return fuse(builder, value, value, sum_) if squares else builder.fadd(sum_, value)

            def at(column: ir.Value) -> ir.Value:
                return builder.add(address, builder.mul(column, count.type(itemsize)))

            def columns(first: ir.Value, index: int) -> ir.Value:
                found = load_as_floats(builder, at(first), index, dtype)
                return found if found.type == vector else builder.fpext(found, vector)

            def one(column: ir.Value) -> ir.Value:
                found = load_as_floats(builder, at(column), 0, dtype, lanes=1)
                return found if found.type == element else builder.fpext(found, element)

            zero = ir.Constant(vector, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(_PARALLEL)]
            begin = count.type(0)
            for size in (LANES * _PARALLEL, LANES):
                end = builder.mul(builder.udiv(count, count.type(size)), count.type(size))
                with cgutils.for_range_slice(builder, begin, end, count.type(size)) as (first, _):
                    for i, sum_ in enumerate(sums[: size // LANES]):
                        builder.store(add(builder.load(sum_), columns(first, i)), sum_)
                begin = end
            parts = [builder.load(sum_) for sum_ in sums]
            while len(parts) > 1:
                parts = [builder.fadd(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
            whole, width = parts[0], LANES
            while width > 1:
                width //= 2
                halves = (ir.Constant(ir.VectorType(ir.IntType(32), width), [*range(i, i + width)]) for i in (0, width))
                low, high = (builder.shuffle_vector(whole, whole, half) for half in halves)
                whole = builder.fadd(low, high)
            rest = cgutils.alloca_once_value(builder, builder.extract_element(whole, ir.IntType(32)(0)))
            with cgutils.for_range_slice(builder, begin, count, count.type(1)) as (column, _):
                builder.store(add(builder.load(rest), one(column)), rest)
            return builder.load(rest)

        return result(types.intp, types.intp, like), generate

    return total


# Each takes an address, how many elements lie there, and an array of such elements; compiled code only.
sum_of = _sum(False, ir.FloatType(), types.float32)
sum_of_squares = _sum(True, ir.FloatType(), types.float32)
wide_sum_of = _sum(False, ir.DoubleType(), types.float64)  # each element is widened before it is added
