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

from kernels.cpu.block_vectors import GROUP, PANEL, ScaledSums, ask_ahead, ask_for_lines, half_floats
from kernels.cpu.byte_vectors import add_dots, split_weights, unsigned_parts
from kernels.cpu.vector import LANES, fuse, load_words, splat

__all__ = ["BLOCK_BYTES", "QUADS_BYTES", "add_nibbles", "nibble_product", "scaled_product", "unpack_nibbles"]

SCALES_BYTES = 2 * PANEL
BLOCK_BYTES = SCALES_BYTES + GROUP * PANEL // 2
_WORDS_BYTES = GROUP * PANEL  # of a group of a panel, in bytes
QUADS_BYTES = _WORDS_BYTES + 4 * PANEL  # unpacked: then its scales, float32
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
            sums = _Sums(builder, (rows, vectors), (target, target_stride, first), (begins, begins_stride))
            with cgutils.for_range(builder, groups) as loop:
                size = number(BLOCK_BYTES)
                block = builder.add(blocks, builder.mul(loop.index, size))
                ask_ahead(builder, loop.index, groups, blocks, beyond, size)
                sums.begin(loop.index)
                codes = builder.add(block, builder.add(builder.mul(first, number(4)), number(SCALES_BYTES)))
                x = builder.add(left, builder.mul(loop.index, number(GROUP)))
                for eight in range(GROUP // 8):
                    row = builder.add(codes, number(_EIGHT * eight))
                    words = [load_words(builder, row, j) for j in range(vectors)]
                    for half in range(2):
                        parts = [_half(builder, word, half) for word in words]
                        weights = [unsigned_parts(builder, part, way) for part in parts]
                        sums.add(builder.add(x, number(8 * eight + 4 * half)), left_stride, weights, way)
                sums.scale([half_floats(builder, block, first, j) for j in range(vectors)])
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10, like), generate

    return multiply


def scaled_product(rows: int, vectors: int) -> Callable[..., None]:
    """`nibble_product` of what `unpack_nibbles` made of some blocks; the same bits.

    Where `resumes` is not 0, it is added to what `target` holds. With each group so many `lines` from `ahead` on are
    asked for.
    """

    @intrinsic
    def multiply(
        context,
        left,
        left_stride,
        begins,
        begins_stride,
        quads,
        groups,
        first,
        target,
        target_stride,
        resumes,
        ahead,
        lines,
        like,
    ):
        def generate(context, builder, signature, arguments):
            left, left_stride, begins, begins_stride, quads, groups, first = arguments[:7]
            target, target_stride, resumes, ahead, lines = arguments[7:12]
            way, number = like.ndim, groups.type
            sums = _Sums(builder, (rows, vectors), (target, target_stride, first), (begins, begins_stride))
            with builder.if_then(builder.icmp_signed("!=", resumes, number(0))):
                sums.load()
            with cgutils.for_range(builder, groups) as loop:
                ask_for_lines(builder, loop.index, ahead, lines)
                sums.begin(loop.index)
                own = builder.add(quads, builder.mul(loop.index, number(QUADS_BYTES)))
                own = builder.add(own, builder.mul(first, number(4)))
                x = builder.add(left, builder.mul(loop.index, number(GROUP)))
                for quad in range(GROUP // 4):
                    row = builder.add(own, number(4 * PANEL * quad))
                    weights = [unsigned_parts(builder, load_words(builder, row, j), way) for j in range(vectors)]
                    sums.add(builder.add(x, number(4 * quad)), left_stride, weights, way)
                sums.scale([_floats(builder, builder.add(own, number(_WORDS_BYTES)), j) for j in range(vectors)])
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 12, like), generate

    return multiply


@intrinsic
def unpack_nibbles(context, blocks, groups, target):
    """Some groups as `scaled_product` reads them: of each [8, 64] words of four codes, then [64] scales, float32."""

    def generate(context, builder, signature, arguments):
        blocks, groups, target = arguments
        number = groups.type
        with cgutils.for_range(builder, groups) as loop:
            block = builder.add(blocks, builder.mul(loop.index, number(BLOCK_BYTES)))
            into = builder.add(target, builder.mul(loop.index, number(QUADS_BYTES)))
            for eight in range(GROUP // 8):
                row = builder.add(block, number(SCALES_BYTES + _EIGHT * eight))
                for j in range(PANEL // LANES):
                    words = load_words(builder, row, j)
                    for half in range(2):
                        at = builder.add(into, number(4 * PANEL * (2 * eight + half) + 4 * LANES * j))
                        place = builder.inttoptr(at, _WORDS.as_pointer())
                        builder.store(_half(builder, words, half), place, align=4)
            for j in range(PANEL // LANES):
                at = builder.add(into, number(_WORDS_BYTES + 4 * LANES * j))
                found = half_floats(builder, block, number(0), j)
                builder.store(found, builder.inttoptr(at, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), generate


class _Sums(ScaledSums):
    """Of some rows and vectors of columns, in registers: a group's whole numbers, and those of all groups, scaled."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        shape: tuple[int, int],
        place: tuple[ir.Value, ir.Value, ir.Value],
        begins: tuple[ir.Value, ir.Value],
    ):
        super().__init__(builder, shape, place)
        self._begins = begins
        self._own: list[ir.Value] = []

    def begin(self, group: ir.Value) -> None:
        """Begins a group with what its codes stand too high."""
        base, stride = self._begins
        at = self._builder.add(base, self._builder.mul(group, group.type(4)))
        self._own = [own for i in range(self._rows) for own in [self._word(at, stride, i)] * self._vectors]

    def add(self, x: ir.Value, stride: ir.Value, weights: list[list[ir.Value]], way: int) -> None:
        """Four columns of each row, from the address `x` on, by four of each of the weight's rows."""
        for i in range(self._rows):
            four = split_weights(self._builder, self._word(x, stride, i), way)
            for j, own in enumerate(weights, i * self._vectors):
                self._own[j] = add_dots(self._builder, own, four, self._own[j], way)

    def scale(self, scales: list[ir.Value]) -> None:
        """Ends a group."""
        builder = self._builder
        for place, (own, sum_) in enumerate(zip(self._own, self._all, strict=True)):
            found = builder.sitofp(own, _FLOATS)
            builder.store(fuse(builder, found, scales[place % self._vectors], builder.load(sum_)), sum_)

    def _word(self, base: ir.Value, stride: ir.Value, row: int) -> ir.Value:
        """A word of a row, in every lane."""
        builder = self._builder
        at = builder.inttoptr(builder.add(base, builder.mul(stride, stride.type(row))), _WORD.as_pointer())
        return splat(builder, builder.load(at, align=4), _WORDS)


def _floats(builder: ir.IRBuilder, base: ir.Value, vector: int) -> ir.Value:
    at = builder.add(base, base.type(4 * LANES * vector))
    return builder.load(builder.inttoptr(at, _FLOATS.as_pointer()), align=4)


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
