"""Vector code for weights in blocks: a group of 32 columns at a time, dequantised in registers.

A group of a panel of 64 rows is, one after the other: 64 scales, float16 or float32, as many offsets or zeros where
there are any, as wide as the scales, and codes; of halves with scales of their own first the scales of both, then the
offsets of both. Codes of eight bits lie column by column. Those of four lie eight columns together: of rows 0 to 15 a
32-bit word each, the first column in its lowest bits, then of rows 16 to 31 and so on. A weight is one fused
multiplication and addition of its code, which rounds nothing but an offset's sum and a float32 scale's product, so that
products have the bits of those with float32 weights. An E4M3's bits, moved, are those of a float16 that is smaller by
2^8: its scales are stored as much larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.memory import emit_prefetch
from kernels.cpu.vector import LANES, fuse

__all__ = [
    "FP8",
    "FP8_FACTOR",
    "GROUP",
    "INT4",
    "INT4_OFFSETS",
    "INT4_WIDE_OFFSETS",
    "INT4_ZEROS",
    "INT8",
    "INT8_SIXTEENS",
    "INT8_SIXTEENS_OFFSETS",
    "INT8_WIDE",
    "INT8_WIDE_OFFSETS",
    "PANEL",
    "Blocks",
    "ScaledSums",
    "ask_ahead",
    "ask_for_lines",
    "block_bytes",
    "block_product",
    "floats_at",
    "half_floats",
    "layout_of",
    "unpack",
    "widen_codes",
    "widen_e4m3",
    "widen_whole",
]

GROUP, PANEL = 32, 64
MID = 8  # what a code of four bits without an offset stands above
FP8_FACTOR = 2.0**8
# For compiled code's arguments `like`, as those of `dtypes`: what a panel's blocks are, told apart by these dtypes.
INT8, INT4, INT4_OFFSETS = np.empty(0, np.int8), np.empty(0, np.uint8), np.empty(0, np.uint16)
INT4_ZEROS, INT8_WIDE, FP8 = np.empty(0, np.int16), np.empty(0, np.int32), np.empty(0, np.uint32)
INT4_WIDE_OFFSETS, INT8_WIDE_OFFSETS = np.empty(0, np.int64), np.empty(0, np.uint64)
INT8_SIXTEENS, INT8_SIXTEENS_OFFSETS = np.empty(0, np.float64), np.empty(0, np.complex64)


class Blocks(NamedTuple):
    """How a group of a panel lies."""

    codes: Literal["int8", "fp8", "int4"]
    scale_bytes: int = 2
    second: Literal["offsets", "zeros"] | None = None  # beside the scales, as wide as they are
    halves: int = 1  # of a group, with scales of their own

    @property
    def before_codes(self) -> int:
        return PANEL * self.scale_bytes * self.runs

    @property
    def runs(self) -> int:
        """Of numbers that each row has before the codes: scales, then what lies beside them."""
        return self.halves * (2 if self.second else 1)

    @property
    def num_bytes(self) -> int:
        return self.before_codes + GROUP * PANEL // (2 if self.codes == "int4" else 1)


_BLOCKS = {
    "int8": Blocks("int8"),
    "uint8": Blocks("int4"),
    "uint16": Blocks("int4", second="offsets"),
    "int16": Blocks("int4", second="zeros"),
    "int32": Blocks("int8", scale_bytes=4),
    "uint32": Blocks("fp8", scale_bytes=4),
    "int64": Blocks("int4", scale_bytes=4, second="offsets"),
    "uint64": Blocks("int8", scale_bytes=4, second="offsets"),
    "float64": Blocks("int8", scale_bytes=4, halves=2),
    "complex64": Blocks("int8", scale_bytes=4, second="offsets", halves=2),
}
_AHEAD = 12  # groups that are asked for before they are read: some 15 KB
_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)
_HALF_FLOATS, _BYTES = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.IntType(8), LANES)
_HALF_WORDS = ir.VectorType(ir.IntType(16), LANES)


def layout_of(kind: types.Type | np.dtype) -> Blocks:
    """By the dtype of `INT8` and the others."""
    return _BLOCKS[str(kind)]


def block_bytes(kind: types.Type | np.dtype) -> int:
    """Of a group of a panel."""
    return layout_of(kind).num_bytes


def block_product(rows: int, vectors: int) -> Callable[..., None]:
    """A micro-kernel: `target = left @ weights`, [rows, 32 x groups] by 16 x vectors rows of a panel, from `first` on.

    Sums are in the columns' order, one fused addition each. What is read next, after these blocks those from `beyond`
    on, is asked for ahead.
    """

    @intrinsic
    def multiply(context, left, left_stride, blocks, groups, first, target, target_stride, beyond, like):
        def generate(context, builder, signature, arguments):
            left, left_stride, blocks, groups, first, target, target_stride, beyond = arguments[:8]
            zero = ir.Constant(_FLOATS, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows * vectors)]
            size = groups.type(block_bytes(like.dtype))
            with cgutils.for_range(builder, groups) as loop:
                block = builder.add(blocks, builder.mul(loop.index, size))
                ask_ahead(builder, loop.index, groups, blocks, beyond, size)
                x = builder.add(left, builder.mul(loop.index, left.type(GROUP * 4)))

                def add(column: ir.Value, weights: list[ir.Value], x: ir.Value = x) -> None:
                    at = builder.add(x, builder.mul(column, column.type(4)))
                    for i in range(rows):
                        row = builder.add(at, builder.mul(left_stride, at.type(i)))
                        same = _splat(builder, builder.load(builder.inttoptr(row, _FLOAT.as_pointer()), align=4))
                        for weight, sum_ in zip(weights, sums[i * vectors :], strict=False):
                            builder.store(fuse(builder, same, weight, builder.load(sum_)), sum_)

                _each_column(builder, block, first, vectors, like.dtype, add)
            for index, sum_ in enumerate(sums):
                row, j = divmod(index, vectors)
                place = builder.add(target, builder.mul(target_stride, target.type(row)))
                place = builder.add(place, builder.mul(builder.add(first, first.type(16 * j)), first.type(4)))
                builder.store(builder.load(sum_), builder.inttoptr(place, _FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8, like), generate

    return multiply


@intrinsic
def unpack(context, blocks, groups, target, like):
    """The weights of some groups as float32: [32 x groups, 64], as `resumed_product` reads them."""

    def generate(context, builder, signature, arguments):
        blocks, groups, target = arguments[:3]
        size, columns = groups.type(block_bytes(like.dtype)), PANEL // LANES
        with cgutils.for_range(builder, groups) as loop:
            block = builder.add(blocks, builder.mul(loop.index, size))
            into = builder.add(target, builder.mul(loop.index, target.type(GROUP * PANEL * 4)))

            def store(column: ir.Value, weights: list[ir.Value], into: ir.Value = into) -> None:
                row = builder.add(into, builder.mul(column, column.type(PANEL * 4)))
                for j, weight in enumerate(weights):
                    place = builder.add(row, row.type(j * LANES * 4))
                    builder.store(weight, builder.inttoptr(place, _FLOATS.as_pointer()), align=4)

            _each_column(builder, block, blocks.type(0), columns, like.dtype, store)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, like), generate


def _each_column(
    builder: ir.IRBuilder,
    block: ir.Value,
    first: ir.Value,
    vectors: int,
    kind: types.Type,
    use: Callable[[ir.Value, list[ir.Value]], None],
) -> None:
    """`use` with each column's number and its weights, for 16 x vectors rows from `first` on; eight columns a round."""
    blocks = layout_of(kind)
    for half in range(blocks.halves):
        _each_column_of_half(builder, block, first, vectors, blocks, half, use)


def _each_column_of_half(
    builder: ir.IRBuilder,
    block: ir.Value,
    first: ir.Value,
    vectors: int,
    blocks: Blocks,
    half: int,
    use: Callable[[ir.Value, list[ir.Value]], None],
) -> None:
    """`_each_column` of the columns that share scales: half of the group, or all of it."""
    scales = [floats_at(builder, block, first, j, half, layout=blocks) for j in range(vectors)]
    codes, offsets = builder.add(block, block.type(blocks.before_codes)), None
    if blocks.second is not None:
        offsets = [floats_at(builder, block, first, j, blocks.halves + half, layout=blocks) for j in range(vectors)]
        if blocks.second == "zeros":
            zeros = zip(scales, offsets, strict=True)
            offsets = [builder.fmul(scale, builder.fneg(zero)) for scale, zero in zeros]
    elif blocks.codes == "int4":
        least = ir.Constant(_FLOATS, [-float(MID)] * LANES)
        offsets = [builder.fmul(scale, least) for scale in scales]

    def weights(numbers: list[ir.Value]) -> list[ir.Value]:
        if offsets is None:
            return [builder.fmul(part, scale) for part, scale in zip(numbers, scales, strict=True)]
        parts = zip(numbers, scales, offsets, strict=True)
        return [fuse(builder, part, scale, offset) for part, scale, offset in parts]

    low, number, columns = ir.Constant(_WORDS, [15] * LANES), first.type, GROUP // blocks.halves
    begin, end = number(columns * half), number(columns * (half + 1))
    with cgutils.for_range_slice(builder, begin, end, number(8)) as (eight, _):
        if blocks.codes != "int4":
            for k in range(8):
                column = builder.add(eight, number(k))
                row = builder.add(codes, builder.add(first, builder.mul(column, number(PANEL))))
                places = [builder.add(row, row.type(LANES * j)) for j in range(vectors)]
                found = [builder.load(builder.inttoptr(at, _BYTES.as_pointer()), align=1) for at in places]
                use(column, weights([widen_codes(builder, part, blocks) for part in found]))
            return
        row = builder.add(builder.mul(first, number(4)), builder.mul(eight, number(PANEL // 2)))
        places = [builder.add(builder.add(codes, row), row.type(4 * LANES * j)) for j in range(vectors)]
        words = [builder.load(builder.inttoptr(at, _WORDS.as_pointer()), align=4) for at in places]
        for k in range(8):
            shift = ir.Constant(_WORDS, [4 * k] * LANES)
            found = [builder.sitofp(builder.and_(builder.lshr(word, shift), low), _FLOATS) for word in words]
            use(builder.add(eight, number(k)), weights(found))


class ScaledSums:
    """Of some rows and vectors of columns, in registers: those of all groups so far, scaled.

    `place`: the target's address, the bytes of a row of it, the first column.
    """

    def __init__(self, builder: ir.IRBuilder, shape: tuple[int, int], place: tuple[ir.Value, ir.Value, ir.Value]):
        self._builder, (self._rows, self._vectors) = builder, shape
        target, stride, first = place
        self._places = []
        for i in range(self._rows):
            row = builder.add(target, builder.mul(stride, stride.type(i)))
            for j in range(self._vectors):
                at = builder.add(row, builder.mul(builder.add(first, first.type(LANES * j)), first.type(4)))
                self._places.append(builder.inttoptr(at, _FLOATS.as_pointer()))
        zero = ir.Constant(_FLOATS, [0.0] * LANES)
        self._all = [cgutils.alloca_once_value(builder, zero) for _ in self._places]

    def load(self) -> None:
        """From the target, to go on with them."""
        for place, sum_ in zip(self._places, self._all, strict=True):
            self._builder.store(self._builder.load(place, align=4), sum_)

    def store(self) -> None:
        """Into the target."""
        for place, sum_ in zip(self._places, self._all, strict=True):
            self._builder.store(self._builder.load(sum_), place, align=4)


def ask_ahead(
    builder: ir.IRBuilder, index: ir.Value, groups: ir.Value, blocks: ir.Value, beyond: ir.Value, size: ir.Constant
) -> None:
    """Asks for a group that is read later: of these blocks, or of those that come after them."""
    wanted = builder.add(index, index.type(_AHEAD))
    is_here = builder.icmp_signed("<", wanted, groups)
    place = builder.select(is_here, blocks, beyond)
    number = builder.select(is_here, wanted, builder.sub(wanted, groups))
    place = builder.add(place, builder.mul(number, size))
    for line in range(0, int(size.constant), 64):
        emit_prefetch(builder, builder.add(place, place.type(line)))


def ask_for_lines(builder: ir.IRBuilder, index: ir.Value, ahead: ir.Value, lines: ir.Value) -> None:
    """Asks for so many lines with a loop's round `index`, of those from `ahead` on."""
    asked = builder.add(ahead, builder.mul(index, builder.mul(lines, lines.type(64))))
    with cgutils.for_range(builder, lines) as line:
        emit_prefetch(builder, builder.add(asked, builder.mul(line.index, lines.type(64))))


def floats_at(
    builder: ir.IRBuilder, block: ir.Value, first: ir.Value, vector: int, run: int, *, layout: Blocks
) -> ir.Value:
    """Vector `vector` of what a group keeps of each row before the codes, from the `first` on: its scales, the next
    run of numbers as wide, and so on.
    """
    load = half_floats if layout.scale_bytes == 2 else _floats
    return load(builder, builder.add(block, block.type(PANEL * layout.scale_bytes * run)), first, vector)


def half_floats(builder: ir.IRBuilder, base: ir.Value, first: ir.Value, vector: int) -> ir.Value:
    """Vector `vector` of float16 from the `first` on, as float32."""
    at = builder.add(base, builder.mul(builder.add(first, first.type(LANES * vector)), first.type(2)))
    return builder.fpext(builder.load(builder.inttoptr(at, _HALF_FLOATS.as_pointer()), align=2), _FLOATS)


def _floats(builder: ir.IRBuilder, base: ir.Value, first: ir.Value, vector: int) -> ir.Value:
    at = builder.add(base, builder.mul(builder.add(first, first.type(LANES * vector)), first.type(4)))
    return builder.load(builder.inttoptr(at, _FLOATS.as_pointer()), align=4)


def widen_codes(builder: ir.IRBuilder, codes: ir.Value, blocks: Blocks) -> ir.Value:
    """Sixteen codes of eight bits as float32, an E4M3 divided by `FP8_FACTOR`."""
    return (widen_whole if blocks.codes == "int8" else widen_e4m3)(builder, codes)


def widen_whole(builder: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    """Sixteen whole numbers as float32."""
    return builder.sitofp(builder.sext(codes, _WORDS), _FLOATS)


def widen_e4m3(builder: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    """Each number divided by `FP8_FACTOR`, exactly: what is below float16's normal numbers is one of the others."""
    seven, all_but_14 = (ir.Constant(_HALF_WORDS, [word] * LANES) for word in (7, 0xBFFF))
    # The sign fills the upper half, and is both of a float16's upper bits then: its own, and one that must be 0.
    bits = builder.and_(builder.shl(builder.sext(codes, _HALF_WORDS), seven), all_but_14)
    return builder.fpext(builder.bitcast(bits, _HALF_FLOATS), _FLOATS)


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    single = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, _WORD(0))
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, [0] * LANES))
