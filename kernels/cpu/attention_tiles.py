"""The steps of `kernels.cpu.paged_attention` on the matrix registers: bfloat16, as uint16, from caches in tiles.

A row of a product depends on that row alone, and is summed in the order of its dimensions or keys. Compiled code only;
shapes are those of `attention_vectors`, whose functions have the same names.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu import amx
from kernels.cpu.exp import exp2
from kernels.cpu.kv_layout import TILE_KEYS
from kernels.cpu.memory import carray, copy, elements_at, prefetch_l2
from kernels.cpu.numba_options import EXACT
from kernels.cpu.sums import sum_of

LOG2_E = np.float32(1.4426950408889634)


def _tile_shapes() -> np.ndarray:
    """Tiles of 16 rows x 64 bytes; 6 and 7 hold one tile of values, [8 pairs of keys, 16, 2], and its keys' probs."""
    config = amx.TILES_OF_16.copy()
    config[16:32].view(np.uint16)[7] = 2 * TILE_KEYS
    config[48 + 6] = TILE_KEYS // 2
    return config


_TILE_SHAPES = _tile_shapes()
_clear_0, _clear_1, _clear_2, _clear_3 = (amx.zero(i) for i in range(4))
_load_queries, _load_keys, _load_values, _load_probs = (amx.load(i) for i in range(4, 8))
_score_0, _score_1 = (amx.dot(i, 4, 5) for i in range(2))
_weigh_0, _weigh_1, _weigh_2, _weigh_3 = (amx.dot(i, 7, 6) for i in range(4))
_store_0, _store_1, _store_2, _store_3 = (amx.store(i) for i in range(4))


def configure(probs, before):
    """Sets the registers up; `before` [64] keeps how they were, for torch's products on the same thread."""
    amx.save(before.ctypes.data)
    amx.configure(_TILE_SHAPES.ctypes.data)


def restore(probs, before):
    """Leaves the registers as `configure` found them."""
    amx.configure(before.ctypes.data)


def ask(keys, block):
    """Nothing is asked for before `pack_keys`."""


def look_ahead(values, block):
    """What is read next is not asked for either."""


def load_query(target, source):
    """Copies a query."""
    copy(source.ctypes.data, target.ctypes.data, source.shape[0] * 2)


def find_slots(keys, table, start, count, block_size, slots):
    """The slot of each tile's first key, at that key's place; both begin at multiples of a tile."""
    for first in range(0, count, TILE_KEYS):
        block, offset = divmod(start + first, block_size)
        slots[first] = table[block] * block_size + offset


@njit(**EXACT)
def tile_of(cache, head, slot):
    """The address of a head's sixteen keys or values."""
    heads, width = cache.shape[1], cache.shape[2]
    return cache.ctypes.data + (slot * heads + head * TILE_KEYS) * width * cache.itemsize


@njit(**EXACT)
def prefetch(block):
    """Asks for all tiles at once: a long row of requests is answered faster than what the products ask for bit by bit,
    16 ms instead of 17.5 for 32 sequences of 345 keys in 12 layers, one thread.
    """
    cache, head, slots, count = block
    for first in range(0, count, TILE_KEYS):
        prefetch_l2(tile_of(cache, head, slots[first]), TILE_KEYS * cache.shape[2] * cache.itemsize)


def pack_keys(keys, block, staged):
    """The cache holds them packed."""
    prefetch(block)


def pack_values(values, block, staged):
    """The cache holds them packed, but for the last ones."""
    prefetch(block)
    pack_last_values(block, staged)


@njit(**EXACT)
def pack_last_values(block, staged):
    """Copies the last tile if it is not full: past its keys may lie NaN, and 0 times NaN is NaN."""
    cache, head, slots, count = block
    rest = count % TILE_KEYS
    if rest:
        width = cache.shape[2]
        copy(tile_of(cache, head, slots[count - rest]), staged.ctypes.data, TILE_KEYS * width * cache.itemsize)
        if cache.itemsize == 4:
            staged[rest:] = 0
            return
        pairs = carray(elements_at(staged.ctypes.data, staged), (TILE_KEYS // 2, width, 2))
        pairs[(rest + 1) // 2 :] = 0
        if rest % 2:
            pairs[rest // 2, :, 1] = 0


def score(queries, keys, values, block, num_rows, padded, scores):
    """`scores[:, :padded] = queries @ keys`, two tiles of keys at a time."""
    cache, head, slots, count = block
    row_bytes = queries.shape[1] * 2
    stride = scores.shape[1] * 4
    for first in range(0, min(padded, count), 2 * TILE_KEYS):
        left, into, has_two = queries.ctypes.data, scores.ctypes.data + first * 4, first + TILE_KEYS < count
        lower = tile_of(cache, head, slots[first])
        upper = tile_of(cache, head, slots[first + TILE_KEYS]) if has_two else lower
        _clear_0()
        _clear_1()
        for part in range(0, row_bytes, 64):
            _load_queries(left + part, row_bytes)
            _load_keys(lower + part * 16, 64)
            _score_0()
            _load_keys(upper + part * 16, 64)
            _score_1()
        _store_0(into, stride)
        if has_two:
            _store_1(into + 64, stride)


def exponentiate(probs, scores, row_max, scale):
    """`exp(scale (s - row_max))` of each, as stored, and their sum before they were rounded. Changes `scores`."""
    steps = np.float32(scale * LOG2_E)
    for j in range(np.uintp(scores.shape[0])):
        prob = exp2((scores[j] - row_max) * steps)
        scores[j] = prob
        # Half rounds up: they are never negative, and NaN is NaN in the sum.
        probs[j] = np.uint16((np.float32(prob).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16))
    return sum_of(scores.ctypes.data, scores.shape[0], scores)


def weigh_values(probs, values, block, staged, num_rows, padded, product):
    """`product = probs[:, :padded] @ values`, 64 dimensions at a time, and the last 32. Past the count probs are 0."""
    cache, head, slots, count = block
    width = product.shape[1]
    left, stride, step = probs.ctypes.data, probs.shape[1] * 2, width * 4
    for part in range(0, width, 64):
        is_whole, into = part + 64 <= width, product.ctypes.data + part * 4
        _clear_0()
        _clear_1()
        _clear_2()
        _clear_3()
        for first in range(0, min(padded, count), TILE_KEYS):
            at = staged.ctypes.data if first + TILE_KEYS > count else tile_of(cache, head, slots[first])
            at += part * 4
            _load_probs(left + first * 2, stride)
            _load_values(at, step)
            _weigh_0()
            _load_values(at + 64, step)
            _weigh_1()
            if is_whole:
                _load_values(at + 128, step)
                _weigh_2()
                _load_values(at + 192, step)
                _weigh_3()
        _store_0(into, step)
        _store_1(into + 64, step)
        if is_whole:
            _store_2(into + 128, step)
            _store_3(into + 192, step)
