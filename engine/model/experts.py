"""A mixture-of-experts layer: each token goes through the few experts its router scores highest."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.config import MoeConfig
from engine.model.weights import ExpertWeights
from kernels.linear import gated_linear, row_linear
from kernels.row_tiles import padded_rows


def moe_forward(
    x: Tensor,
    num_tokens: int,
    weights: ExpertWeights,
    moe: MoeConfig,
    tiles: tuple[int, ...],
    batch_tiles: tuple[int, ...],
) -> Tensor:
    """The layer's output, like x: [padded tokens, hidden]. Rows from `num_tokens` on are padding and stay 0.

    A token's experts are added up in order of their number, whatever the batch.
    """
    scores = torch.softmax(row_linear(x, weights.router, tiles=tiles)[:num_tokens].float(), dim=-1)
    shares, chosen = scores.topk(moe.experts_per_token, dim=-1)
    if moe.renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        rows, rank = torch.where(chosen == expert)
        gathered = x.new_zeros((padded_rows(len(rows), batch_tiles), x.shape[1]))
        gathered[: len(rows)] = x[rows]
        inner = gated_linear(gathered, weights.gate_up[expert], tiles=tiles)
        part = row_linear(inner, weights.down[expert], tiles=tiles)[: len(rows)]
        out[rows] += part * shares[rows, rank, None]
    return out
