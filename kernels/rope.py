"""Rotary position embedding in the half-split form: pairs are `i` and `i + head_dim / 2`, as in Llama and Qwen."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turns each pair (a, b) of each head by its position's angle: `(a cos - b sin, b cos + a sin)`. New tensors.

    Shapes: q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim]; cos, sin: [num_tokens,
    head_dim], float32, rows gathered by position from tables that hold each angle twice, the first half of sin
    negated (`full_tables`). Computed in float32 when q is narrower.
    """
    if q.is_cuda:
        from kernels.gpu import rope as on_gpu

        return on_gpu.apply_rope(q, k, cos, sin)
    heads = q.shape[1]
    both = _turn(torch.cat([q, k], dim=1), cos.unsqueeze(1), sin.unsqueeze(1))
    return both[:, :heads], both[:, heads:]


def full_tables(angles: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """cos and sin, each [..., head_dim] and times `factor`, of angles in radians, [..., head_dim / 2]."""
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    return torch.addcmul(wide * cos, wide.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)
