"""Vector code for weights of four bits whose inputs have eight: whole numbers of a group are multiplied, then scaled.

A group of 32 columns of a panel of 64 rows is 64 scales, float16, then codes from 0 to 15, eight columns together: of
rows 0 to 15 a 32-bit word each, whose bytes are the first four columns in their lower halves and the next four in the
upper ones, then of rows 16 to 31 and so on. Codes stand above 8: what that is too much is in the sums that products
begin with. Sums of a group are exact; groups are added up in their order, each by one fused operation.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.block_vectors import GROUP, PANEL, ask_ahead, half_floats
from kernels.cpu.byte_vectors import add_dots, split_weights, unsigned_parts
from kernels.cpu.vector import LANES, fuse, load_words, splat

__all__ = ["BLOCK_BYTES", "add_nibbles", "nibble_product"]

SCALES_BYTES = 2 * PANEL
BLOCK_BYTES = SCALES_BYTES + GROUP * PANEL // 2
_EIGHT = 4 * PANEL  # bytes of eight columns
_MIDDLE = 8
_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)


def _all(word: int) -> ir.Constant:
    return ir.Constant(_WORDS, [word] * LANES)


def nibble_product(rows: int, vectors: int) -> Callable[..., None]:
    """A micro-kernel: `target = left @ weights`, [rows, 32 x groups] by 16 x vectors rows of a panel, from `first` on.

    `left` are signed bytes; `begins` [rows, groups], int32: what each sum of a group begins with. What is read next,
    after these blocks those from `beyond` on, is asked for ahead. `like` is one of `byte_vectors.QUADS`.
    """

    @intrinsic
    def multiply(
        context, left, left_stride, begins, begins_stride, blocks, groups, first, target, target_stride, beyond, like
    ):
        def generate(context, builder, signature, arguments):
            left, left_stride, begins, begins_stride, blocks, groups, first, target, target_stride, beyond = arguments[
                :10
            ]
            way, number = like.ndim, groups.type
            zero = ir.Constant(_FLOATS, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows * vectors)]
            lefts = [builder.add(left, builder.mul(left_stride, number(i))) for i in range(rows)]
            starts = [builder.add(begins, builder.mul(begins_stride, number(i))) for i in range(rows)]

            def word_at(address: ir.Value, offset: ir.Value) -> ir.Value:
                place = builder.inttoptr(builder.add(address, offset), _WORD.as_pointer())
                return splat(builder, builder.load(place, align=4), _WORDS)

            with cgutils.for_range(builder, groups) as loop:
                size = number(BLOCK_BYTES)
                block = builder.add(blocks, builder.mul(loop.index, size))
                ask_ahead(builder, loop.index, groups, blocks, beyond, size)
                begin = builder.mul(loop.index, number(4))
                whole = [word_at(start, begin) for start in starts for _ in range(vectors)]
                columns = builder.mul(loop.index, number(GROUP))
                codes = builder.add(block, builder.add(builder.mul(first, number(4)), number(SCALES_BYTES)))
                for eight in range(GROUP // 8):
                    row = builder.add(codes, number(_EIGHT * eight))
                    words = [load_words(builder, row, j) for j in range(vectors)]
                    for half in range(2):
                        parts = [_half(builder, word, half) for word in words]
                        weights = [unsigned_parts(builder, part, way) for part in parts]
                        at = builder.add(columns, number(8 * eight + 4 * half))
                        for i in range(rows):
                            own = split_weights(builder, word_at(lefts[i], at), way)
                            for j in range(vectors):
                                place = i * vectors + j
                                whole[place] = add_dots(builder, weights[j], own, whole[place], way)
                scales = [half_floats(builder, block, first, j) for j in range(vectors)]
                for place, sum_ in enumerate(sums):
                    found = builder.sitofp(whole[place], _FLOATS)
                    builder.store(fuse(builder, found, scales[place % vectors], builder.load(sum_)), sum_)
            for place, sum_ in enumerate(sums):
                i, j = divmod(place, vectors)
                at = builder.add(target, builder.mul(target_stride, number(i)))
                at = builder.add(at, builder.mul(builder.add(first, number(LANES * j)), number(4)))
                builder.store(builder.load(sum_), builder.inttoptr(at, _FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10, like), generate

    return multiply


def _half(builder: ir.IRBuilder, words: ir.Value, half: int) -> ir.Value:
    """The lower or the upper halves of all bytes, as bytes."""
    moved = builder.lshr(words, _all(4)) if half else words
    return builder.and_(moved, _all(0x0F0F0F0F))


@intrinsic
def add_nibbles(context, target, words, shift, value, scales):
    """Adds to sixteen float32 `value` times a weight of each of sixteen words: rounded each time.

    A weight's code lies so many bits up in its word; scales are float16.
    """

    def generate(context, builder, signature, arguments):
        target, words, shift, value, scales = arguments
        found = builder.and_(builder.lshr(load_words(builder, words, 0), splat(builder, shift, _WORDS)), _all(15))
        scale = half_floats(builder, scales, scales.type(0), 0)
        weights = builder.fmul(builder.sitofp(builder.sub(found, _all(_MIDDLE)), _FLOATS), scale)
        place = builder.inttoptr(target, _FLOATS.as_pointer())
        products = builder.fmul(splat(builder, value, _FLOATS), weights)
        builder.store(builder.fadd(builder.load(place, align=4), products), place, align=4)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.int32, types.float32, types.intp), generate
