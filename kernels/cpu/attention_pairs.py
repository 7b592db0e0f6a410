"""The steps of `kernels.cpu.paged_attention` on vector registers that multiply pairs of bfloat16 (`vdpbf16ps`).

Caches are in the same tiles as for the matrix registers (`attention_tiles`), whose rows are such pairs, and are read as
they lie. A row of a product depends on that row alone, and is summed in the order of its pairs of dimensions or keys.
Compiled code only; shapes are those of `attention_vectors`, but `keys` and `values` hold the addresses of a block's
tiles, `values` also those of the keys that are read next, and rows are computed in fours, those past the last one in
vain.

Tiles are asked for while others are multiplied, line by line: values while their keys are, then the next keys. Of all
that are asked for at once most are dropped by CPUs that keep a few dozen such requests.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.attention_tiles import exponentiate, find_slots, load_query, pack_last_values, prefetch, tile_of
from kernels.cpu.attention_vectors import configure, restore
from kernels.cpu.dtypes import INT64
from kernels.cpu.kv_layout import TILE_KEYS
from kernels.cpu.memory import carray, elements_at, emit_prefetch
from kernels.cpu.numba_options import EXACT
from kernels.cpu.vector import LANES, dot, load_words, splat

__all__ = [
    "ask",
    "configure",
    "exponentiate",
    "find_slots",
    "load_query",
    "look_ahead",
    "pack_keys",
    "pack_values",
    "restore",
    "score",
    "weigh_values",
]

ROWS = 4  # of the left operand, with four vectors each: sixteen sums in registers
KEYS_AT_ONCE = 4 * TILE_KEYS
BLOCK_TILES = 16  # of a block of keys
_WORD, _FLOATS = ir.IntType(32), ir.VectorType(ir.FloatType(), LANES)


@njit(**EXACT)
def _addresses(packed):
    """What `pack_keys`, `pack_values` and `look_ahead` leave: the address of each tile of a block."""
    return carray(elements_at(packed.ctypes.data, INT64), (packed.shape[0] // 4,))


@njit(**EXACT)
def _note(tiles, block):
    """Where the tiles of a block lie, the last one up to the end."""
    cache, head, slots, count = block
    last = (count - 1) // TILE_KEYS
    for i in range(BLOCK_TILES):
        tiles[i] = tile_of(cache, head, slots[min(i, last) * TILE_KEYS])


def pack_keys(keys, block, staged):
    """Notes where the tiles lie."""
    _note(_addresses(keys), block)


def pack_values(values, block, staged):
    """Notes where the tiles lie: the last one in `staged` if it is not full."""
    pack_last_values(block, staged)
    tiles, count = _addresses(values), block[3]
    _note(tiles, block)
    if count % TILE_KEYS:
        tiles[count // TILE_KEYS] = staged.ctypes.data


def ask(keys, block):
    """For the first keys of all, which nothing was multiplied before."""
    prefetch(block)


def look_ahead(values, block):
    """Notes where the keys lie that are read next, if there are any."""
    ahead = _addresses(values)[BLOCK_TILES:]
    if block[3] > 0:
        _note(ahead, block)
    else:
        ahead[0] = 0


def score(queries, keys, values, block, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`, four tiles of keys at a time."""
    tiles, ahead, row_bytes, stride = _addresses(keys), _addresses(values), queries.shape[1] * 2, scores.shape[1] * 4
    for first in range(0, min(padded, block[3]), KEYS_AT_ONCE):
        own = tiles[first // TILE_KEYS :]
        for row in range(0, num_rows, ROWS):
            into = scores[row].ctypes.data + first * 4
            left, asked = queries[row].ctypes.data, ahead[first // TILE_KEYS :].ctypes.data
            if row == 0:
                _score_asking(left, row_bytes, own.ctypes.data, row_bytes // 4, into, stride, asked)
            else:
                _score(left, row_bytes, own.ctypes.data, row_bytes // 4, into, stride, asked)


def weigh_values(probs, values, block, staged, num_rows, padded, product):
    """`product = probs[:, :padded] @ values`, 64 dimensions at a time, and the last 32. Past the count probs are 0."""
    addresses, width = _addresses(values), product.shape[1]
    tiles, asks = addresses.ctypes.data, addresses[BLOCK_TILES] != 0
    count, stride, step = (min(padded, block[3]) + TILE_KEYS - 1) // TILE_KEYS, probs.shape[1] * 2, width * 4
    for row in range(0, num_rows, ROWS):
        left, into = probs[row].ctypes.data, product[row].ctypes.data
        for part in range(0, width, 64):
            if part + 64 <= width and row == 0 and asks:
                _weigh_asking(left, stride, tiles, count, part * 4, step, into + part * 4)
            elif part + 64 <= width:
                _weigh(left, stride, tiles, count, part * 4, step, into + part * 4)
            else:
                _weigh_half(left, stride, tiles, count, part * 4, step, into + part * 4)


def _add(
    builder: ir.IRBuilder, sums: list[ir.Value], left: ir.Value, stride: ir.Value, columns: list[ir.Value]
) -> None:
    """Adds the products of each row's pair at `left` with each column to its sum."""
    for i in range(ROWS):
        at = builder.add(left, builder.mul(stride, stride.type(i)))
        same = splat(builder, builder.load(builder.inttoptr(at, _WORD.as_pointer()), align=4), columns[0].type)
        for j, column in enumerate(columns):
            sum_ = sums[i * len(columns) + j]
            builder.store(dot(builder, same, column, builder.load(sum_)), sum_)


def _zeros(builder: ir.IRBuilder, count: int) -> list[ir.Value]:
    zero = ir.Constant(_FLOATS, [0.0] * LANES)
    return [cgutils.alloca_once_value(builder, zero) for _ in range(count)]


def _save(builder: ir.IRBuilder, sums: list[ir.Value], target: ir.Value, stride: ir.Value) -> None:
    vectors = len(sums) // ROWS
    for i, sum_ in enumerate(sums):
        row = builder.add(target, builder.mul(stride, stride.type(i // vectors)))
        place = builder.add(row, row.type(4 * LANES * (i % vectors)))
        builder.store(builder.load(sum_), builder.inttoptr(place, _FLOATS.as_pointer()), align=4)


def _scoring(asks: bool) -> Callable[..., None]:
    @intrinsic
    def score(context, queries, query_stride, tiles, pairs, target, target_stride, ahead):
        """Four queries with the sixteen keys of each of four tiles, whose addresses lie at `tiles`; those of what is
        asked for lie at `ahead`.
        """

        def generate(context, builder, signature, arguments):
            queries, query_stride, tiles, pairs, target, target_stride, ahead = arguments
            sums = _zeros(builder, 4 * ROWS)
            bases, asked = _words_at(builder, tiles, 4), _words_at(builder, ahead, 4) if asks else []
            with cgutils.for_range(builder, pairs) as loop:
                offset = builder.mul(loop.index, pairs.type(4 * LANES))
                columns = [load_words(builder, builder.add(base, offset), 0) for base in bases]
                for base in asked:
                    emit_prefetch(builder, builder.add(base, offset))
                at = builder.add(queries, builder.mul(loop.index, pairs.type(4)))
                _add(builder, sums, at, query_stride, columns)
            _save(builder, sums, target, target_stride)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), generate

    return score


def _words_at(builder: ir.IRBuilder, address: ir.Value, count: int) -> list[ir.Value]:
    """So many addresses that lie one after the other."""
    places = [builder.add(address, address.type(8 * j)) for j in range(count)]
    return [builder.load(builder.inttoptr(place, address.type.as_pointer())) for place in places]


def _weighing(vectors: int, asks: bool = False) -> Callable[..., None]:
    @intrinsic
    def weigh(context, probs, prob_stride, tiles, count, offset, step, target):
        """Four rows of probs with 16 x `vectors` dimensions, `offset` bytes on in each row of each of `count` tiles.
        What is asked for lies at the addresses after a block's."""

        def generate(context, builder, signature, arguments):
            probs, prob_stride, tiles, count, offset, step, target = arguments
            sums = _zeros(builder, vectors * ROWS)
            with cgutils.for_range(builder, count) as loop:
                place = builder.add(tiles, builder.mul(loop.index, count.type(8)))
                base = builder.add(_words_at(builder, place, 1)[0], offset)
                next_ = _words_at(builder, builder.add(place, place.type(8 * BLOCK_TILES)), 1)[0]
                next_ = builder.add(next_, builder.mul(offset, offset.type(TILE_KEYS // 2)))
                left = builder.add(probs, builder.mul(loop.index, count.type(2 * TILE_KEYS)))
                for pair in range(TILE_KEYS // 2):
                    row = builder.add(base, builder.mul(step, step.type(pair)))
                    columns = [load_words(builder, row, j) for j in range(vectors)]
                    for j in range(vectors if asks else 0):
                        emit_prefetch(builder, builder.add(next_, next_.type(64 * (vectors * pair + j))))
                    _add(builder, sums, builder.add(left, left.type(4 * pair)), prob_stride, columns)
            _save(builder, sums, target, step)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), generate

    return weigh


_score, _score_asking = _scoring(False), _scoring(True)
_weigh, _weigh_asking, _weigh_half = _weighing(4), _weighing(4, True), _weighing(2)
