"""Draws one token per row of logits on the GPU, as `kernels.sampling` does: same filters, same random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.keep_largest import keep_largest, total_mass, weights
from kernels.gpu.launch import Variant, power_of_two
from kernels.sample_row import Drawn, SampleRow, all_drawn
from kernels.token_mask import hide_others

NO_TOKEN = -1  # of a row whose logits are not finite
MIN_TEMPERATURE = 1e-5  # of a random draw
MAX_BLOCK = 4096  # scores a program looks at together
PENALTY_BLOCK = 256
# A fused multiply-add would round a penalty differently from the reference, and another token could win.
_OPTIONS = {"num_warps": 16, "enable_fp_fusion": False}
_PENALTY_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
# Columns of the parameter table, 64 bits each; the last three are float64.
_SEED, _POSITION, _TOP_K, _IS_RANDOM, _TEMPERATURE, _LOG_MIN_P, _TOP_P = (tl.constexpr(i) for i in range(7))
_COLUMNS = tl.constexpr(8)
_NO_COLUMN = tl.constexpr(2**31 - 1)
_MIN_MASS = tl.constexpr(1e-300)  # so that the likeliest token stays with a top-p of 0


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


@triton.jit(do_not_specialize=["count"])
def _penalties_kernel(logits_ptr, place_ptr, repetition_ptr, minus_ptr, plus_ptr, count, BLOCK: tl.constexpr):
    """Each named logit x becomes (x > 0 ? x / repetition : x repetition) - minus + plus, rounded at each step."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entry < count
    place = tl.load(place_ptr + entry, mask=mask, other=0)
    x = tl.load(logits_ptr + place, mask=mask, other=0.0)
    repetition = tl.load(repetition_ptr + entry, mask=mask, other=1.0)
    x = tl.where(x > 0, tl.math.div_rn(x, repetition), x * repetition)
    x = x - tl.load(minus_ptr + entry, mask=mask, other=0.0)
    x = x + tl.load(plus_ptr + entry, mask=mask, other=0.0)
    tl.store(logits_ptr + place, x, mask=mask)


@triton.jit
def _draw(row_ptr, vocab, number, largest, otherwise, BLOCK: tl.constexpr):
    """The first token whose cumulative probability, in order of ids, is above `number` in [0, 1)."""
    column = tl.arange(0, BLOCK)
    target = number * total_mass(row_ptr, vocab, largest, BLOCK)
    drawn = tl.full([1], _NO_COLUMN, dtype=tl.int32)
    last = tl.zeros([1], dtype=tl.int32) + otherwise
    mass = tl.zeros([1], dtype=tl.float64)
    for start in range(0, vocab, BLOCK):
        x = tl.load(row_ptr + start + column, mask=start + column < vocab, other=float("-inf"))
        weight = weights(x, largest, True)
        is_hit = (mass + tl.cumsum(weight, axis=0) > target) & (weight > 0)
        drawn = tl.minimum(drawn, tl.min(tl.where(is_hit, start + column, _NO_COLUMN), axis=0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0, start + column, -1), axis=0))
        mass += tl.sum(weight, axis=0)
    # The sums of the two passes may differ in their last bits, and a number just below 1 then passes them all.
    return tl.where(drawn == _NO_COLUMN, last, drawn)


@triton.jit
def _sample_kernel(raw_ptr, shaped_ptr, work_ptr, table_ptr, numbers_ptr, token_ptr, vocab, BLOCK: tl.constexpr):
    """One program per row. Greedy: the likeliest token. Random: scores = shaped / temperature into the work row, then
    min-p, top-k and top-p hide scores there, and the inverse of the cumulative distribution is read at the number.
    """
    row = tl.program_id(0).to(tl.int64)
    raw_ptr += row * vocab
    shaped_ptr += row * vocab
    work_ptr += row * vocab
    table_ptr += row * _COLUMNS
    numbers_ptr += row * _COLUMNS
    column = tl.arange(0, BLOCK)

    highest = tl.full([1], float("-inf"), dtype=tl.float32)
    lowest = tl.full([1], float("inf"), dtype=tl.float32)
    nans = tl.zeros([1], dtype=tl.int32)
    largest = tl.full([1], float("-inf"), dtype=tl.float32)
    likeliest = tl.zeros([1], dtype=tl.int32)
    for start in range(0, vocab, BLOCK):
        is_inside = start + column < vocab
        raw = tl.load(raw_ptr + start + column, mask=is_inside, other=0.0)
        highest = tl.maximum(highest, tl.max(tl.where(is_inside, raw, float("-inf")), axis=0))
        lowest = tl.minimum(lowest, tl.min(tl.where(is_inside, raw, float("inf")), axis=0))
        nans += tl.sum((raw != raw).to(tl.int32), axis=0)
        x = tl.load(shaped_ptr + start + column, mask=is_inside, other=float("-inf"))
        best = tl.max(x, axis=0)
        at = tl.min(tl.where(x == best, start + column, _NO_COLUMN), axis=0)
        likeliest = tl.where(best > largest, at, likeliest)
        largest = tl.maximum(largest, best)
    # Not `abs(x) < inf` of each: as in the reference, a range too wide for float32 is no answer either.
    is_finite = (nans == 0) & (highest - lowest < float("inf"))

    token = likeliest
    is_random = tl.load(table_ptr + _IS_RANDOM) != 0
    if (tl.sum(is_finite.to(tl.int32), axis=0) != 0) & is_random:
        temperature = tl.load(numbers_ptr + _TEMPERATURE).to(tl.float32)
        largest = tl.math.div_rn(largest, temperature + tl.zeros([1], dtype=tl.float32))
        floor = largest + tl.load(numbers_ptr + _LOG_MIN_P).to(tl.float32)
        for start in range(0, vocab, BLOCK):
            is_inside = start + column < vocab
            x = tl.load(shaped_ptr + start + column, mask=is_inside, other=float("-inf"))
            x = tl.math.div_rn(x, temperature + tl.zeros([BLOCK], dtype=tl.float32))
            tl.store(work_ptr + start + column, tl.where(x < floor, float("-inf"), x), mask=is_inside)
        tl.debug_barrier()
        top_k = tl.load(table_ptr + _TOP_K)
        if top_k > 0:
            keep_largest(work_ptr, vocab, top_k.to(tl.float64), largest, False, BLOCK)
        top_p = tl.load(numbers_ptr + _TOP_P)
        if top_p < 1.0:
            goal = tl.maximum(top_p * total_mass(work_ptr, vocab, largest, BLOCK), _MIN_MASS)
            keep_largest(work_ptr, vocab, goal, largest, True, BLOCK)
        number = uniform_number(tl.load(table_ptr + _SEED), tl.load(table_ptr + _POSITION))
        token = _draw(work_ptr, vocab, number, largest, likeliest, BLOCK)
    tl.store(token_ptr + row + tl.arange(0, 1), tl.where(is_finite, token, -1))


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    """One `Drawn` per row, the same as `kernels.sampling.sample` gives where exp and sums agree to the last bits.

    Shapes: logits: [num_rows, vocab], any float type; not changed. A row's token depends on that row alone.
    Bytes moved: vocab x 4 per pass and row, mostly from cache: 1 pass greedy, 4 random, 18 more with top-k and 19 with
    top-p. Waits for the device: the tokens come back to the host.
    Sources: Holtzman et al. 2019 (top-p); Fan et al. 2018 (top-k); Nguyen et al. 2024 (min-p); Keskar et al. 2019
    (repetition penalty); Steele, Lea, Flood 2014 (SplitMix64).
    """
    if not rows:
        return []
    raw = logits.float().contiguous()
    shaped = hide_others(_penalised(raw, rows), [row.allowed for row in rows], keeps=raw)
    table = _table(rows, raw.shape[1], raw.device)
    is_any_random = any(row.temperature > 0 for row in rows)
    work = torch.empty_like(raw) if is_any_random else raw
    tokens = torch.empty(len(rows), dtype=torch.int32, device=raw.device)
    vocab = raw.shape[1]
    _sample_kernel[(len(rows),)](
        raw,
        shaped,
        work,
        table,
        table.view(torch.float64),
        tokens,
        vocab,
        BLOCK=_block(vocab),
        **_OPTIONS,
    )
    return all_drawn([None if token == NO_TOKEN else token for token in tokens.tolist()], raw, rows)


def _block(vocab: int) -> int:
    return min(max(power_of_two(vocab), 128), MAX_BLOCK)


def _table(rows: Sequence[SampleRow], vocab: int, device: torch.device) -> Tensor:
    """[num_rows, 8], int64: the parameters of each row, floats by their bits."""
    whole = np.zeros((len(rows), _COLUMNS.value), dtype=np.int64)
    floats = whole.view(np.float64)
    for i, row in enumerate(rows):
        whole[i, _SEED.value] = (row.seed + 2**63) % 2**64 - 2**63
        whole[i, _POSITION.value] = row.position
        whole[i, _TOP_K.value] = row.top_k if 0 < row.top_k < vocab else 0
        whole[i, _IS_RANDOM.value] = row.temperature > 0
        floats[i, _TEMPERATURE.value] = max(row.temperature, MIN_TEMPERATURE)
        floats[i, _LOG_MIN_P.value] = math.log(row.min_p) if row.min_p > 0 else -math.inf
        floats[i, _TOP_P.value] = row.top_p
    table = torch.from_numpy(whole)
    # From pinned memory the copy is queued behind the step that makes the logits; from other memory it waits for that.
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table


def _penalised(raw: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """A changed copy of the logits, or the tensor itself when no row has penalties, bias or bans."""
    entries: dict[int, list[float]] = {}  # by place: repetition, minus, plus
    vocab = raw.shape[1]

    def entry(row: int, token: int) -> list[float]:
        return entries.setdefault(row * vocab + token, [1.0, 0.0, 0.0])

    for i, row in enumerate(rows):
        if row.repetition_penalty != 1:
            for token in row.seen:
                entry(i, token)[0] = row.repetition_penalty
        if row.frequency_penalty or row.presence_penalty:
            for token, count in row.output_counts.items():
                entry(i, token)[1] = row.frequency_penalty * count + row.presence_penalty
        # Clients may name any number as a token id here.
        for token, bias in row.logit_bias:
            if 0 <= token < vocab:
                entry(i, token)[2] = bias
        for token in row.banned:
            if 0 <= token < vocab:
                entry(i, token)[2] = -math.inf
    if not entries:
        return raw
    shaped = raw.clone()
    places = torch.from_numpy(np.fromiter(entries, dtype=np.int64, count=len(entries))).to(raw.device)
    changes = np.zeros((3, -(-len(entries) // 4) * 4), dtype=np.float32)  # rows aligned to 16 bytes, as Triton likes
    changes[:, : len(entries)] = np.array(list(entries.values()), dtype=np.float32).T
    values = torch.from_numpy(changes).to(raw.device)
    grid = (triton.cdiv(len(entries), PENALTY_BLOCK),)
    _penalties_kernel[grid](shaped, places, *values, len(entries), BLOCK=PENALTY_BLOCK, **_PENALTY_OPTIONS)
    return shaped


def variants(arch: int) -> Iterator[Variant]:
    """Penalties, and draws from small and large vocabularies."""
    yield Variant(
        "float32",
        _penalties_kernel,
        {
            "logits_ptr": "*fp32",
            "place_ptr": "*i64",
            **dict.fromkeys(("repetition_ptr", "minus_ptr", "plus_ptr"), "*fp32"),
            "count": "i32",
        },
        {"BLOCK": PENALTY_BLOCK},
        _PENALTY_OPTIONS,
    )
    for vocab in (8_192, 151_936):
        yield Variant(
            f"float32 vocab={vocab}",
            _sample_kernel,
            {
                **dict.fromkeys(("raw_ptr", "shaped_ptr", "work_ptr"), "*fp32"),
                "table_ptr": "*i64",
                "numbers_ptr": "*fp64",
                "token_ptr": "*i32",
                "vocab": "i32:16",
            },
            {"BLOCK": _block(vocab)},
            _OPTIONS,
        )
