"""A mixture-of-experts layer: each token goes through the few experts its router scores highest."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import MoeConfig
from engine.model.weights import ExpertWeights
from kernels.linear import gated_linear, row_linear


def moe_forward(x: Tensor, weights: ExpertWeights, moe: MoeConfig) -> Tensor:
    """The layer's output, like x: [num_tokens, hidden].

    A token's experts are added up in order of their number, whatever the batch.
    """
    scores = torch.softmax(row_linear(x, weights.router).float(), dim=-1)
    shares, chosen = scores.topk(moe.experts_per_token, dim=-1)
    if moe.renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        rows, rank = torch.where(chosen == expert)
        inner = gated_linear(x[rows], weights.gate_up[expert])
        out[rows] += row_linear(inner, weights.down[expert]) * shares[rows, rank, None]
    return out
