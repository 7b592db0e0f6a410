"""Mixtures of experts: a row goes through the few networks that a router scores highest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.expert_matrices import ExpertMatrices
from kernels.cpu.expert_matrices import mix_experts as mix_on_cpu
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.linear import Weight, gated_linear, row_linear

Experts = ExpertMatrices | list[Weight]


def together(matrices: Sequence[Weight]) -> Experts:
    """The experts' matrices so that one launch multiplies them all, where they are packed, and alike."""
    packed = [matrix for matrix in matrices if isinstance(matrix, PanelMatrix)]
    if len(packed) < len(matrices) or len({matrix.layout for matrix in packed}) != 1:
        return list(matrices)
    return ExpertMatrices(packed)


def mix_experts(
    x: Tensor, scores: Tensor, gate_up: Experts, down: Experts, *, per_token: int, renormalise: bool
) -> Tensor:
    """The sum of what the `per_token` highest scored experts make of a row, by their share of the softmax of scores.

    A row's experts are added up in order of their number, whatever the batch. `renormalise`: the shares of those that
    are taken sum to 1.

    Shapes: x and the result: [num_rows, hidden]; scores: [num_rows, experts]; of each expert, gate_up: [2 x
    intermediate, hidden], packed as gated; down: [hidden, intermediate].
    Bytes moved: the weights of experts that are taken, and per_token times x, its inner numbers and its results.
    Source: Shazeer et al. 2017, arXiv:1701.06538.
    """
    if isinstance(gate_up, ExpertMatrices) and isinstance(down, ExpertMatrices):
        return mix_on_cpu(x, scores, gate_up, down, per_token=per_token, renormalise=renormalise)
    shares, chosen = torch.softmax(scores.float(), dim=-1).topk(per_token, dim=-1)
    if renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        rows, rank = torch.where(chosen == expert)
        inner = gated_linear(x[rows], gate_up[expert])
        out[rows] += row_linear(inner, down[expert]) * shares[rows, rank, None]
    return out
