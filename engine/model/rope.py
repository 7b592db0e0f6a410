"""Tables of rotary angles for each position, with the scalings that published models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.model.config import RopeConfig
from kernels.layer_ops import full_tables


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin as `apply_rope` reads them: [num_positions, head_dim], float32, times YaRN's attention factor."""
    frequencies, factor = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return full_tables(angles, factor)


def _frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position for each pair, and what to multiply cos and sin by."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_attention_factor(rope)
    return plain, 1.0


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended (Llama 3.1)."""
    turns = rope.original_max_positions * plain / (2 * math.pi)  # how often a pair turns within the original context
    blend = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return plain * (blend + (1 - blend) / rope.factor)


def _yarn(rope: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """Like `_llama3`, with the blend linear in the pair's index (YaRN, Peng et al. 2023)."""

    def index_of(turns: float) -> float:
        wave = rope.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wave) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    stretched = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - stretched) + plain / rope.factor * stretched


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)
