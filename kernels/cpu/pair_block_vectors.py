"""Vector code for weights in blocks that are multiplied in pairs of bfloat16: a group's products, then its scale.

A code is a bfloat16, exactly: a whole number up to 255, or an E4M3. So codes are multiplied, and what weights have in
common comes after a group's sum: its scale, and its offset or zero times the sum of the group's inputs.

Groups lie as `block_vectors.py` says, but for codes of four bits. Of these the lower half of a word holds the first,
third, fifth and seventh column, the upper half the ones between: moved right by 0, 4, 8 or 12 bits, its halves' lowest
bits are a pair. Their numbers are looked up by the instruction that permutes sixteen bits (`vpermw`), which reads five
of them: the fifth may be anything. Zeros are stored as what they are below 8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.block_vectors import (
    GROUP,
    MID,
    PANEL,
    Blocks,
    ScaledSums,
    ask_ahead,
    ask_for_lines,
    floats_at,
    layout_of,
    widen_codes,
)
from kernels.cpu.vector import LANES, dot, fuse, load_words, splat

__all__ = ["PAIRS_BYTES", "pair_block_product", "scaled_product", "sum_groups", "unpack_pairs"]

PAIRS_BYTES = GROUP // 2 * PANEL * 4  # of a group of a panel, unpacked
_EIGHT = 4 * PANEL  # bytes of eight columns of four bits
_WORD, _FLOAT = ir.IntType(32), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, LANES), ir.VectorType(_FLOAT, LANES)
_HALVES, _BYTES = ir.VectorType(ir.IntType(16), 2 * LANES), ir.VectorType(ir.IntType(8), LANES)
_ONES = 0x3F803F80  # a pair of them

_Columns = Callable[[int, list[ir.Value]], None]  # takes a pair of columns' number and its vectors


def pair_block_product(rows: int, vectors: int) -> Callable[..., None]:
    """A micro-kernel: `target = left @ weights`, [rows, 32 x groups] by 16 x vectors rows of a panel, from `first` on.

    `left` are pairs of bfloat16; `totals` what `sum_groups` makes of them, where weights have offsets. What is read
    next, after these blocks those from `beyond` on, is asked for ahead. `like` says of what kind the blocks are.
    """

    @intrinsic
    def multiply(
        context, left, left_stride, totals, totals_stride, blocks, groups, first, target, target_stride, beyond, like
    ):
        def generate(context, builder, signature, arguments):
            left, left_stride, totals, totals_stride, blocks, groups, first, target, target_stride, beyond = arguments[
                :10
            ]
            layout, number = layout_of(like.dtype), groups.type
            inputs = _Inputs(builder, (left, left_stride), (totals, totals_stride), layout)
            sums = _Sums(builder, (rows, vectors), (target, target_stride, first))
            with cgutils.for_range(builder, groups) as loop:
                size = number(layout.num_bytes)
                block = builder.add(blocks, builder.mul(loop.index, size))
                ask_ahead(builder, loop.index, groups, blocks, beyond, size)
                for half in range(layout.halves):
                    use = partial(sums.add, inputs, loop.index)
                    _each_pair(
                        builder, builder.add(block, number(layout.before_codes)), first, vectors, layout, half, use
                    )
                    sums.scale(inputs, loop.index, block, half)
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 10, like), generate

    return multiply


def scaled_product(rows: int, vectors: int) -> Callable[..., None]:
    """`pair_block_product` of pairs that `unpack_pairs` made, the scales still from the blocks; the same bits.

    Where `resumes` is not 0, it is added to what `target` holds. With each group so many `lines` from `ahead` on are
    asked for: a strip's blocks all at once are more than the CPU asks for, and were waited for when it was unpacked.
    """

    @intrinsic
    def multiply(
        context,
        left,
        left_stride,
        totals,
        totals_stride,
        pairs,
        blocks,
        groups,
        target,
        target_stride,
        resumes,
        ahead,
        lines,
        like,
    ):
        def generate(context, builder, signature, arguments):
            left, left_stride, totals, totals_stride, pairs, blocks, groups = arguments[:7]
            target, target_stride, resumes, ahead, lines = arguments[7:12]
            layout, number = layout_of(like.dtype), groups.type
            inputs = _Inputs(builder, (left, left_stride), (totals, totals_stride), layout)
            sums = _Sums(builder, (rows, vectors), (target, target_stride, number(0)))
            with builder.if_then(builder.icmp_signed("!=", resumes, number(0))):
                sums.load()
            with cgutils.for_range(builder, groups) as loop:
                block = builder.add(blocks, builder.mul(loop.index, number(layout.num_bytes)))
                own = builder.add(pairs, builder.mul(loop.index, number(PAIRS_BYTES)))
                ask_for_lines(builder, loop.index, ahead, lines)
                for half in range(layout.halves):
                    for pair in _pairs_of(layout, half):
                        row = builder.add(own, number(4 * PANEL * pair))
                        columns = [load_words(builder, row, j) for j in range(vectors)]
                        sums.add(inputs, loop.index, pair, columns)
                    sums.scale(inputs, loop.index, block, half)
            sums.store()
            return context.get_dummy_value()

        return types.void(*[types.intp] * 12, like), generate

    return multiply


@intrinsic
def unpack_pairs(context, blocks, groups, target, like):
    """Codes of some groups as pairs of bfloat16: [16 x groups, 64], as `scaled_product` reads them."""

    def generate(context, builder, signature, arguments):
        blocks, groups, target = arguments[:3]
        layout, number = layout_of(like.dtype), groups.type
        with cgutils.for_range(builder, groups) as loop:
            size = number(layout.num_bytes)
            block = builder.add(blocks, builder.mul(loop.index, size))
            into = builder.add(target, builder.mul(loop.index, number(PAIRS_BYTES)))

            def store(pair: int, columns: list[ir.Value], into: ir.Value = into) -> None:
                for j, column in enumerate(columns):
                    at = builder.add(into, number(4 * PANEL * pair + 4 * LANES * j))
                    builder.store(column, builder.inttoptr(at, _WORDS.as_pointer()), align=4)

            codes = builder.add(block, number(layout.before_codes))
            for half in range(layout.halves):
                _each_pair(builder, codes, number(0), PANEL // LANES, layout, half, store)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3, like), generate


@intrinsic
def sum_groups(context, x, groups, target, like):
    """The sums of a row of bfloat16, for each group of columns that has an offset of its own: float32."""

    def generate(context, builder, signature, arguments):
        x, groups, target = arguments[:3]
        halves, number = layout_of(like.dtype).halves, groups.type
        with cgutils.for_range(builder, groups) as loop:
            pairs = load_words(builder, builder.add(x, builder.mul(loop.index, number(2 * GROUP))), 0)
            sums = dot(builder, ir.Constant(_WORDS, [_ONES] * LANES), pairs, ir.Constant(_FLOATS, [0.0] * LANES))
            step = LANES // halves
            while step > 1:
                step //= 2
                moved = ir.Constant(_WORDS, [lane ^ step for lane in range(LANES)])
                sums = builder.fadd(sums, builder.shuffle_vector(sums, sums, moved))
            into = builder.add(target, builder.mul(loop.index, number(4 * halves)))
            for half in range(halves):
                found = builder.extract_element(sums, _WORD(half * LANES // halves))
                place = builder.inttoptr(builder.add(into, number(4 * half)), _FLOAT.as_pointer())
                builder.store(found, place, align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3, like), generate


class _Inputs:
    """Rows that are multiplied: pairs of bfloat16, and the sums of their groups."""

    def __init__(
        self, builder: ir.IRBuilder, pairs: tuple[ir.Value, ir.Value], totals: tuple[ir.Value, ir.Value], layout: Blocks
    ):
        self._builder, self._pairs, self._totals, self.layout = builder, pairs, totals, layout

    def pair(self, row: int, group: ir.Value, index: int) -> ir.Value:
        """A row's pair of columns of a group, in every lane."""
        return splat(self._builder, self._load(self._pairs, row, group, 2 * GROUP, 4 * index, _WORD), _WORDS)

    def total(self, row: int, group: ir.Value, half: int) -> ir.Value:
        """The sum of a row's columns that share an offset, in every lane."""
        return splat(
            self._builder, self._load(self._totals, row, group, 4 * self.layout.halves, 4 * half, _FLOAT), _FLOATS
        )

    def _load(
        self, rows: tuple[ir.Value, ir.Value], row: int, group: ir.Value, size: int, at: int, kind: ir.Type
    ) -> ir.Value:
        builder, (base, stride) = self._builder, rows
        place = builder.add(base, builder.mul(stride, stride.type(row)))
        place = builder.add(place, builder.add(builder.mul(group, group.type(size)), group.type(at)))
        return builder.load(builder.inttoptr(place, kind.as_pointer()), align=4)


class _Sums(ScaledSums):
    """Of some rows and vectors of columns, in registers: a group's, and those of all groups so far, scaled."""

    def __init__(self, builder: ir.IRBuilder, shape: tuple[int, int], place: tuple[ir.Value, ir.Value, ir.Value]):
        super().__init__(builder, shape, place)
        self._first = place[2]
        self._zero = ir.Constant(_FLOATS, [0.0] * LANES)
        self._own = [self._zero] * len(self._places)

    def add(self, inputs: _Inputs, group: ir.Value, pair: int, columns: list[ir.Value]) -> None:
        """A pair of each row by a pair of each column."""
        for i in range(self._rows):
            same = inputs.pair(i, group, pair)
            for j, column in enumerate(columns, i * self._vectors):
                self._own[j] = dot(self._builder, same, column, self._own[j])

    def scale(self, inputs: _Inputs, group: ir.Value, block: ir.Value, half: int) -> None:
        """Ends a group, or the half of it that has a scale of its own."""
        builder, layout = self._builder, inputs.layout
        scales = [floats_at(builder, block, self._first, j, half, layout=layout) for j in range(self._vectors)]
        seconds = [
            floats_at(builder, block, self._first, j, layout.halves + half, layout=layout)
            for j in range(self._vectors if layout.second else 0)
        ]
        for i in range(self._rows):
            total = inputs.total(i, group, half) if layout.second else None
            for j, scale in enumerate(scales):
                place = i * self._vectors + j
                own, sum_ = self._own[place], builder.load(self._all[place])
                if layout.second == "zeros":
                    own = fuse(builder, seconds[j], total, own)
                sum_ = fuse(builder, own, scale, sum_)
                if layout.second == "offsets":
                    sum_ = fuse(builder, seconds[j], total, sum_)
                builder.store(sum_, self._all[place])
        self._own = [self._zero] * len(self._own)


def _pairs_of(layout: Blocks, half: int) -> range:
    size = GROUP // 2 // layout.halves
    return range(size * half, size * (half + 1))


def _each_pair(
    builder: ir.IRBuilder, codes: ir.Value, first: ir.Value, vectors: int, layout: Blocks, half: int, use: _Columns
) -> None:
    """`use` with each pair of columns that share scales, for 16 x vectors rows from `first` on."""
    number = first.type
    if layout.codes == "int4":
        table = _table(0 if layout.second == "offsets" else -MID)
        base = builder.add(codes, builder.mul(first, number(4)))
        for eight in range(GROUP // 8):
            row = builder.add(base, number(_EIGHT * eight))
            words = [load_words(builder, row, j) for j in range(vectors)]
            for pair in range(4):
                use(4 * eight + pair, [_look_up(builder, table, word, pair) for word in words])
        return
    base = builder.add(codes, first)
    for pair in _pairs_of(layout, half):
        columns = []
        for j in range(vectors):
            places = [builder.add(base, number(PANEL * (2 * pair + k) + LANES * j)) for k in range(2)]
            found = [builder.load(builder.inttoptr(at, _BYTES.as_pointer()), align=1) for at in places]
            columns.append(_paired(builder, *(widen_codes(builder, part, layout) for part in found)))
        use(pair, columns)


def _paired(builder: ir.IRBuilder, first: ir.Value, second: ir.Value) -> ir.Value:
    """Float32 whose lower halves are 0 as pairs of bfloat16."""
    upper = [place for lane in range(LANES) for place in (2 * lane + 1, 2 * LANES + 2 * lane + 1)]
    halves = (builder.bitcast(one, _HALVES) for one in (first, second))
    return builder.bitcast(builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_WORD, 2 * LANES), upper)), _WORDS)


def _table(least: int) -> ir.Constant:
    """Sixteen whole numbers as bfloat16, twice."""
    numbers = (np.arange(least, least + 16, dtype=np.float32).view(np.uint32) >> 16).tolist()
    return ir.Constant(_HALVES, numbers * 2)


def _look_up(builder: ir.IRBuilder, table: ir.Constant, words: ir.Value, pair: int) -> ir.Value:
    """The numbers of one pair of columns of each word, as bfloat16."""
    moved = builder.lshr(words, ir.Constant(_WORDS, [4 * pair] * LANES)) if pair else words
    signature = ir.FunctionType(_HALVES, [_HALVES, _HALVES])
    name = "llvm.x86.avx512.permvar.hi.512"
    permute = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.bitcast(builder.call(permute, [table, builder.bitcast(moved, _HALVES)]), _WORDS)
