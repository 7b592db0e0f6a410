"""How a row of scores is split over programs, and what they share: keys that order scores, and weights.

One program a row leaves most of a GPU idle: 128,256 scores take 63 programs. What they find they write down by part,
and the next launch adds it up, each program for itself and in the same order: no sum depends on who was first.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.launch import power_of_two

PART = 2048  # scores of one program
OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}


class Parts:
    """How a vocabulary is split; `constants` are those of every kernel here."""

    def __init__(self, vocab: int) -> None:
        size = min(max(power_of_two(vocab), 128), PART)
        self.count = -(-vocab // size)
        self.room = max(power_of_two(self.count), 16)
        self.constants = {"PART": size, "PARTS": self.room}


@triton.jit
def keys(x):
    """int32 keys that order like float32 scores; the two zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def score_of(key):
    """The score of a key, both of shape [1]."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights(x, largest, IS_MASS: tl.constexpr):
    """What a score counts, in float64: its unnormalised probability, or one."""
    if IS_MASS:
        return tl.exp(x - largest).to(tl.float64)
    return tl.full(x.shape, 1.0, dtype=tl.float64)


@triton.jit
def total_of(part_ptr, parts, PARTS: tl.constexpr):
    """The sum of what the parts of a row found, float64."""
    part = tl.arange(0, PARTS)
    return tl.sum(tl.load(part_ptr + part, mask=part < parts, other=0.0), axis=0)
