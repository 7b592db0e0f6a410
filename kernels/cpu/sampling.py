"""`kernels.sampling`'s draw on a CPU, a row at a time: filters by counting instead of sorting the vocabulary.

The k likeliest tokens, or the fewest that reach a probability, end somewhere in a histogram of the weights' leading
bits; only the tokens of that one bin are sorted. A row's result depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import carray, njit
from torch import Tensor

from kernels.cpu.exp import exp32
from kernels.cpu.numba_options import EXACT, FUSED, SUMS
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.task import field, next_chunk, offsets_of, pointer
from kernels.sample_row import SampleRow

NO_TOKEN = -1  # of a row whose logits are not finite, or hide every token
MIN_TEMPERATURE = 1e-5  # of a random draw
_SHIFT = np.uint32(19)  # a bin: weights of one exponent and four more bits
_BINS = (0x3F800000 >> 19) + 1  # weights are at most 1
_BLOCK = 256  # weights that are added up before it is asked where the drawn one lies
_MIN_EXPONENT = np.float32(-87.0)  # of e: smaller weights are 0
_ROUNDING = 1e-6  # of float32 weights: what misses a probability by less has reached it
_LARGEST, _SMALLEST = np.int32(0x7F7FFFFF), np.int32(-0x7F800000)  # finite floats, as `_range` orders them


class DrawTask(NamedTuple):
    """A chunk is a row."""

    rows: int
    vocab: int
    raw: Tensor  # [rows, vocab], float32
    shaped: Tensor  # [rows, vocab], float32
    filters: np.ndarray  # [rows, 3], float64: temperature, min-p, top-p
    top_ks: np.ndarray  # [rows], int64
    uniforms: np.ndarray  # [rows], float64
    tokens: np.ndarray  # [rows], int64


AT = offsets_of(DrawTask)


def draw(raw: Tensor, shaped: Tensor, rows: Sequence[SampleRow], uniforms: np.ndarray) -> list[int]:
    """A token for each row, or `NO_TOKEN`.

    Shapes: raw: the model's logits, [num_rows, vocab], float32; shaped: those to draw from, perhaps the same; uniforms:
    [num_rows], in [0, 1). Bytes moved: 4 x vocab a row and pass: 1 or 2 passes greedy, 4 random, 3 more with a filter.
    """
    task = DrawTask(
        *raw.shape,
        raw=raw.contiguous(),
        shaped=shaped.contiguous(),
        filters=np.array([(row.temperature, row.min_p, row.top_p) for row in rows], dtype=np.float64).reshape(-1, 3),
        top_ks=np.array([row.top_k for row in rows], dtype=np.int64),
        uniforms=np.ascontiguousarray(uniforms, dtype=np.float64),
        tokens=np.empty(len(rows), dtype=np.int64),
    )
    _region.launch(len(rows), task)
    return task.tokens.tolist()


def _body(task):
    _draw_rows(task)


_region = ParallelRegion(_body, is_recordable=False)


@njit(**EXACT)
def _draw_rows(task):
    rows, vocab = field(task, AT.rows), field(task, AT.vocab)
    float32, float64, int64 = np.empty(0, np.float32), np.empty(0, np.float64), np.empty(0, np.int64)
    raw = carray(pointer(task, AT.raw, float32), (rows, vocab))
    shaped = carray(pointer(task, AT.shaped, float32), (rows, vocab))
    filters = carray(pointer(task, AT.filters, float64), (rows, 3))
    top_ks, uniforms = (
        carray(pointer(task, AT.top_ks, int64), (rows,)),
        carray(pointer(task, AT.uniforms, float64), (rows,)),
    )
    tokens = carray(pointer(task, AT.tokens, int64), (rows,))
    weights = np.empty(vocab, np.float32)
    row = next_chunk(task)
    while row < rows:
        tokens[row] = _draw_row(raw[row], shaped[row], filters[row], top_ks[row], uniforms[row], weights)
        row = next_chunk(task)


@njit(**EXACT)
def _draw_row(raw, shaped, filters, top_k, uniform, weights):
    lowest, highest = _range(raw)
    if highest > _LARGEST or lowest < _SMALLEST:
        return NO_TOKEN
    if shaped.ctypes.data != raw.ctypes.data:
        _, highest = _range(shaped)
    if highest < _SMALLEST:
        return NO_TOKEN
    peak = np.int32(highest ^ ((highest >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
    temperature, min_p, top_p = filters
    if temperature == 0:
        for token in range(len(shaped)):
            if shaped[token] == peak:
                return token
    _softmax_weights(shaped, peak, np.float32(max(temperature, MIN_TEMPERATURE)), np.float32(min_p), weights)
    if 0 < top_k < len(weights) or top_p < 1:
        _keep_likeliest(weights, top_k if top_k > 0 else len(weights), top_p)
    return _find(weights, uniform)


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
def _softmax_weights(logits, peak, temperature, min_p, weights):
    """Each token's probability over the likeliest one's; 0 below `min_p`."""
    top = peak / temperature
    for j in range(np.uintp(logits.shape[0])):
        exponent = logits[j] / temperature - top
        weight = exp32(exponent)
        weight = weight if exponent >= _MIN_EXPONENT else np.float32(0)
        weights[j] = weight if weight >= min_p else np.float32(0)


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
def _find(weights, uniform):
    """The first token whose cumulative weight, in order of ids, is above `uniform` of the whole."""
    blocks = (len(weights) + _BLOCK - 1) // _BLOCK
    sums = np.empty(blocks, np.float64)
    for block in range(blocks):
        sums[block] = _sum(weights[block * _BLOCK : (block + 1) * _BLOCK])
    target, mass, last = uniform * sums.sum(), 0.0, 0
    for block in range(blocks):
        if sums[block] > 0:
            last = block
            if mass + sums[block] > target:
                break
            mass += sums[block]
    else:
        target = np.inf  # sums in another order differ in the last bits: who passes all weights gets the last one
    token = last * _BLOCK
    for j in range(last * _BLOCK, min((last + 1) * _BLOCK, len(weights))):
        if weights[j] > 0:
            token = j
            mass += weights[j]
            if mass > target:
                break
    return token
