"""`kernels.sampling`'s draw on a CPU, a row at a time: filters by counting instead of sorting the vocabulary.

The k likeliest tokens, or the fewest that reach a probability, end somewhere in a histogram of the weights' leading
bits; only the tokens of that one bin are sorted. A row's result depends on that row alone.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, FLOAT64, INT32, INT64, UINT16, UINT32, UINT64, has_kernels, widen
from kernels.cpu.exp import exp32
from kernels.cpu.memory import array_at, carray, same_bits, scratch_bytes
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion, RegionOfType
from kernels.cpu.sums import wide_sum_of
from kernels.cpu.task import encode, enter, field, leave, next_chunk, offsets_of, pointer
from kernels.sample_row import SampleRow

GREEDY_ROWS = 8  # that a thread more is worth, where only the likeliest token is looked for
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


class GreedyTask(NamedTuple):
    """A chunk is a row."""

    itemsize: int  # of logits. 2: bfloat16, 4: float32
    rows: int
    vocab: int
    logits: Tensor  # [rows, vocab]
    tokens: np.ndarray  # [rows], int64


AT, AT_GREEDY = offsets_of(DrawTask), offsets_of(GreedyTask)


class _GreedyDraw(NamedTuple):
    """A launch that is used again: every step waits for it, and to make one took longer than to look at the logits."""

    fields: array[int]
    tokens: np.ndarray


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.draws: dict[tuple[int, int, int], _GreedyDraw] = {}


_of_thread = _OfThread()


def draw_greedily(logits: Tensor) -> list[int]:
    """What `draw` gives for rows of temperature 0 that are not shaped, straight from the model's logits.

    Shapes: logits: [num_rows, vocab], any float type. Bytes moved: those of the logits, once or twice.
    """
    logits = (logits if has_kernels(logits) else logits.float()).contiguous()
    rows, vocab = logits.shape
    key = (logits.element_size(), rows, vocab)
    if (draw := _of_thread.draws.get(key)) is None:
        tokens = np.empty(rows, dtype=np.int64)
        draw = _of_thread.draws[key] = _GreedyDraw(encode(GreedyTask(*key, logits, tokens)), tokens)
    draw.fields[AT_GREEDY.logits] = logits.data_ptr()
    _greedy_region.of(key[0]).launch_again(rows // GREEDY_ROWS, draw.fields)
    return draw.tokens.tolist()


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
    vocab = task.vocab
    scratch = scratch_bytes((1, vocab, 4), (1, _BINS, 8), (1, _BINS, 8), (1, vocab, 8), (1, -(-vocab // _BLOCK), 8))
    _region.launch(len(rows), task, scratch)
    return task.tokens.tolist()


def _body(task):
    _draw_rows(task, enter(task))
    leave(task)


_region = ParallelRegion(_body, is_recordable=False)


def _greedy_in_bfloat16(task):
    enter(task)
    _draw_rows_greedily(task, UINT16)
    leave(task)


def _greedy_in_float32(task):
    enter(task)
    _draw_rows_greedily(task, FLOAT32)
    leave(task)


_greedy_region = RegionOfType(_greedy_in_bfloat16, _greedy_in_float32, is_recordable=False)


@njit(**EXACT)
def _draw_rows_greedily(task, like):
    rows, vocab = field(task, AT_GREEDY.rows), field(task, AT_GREEDY.vocab)
    logits = carray(pointer(task, AT_GREEDY.logits, like), (rows, vocab))
    tokens = carray(pointer(task, AT_GREEDY.tokens, INT64), (rows,))
    row = next_chunk(task)
    while row < rows:
        own, token, place = logits[row], np.int64(NO_TOKEN), 0
        lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
        for first in range(0, vocab, _BLOCK):
            least, most = _ends(own[first : first + _BLOCK])
            lowest = least if least < lowest else lowest
            if most > highest:
                place, highest = first, most
        if highest <= _LARGEST and lowest >= _SMALLEST:
            token = place
            while _rank(own[token]) != highest:
                token += 1
        tokens[row] = token
        row = next_chunk(task)


@njit(**EXACT)
def _ends(logits):
    """The smallest and the largest of them, as `_rank` orders them."""
    lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for j in range(np.uintp(logits.shape[0])):
        rank = _rank(logits[j])
        lowest = rank if rank < lowest else lowest
        highest = rank if rank > highest else highest
    return lowest, highest


@njit(**EXACT)
def _rank(logit):
    """A whole number in the floats' order, NaN beyond infinity, and both zeros the same."""
    bits = np.float32(widen(logit)).view(np.int32)
    rank = np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return rank if rank != np.int32(-1) else np.int32(0)


@njit(**EXACT)
def _draw_rows(task, space):
    rows, vocab = field(task, AT.rows), field(task, AT.vocab)
    raw = carray(pointer(task, AT.raw, FLOAT32), (rows, vocab))
    shaped = carray(pointer(task, AT.shaped, FLOAT32), (rows, vocab))
    filters = carray(pointer(task, AT.filters, FLOAT64), (rows, 3))
    top_ks = carray(pointer(task, AT.top_ks, INT64), (rows,))
    uniforms = carray(pointer(task, AT.uniforms, FLOAT64), (rows,))
    tokens = carray(pointer(task, AT.tokens, INT64), (rows,))
    weights, space = array_at(space, 1, vocab, FLOAT32)
    counts, space = array_at(space, 1, _BINS, INT64)
    masses, space = array_at(space, 1, _BINS, FLOAT64)
    keys, space = array_at(space, 1, vocab, UINT64)
    sums, space = array_at(space, 1, (vocab + _BLOCK - 1) // _BLOCK, FLOAT64)
    scratch = weights[0], counts[0], masses[0], keys[0], sums[0]
    row = next_chunk(task)
    while row < rows:
        tokens[row] = _draw_row(raw[row], shaped[row], filters[row], top_ks[row], uniforms[row], scratch)
        row = next_chunk(task)


@njit(**EXACT)
def _draw_row(raw, shaped, filters, top_k, uniform, scratch):
    weights, counts, masses, keys, sums = scratch
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
        _keep_likeliest(weights, top_k if top_k > 0 else len(weights), top_p, counts, masses, keys)
    return _find(weights, uniform, sums)


@njit(**EXACT)
def _range(logits):
    """The smallest and the largest of them, their bits as integers in the floats' order: NaN is beyond infinity."""
    bits = same_bits(logits, INT32)
    lowest, highest = np.int32(0x7FFFFFFF), np.int32(-0x7FFFFFFF)
    for j in range(np.uintp(bits.shape[0])):
        ordered = bits[j] ^ ((bits[j] >> np.int32(31)) & np.int32(0x7FFFFFFF))
        lowest = ordered if ordered < lowest else lowest
        highest = ordered if ordered > highest else highest
    return lowest, highest


@njit(**EXACT)
def _softmax_weights(logits, peak, temperature, min_p, weights):
    """Each token's probability over the likeliest one's; 0 below `min_p`."""
    top = peak / temperature
    for j in range(np.uintp(logits.shape[0])):
        exponent = logits[j] / temperature - top
        weight = exp32(exponent)
        weight = weight if exponent >= _MIN_EXPONENT else np.float32(0)
        weights[j] = weight if weight >= min_p else np.float32(0)


@njit(**EXACT)
def _keep_likeliest(weights, top_k, top_p, counts, masses, keys):
    """Sets to 0 all but the `top_k` largest, then all but the fewest that reach `top_p` of what is left.

    Among equals the lowest ids stay. The likeliest stays whatever `top_p` is.
    """
    bits = same_bits(weights, UINT32)
    counts[:] = 0
    masses[:] = 0
    for j in range(len(bits)):
        counts[bits[j] >> _SHIFT] += 1
        masses[bits[j] >> _SHIFT] += weights[j]
    goal = np.inf
    if top_p < 1:
        goal = top_p * _mass_of(bits, weights, counts, masses, top_k, keys) * (1 - _ROUNDING)
    kept, mass = 0, 0.0
    last_bits, last_id = np.uint32(0), len(bits)
    for bin_ in range(_BINS - 1, -1, -1):
        if counts[bin_] == 0:
            continue
        if kept + counts[bin_] < top_k and mass + masses[bin_] < goal:
            kept += counts[bin_]
            mass += masses[bin_]
            continue
        for key in _in_bin(bits, bin_, keys):
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
def _mass_of(bits, weights, counts, masses, top_k, keys):
    """What the `top_k` largest add up to."""
    kept, mass = 0, 0.0
    for bin_ in range(_BINS - 1, -1, -1):
        if kept + counts[bin_] <= top_k:
            kept += counts[bin_]
            mass += masses[bin_]
            continue
        for key in _in_bin(bits, bin_, keys)[: top_k - kept]:
            mass += weights[np.int64(key & np.uint64(0xFFFFFFFF))]
        break
    return mass


@njit(**EXACT)
def _in_bin(bits, bin_, keys):
    """The tokens of one bin, falling by weight, rising by id: ids in the lower halves of sorted keys.

    It is the beginning of `keys`, which is overwritten.
    """
    found = 0
    for j in range(len(bits)):
        if bits[j] >> _SHIFT == bin_:
            keys[found] = (np.uint64(np.uint32(0xFFFFFFFF) - bits[j]) << np.uint64(32)) | np.uint64(j)
            found += 1
    _sort(keys[:found])
    return keys[:found]


@njit(**EXACT)
def _sort(keys):
    """Heapsort, in place: numba's own sort allocates."""
    for end in range(len(keys) // 2 - 1, -1, -1):
        _sift_down(keys, end, len(keys))
    for end in range(len(keys) - 1, 0, -1):
        keys[0], keys[end] = keys[end], keys[0]
        _sift_down(keys, 0, end)


@njit(**EXACT)
def _sift_down(keys, root, end):
    """Makes `keys[root:end]` a heap, the largest first, if but its root is in place."""
    moved = keys[root]
    child = 2 * root + 1
    while child < end:
        if child + 1 < end and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= moved:
            break
        keys[root] = keys[child]
        root, child = child, 2 * child + 1
    keys[root] = moved


@njit(**EXACT)
def _find(weights, uniform, sums):
    """The first token whose cumulative weight, in order of ids, is above `uniform` of the whole."""
    blocks, whole = len(sums), 0.0
    for block in range(blocks):
        own = weights[block * _BLOCK : (block + 1) * _BLOCK]
        sums[block] = wide_sum_of(own.ctypes.data, own.shape[0], own)
        whole += sums[block]
    target, mass, last = uniform * whole, 0.0, 0
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
