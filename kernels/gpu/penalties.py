"""Penalties, biases and bans on the logits of a batch: each entry named by its place, all in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Variant
from kernels.sample_row import SampleRow

PENALTY_BLOCK = 256
# A fused multiply-add would round a penalty differently from the reference, and another token could win.
_PENALTY_OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


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


def penalised(raw: Tensor, rows: Sequence[SampleRow]) -> Tensor:
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
    """The one kernel."""
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
