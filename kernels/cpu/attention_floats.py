"""The steps of `kernels.cpu.paged_attention` in float32 on vector registers, from caches in tiles (`kv_layout`).

As `attention_pairs`, with a number where that has a pair; a row of a product is summed in the order of its dimensions
or keys, so that it has the bits of `attention_vectors`. `queries`, `staged` and `probs` hold the bits of float32 as
int32, which tells these steps from those. Compiled code only.
"""

from __future__ import annotations

from numba import njit

from kernels.cpu import attention_vectors
from kernels.cpu.attention_pairs import addresses_in, ask, look_ahead, pack_keys, pack_values
from kernels.cpu.attention_products import BLOCK_TILES, ROWS, scoring, weighing
from kernels.cpu.attention_tiles import find_slots
from kernels.cpu.attention_vectors import configure, restore
from kernels.cpu.dtypes import FLOAT32
from kernels.cpu.instructions import has_avx512
from kernels.cpu.kv_layout import TILE_KEYS
from kernels.cpu.memory import copy, same_bits
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

# Vectors of sixteen for each row: sums stay in registers, sixteen of AVX-512's 32 or eight of AVX2's 16.
VECTORS = 4 if has_avx512() else 1
_score, _score_asking = (scoring(VECTORS, are_pairs=False, asks=asks) for asks in (False, True))
_weigh, _weigh_asking = (weighing(VECTORS, are_pairs=False, asks=asks) for asks in (False, True))
_weigh_rest = weighing(2, are_pairs=False, asks=False)  # of the last 32 dimensions
_exponentiate = njit(**EXACT)(attention_vectors.exponentiate)


def load_query(target, source):
    """Copies a query."""
    copy(source.ctypes.data, target.ctypes.data, source.shape[0] * 4)


def score(queries, keys, values, block, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`, some tiles of keys at a time."""
    tiles, ahead, width, stride = addresses_in(keys), addresses_in(values), queries.shape[1], scores.shape[1] * 4
    for first in range(0, min(padded, block[3]), VECTORS * TILE_KEYS):
        own, asked = tiles[first // TILE_KEYS :].ctypes.data, ahead[first // TILE_KEYS :].ctypes.data
        for row in range(0, num_rows, ROWS):
            left, into = queries[row].ctypes.data, scores[row].ctypes.data + first * 4
            if row == 0:
                _score_asking(left, width * 4, own, width, into, stride, asked)
            else:
                _score(left, width * 4, own, width, into, stride, asked)


def exponentiate(probs, scores, row_max, scale):
    """`exp(scale (s - row_max))` of each, and their sum."""
    return _exponentiate(same_bits(probs, FLOAT32), scores, row_max, scale)


def weigh_values(probs, values, block, staged, num_rows, padded, product):
    """`product = probs[:, :padded] @ values`, some dimensions at a time. Past the count probs are 0."""
    addresses, width, whole = addresses_in(values), product.shape[1], 16 * VECTORS
    tiles, asks = addresses.ctypes.data, addresses[BLOCK_TILES] != 0
    count, stride, step = (min(padded, block[3]) + TILE_KEYS - 1) // TILE_KEYS, probs.shape[1] * 4, width * 4
    for row in range(0, num_rows, ROWS):
        left, into = probs[row].ctypes.data, product[row].ctypes.data
        for part in range(0, width, whole):
            if part + whole <= width and row == 0 and asks:
                _weigh_asking(left, stride, tiles, count, part * 4, step, into + part * 4)
            elif part + whole <= width:
                _weigh(left, stride, tiles, count, part * 4, step, into + part * 4)
            else:
                _weigh_rest(left, stride, tiles, count, part * 4, step, into + part * 4)
