"""Vector code for numba, where its loops don't become any: each function is written as LLVM's vectors of sixteen.

Addresses are integers (`array.ctypes.data`), strides are bytes. LLVM splits the vectors for CPUs with shorter ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.byte_vectors import add_dots, splat_parts, split_weights
from kernels.cpu.exp import EXP_LIMITS, EXP_LN2, EXP_LOG2_E, EXP_SHIFT, EXP_TERMS
from kernels.cpu.instructions import has_neon_dot
from kernels.cpu.memory import emit_prefetch
from kernels.cpu.neon_dots import add_pairs
from kernels.cpu.neon_products import emit_product

__all__ = [
    "LANES",
    "add_codes",
    "dot",
    "fuse",
    "load_as_floats",
    "load_words",
    "product",
    "resumed_product",
    "splat",
    "store_gated",
    "store_sums",
    "transpose",
]

LANES = 16
_UNROLLED = 4  # columns that one round of a product's loop adds up
_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)


def _pointer(builder: ir.IRBuilder, base: ir.Value, stride: ir.Value, times: int, to: ir.Type) -> ir.Value:
    address = builder.add(base, builder.mul(stride, ir.Constant(base.type, times)))
    return builder.inttoptr(address, to.as_pointer())


@intrinsic
def transpose(context, source, source_stride, target, target_stride):
    """Sixteen rows of sixteen 32-bit values become columns, in registers: four rounds of pairwise exchanges."""

    def generate(context, builder, signature, arguments):
        source, source_stride, target, target_stride = arguments
        rows = [builder.load(_pointer(builder, source, source_stride, i, _WORDS), align=4) for i in range(LANES)]
        for step in (1, 2, 4, 8):
            # Of rows i and i + step, one gets the values whose column lacks the bit `step`, one those that have it.
            without = [j if not j & step else LANES + j - step for j in range(LANES)]
            with_ = [j + step if not j & step else LANES + j for j in range(LANES)]
            for i in (i for i in range(LANES) if not i & step):
                pair = rows[i], rows[i + step]
                rows[i], rows[i + step] = (
                    builder.shuffle_vector(*pair, ir.Constant(_WORDS, mask)) for mask in (without, with_)
                )
        for i, row in enumerate(rows):
            builder.store(row, _pointer(builder, target, target_stride, i, _WORDS), align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


def product(rows: int, vectors: int) -> Callable[..., None]:
    """A micro-kernel: `target = left @ right` in float32, [rows, depth] by [depth, 16 x vectors].

    Sums are in depth's order. `right` holds elements like those of `like`: float32, bfloat16 that is widened in
    registers, or pairs (uint32) of bfloat16, as `left` does then: a step of depth is two columns.
    """

    @intrinsic
    def multiply(context, left, left_stride, right, right_stride, depth, target, target_stride, like):
        def generate(context, builder, signature, arguments):
            _product(builder, (rows, vectors), like, *arguments[:7])
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7, like), generate

    return multiply


def resumed_product(rows: int, vectors: int, panel: int) -> Callable[..., None]:
    """`product` with a right operand whose rows are `panel` elements long; of `QUADS` too, whose sums are int32.

    Where `resumes` is not 0, it is added to what `target` holds: the same bits as in one go. With each row it
    prefetches a cache line from `ahead` on and one from `beyond` on, into the L2 cache.
    """

    @intrinsic
    def multiply(context, left, left_stride, right, depth, target, target_stride, resumes, ahead, beyond, like):
        def generate(context, builder, signature, arguments):
            left, left_stride, right, depth, target, target_stride, resumes = arguments[:7]
            stride = right.type(panel * (like.dtype.bitwidth // 8))
            operands = left, left_stride, right, stride, depth, target, target_stride
            resumes = builder.icmp_signed("!=", resumes, resumes.type(0))
            if like.dtype == types.uint32 and like.ndim == 2:  # `FOURS`
                if rows % 2:  # is never called: they are multiplied with two rows
                    return context.get_dummy_value()
                emit_product(builder, (rows, vectors), *operands, resumes, arguments[7:9])
                return context.get_dummy_value()
            _product(builder, (rows, vectors), like, *operands, resumes, arguments[7:9])
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9, like), generate

    return multiply


def _product(
    builder: ir.IRBuilder,
    shape: tuple[int, int],
    like: types.Array,
    left: ir.Value,
    left_stride: ir.Value,
    right: ir.Value,
    right_stride: ir.Value,
    depth: ir.Value,
    target: ir.Value,
    target_stride: ir.Value,
    resumes: ir.Value | None = None,
    ahead: Sequence[ir.Value] = (),
) -> None:
    rows, vectors = shape
    is_paired, is_whole = like.dtype == types.uint32, like.dtype == types.int32
    summed = _WORDS if is_whole else _FLOATS
    zero, step = ir.Constant(summed, [0 if is_whole else 0.0] * LANES), ir.Constant(target.type, 4 * LANES)
    targets = [builder.add(target, builder.mul(target_stride, target.type(i))) for i in range(rows)]
    places = [_pointer(builder, row, step, j, summed) for row in targets for j in range(vectors)]
    sums = [cgutils.alloca_once_value(builder, zero) for _ in places]
    if resumes is not None:
        with builder.if_then(resumes):
            for sum_, place in zip(sums, places, strict=True):
                builder.store(builder.load(place, align=4), sum_)

    element, vector = (_WORD, _WORDS) if is_paired or is_whole else (ir.FloatType(), _FLOATS)

    def add(index: ir.Value) -> None:
        row = builder.add(right, builder.mul(index, right_stride))
        if is_paired:
            columns = [load_words(builder, row, j) for j in range(vectors)]
        elif is_whole:
            columns = [split_weights(builder, load_words(builder, row, j), like.ndim) for j in range(vectors)]
        else:
            columns = [load_as_floats(builder, row, j, like.dtype) for j in range(vectors)]
        for address in ahead:
            emit_prefetch(builder, builder.add(address, builder.mul(index, index.type(64))))
        at = builder.add(left, builder.mul(index, index.type(4)))
        for i in range(rows):
            value = builder.load(_pointer(builder, at, left_stride, i, element), align=4)
            same = splat_parts(builder, value, like.ndim) if is_whole else splat(builder, value, vector)
            for j, column in enumerate(columns):
                sum_ = sums[i * vectors + j]
                if is_whole:
                    found = add_dots(builder, same, column, builder.load(sum_), like.ndim)
                else:
                    found = (dot if is_paired else fuse)(builder, same, column, builder.load(sum_))
                builder.store(found, sum_)

    whole = builder.mul(builder.udiv(depth, depth.type(_UNROLLED)), depth.type(_UNROLLED))
    with cgutils.for_range_slice(builder, depth.type(0), whole, depth.type(_UNROLLED)) as (index, _):
        for i in range(_UNROLLED):
            add(builder.add(index, depth.type(i)))
    with cgutils.for_range_slice(builder, whole, depth, depth.type(1)) as (index, _):
        add(index)
    for sum_, place in zip(sums, places, strict=True):
        builder.store(builder.load(sum_), place, align=4)


def splat(builder: ir.IRBuilder, value: ir.Value, vector: ir.VectorType) -> ir.Value:
    """A value in every lane."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _WORD(0))
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, [0] * LANES))


def load_words(builder: ir.IRBuilder, row: ir.Value, index: int) -> ir.Value:
    """Vector `index` of a row of 32-bit words."""
    return builder.load(_pointer(builder, row, row.type(4 * LANES), index, _WORDS), align=4)


def dot(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
    """`added` and the product of each lane's pair of bfloat16, the upper ones first: `vdpbf16ps`, on Arm `bfdot`.

    What is rounded is a lane's own affair. Numbers below 2^-126 count as 0.
    """
    if has_neon_dot():
        return add_pairs(builder, left, right, added)
    signature = ir.FunctionType(_FLOATS, [_FLOATS, _WORDS, _WORDS])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [added, left, right])


def load_as_floats(builder: ir.IRBuilder, row: ir.Value, index: int, dtype: types.Type, lanes: int = LANES) -> ir.Value:
    """Vector `index` of a row of float32, or of bfloat16, widened. One lane is a scalar."""

    def of(element: ir.Type) -> ir.Type:
        return element if lanes == 1 else ir.VectorType(element, lanes)

    if dtype == types.float32:
        return builder.load(_pointer(builder, row, row.type(4 * lanes), index, of(ir.FloatType())), align=4)
    words = of(ir.IntType(32))
    halves = builder.load(_pointer(builder, row, row.type(2 * lanes), index, of(ir.IntType(16))), align=2)
    sixteen = ir.Constant(words, 16 if lanes == 1 else [16] * lanes)
    return builder.bitcast(builder.shl(builder.zext(halves, words), sixteen), of(ir.FloatType()))


def fuse(builder: ir.IRBuilder, left: ir.Value, right: ir.Value, added: ir.Value) -> ir.Value:
    """`left * right + added` in one instruction: of float32, or of vectors of them."""
    kind = left.type
    signature = ir.FunctionType(kind, [kind] * 3)
    suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
    function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.fmuladd.{suffix}")
    return builder.call(function, [left, right, added])


def _sum_at(builder: ir.IRBuilder, *addresses: ir.Value) -> ir.Value:
    first, second = (builder.load(builder.inttoptr(a, _FLOATS.as_pointer()), align=4) for a in addresses)
    return builder.fadd(first, second)


def _store(builder: ir.IRBuilder, values: ir.Value, target: ir.Value, dtype: types.Type) -> None:
    """Float32 as they are, or as bfloat16, rounded to even. A NaN whose lower half is 0 stays one."""
    if dtype == types.float32:
        builder.store(values, builder.inttoptr(target, _FLOATS.as_pointer()), align=4)
        return
    bits = builder.bitcast(values, _WORDS)
    half, odd, most = (ir.Constant(_WORDS, [word] * LANES) for word in (16, 1, 0x7FFF))
    rounded = builder.add(builder.add(bits, most), builder.and_(builder.lshr(bits, half), odd))
    upper = builder.trunc(builder.lshr(rounded, half), _HALVES)
    builder.store(upper, builder.inttoptr(target, _HALVES.as_pointer()), align=2)


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """`kernels.cpu.exp.exp32` of each, in the same steps; of NaN, something."""

    def all_of(value: float) -> ir.Constant:
        return ir.Constant(_FLOATS, [float(np.float32(value))] * LANES)

    for limit, keeps in ((EXP_LIMITS[0], ">"), (EXP_LIMITS[1], "<")):
        x = builder.select(builder.fcmp_ordered(keeps, x, all_of(limit)), x, all_of(limit))
    shifted = fuse(builder, x, all_of(EXP_LOG2_E), all_of(EXP_SHIFT))
    whole = builder.fsub(shifted, all_of(EXP_SHIFT))
    rest = fuse(builder, whole, all_of(-EXP_LN2[0]), x)
    rest = fuse(builder, whole, all_of(-EXP_LN2[1]), rest)
    sum_ = all_of(EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        sum_ = fuse(builder, sum_, rest, all_of(term))
    sum_ = builder.fadd(fuse(builder, builder.fmul(sum_, rest), rest, rest), all_of(1.0))
    power = builder.shl(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [23] * LANES))
    return builder.bitcast(builder.add(builder.bitcast(sum_, _WORDS), power), _FLOATS)


@intrinsic
def store_sums(context, source, added, target, like):
    """Sixteen float32 plus sixteen others, stored as elements like those of `like`: bfloat16 is rounded to even.

    A NaN of a product of bfloat16 stays one: its lower half is 0.
    """

    def generate(context, builder, signature, arguments):
        source, added, target = arguments[:3]
        _store(builder, _sum_at(builder, source, added), target, like.dtype)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, like), generate


@intrinsic
def store_gated(context, gates, added_gates, ups, added_ups, target, like):
    """`silu(gate) * up` of sixteen gates and ups, each a sum of two, as `store_sums` stores them."""

    def generate(context, builder, signature, arguments):
        gates, added_gates, ups, added_ups, target = arguments[:5]
        gate, up = _sum_at(builder, gates, added_gates), _sum_at(builder, ups, added_ups)
        one = ir.Constant(_FLOATS, [1.0] * LANES)
        closed = builder.fadd(_exp(builder, builder.fneg(gate)), one)
        _store(builder, builder.fmul(builder.fdiv(gate, closed), up), target, like.dtype)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, like), generate


@intrinsic
def add_codes(context, target, words, up, value, scales):
    """Adds to sixteen float32 `value` times a code of each of sixteen words, times its scale: rounded each time.

    The code is the byte that lies uppermost once the word is moved up so many bits.
    """

    def generate(context, builder, signature, arguments):
        target, words, up, value, scales = arguments
        one = ir.Constant(target.type, 0)
        found = builder.load(_pointer(builder, words, one, 0, _WORDS), align=4)
        found = builder.ashr(builder.shl(found, splat(builder, up, _WORDS)), ir.Constant(_WORDS, [24] * LANES))
        scale = builder.load(_pointer(builder, scales, one, 0, _FLOATS), align=4)
        weights = builder.fmul(builder.sitofp(found, _FLOATS), scale)
        place = _pointer(builder, target, one, 0, _FLOATS)
        products = builder.fmul(splat(builder, value, _FLOATS), weights)
        builder.store(builder.fadd(builder.load(place, align=4), products), place, align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.int32, types.float32, types.intp), generate
