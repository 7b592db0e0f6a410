"""Rotary position embedding in the half-split form: pairs are `i` and `i + head_dim / 2`, as in Llama and Qwen."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turns each pair of each head by its position's angle: `(a cos - b sin, b cos + a sin)`. New tensors.

    Shapes: q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim]; cos, sin: [num_tokens,
    head_dim / 2], float32, rows already gathered by position. Computed in float32 when q is narrower.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    if x.dtype == torch.float32:
        torch.mul(a, cos, out=out[..., :half]).sub_(b * sin)
        torch.mul(b, cos, out=out[..., half:]).add_(a * sin)
        return out
    a, b = a.float(), b.float()
    out[..., :half] = a * cos - b * sin
    out[..., half:] = b * cos + a * sin
    return out
