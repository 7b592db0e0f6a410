"""Pieces of vector code for numba, where its loops don't become any: each is written as LLVM's vectors of sixteen.

Addresses are integers (`array.ctypes.data`), strides are bytes. LLVM splits the vectors for CPUs with shorter ones.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.number import EXP_LIMITS, EXP_LN2, EXP_LOG2_E, EXP_SHIFT, EXP_TERMS

__all__ = [
    "PRODUCT_COLUMNS",
    "PRODUCT_ROWS",
    "copy",
    "interleave",
    "prefetch",
    "product",
    "store_gated",
    "store_rounded",
    "transpose",
]

PRODUCT_ROWS, PRODUCT_COLUMNS = 4, 32  # eight accumulators: as many as two units with four cycles of delay keep busy
_LANES = 16
_BYTE = ir.IntType(8)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_HALVES = ir.VectorType(ir.IntType(16), _LANES)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)


def _pointer(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, times: int, to: ir.Type) -> ir.Value:
    address = builder.add(base, builder.mul(stride, ir.Constant(base.type, times)))
    return builder.inttoptr(address, to.as_pointer())


@intrinsic
def copy(context, source, target, num_bytes):
    """Copies bytes between places that don't overlap."""

    def generate(context, builder, signature, arguments):
        source, target = (builder.inttoptr(address, _BYTE.as_pointer()) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def interleave(context, low, high, target):
    """Sixteen words from sixteen 16-bit values each: those at `low` and, in the upper halves, those at `high`."""

    def generate(context, builder, signature, arguments):
        low, high = (
            builder.zext(builder.load(builder.inttoptr(address, _HALVES.as_pointer()), align=2), _WORDS)
            for address in arguments[:2]
        )
        both = builder.or_(low, builder.shl(high, ir.Constant(_WORDS, [16] * _LANES)))
        builder.store(both, builder.inttoptr(arguments[2], _WORDS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def transpose(context, source, source_stride, target, target_stride):
    """Sixteen rows of sixteen 32-bit values become columns, in registers: four rounds of pairwise exchanges."""

    def generate(context, builder, signature, arguments):
        source, source_stride, target, target_stride = arguments
        rows = [builder.load(_pointer(builder, source, source_stride, i, _WORDS), align=4) for i in range(_LANES)]
        for step in (1, 2, 4, 8):
            # Of rows i and i + step, one gets the values whose column lacks the bit `step`, one those that have it.
            without = [j if not j & step else _LANES + j - step for j in range(_LANES)]
            with_ = [j + step if not j & step else _LANES + j for j in range(_LANES)]
            for i in (i for i in range(_LANES) if not i & step):
                pair = rows[i], rows[i + step]
                rows[i], rows[i + step] = (
                    builder.shuffle_vector(*pair, ir.Constant(_WORDS, mask)) for mask in (without, with_)
                )
        for i, row in enumerate(rows):
            builder.store(row, _pointer(builder, target, target_stride, i, _WORDS), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@intrinsic
def product(context, left, left_stride, right, right_stride, depth, target, target_stride):
    """`target = left @ right` in float32: [4, depth] by [depth, 32]. A row is summed in the order of `depth`."""

    def generate(context, builder, signature, arguments):
        left, left_stride, right, right_stride, depth, target, target_stride = arguments
        number, vectors = ir.FloatType(), PRODUCT_COLUMNS // _LANES
        sums = [
            [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, [0.0] * _LANES)) for _ in range(vectors)]
            for _ in range(PRODUCT_ROWS)
        ]
        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{_LANES}f32"
        )
        with cgutils.for_range(builder, depth) as loop:
            line = builder.add(right, builder.mul(loop.index, right_stride))
            step = ir.Constant(line.type, 4 * _LANES)
            columns = [builder.load(_pointer(builder, line, step, i, _FLOATS), align=4) for i in range(vectors)]
            at = builder.add(left, builder.mul(loop.index, ir.Constant(left.type, 4)))
            for i, row in enumerate(sums):
                value = builder.load(_pointer(builder, at, left_stride, i, number), align=4)
                single = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.IntType(32)(0))
                same = builder.shuffle_vector(single, single, ir.Constant(_WORDS, [0] * _LANES))
                for sum_, column in zip(row, columns, strict=True):
                    builder.store(builder.call(fused, [same, column, builder.load(sum_)]), sum_)
        for i, row in enumerate(sums):
            line = builder.add(target, builder.mul(target_stride, ir.Constant(target.type, i)))
            for j, sum_ in enumerate(row):
                step = ir.Constant(line.type, 4 * _LANES)
                builder.store(builder.load(sum_), _pointer(builder, line, step, j, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7), generate


def _sum_at(builder: ir.IRBuilder, *addresses: ir.Value) -> ir.Value:
    first, second = (builder.load(builder.inttoptr(a, _FLOATS.as_pointer()), align=4) for a in addresses)
    return builder.fadd(first, second)


def _store_rounded(builder: ir.IRBuilder, values: ir.Value, target: ir.Value) -> None:
    bits = builder.bitcast(values, _WORDS)
    half, odd, most = (ir.Constant(_WORDS, [number] * _LANES) for number in (16, 1, 0x7FFF))
    rounded = builder.add(builder.add(bits, most), builder.and_(builder.lshr(bits, half), odd))
    upper = builder.trunc(builder.lshr(rounded, half), _HALVES)
    builder.store(upper, builder.inttoptr(target, _HALVES.as_pointer()), align=2)


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """`number.exp32` of each, in the same steps; of what is not a number, something."""

    def all_of(value: float) -> ir.Constant:
        return ir.Constant(_FLOATS, [float(np.float32(value))] * _LANES)

    def fused(left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{_LANES}f32"
        )
        return builder.call(function, [left, right, added])

    for limit, keeps in ((EXP_LIMITS[0], ">"), (EXP_LIMITS[1], "<")):
        x = builder.select(builder.fcmp_ordered(keeps, x, all_of(limit)), x, all_of(limit))
    shifted = fused(x, all_of(EXP_LOG2_E), all_of(EXP_SHIFT))
    whole = builder.fsub(shifted, all_of(EXP_SHIFT))
    rest = fused(whole, all_of(-EXP_LN2[0]), x)
    rest = fused(whole, all_of(-EXP_LN2[1]), rest)
    sum_ = all_of(EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        sum_ = fused(sum_, rest, all_of(term))
    sum_ = builder.fadd(fused(builder.fmul(sum_, rest), rest, rest), all_of(1.0))
    power = builder.shl(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [23] * _LANES))
    return builder.bitcast(builder.add(builder.bitcast(sum_, _WORDS), power), _FLOATS)


@intrinsic
def store_rounded(context, source, added, target):
    """Sixteen float32 plus sixteen others as bfloat16, rounded to even. A product's NaN (lower half 0) stays one."""

    def generate(context, builder, signature, arguments):
        source, added, target = arguments
        _store_rounded(builder, _sum_at(builder, source, added), target)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@intrinsic
def store_gated(context, gates, added_gates, ups, added_ups, target):
    """`silu(gate) * up` of sixteen gates and ups, each a sum of two, as `store_rounded` stores them."""

    def generate(context, builder, signature, arguments):
        gates, added_gates, ups, added_ups, target = arguments
        gate, up = _sum_at(builder, gates, added_gates), _sum_at(builder, ups, added_ups)
        one = ir.Constant(_FLOATS, [1.0] * _LANES)
        closed = builder.fadd(_exp(builder, builder.fneg(gate)), one)
        _store_rounded(builder, builder.fmul(builder.fdiv(gate, closed), up), target)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5), generate


@intrinsic
def prefetch(context, address, num_bytes):
    """Asks for the cache lines of some bytes, to read them soon."""

    def generate(context, builder, signature, arguments):
        number = ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
        with cgutils.for_range_slice(builder, arguments[1].type(0), arguments[1], arguments[1].type(64)) as (offset, _):
            at = builder.inttoptr(builder.add(arguments[0], offset), _BYTE.as_pointer())
            builder.call(function, [at, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate
