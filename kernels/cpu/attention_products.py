"""The innermost parts of attention's products over keys and values in tiles (`kv_layout`), which are read as they lie.

A step multiplies 32 bits of the left operand with sixteen times 32 of a tile: a pair of bfloat16 (`attention_pairs`) or
a float32 (`attention_floats`). Tiles are asked for while others are multiplied, line by line: values while their keys
are, then the next keys. Of all that are asked for at once most are dropped by CPUs that keep a few dozen such requests.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.kv_layout import TILE_KEYS
from kernels.cpu.memory import emit_prefetch
from kernels.cpu.vector import LANES, dot, fuse, load_words, splat

__all__ = ["BLOCK_TILES", "ROWS", "scoring", "weighing"]

ROWS = 4  # of the left operand: with four vectors each sixteen sums in registers
BLOCK_TILES = 16  # of a block of keys
_WORDS, _FLOATS = ir.VectorType(ir.IntType(32), LANES), ir.VectorType(ir.FloatType(), LANES)


def _add(
    builder: ir.IRBuilder, sums: list[ir.Value], left: ir.Value, stride: ir.Value, columns: list[ir.Value]
) -> None:
    """Adds the products of each row's pair, or number, at `left` with each column to its sum."""
    add = dot if columns[0].type == _WORDS else fuse
    for i in range(ROWS):
        at = builder.add(left, builder.mul(stride, stride.type(i)))
        place = builder.inttoptr(at, columns[0].type.element.as_pointer())
        same = splat(builder, builder.load(place, align=4), columns[0].type)
        for j, column in enumerate(columns):
            sum_ = sums[i * len(columns) + j]
            builder.store(add(builder, same, column, builder.load(sum_)), sum_)


def _column(builder: ir.IRBuilder, row: ir.Value, index: int, are_pairs: bool) -> ir.Value:
    """Sixteen words at `row`, or so many vectors further on."""
    words = load_words(builder, row, index)
    return words if are_pairs else builder.bitcast(words, _FLOATS)


def _zeros(builder: ir.IRBuilder, count: int) -> list[ir.Value]:
    zero = ir.Constant(_FLOATS, [0.0] * LANES)
    return [cgutils.alloca_once_value(builder, zero) for _ in range(count)]


def _save(builder: ir.IRBuilder, sums: list[ir.Value], target: ir.Value, stride: ir.Value) -> None:
    vectors = len(sums) // ROWS
    for i, sum_ in enumerate(sums):
        row = builder.add(target, builder.mul(stride, stride.type(i // vectors)))
        place = builder.add(row, row.type(4 * LANES * (i % vectors)))
        builder.store(builder.load(sum_), builder.inttoptr(place, _FLOATS.as_pointer()), align=4)


def scoring(vectors: int, *, are_pairs: bool, asks: bool) -> Callable[..., None]:
    """Four queries, of so many `steps`, with the sixteen keys of each of `vectors` tiles."""

    @intrinsic
    def score(context, queries, query_stride, tiles, steps, target, target_stride, ahead):
        """The tiles' addresses lie at `tiles`; those of what is asked for lie at `ahead`."""

        def generate(context, builder, signature, arguments):
            queries, query_stride, tiles, steps, target, target_stride, ahead = arguments
            sums = _zeros(builder, vectors * ROWS)
            bases, asked = _words_at(builder, tiles, vectors), _words_at(builder, ahead, vectors) if asks else []
            with cgutils.for_range(builder, steps) as loop:
                offset = builder.mul(loop.index, steps.type(4 * LANES))
                columns = [_column(builder, builder.add(base, offset), 0, are_pairs) for base in bases]
                for base in asked:
                    emit_prefetch(builder, builder.add(base, offset))
                at = builder.add(queries, builder.mul(loop.index, steps.type(4)))
                _add(builder, sums, at, query_stride, columns)
            _save(builder, sums, target, target_stride)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), generate

    return score


def _words_at(builder: ir.IRBuilder, address: ir.Value, count: int) -> list[ir.Value]:
    """So many addresses that lie one after the other."""
    places = [builder.add(address, address.type(8 * j)) for j in range(count)]
    return [builder.load(builder.inttoptr(place, address.type.as_pointer())) for place in places]


def weighing(vectors: int, *, are_pairs: bool, asks: bool) -> Callable[..., None]:
    """Four rows of probs with 16 x `vectors` dimensions of values."""
    steps = TILE_KEYS // (1 + are_pairs)  # of a tile

    @intrinsic
    def weigh(context, probs, prob_stride, tiles, count, offset, step, target):
        """The dimensions begin `offset` bytes on in each row of each of `count` tiles, whose addresses lie at `tiles`.
        What is asked for lies at the addresses after a block's.
        """

        def generate(context, builder, signature, arguments):
            probs, prob_stride, tiles, count, offset, step, target = arguments
            sums = _zeros(builder, vectors * ROWS)
            with cgutils.for_range(builder, count) as loop:
                place = builder.add(tiles, builder.mul(loop.index, count.type(8)))
                base = builder.add(_words_at(builder, place, 1)[0], offset)
                next_ = _words_at(builder, builder.add(place, place.type(8 * BLOCK_TILES)), 1)[0]
                next_ = builder.add(next_, builder.mul(offset, offset.type(steps)))
                left = builder.add(probs, builder.mul(loop.index, count.type(4 * steps)))
                for i in range(steps):
                    row = builder.add(base, builder.mul(step, step.type(i)))
                    columns = [_column(builder, row, j, are_pairs) for j in range(vectors)]
                    for j in range(vectors if asks else 0):
                        emit_prefetch(builder, builder.add(next_, next_.type(64 * (vectors * i + j))))
                    _add(builder, sums, builder.add(left, left.type(4 * i)), prob_stride, columns)
            _save(builder, sums, target, step)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), generate

    return weigh
