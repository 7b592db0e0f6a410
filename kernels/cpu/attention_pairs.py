"""The steps of `kernels.cpu.paged_attention` on vector registers that multiply pairs of bfloat16 (`vdpbf16ps`).

Caches are in the same tiles as for the matrix registers (`attention_tiles`), whose rows are such pairs, and are read as
they lie. A row of a product depends on that row alone, and is summed in the order of its pairs of dimensions or keys.
Compiled code only; shapes are those of `attention_vectors`, but `keys` and `values` hold the addresses of a block's
tiles, `values` also those of the keys that are read next, and rows are computed in fours, those past the last one in
vain.
"""

from __future__ import annotations

from numba import njit

from kernels.cpu.attention_products import BLOCK_TILES, ROWS, scoring, weighing
from kernels.cpu.attention_tiles import exponentiate, find_slots, load_query, pack_last_values, prefetch, tile_of
from kernels.cpu.attention_vectors import configure, restore
from kernels.cpu.dtypes import INT64
from kernels.cpu.kv_layout import TILE_KEYS
from kernels.cpu.memory import carray, elements_at
from kernels.cpu.numba_options import EXACT

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

KEYS_AT_ONCE = 4 * TILE_KEYS
_score, _score_asking = (scoring(4, are_pairs=True, asks=asks) for asks in (False, True))
_weigh, _weigh_asking = (weighing(4, are_pairs=True, asks=asks) for asks in (False, True))
_weigh_half = weighing(2, are_pairs=True, asks=False)


@njit(**EXACT)
def addresses_in(packed):
    """What `pack_keys`, `pack_values` and `look_ahead` leave: the address of each tile of a block."""
    return carray(elements_at(packed.ctypes.data, INT64), (packed.shape[0] * packed.itemsize // 8,))


@njit(**EXACT)
def _note(tiles, block):
    """Where the tiles of a block lie, the last one up to the end."""
    cache, head, slots, count = block
    last = (count - 1) // TILE_KEYS
    for i in range(BLOCK_TILES):
        tiles[i] = tile_of(cache, head, slots[min(i, last) * TILE_KEYS])


def pack_keys(keys, block, staged):
    """Notes where the tiles lie."""
    _note(addresses_in(keys), block)


def pack_values(values, block, staged):
    """Notes where the tiles lie: the last one in `staged` if it is not full."""
    pack_last_values(block, staged)
    tiles, count = addresses_in(values), block[3]
    _note(tiles, block)
    if count % TILE_KEYS:
        tiles[count // TILE_KEYS] = staged.ctypes.data


def ask(keys, block):
    """For the first keys of all, which nothing was multiplied before."""
    prefetch(block)


def look_ahead(values, block):
    """Notes where the keys lie that are read next, if there are any."""
    ahead = addresses_in(values)[BLOCK_TILES:]
    if block[3] > 0:
        _note(ahead, block)
    else:
        ahead[0] = 0


def score(queries, keys, values, block, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`, four tiles of keys at a time."""
    tiles, ahead, row_bytes, stride = (
        addresses_in(keys),
        addresses_in(values),
        queries.shape[1] * 2,
        scores.shape[1] * 4,
    )
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
    addresses, width = addresses_in(values), product.shape[1]
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
