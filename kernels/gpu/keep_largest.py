"""Which tokens of a row are the likeliest, without sorting it: top-k by count, top-p by mass.

A score is seen as a 32-bit integer key of the same order. The largest key that still leaves enough at or above it is
found from its top bits down, four bits a launch, in which each part of a row adds up what lies above each of fifteen
keys: eight launches, whatever k and p are. Of scores that equal the key found the first ones stay.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Variant
from kernels.gpu.row_parts import OPTIONS, Parts, keys, score_of, total_of, weights
from kernels.gpu.sample_table import COLUMNS, IS_RANDOM, TOP_K, TOP_P

STEPS = 8
STATES = STEPS + 1  # of a search: before each step, and what it came to
DIGITS = 16
_STEPS, _STATES, _DIGITS = tl.constexpr(STEPS), tl.constexpr(STATES), tl.constexpr(DIGITS)
_LOWEST = tl.constexpr(-(2**31))
_MIN_MASS = tl.constexpr(1e-300)  # so that the likeliest token stays with a top-p of 0


@triton.jit
def _is_wanted(table_ptr, numbers_ptr, IS_MASS: tl.constexpr):
    """Whether the row has a top-p, or a top-k."""
    is_wanted = tl.load(numbers_ptr + TOP_P) < 1.0 if IS_MASS else tl.load(table_ptr + TOP_K) > 0
    return is_wanted & (tl.load(table_ptr + IS_RANDOM) != 0)


@triton.jit
def _goal(table_ptr, numbers_ptr, mass_ptr, parts, IS_MASS: tl.constexpr, PARTS: tl.constexpr):
    if IS_MASS:
        return tl.maximum(tl.load(numbers_ptr + TOP_P) * total_of(mass_ptr, parts, PARTS), _MIN_MASS)
    return tl.load(table_ptr + TOP_K).to(tl.float64)


@triton.jit
def _narrowed(sum_ptr, state_ptr, step, goal, parts, PARTS: tl.constexpr):
    """The lowest key that can still be the one, and the weights above all that can: behind so many steps."""
    found = tl.full([1], _LOWEST, dtype=tl.int64)
    above = tl.zeros([1], dtype=tl.float64)
    if step > 0:
        before = state_ptr + 2 * (step - 1)
        found = tl.load(before + tl.arange(0, 1))
        above = tl.load(before + 1 + tl.arange(0, 1)).to(tl.float64, bitcast=True)
        digit, part = tl.arange(0, _DIGITS), tl.arange(0, PARTS)
        place = sum_ptr + ((step - 1) % 2) * (_DIGITS * PARTS) + digit[:, None] * PARTS + part[None, :]
        totals = tl.sum(tl.load(place, mask=(part < parts)[None, :], other=0.0), axis=1)
        passed = tl.sum(((digit > 0) & (totals >= goal)).to(tl.int32), axis=0)
        next_above = tl.sum(tl.where(digit == passed + 1, totals, 0.0), axis=0)
        above = tl.where(passed + 1 < _DIGITS, next_above, above)
        found += passed.to(tl.int64) << (4 * (_STEPS - step))
    return found, above


@triton.jit(do_not_specialize=["step", "parts"])
def _search_kernel(
    work_ptr,
    table_ptr,
    numbers_ptr,
    largest_ptr,
    mass_ptr,
    sum_ptr,
    state_ptr,
    vocab,
    parts,
    step,
    IS_MASS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (part, row): of its scores the weights at or above each of the fifteen keys of this step."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    table_ptr += row * COLUMNS
    numbers_ptr += row * COLUMNS
    if _is_wanted(table_ptr, numbers_ptr, IS_MASS):
        sum_ptr += row * (2 * _DIGITS * PARTS)
        state_ptr += row * (2 * _STATES)
        goal = _goal(table_ptr, numbers_ptr, mass_ptr + row * PARTS, parts, IS_MASS, PARTS)
        found, above = _narrowed(sum_ptr, state_ptr, step, goal, parts, PARTS)
        if part == 0:
            tl.store(state_ptr + 2 * step + tl.arange(0, 1), found)
            tl.store(state_ptr + 2 * step + 1 + tl.arange(0, 1), above.to(tl.int64, bitcast=True))
        column = part * PART + tl.arange(0, PART)
        x = tl.load(work_ptr + row * vocab + column, mask=column < vocab, other=float("-inf"))
        key = keys(x)
        weight = tl.where(column < vocab, weights(x, tl.load(largest_ptr + row), IS_MASS), 0.0)
        unit = tl.full([1], 1, dtype=tl.int64) << (4 * (_STEPS - 1 - step))
        into = sum_ptr + (step % 2) * (_DIGITS * PARTS) + part
        for digit in tl.static_range(1, _DIGITS):
            border = (found + digit * unit).to(tl.int32)
            tl.store(into + digit * PARTS, tl.sum(tl.where(key >= border, weight, 0.0), axis=0))


@triton.jit(do_not_specialize=["parts"])
def _settle_kernel(
    work_ptr,
    table_ptr,
    numbers_ptr,
    largest_ptr,
    mass_ptr,
    sum_ptr,
    state_ptr,
    kept_mass_ptr,
    equal_ptr,
    vocab,
    parts,
    IS_MASS: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (part, row): the mass of its scores above the key that was found, and how many equal it.

    The row's last state becomes that key, and how many of its equals stay. Rows without a filter keep everything.
    """
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    table_ptr += row * COLUMNS
    numbers_ptr += row * COLUMNS
    state_ptr += row * (2 * _STATES)
    largest = tl.load(largest_ptr + row)
    found = tl.full([1], _LOWEST, dtype=tl.int64)
    num_kept = tl.zeros([1], dtype=tl.int64)
    if _is_wanted(table_ptr, numbers_ptr, IS_MASS):
        goal = _goal(table_ptr, numbers_ptr, mass_ptr + row * PARTS, parts, IS_MASS, PARTS)
        found, above = _narrowed(sum_ptr + row * (2 * _DIGITS * PARTS), state_ptr, _STEPS, goal, parts, PARTS)
        weight = weights(score_of(found.to(tl.int32)), largest, IS_MASS)
        missing = tl.math.ceil((goal - above) / tl.where(weight > 0, weight, 1.0))
        num_kept = tl.minimum(missing, 2147483647.0).to(tl.int64)
    if part == 0:
        tl.store(state_ptr + 2 * _STEPS + tl.arange(0, 1), found)
        tl.store(state_ptr + 2 * _STEPS + 1 + tl.arange(0, 1), num_kept)
    column = part * PART + tl.arange(0, PART)
    x = tl.load(work_ptr + row * vocab + column, mask=column < vocab, other=float("-inf"))
    key = keys(x)
    border = found.to(tl.int32)
    mass = tl.sum(tl.where((column < vocab) & (key > border), weights(x, largest, True), 0.0), axis=0)
    tl.store(kept_mass_ptr + row * PARTS + part, mass)
    tl.store(equal_ptr + row * PARTS + part, tl.sum(((column < vocab) & (key == border)).to(tl.int32), axis=0))


@triton.jit
def kept(x, column, vocab, state_ptr, equals_before):
    """Which scores of a part stay, behind so many of the row's that equal the key found."""
    border = tl.load(state_ptr + 2 * _STEPS).to(tl.int32)
    num_kept = tl.load(state_ptr + 2 * _STEPS + 1)
    key = keys(x)
    is_equal = ((column < vocab) & (key == border)).to(tl.int32)
    rank = equals_before + tl.cumsum(is_equal, axis=0) - is_equal
    return (column < vocab) & ((key > border) | ((is_equal != 0) & (rank < num_kept)))


@triton.jit(do_not_specialize=["parts"])
def _hide_kernel(
    work_ptr,
    largest_ptr,
    state_ptr,
    equal_ptr,
    mass_ptr,
    table_ptr,
    vocab,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (part, row): -inf for what does not stay, and the mass of what does."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(table_ptr + row * COLUMNS + IS_RANDOM) != 0:
        other = tl.arange(0, PARTS)
        equals = tl.load(equal_ptr + row * PARTS + other, mask=other < part, other=0)
        column = part * PART + tl.arange(0, PART)
        place = work_ptr + row * vocab + column
        x = tl.load(place, mask=column < vocab, other=float("-inf"))
        stays = kept(x, column, vocab, state_ptr + row * (2 * _STATES), tl.sum(equals, axis=0))
        tl.store(place, float("-inf"), mask=(column < vocab) & (stays == 0))
        mass = tl.sum(tl.where(stays, weights(x, tl.load(largest_ptr + row), True), 0.0), axis=0)
        tl.store(mass_ptr + row * PARTS + part, mass)


def search(
    work: Tensor,
    table: Tensor,
    largest: Tensor,
    masses: Tensor,
    sums: Tensor,
    state: Tensor,
    kept_masses: Tensor,
    equals: Tensor,
    parts: Parts,
    *,
    is_mass: bool,
) -> None:
    """Finds each row's key by its top-p, or by its top-k: into `state`, `kept_masses` and `equals`.

    Shapes: work: [num_rows, vocab], float32, scores; table: [num_rows, 8] (`sample_table.py`); largest: [num_rows], the
    largest score; masses: [num_rows, parts], float64, of all scores, and kept_masses and equals (int32) like it;
    sums: [num_rows, 2, 16, parts], float64; state: [num_rows, 9, 2], int64.
    """
    rows, vocab = work.shape
    grid = (parts.count, rows)
    args = (work, table, table.view(torch.float64), largest, masses, sums, state)
    constants = {"IS_MASS": is_mass, **parts.constants}
    for step in range(STEPS):
        _search_kernel[grid](*args, vocab, parts.count, step, **constants, **OPTIONS)
    _settle_kernel[grid](*args, kept_masses, equals, vocab, parts.count, **constants, **OPTIONS)


def hide(
    work: Tensor, table: Tensor, largest: Tensor, masses: Tensor, state: Tensor, equals: Tensor, parts: Parts
) -> None:
    """Sets to -inf what `search` left out, and finds the masses of what is left. Shapes as there."""
    grid = (parts.count, work.shape[0])
    args = (work, largest, state, equals, masses, table)
    _hide_kernel[grid](*args, work.shape[1], parts.count, **parts.constants, **OPTIONS)


def variants(label: str, parts: Parts) -> Iterator[Variant]:
    """All kernels here, for a vocabulary that is split so."""
    types = {
        **dict.fromkeys(("work_ptr", "largest_ptr"), "*fp32"),
        **dict.fromkeys(("numbers_ptr", "mass_ptr", "kept_mass_ptr", "sum_ptr"), "*fp64"),
        **dict.fromkeys(("table_ptr", "state_ptr"), "*i64"),
        "equal_ptr": "*i32",
        "vocab": "i32:16",
        **dict.fromkeys(("parts", "step"), "i32"),
    }
    for kernel in (_search_kernel, _settle_kernel, _hide_kernel):
        own = {name: types[name] for name in kernel.arg_names if name in types}
        for is_mass in (True, False) if "IS_MASS" in kernel.arg_names else (None,):
            constants = parts.constants if is_mass is None else {"IS_MASS": is_mass, **parts.constants}
            what = "" if is_mass is None else " top-p" if is_mass else " top-k"
            yield Variant(label + what, kernel, own, constants, OPTIONS)
