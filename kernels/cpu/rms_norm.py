"""`kernels.rms_norm` in one pass over each row."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import SUMS, array, narrow, widen


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    width = weight.shape[0]
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, normed = array(x).reshape(-1, width), array(out).reshape(-1, width)
    if residual is None:
        _norm(rows, array(weight), np.float32(eps), normed)
        return out
    h = torch.empty_like(x)
    _add_norm(
        rows, array(residual).reshape(-1, width), array(weight), np.float32(eps), normed, array(h).reshape(-1, width)
    )
    return out, h


@njit(**SUMS)
def _norm(x, weight, eps, out):
    for i in range(x.shape[0]):
        _norm_row(x[i], weight, eps, out[i])


@njit(**SUMS)
def _add_norm(x, residual, weight, eps, out, h):
    width = x.shape[1]
    for i in range(x.shape[0]):
        for j in range(width):
            h[i, j] = narrow(widen(x[i, j]) + widen(residual[i, j]), x[i, j])
        _norm_row(h[i], weight, eps, out[i])


@njit(**SUMS)
def _norm_row(row, weight, eps, out):
    width = row.shape[0]
    squares = np.float32(0)
    for j in range(width):
        value = widen(row[j])
        squares += value * value
    scale = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
    for j in range(width):
        out[j] = narrow(widen(row[j]) * scale * widen(weight[j]), row[j])
