"""`kernels.sampling`'s draw, a row at a time: filters by counting instead of sorting the vocabulary.

The k likeliest tokens, or the fewest that reach a probability, end somewhere in a histogram of the weights' leading
bits; only the tokens of that one bin are put in order. A row's result depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import carray, njit
from torch import Tensor

from kernels.cpu.scalars import EXACT, FUSED, SUMS, exp32
from kernels.cpu.thread_team import Crew, field, pointer, take_piece

if TYPE_CHECKING:
    from kernels.sampling import SampleRow

NO_TOKEN = -1  # of a row whose logits are not finite, or hide every token
LEAST_HEAT = 1e-5
_SHIFT = np.uint32(19)  # a bin: weights of one exponent and four more bits
_BINS = (0x3F800000 >> 19) + 1  # weights are at most 1
_CHUNK = 256  # weights that are added up before it is asked where the drawn one lies
_LEAST_POWER = np.float32(-87.0)  # of e: smaller weights are none
_ROUNDING = 1e-6  # of float32 weights: what misses a probability by less has reached it
_LARGEST, _SMALLEST = np.int32(0x7F7FFFFF), np.int32(-0x7F800000)  # finite floats, as `_range` orders them


def draw(raw: Tensor, shaped: Tensor, rows: Sequence[SampleRow], numbers: np.ndarray) -> list[int]:
    """A token for each row, or `NO_TOKEN`.

    Shapes: raw: the model's logits, [num_rows, vocab], float32; shaped: those to draw from, perhaps the same; numbers:
    [num_rows], in [0, 1).
    """
    raw, shaped = raw.contiguous(), shaped.contiguous()
    shares = np.array([(row.temperature, row.min_p, row.top_p) for row in rows], dtype=np.float64).reshape(-1, 3)
    counts = np.array([row.top_k for row in rows], dtype=np.int64)
    numbers, tokens = np.ascontiguousarray(numbers, dtype=np.float64), np.empty(len(rows), dtype=np.int64)
    arrays = (shares, counts, numbers, tokens)
    _crew(len(rows), *raw.shape, raw.data_ptr(), shaped.data_ptr(), *(array.ctypes.data for array in arrays))
    return tokens.tolist()


def _work(task):
    _draw_rows(task)


_crew = Crew(_work)


@njit(**EXACT)
def _draw_rows(task):
    rows, vocab = field(task, 1), field(task, 2)
    number, precise, whole = np.empty(0, np.float32), np.empty(0, np.float64), np.empty(0, np.int64)
    raw, shaped = carray(pointer(task, 3, number), (rows, vocab)), carray(pointer(task, 4, number), (rows, vocab))
    shares, counts = carray(pointer(task, 5, precise), (rows, 3)), carray(pointer(task, 6, whole), (rows,))
    numbers, tokens = carray(pointer(task, 7, precise), (rows,)), carray(pointer(task, 8, whole), (rows,))
    weights = np.empty(vocab, np.float32)
    row = take_piece(task)
    while row < rows:
        tokens[row] = _draw_row(raw[row], shaped[row], shares[row], counts[row], numbers[row], weights)
        row = take_piece(task)


@njit(**EXACT)
def _draw_row(raw, shaped, shares, top_k, number, weights):
    lowest, highest = _range(raw)
    if highest > _LARGEST or lowest < _SMALLEST:
        return NO_TOKEN
    if shaped.ctypes.data != raw.ctypes.data:
        _, highest = _range(shaped)
    if highest < _SMALLEST:
        return NO_TOKEN
    peak = np.int32(highest ^ ((highest >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
    heat, min_p, top_p = shares
    if heat == 0:
        for token in range(len(shaped)):
            if shaped[token] == peak:
                return token
    _weigh(shaped, peak, np.float32(max(heat, LEAST_HEAT)), np.float32(min_p), weights)
    if 0 < top_k < len(weights) or top_p < 1:
        _keep_likeliest(weights, top_k if top_k > 0 else len(weights), top_p)
    return _find(weights, number)


@njit(**EXACT)
def _range(logits):
    """The smallest and the largest of them, their bits as integers in the floats' order: NaN is beyond infinity."""
    bits = logits.view(np.int32)
    lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for j in range(np.uintp(bits.shape[0])):
        ordered = bits[j] ^ ((bits[j] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        lowest = ordered if ordered < lowest else lowest
        highest = ordered if ordered > highest else highest
    return lowest, highest


@njit(**FUSED)
def _weigh(logits, peak, heat, least, weights):
    """Each token's probability, as a share of the likeliest one's; 0 below `least`."""
    top = peak / heat
    for j in range(np.uintp(logits.shape[0])):
        power = logits[j] / heat - top
        weight = exp32(power)
        weight = weight if power >= _LEAST_POWER else np.float32(0)
        weights[j] = weight if weight >= least else np.float32(0)


@njit(**EXACT)
def _keep_likeliest(weights, top_k, top_p):
    """Sets to 0 all but the `top_k` largest, then all but the fewest that reach `top_p` of what is left.

    Among equals the lowest ids stay. The likeliest stays whatever `top_p` is.
    """
    bits = weights.view(np.uint32)
    counts, masses = np.zeros(_BINS, np.int64), np.zeros(_BINS, np.float64)
    for j in range(len(bits)):
        counts[bits[j] >> _SHIFT] += 1
        masses[bits[j] >> _SHIFT] += weights[j]
    goal = np.inf
    if top_p < 1:
        goal = top_p * _mass_of(bits, weights, counts, masses, top_k) * (1 - _ROUNDING)
    kept, mass = 0, 0.0
    last_bits, last_id = np.uint32(0), len(bits)
    for bin_ in range(_BINS - 1, -1, -1):
        if counts[bin_] == 0:
            continue
        if kept + counts[bin_] < top_k and mass + masses[bin_] < goal:
            kept += counts[bin_]
            mass += masses[bin_]
            continue
        for key in _in_bin(bits, bin_, counts[bin_]):
            if kept > 0 and (kept >= top_k or mass >= goal):
                break
            last_id = np.int64(key & np.uint64(0xFFFFFFFF))
            last_bits = bits[last_id]
            kept += 1
            mass += weights[last_id]
        if kept >= top_k or mass >= goal:
            break
    for j in range(len(bits)):
        if bits[j] < last_bits or (bits[j] == last_bits and j > last_id):
            weights[j] = 0


@njit(**EXACT)
def _mass_of(bits, weights, counts, masses, top_k):
    """What the `top_k` largest add up to."""
    kept, mass = 0, 0.0
    for bin_ in range(_BINS - 1, -1, -1):
        if kept + counts[bin_] <= top_k:
            kept += counts[bin_]
            mass += masses[bin_]
            continue
        for key in _in_bin(bits, bin_, counts[bin_])[: top_k - kept]:
            mass += weights[np.int64(key & np.uint64(0xFFFFFFFF))]
        break
    return mass


@njit(**EXACT)
def _in_bin(bits, bin_, count):
    """The tokens of one bin, falling by weight, rising by id: ids in the lower halves of sorted keys."""
    keys = np.empty(count, np.uint64)
    found = 0
    for j in range(len(bits)):
        if bits[j] >> _SHIFT == bin_:
            keys[found] = (np.uint64(np.uint32(0xFFFFFFFF) - bits[j]) << np.uint64(32)) | np.uint64(j)
            found += 1
    keys.sort()
    return keys


@njit(**SUMS)
def _sum(weights):
    total = np.float64(0)
    for j in range(np.uintp(weights.shape[0])):
        total += weights[j]
    return total


@njit(**EXACT)
def _find(weights, number):
    """The first token whose cumulative weight, in order of ids, is above `number` of the whole."""
    chunks = (len(weights) + _CHUNK - 1) // _CHUNK
    sums = np.empty(chunks, np.float64)
    for chunk in range(chunks):
        sums[chunk] = _sum(weights[chunk * _CHUNK : (chunk + 1) * _CHUNK])
    target, mass, last = number * sums.sum(), 0.0, 0
    for chunk in range(chunks):
        if sums[chunk] > 0:
            last = chunk
            if mass + sums[chunk] > target:
                break
            mass += sums[chunk]
    else:
        target = np.inf  # sums in another order differ in the last bits: who passes all weights gets the last one
    token = last * _CHUNK
    for j in range(last * _CHUNK, min((last + 1) * _CHUNK, len(weights))):
        if weights[j] > 0:
            token = j
            mass += weights[j]
            if mass > target:
                break
    return token
