"""Vector code for weights of four bits that are multiplied in pairs of bfloat16: a group's products, then its scale.

A group of 32 columns of a panel of 64 rows is 64 scales, float16, then codes, eight columns together: of rows 0 to 15 a
32-bit word each, then of rows 16 to 31 and so on. The lower half of a word holds the first, third, fifth and seventh
column, the upper half the ones between: moved right by 0, 4, 8 or 12 bits, its halves' lowest bits are a pair. A code
less 8 is a bfloat16, exactly, and is looked up by the instruction that permutes sixteen bits (`vpermw`), which reads
five of them: the fifth may be anything.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.block_vectors import GROUP, MID, PANEL, ask_ahead, half_floats
from kernels.cpu.vector import LANES, dot, fuse, load_words, splat

__all__ = ["BLOCK_BYTES", "pair_nibble_product", "scaled_product", "unpack_pairs"]

SCALES_BYTES = 2 * PANEL
BLOCK_BYTES = SCALES_BYTES + GROUP * PANEL // 2
PAIRS_BYTES = GROUP // 2 * PANEL * 4  # of a group of a panel, unpacked
_EIGHT = 4 * PANEL  # bytes of eight columns
_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)
_HALVES = ir.VectorType(ir.IntType(16), 2 * LANES)
_NUMBERS = (np.arange(-MID, MID, dtype=np.float32).view(np.uint32) >> 16).tolist()  # as bfloat16


def pair_nibble_product(rows: int, vectors: int) -> Callable[..., None]:
    """A micro-kernel: `target = left @ weights`, [rows, 32 x groups] by 16 x vectors rows of a panel, from `first` on.

    `left` are pairs of bfloat16. What is read next, after these blocks those from `beyond` on, is asked for ahead.
    """

    @intrinsic
    def multiply(context, left, left_stride, blocks, groups, first, target, target_stride, beyond):
        def generate(context, builder, signature, arguments):
            left, left_stride, blocks, groups, first, target, target_stride, beyond = arguments
            number = groups.type
            sums = _Sums(builder, (rows, vectors), (target, target_stride, first))
            with cgutils.for_range(builder, groups) as loop:
                size = number(BLOCK_BYTES)
                block = builder.add(blocks, builder.mul(loop.index, size))
                ask_ahead(builder, loop.index, groups, blocks, beyond, size)
                codes = builder.add(block, builder.add(builder.mul(first, number(4)), number(SCALES_BYTES)))
                x = builder.add(left, builder.mul(loop.index, number(2 * GROUP)))
                for eight in range(GROUP // 8):
                    row = builder.add(codes, number(_EIGHT * eight))
                    words = [load_words(builder, row, j) for j in range(vectors)]
                    for pair in range(4):
                        columns = [_numbers(builder, word, pair) for word in words]
                        sums.add(builder.add(x, number(4 * (4 * eight + pair))), left_stride, columns)
                sums.scale([half_floats(builder, block, first, j) for j in range(vectors)])
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), generate

    return multiply


def scaled_product(rows: int, vectors: int) -> Callable[..., None]:
    """`pair_nibble_product` of pairs that `unpack_pairs` made, the scales still from the blocks; the same bits.

    Where `resumes` is not 0, it is added to what `target` holds.
    """

    @intrinsic
    def multiply(context, left, left_stride, pairs, blocks, groups, first, target, target_stride, resumes):
        def generate(context, builder, signature, arguments):
            left, left_stride, pairs, blocks, groups, first, target, target_stride, resumes = arguments
            number = groups.type
            sums = _Sums(builder, (rows, vectors), (target, target_stride, first))
            with builder.if_then(builder.icmp_signed("!=", resumes, number(0))):
                sums.load()
            with cgutils.for_range(builder, groups) as loop:
                block = builder.add(blocks, builder.mul(loop.index, number(BLOCK_BYTES)))
                own = builder.add(pairs, builder.mul(loop.index, number(PAIRS_BYTES)))
                own = builder.add(own, builder.mul(first, number(4)))
                x = builder.add(left, builder.mul(loop.index, number(2 * GROUP)))
                for pair in range(GROUP // 2):
                    row = builder.add(own, number(4 * PANEL * pair))
                    columns = [load_words(builder, row, j) for j in range(vectors)]
                    sums.add(builder.add(x, number(4 * pair)), left_stride, columns)
                sums.scale([half_floats(builder, block, first, j) for j in range(vectors)])
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), generate

    return multiply


@intrinsic
def unpack_pairs(context, blocks, groups, target, beyond):
    """Codes of some groups as pairs of bfloat16: [16 x groups, 64], as `scaled_product` reads them."""

    def generate(context, builder, signature, arguments):
        blocks, groups, target, beyond = arguments
        number = groups.type
        with cgutils.for_range(builder, groups) as loop:
            size = number(BLOCK_BYTES)
            block = builder.add(blocks, builder.mul(loop.index, size))
            ask_ahead(builder, loop.index, groups, blocks, beyond, size)
            into = builder.add(target, builder.mul(loop.index, number(PAIRS_BYTES)))
            for eight in range(GROUP // 8):
                row = builder.add(block, number(SCALES_BYTES + _EIGHT * eight))
                for j in range(PANEL // LANES):
                    words = load_words(builder, row, j)
                    for pair in range(4):
                        at = number(4 * PANEL * (4 * eight + pair) + 4 * LANES * j)
                        place = builder.inttoptr(builder.add(into, at), _WORDS.as_pointer())
                        builder.store(_numbers(builder, words, pair), place, align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


class _Sums:
    """Of some rows and vectors of columns, in registers: a group's, and those of all groups so far, scaled."""

    def __init__(self, builder: ir.IRBuilder, shape: tuple[int, int], place: tuple[ir.Value, ir.Value, ir.Value]):
        self._builder, (self._rows, self._vectors) = builder, shape
        target, stride, first = place
        self._places = []
        for i in range(self._rows):
            row = builder.add(target, builder.mul(stride, stride.type(i)))
            for j in range(self._vectors):
                at = builder.add(row, builder.mul(builder.add(first, first.type(LANES * j)), first.type(4)))
                self._places.append(builder.inttoptr(at, _FLOATS.as_pointer()))
        self._zero = ir.Constant(_FLOATS, [0.0] * LANES)
        self._all = [cgutils.alloca_once_value(builder, self._zero) for _ in self._places]
        self._own = [self._zero] * len(self._places)

    def load(self) -> None:
        for place, sum_ in zip(self._places, self._all, strict=True):
            self._builder.store(self._builder.load(place, align=4), sum_)

    def store(self) -> None:
        for place, sum_ in zip(self._places, self._all, strict=True):
            self._builder.store(self._builder.load(sum_), place, align=4)

    def add(self, x: ir.Value, stride: ir.Value, columns: list[ir.Value]) -> None:
        """A pair of each row, from the address `x` on, by a pair of each column."""
        builder = self._builder
        for i in range(self._rows):
            at = builder.add(x, builder.mul(stride, stride.type(i)))
            pair = splat(builder, builder.load(builder.inttoptr(at, _WORD.as_pointer()), align=4), _WORDS)
            for j, column in enumerate(columns, i * self._vectors):
                self._own[j] = dot(builder, pair, column, self._own[j])

    def scale(self, scales: list[ir.Value]) -> None:
        """Ends a group."""
        builder = self._builder
        for place, (own, sum_) in enumerate(zip(self._own, self._all, strict=True)):
            builder.store(fuse(builder, own, scales[place % self._vectors], builder.load(sum_)), sum_)
        self._own = [self._zero] * len(self._own)


def _numbers(builder: ir.IRBuilder, words: ir.Value, pair: int) -> ir.Value:
    """Codes of one pair of columns of each word, less 8, as bfloat16."""
    moved = builder.lshr(words, ir.Constant(_WORDS, [4 * pair] * LANES)) if pair else words
    signature = ir.FunctionType(_HALVES, [_HALVES, _HALVES])
    name = "llvm.x86.avx512.permvar.hi.512"
    permute = cgutils.get_or_insert_function(builder.module, signature, name)
    table = ir.Constant(_HALVES, _NUMBERS * 2)
    return builder.bitcast(builder.call(permute, [table, builder.bitcast(moved, _HALVES)]), _WORDS)
