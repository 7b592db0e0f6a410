"""Hides all but the likeliest tokens of a row of scores without sorting it: top-k by count, top-p by mass.

A score is seen as a 32-bit integer key of the same order. The largest key that still leaves enough at or above it is
found from its top bits down, two bits a pass over the row: sixteen passes, whatever k and p are.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _keys(x):
    """int32 keys that order like float32 scores; the two zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def weights(x, largest, IS_MASS: tl.constexpr):
    """What a score counts, in float64: its unnormalised probability, or one."""
    if IS_MASS:
        return tl.exp(x - largest).to(tl.float64)
    return tl.full(x.shape, 1.0, dtype=tl.float64)


@triton.jit
def total_mass(row_ptr, vocab, largest, BLOCK: tl.constexpr):
    """The sum of unnormalised probabilities of a row, float64."""
    column = tl.arange(0, BLOCK)
    mass = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, vocab, BLOCK):
        x = tl.load(row_ptr + start + column, mask=start + column < vocab, other=float("-inf"))
        mass += weights(x, largest, True)
    return tl.sum(mass, axis=0)


@triton.jit
def keep_largest(row_ptr, vocab, goal, largest, IS_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Sets to -inf all scores but the fewest largest whose weights sum up to `goal`; among equals low ids stay first.

    `goal` is a float64 above zero, `largest` the row's largest score. The row is float32 and changed in place.
    """
    column = tl.arange(0, BLOCK)
    found = tl.full([1], -2147483648, dtype=tl.int32)
    unit = tl.full([1], 1 << 30, dtype=tl.int32)
    for _ in range(16):
        at_low = tl.zeros([BLOCK], dtype=tl.float64)
        at_middle = tl.zeros([BLOCK], dtype=tl.float64)
        at_high = tl.zeros([BLOCK], dtype=tl.float64)
        for start in range(0, vocab, BLOCK):
            is_inside = start + column < vocab
            x = tl.load(row_ptr + start + column, mask=is_inside, other=float("-inf"))
            key = _keys(x)
            weight = tl.where(is_inside, weights(x, largest, IS_MASS), 0.0)
            at_low += tl.where(key >= found + unit, weight, 0.0)
            at_middle += tl.where(key >= found + 2 * unit, weight, 0.0)
            at_high += tl.where(key >= found + 3 * unit, weight, 0.0)
        passed = (
            (tl.sum(at_low, axis=0) >= goal).to(tl.int32)
            + (tl.sum(at_middle, axis=0) >= goal).to(tl.int32)
            + (tl.sum(at_high, axis=0) >= goal).to(tl.int32)
        )
        found += unit * passed
        unit = unit >> 2

    above_parts = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, vocab, BLOCK):
        is_inside = start + column < vocab
        x = tl.load(row_ptr + start + column, mask=is_inside, other=float("-inf"))
        above_parts += tl.where(is_inside & (_keys(x) > found), weights(x, largest, IS_MASS), 0.0)
    above = tl.sum(above_parts, axis=0)

    # Scores equal to the threshold may be needed in part only.
    equal_before = tl.zeros([1], dtype=tl.int32)
    for start in range(0, vocab, BLOCK):
        is_inside = start + column < vocab
        x = tl.load(row_ptr + start + column, mask=is_inside, other=float("-inf"))
        key = _keys(x)
        is_equal = (is_inside & (key == found)).to(tl.int32)
        rank = equal_before + tl.cumsum(is_equal, axis=0) - is_equal
        before = above + rank.to(tl.float64) * weights(x, largest, IS_MASS)
        is_kept = (key > found) | ((key == found) & (before < goal))
        tl.store(row_ptr + start + column, float("-inf"), mask=is_inside & (is_kept == 0))
        equal_before += tl.sum(is_equal, axis=0)
    tl.debug_barrier()  # the next pass may read with other threads than these
