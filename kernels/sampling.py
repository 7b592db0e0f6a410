"""Draws one token per row of logits: penalties, bias, temperature, min-p, top-k, top-p, then a counter-based draw.

Each row's result is a function of that row's logits and parameters alone. Filters only hide tokens and neutral values
change no bit, so a row without top-p draws the same token beside a row with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import sampling as on_cpu
from kernels.sample_row import LIKELIEST, Drawn, SampleRow, all_drawn
from kernels.token_mask import hide_others

# SplitMix64 (Steele, Lea, Flood 2014): the finaliser of a counter that steps by the golden ratio. The stream's start
# is the mixed seed, so that neighbouring seeds have unrelated streams. Plain 64-bit integer arithmetic, so that a GPU
# kernel gives the same numbers.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    """One `Drawn` per row. Log probabilities are the model's own: before penalties, bias, temperature and filters.

    Shapes: logits: [num_rows, vocab], any float dtype; not changed.
    Sources: Holtzman et al. 2019 (top-p); Fan et al. 2018 (top-k); Nguyen et al. 2024 (min-p); Keskar et al. 2019
    (repetition penalty).
    """
    if logits.is_cuda:
        from kernels.gpu import sampling as on_gpu

        with torch.inference_mode():
            return on_gpu.sample(logits, rows)
    if all(row is LIKELIEST for row in rows):
        return [Drawn(None if token == on_cpu.NO_TOKEN else token) for token in on_cpu.draw_greedily(logits)]
    with torch.inference_mode():
        return _drawn(logits, rows)


def _drawn(logits: Tensor, rows: Sequence[SampleRow]) -> list[Drawn]:
    raw = logits.float()
    shaped = hide_others(_shape(raw, rows), [row.allowed for row in rows], keeps=raw)
    tokens = on_cpu.draw(raw, shaped, rows, uniform([row.seed for row in rows], [row.position for row in rows]))
    return all_drawn([None if token == on_cpu.NO_TOKEN else token for token in tokens], raw, rows)


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One float64 in [0, 1) for each (seed, position), the same on every machine and in every batch.

    Shapes: [num_rows]. Seeds of any size or sign are taken modulo 2^64. Source: Steele, Lea, Flood 2014 (SplitMix64).
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    position = np.array([p & _MASK for p in positions], dtype=np.uint64)
    bits = _mix(_mix(seed + _STEP) + (position + np.uint64(1)) * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX_A
    x = (x ^ (x >> np.uint64(27))) * _MIX_B
    return x ^ (x >> np.uint64(31))


def _shape(raw: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """Logits after penalties, bias and bans; the tensor itself when no row has any."""
    changed = [i for i, row in enumerate(rows) if _changes_logits(row)]
    if not changed:
        return raw
    shaped = raw.clone()
    for i in changed:
        _shape_row(shaped[i].numpy(), rows[i])
    return shaped


def _changes_logits(row: SampleRow) -> bool:
    has_penalty = row.repetition_penalty != 1 or bool(row.frequency_penalty or row.presence_penalty)
    return has_penalty or bool(row.logit_bias or row.banned)


def _shape_row(logits: np.ndarray, row: SampleRow) -> None:
    """Changes one row's logits, [vocab], in place. Ids past the vocabulary are left out."""
    vocab = len(logits)
    if row.repetition_penalty != 1:
        seen = np.fromiter(row.seen, np.int64)
        seen, penalty = seen[seen < vocab], np.float32(row.repetition_penalty)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    if row.frequency_penalty or row.presence_penalty:
        counts = row.output_counts
        ids, times = np.fromiter(counts, np.int64), np.fromiter(counts.values(), np.float64)
        kept = ids < vocab
        logits[ids[kept]] -= (row.frequency_penalty * times[kept] + row.presence_penalty).astype(np.float32)
    for token, bias in dict(row.logit_bias).items():  # a token named twice counts once, the last time
        if 0 <= token < vocab:
            logits[token] += np.float32(bias)
    logits[[token for token in row.banned if 0 <= token < vocab]] = -math.inf
