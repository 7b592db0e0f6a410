"""The innermost part of a product by an Arm CPU's `bfmmla`: two rows by two columns, four numbers deep, at once.

An instruction adds up as two `bfdot` do, one after the other, so that the bits are those of `vector.resumed_product` in
pairs, in half the instructions. A row that is alone costs as much as two.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.memory import emit_prefetch
from kernels.cpu.neon_dots import PAIRS

__all__ = ["COLUMNS", "emit_product"]

COLUMNS = 16  # of a vector of sums, whose eight operands lie in two pieces: those of columns 0 to 7, and the others
_STEPS = 2  # of two numbers: what an instruction takes
_WORD, _DOUBLE_WORD = ir.IntType(32), ir.IntType(64)
_FOUR = ir.VectorType(ir.FloatType(), 4)
_ROWS, _TILES = ((0, 1, 4, 5), (2, 3, 6, 7)), ((0, 1, 4, 5), (2, 3, 6, 7))  # two rows of four are two tiles, and back


def emit_product(
    builder: ir.IRBuilder,
    shape: tuple[int, int],
    left: ir.Value,
    left_stride: ir.Value,
    right: ir.Value,
    right_stride: ir.Value,
    depth: ir.Value,
    target: ir.Value,
    target_stride: ir.Value,
    resumes: ir.Value,
    ahead: Sequence[ir.Value],
) -> None:
    """As `vector.resumed_product`, of an even number of rows and an even depth of steps, two numbers each.

    At `right` lie for each vector of columns, and for two steps in two rows, eight operands: a column's four numbers,
    and the next one's.
    """
    rows, vectors = shape
    sums = [cgutils.alloca_once_value(builder, ir.Constant(_FOUR, [0.0] * 4)) for _ in range(rows * vectors * 4)]
    with builder.if_then(resumes):
        _exchange(builder, sums, shape, target, target_stride, is_loaded=True)
    kind = ir.FunctionType(_FOUR, [_FOUR, PAIRS, PAIRS])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.neon.bfmmla")

    def add(index: ir.Value) -> None:
        row = builder.add(right, builder.mul(index, right_stride))
        for step in range(_STEPS):
            line = builder.mul(builder.add(index, index.type(step)), index.type(64))
            for address in ahead:
                emit_prefetch(builder, builder.add(address, line))
        at = builder.add(left, builder.mul(index, index.type(4)))
        pairs = [_two_rows(builder, at, left_stride, i) for i in range(0, rows, 2)]
        for j in range(vectors):
            for k in range(8):
                piece = builder.add(row, builder.mul(right_stride, right_stride.type(k // 4)))
                place = builder.add(piece, piece.type(64 * j + 16 * (k % 4)))
                column = builder.load(builder.inttoptr(place, PAIRS.as_pointer()), align=4)
                for i, pair in enumerate(pairs):
                    sum_ = sums[(i * vectors + j) * 8 + k]
                    builder.store(builder.call(function, [builder.load(sum_), pair, column]), sum_)

    unrolled = 2 * _STEPS
    whole = builder.mul(builder.udiv(depth, depth.type(unrolled)), depth.type(unrolled))
    with cgutils.for_range_slice(builder, depth.type(0), whole, depth.type(unrolled)) as (index, _):
        for i in range(0, unrolled, _STEPS):
            add(builder.add(index, depth.type(i)))
    with cgutils.for_range_slice(builder, whole, depth, depth.type(_STEPS)) as (index, _):
        add(index)
    _exchange(builder, sums, shape, target, target_stride, is_loaded=False)


def _two_rows(builder: ir.IRBuilder, at: ir.Value, stride: ir.Value, first: int) -> ir.Value:
    """Four numbers of each of two rows."""
    both: ir.Value = ir.Constant(ir.VectorType(_DOUBLE_WORD, 2), ir.Undefined)
    for i in range(2):
        place = builder.add(at, builder.mul(stride, stride.type(first + i)))
        four = builder.load(builder.inttoptr(place, _DOUBLE_WORD.as_pointer()), align=4)
        both = builder.insert_element(both, four, _WORD(i))
    return builder.bitcast(both, PAIRS)


def _exchange(
    builder: ir.IRBuilder,
    sums: list[ir.Value],
    shape: tuple[int, int],
    target: ir.Value,
    stride: ir.Value,
    *,
    is_loaded: bool,
) -> None:
    """Between rows in memory and tiles of two by two."""
    rows, vectors = shape
    for i in range(0, rows, 2):
        lines = [builder.add(target, builder.mul(stride, stride.type(i + k))) for k in range(2)]
        for j in range(vectors * 4):  # fours of columns
            places = [builder.inttoptr(builder.add(line, line.type(16 * j)), _FOUR.as_pointer()) for line in lines]
            tiles = sums[i // 2 * vectors * 8 + 2 * j :][:2]
            sources, targets, masks = (places, tiles, _TILES) if is_loaded else (tiles, places, _ROWS)
            first, second = (builder.load(source, align=4) for source in sources)
            for into, mask in zip(targets, masks, strict=True):
                lanes = ir.Constant(ir.VectorType(_WORD, 4), list(mask))
                builder.store(builder.shuffle_vector(first, second, lanes), into, align=4)
