"""Draws one token per row of logits on the GPU, as `kernels.sampling` does: same filters, same random numbers.

A row is split over programs (`row_parts.py`): one launch finds each part's largest score, and a second one the row's;
a random draw takes four, and ten more for each of top-k (eleven) and top-p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu import keep_largest, penalties
from kernels.gpu.keep_largest import DIGITS, STATES, kept
from kernels.gpu.launch import Variant
from kernels.gpu.row_parts import OPTIONS, Parts, score_of, weights
from kernels.gpu.sample_table import (
    COLUMNS,
    IS_RANDOM,
    LOG_MIN_P,
    POSITION,
    SEED,
    TEMPERATURE,
    table_of,
)
from kernels.sample_row import Drawn, SampleRow, all_drawn
from kernels.token_mask import hide_others

NO_TOKEN = -1  # of a row whose logits are not finite
_NO_COLUMN = tl.constexpr(2**31 - 1)
_STATE_COLUMNS, _SETTLED = tl.constexpr(2 * STATES), tl.constexpr(2 * STATES - 2)
_EXTREMES = tl.constexpr(3)  # of a part: highest and lowest logit, largest score


# SplitMix64, as `kernels.sampling.uniform`.
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_A = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_B = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * tl.full([1], _MIX_A, dtype=tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([1], _MIX_B, dtype=tl.uint64)
    return x ^ (x >> 31)


@triton.jit
def uniform_number(seed, position):
    """A float64 in [0, 1), of shape [1], for an int64 seed and position; the bits of the seed are what counts."""
    step = tl.full([1], _STEP, dtype=tl.uint64)
    start = _mix(seed.to(tl.uint64) + step)
    bits = _mix(start + (position + 1).to(tl.uint64) * step)
    return (bits >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def _extremes_kernel(raw_ptr, shaped_ptr, extreme_ptr, place_ptr, vocab, PART: tl.constexpr, PARTS: tl.constexpr):
    """Program (part, row): the highest and the lowest logit, infinite where one is no number, and the largest score."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = part * PART + tl.arange(0, PART)
    is_inside = column < vocab
    raw = tl.load(raw_ptr + row * vocab + column, mask=is_inside, other=0.0)
    is_bad = tl.sum((raw != raw).to(tl.int32), axis=0) > 0
    highest = tl.max(tl.where(is_inside & (raw == raw), raw, float("-inf")), axis=0)
    lowest = tl.min(tl.where(is_inside & (raw == raw), raw, float("inf")), axis=0)
    x = tl.load(shaped_ptr + row * vocab + column, mask=is_inside, other=float("-inf"))
    best = tl.max(tl.where(x == x, x, float("-inf")), axis=0)
    extreme_ptr += row * (_EXTREMES * PARTS) + part
    tl.store(extreme_ptr, tl.where(is_bad, float("inf"), highest))
    tl.store(extreme_ptr + PARTS, tl.where(is_bad, float("-inf"), lowest))
    tl.store(extreme_ptr + 2 * PARTS, best)
    at = tl.min(tl.where(is_inside & (x == best), column, _NO_COLUMN), axis=0)
    tl.store(place_ptr + row * PARTS + part, at)


@triton.jit
def _largest(extreme_ptr, row, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    best = tl.load(extreme_ptr + row * (_EXTREMES * PARTS) + 2 * PARTS + part, mask=part < parts, other=float("-inf"))
    return tl.max(best, axis=0)


@triton.jit
def _likeliest(extreme_ptr, place_ptr, row, parts, PARTS: tl.constexpr):
    """The row's likeliest token, the lowest id among equals, and whether its logits are finite: one of each."""
    part = tl.arange(0, PARTS)
    is_inside = part < parts
    extreme_ptr += row * (_EXTREMES * PARTS) + part
    highest = tl.max(tl.load(extreme_ptr, mask=is_inside, other=float("-inf")), axis=0)
    lowest = tl.min(tl.load(extreme_ptr + PARTS, mask=is_inside, other=float("inf")), axis=0)
    best = tl.load(extreme_ptr + 2 * PARTS, mask=is_inside, other=float("-inf"))
    place = tl.load(place_ptr + row * PARTS + part, mask=is_inside, other=_NO_COLUMN)
    token = tl.min(tl.where(best == tl.max(best, axis=0), place, _NO_COLUMN), axis=0)
    # Not `abs(x) < inf` of each: as in the reference, a range too wide for float32 is no answer either.
    return token, highest - lowest < float("inf")


@triton.jit(do_not_specialize=["parts"])
def _likeliest_kernel(extreme_ptr, place_ptr, token_ptr, parts, PARTS: tl.constexpr):
    """One program per row: its likeliest token."""
    row = tl.program_id(0).to(tl.int64)
    token, is_finite = _likeliest(extreme_ptr, place_ptr, row, parts, PARTS)
    tl.store(token_ptr + row, tl.where(is_finite, token, -1))


@triton.jit(do_not_specialize=["parts"])
def _scores_kernel(
    shaped_ptr,
    work_ptr,
    extreme_ptr,
    largest_ptr,
    mass_ptr,
    table_ptr,
    numbers_ptr,
    vocab,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (part, row): scores = shaped / temperature, -inf where min-p hides them, and their mass."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    table_ptr += row * COLUMNS
    numbers_ptr += row * COLUMNS
    if tl.load(table_ptr + IS_RANDOM) != 0:
        temperature = tl.load(numbers_ptr + TEMPERATURE).to(tl.float32)
        largest = tl.math.div_rn(
            _largest(extreme_ptr, row, parts, PARTS) + tl.zeros([1], dtype=tl.float32),
            temperature + tl.zeros([1], dtype=tl.float32),
        )
        if part == 0:
            tl.store(largest_ptr + row + tl.arange(0, 1), largest)
        floor = largest + tl.load(numbers_ptr + LOG_MIN_P).to(tl.float32)
        column = part * PART + tl.arange(0, PART)
        is_inside = column < vocab
        x = tl.load(shaped_ptr + row * vocab + column, mask=is_inside, other=float("-inf"))
        x = tl.math.div_rn(x, temperature + tl.zeros([PART], dtype=tl.float32))
        x = tl.where(is_inside & (x >= floor), x, float("-inf"))
        tl.store(work_ptr + row * vocab + column, x, mask=is_inside)
        tl.store(mass_ptr + row * PARTS + part, tl.sum(weights(x, largest, True), axis=0))


@triton.jit(do_not_specialize=["parts"])
def _draw_kernel(
    work_ptr,
    extreme_ptr,
    place_ptr,
    largest_ptr,
    mass_ptr,
    state_ptr,
    equal_ptr,
    table_ptr,
    token_ptr,
    vocab,
    parts,
    HAS_CUT: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program per row: the first token whose cumulative probability, in order of ids, is above its number.

    `mass_ptr`: of what stays in each part but for scores that equal the key found, if there is one (HAS_CUT).
    """
    row = tl.program_id(0).to(tl.int64)
    token, is_finite = _likeliest(extreme_ptr, place_ptr, row, parts, PARTS)
    table_ptr += row * COLUMNS
    state_ptr += row * _STATE_COLUMNS
    drawn = tl.zeros([1], dtype=tl.int32) + token
    if is_finite & (tl.load(table_ptr + IS_RANDOM) != 0):
        largest = tl.load(largest_ptr + row)
        part = tl.arange(0, PARTS)
        mass = tl.load(mass_ptr + row * PARTS + part, mask=part < parts, other=0.0)
        equals_before = tl.zeros([PARTS], dtype=tl.int32)
        if HAS_CUT:
            equals = tl.load(equal_ptr + row * PARTS + part, mask=part < parts, other=0)
            equals_before = tl.cumsum(equals, axis=0) - equals
            border = tl.load(state_ptr + _SETTLED + tl.arange(0, 1)).to(tl.int32)
            num_kept = tl.load(state_ptr + _SETTLED + 1)
            num_here = tl.minimum(tl.maximum(num_kept - equals_before, 0), equals.to(tl.int64))
            mass += tl.where(num_here > 0, num_here.to(tl.float64) * weights(score_of(border), largest, True), 0.0)
        number = uniform_number(tl.load(table_ptr + SEED), tl.load(table_ptr + POSITION))
        target = number * tl.sum(mass, axis=0)
        is_hit = (tl.cumsum(mass, axis=0) > target) & (mass > 0)
        chosen = tl.min(tl.where(is_hit, part, _NO_COLUMN), axis=0)
        last = tl.max(tl.where(mass > 0, part, 0), axis=0)
        # Sums in another order may differ in their last bits, and a number just below 1 then passes them all.
        chosen = tl.where(chosen == _NO_COLUMN, last, chosen)
        before = tl.sum(tl.where(part < chosen, mass, 0.0), axis=0)
        column = chosen * PART + tl.arange(0, PART)
        x = tl.load(work_ptr + row * vocab + column, mask=column < vocab, other=float("-inf"))
        weight = weights(x, largest, True)
        if HAS_CUT:
            rank = tl.sum(tl.where(part == chosen, equals_before, 0), axis=0)
            weight = tl.where(kept(x, column, vocab, state_ptr, rank), weight, 0.0)
        is_hit = (before + tl.cumsum(weight, axis=0) > target) & (weight > 0)
        first = tl.min(tl.where(is_hit, column, _NO_COLUMN), axis=0)
        last = tl.max(tl.where(weight > 0, column, -1), axis=0)
        found = tl.where(first == _NO_COLUMN, last, first)
        drawn = tl.zeros([1], dtype=tl.int32) + tl.where(found < 0, token, found)
    tl.store(token_ptr + row + tl.arange(0, 1), tl.where(is_finite, drawn, -1))


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    """One `Drawn` per row, the same as `kernels.sampling.sample` gives where exp and sums agree to the last bits.

    Shapes: logits: [num_rows, vocab], any float type; not changed. A row's token depends on that row alone.
    Bytes moved: vocab x 4 per launch and row, mostly from cache. Waits for the tokens, which come back to the host.
    Sources: Holtzman et al. 2019 (top-p); Fan et al. 2018 (top-k); Nguyen et al. 2024 (min-p); Keskar et al. 2019
    (repetition penalty); Steele, Lea, Flood 2014 (SplitMix64).
    """
    if not rows:
        return []
    raw = logits.float().contiguous()
    shaped = hide_others(penalties.penalised(raw, rows), [row.allowed for row in rows], keeps=raw)
    is_any_random = any(row.temperature > 0 for row in rows)
    tokens = _drawn_tokens(raw, shaped, rows) if is_any_random else likeliest_tokens(raw, shaped)
    return all_drawn([None if token == NO_TOKEN else token for token in tokens.tolist()], raw, rows)


def likeliest_tokens(raw: Tensor, shaped: Tensor | None = None) -> Tensor:
    """[num_rows], int32: each row's likeliest token, or `NO_TOKEN` where logits are not finite. Waits for nothing.

    Shapes: raw: [num_rows, vocab], float32, contiguous; shaped: the same with penalties, if there are any.
    """
    parts = Parts(raw.shape[1])
    extremes, places = _extremes(raw, raw if shaped is None else shaped, parts)
    tokens = torch.empty(raw.shape[0], dtype=torch.int32, device=raw.device)
    _likeliest_kernel[(raw.shape[0],)](extremes, places, tokens, parts.count, PARTS=parts.room, **OPTIONS)
    return tokens


def _extremes(raw: Tensor, shaped: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
    num_rows, vocab = raw.shape
    extremes = torch.empty((num_rows, _EXTREMES.value, parts.room), dtype=torch.float32, device=raw.device)
    places = torch.empty((num_rows, parts.room), dtype=torch.int32, device=raw.device)
    _extremes_kernel[(parts.count, num_rows)](raw, shaped, extremes, places, vocab, **parts.constants, **OPTIONS)
    return extremes, places


def _drawn_tokens(raw: Tensor, shaped: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    (num_rows, vocab), device = raw.shape, raw.device
    parts = Parts(vocab)
    grid = (parts.count, num_rows)
    table = table_of(rows, vocab, device)
    work = torch.empty_like(raw)
    largest = torch.empty(num_rows, dtype=torch.float32, device=device)
    masses, kept_masses = torch.empty((2, num_rows, parts.room), dtype=torch.float64, device=device)
    sums = torch.empty((num_rows, 2, DIGITS, parts.room), dtype=torch.float64, device=device)
    state = torch.empty((num_rows, STATES, 2), dtype=torch.int64, device=device)
    equals = torch.empty((num_rows, parts.room), dtype=torch.int32, device=device)
    tokens = torch.empty(num_rows, dtype=torch.int32, device=device)

    extremes, places = _extremes(raw, shaped, parts)
    _scores_kernel[grid](
        shaped,
        work,
        extremes,
        largest,
        masses,
        table,
        table.view(torch.float64),
        vocab,
        parts.count,
        **parts.constants,
        **OPTIONS,
    )
    searched = (work, table, largest, masses, sums, state, kept_masses, equals, parts)
    if any(row.temperature > 0 and 0 < row.top_k < vocab for row in rows):
        keep_largest.search(*searched, is_mass=False)
        keep_largest.hide(work, table, largest, masses, state, equals, parts)
    has_cut = any(row.temperature > 0 and row.top_p < 1 for row in rows)
    if has_cut:
        keep_largest.search(*searched, is_mass=True)
    _draw_kernel[(num_rows,)](
        work,
        extremes,
        places,
        largest,
        kept_masses if has_cut else masses,
        state,
        equals,
        table,
        tokens,
        vocab,
        parts.count,
        HAS_CUT=has_cut,
        **parts.constants,
        **OPTIONS,
    )
    return tokens


def variants(arch: int) -> Iterator[Variant]:
    """Penalties, and draws from small and large vocabularies."""
    yield from penalties.variants(arch)
    for vocab in (8_192, 151_936):
        label, parts = f"float32 vocab={vocab}", Parts(vocab)
        pointers = {
            **dict.fromkeys(("raw_ptr", "shaped_ptr", "work_ptr", "extreme_ptr", "largest_ptr"), "*fp32"),
            **dict.fromkeys(("place_ptr", "equal_ptr", "token_ptr"), "*i32"),
            **dict.fromkeys(("numbers_ptr", "mass_ptr"), "*fp64"),
            **dict.fromkeys(("table_ptr", "state_ptr"), "*i64"),
            "vocab": "i32:16",
            "parts": "i32",
        }
        for kernel, constants in (
            (_extremes_kernel, parts.constants),
            (_likeliest_kernel, {"PARTS": parts.room}),
            (_scores_kernel, parts.constants),
            (_draw_kernel, {"HAS_CUT": True, **parts.constants}),
        ):
            types = {name: pointers[name] for name in kernel.arg_names if name in pointers}
            yield Variant(label, kernel, types, constants, OPTIONS)
        yield from keep_largest.variants(label, parts)
