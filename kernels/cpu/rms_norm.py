"""`kernels.rms_norm` in one pass over each row."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import EXACT, SUMS, array, narrow, widen
from kernels.cpu.threads import over_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    width = weight.shape[0]
    x = x.contiguous()
    out = torch.empty_like(x)
    rows, normed = array(x).reshape(-1, width), array(out).reshape(-1, width)
    scale = (array(weight), np.float32(eps), normed)
    if residual is None:
        over_rows(_norm, rows.shape[0], rows.size, rows, *scale)
        return out
    h = torch.empty_like(x)
    others = (array(residual.contiguous()).reshape(-1, width), *scale, array(h).reshape(-1, width))
    over_rows(_add_norm, rows.shape[0], rows.size, rows, *others)
    return out, h


@njit(**EXACT)
def _norm(begin, end, x, weight, eps, out):
    for i in range(begin, end):
        _norm_row(x[i], weight, eps, out[i])


@njit(**EXACT)
def _add_norm(begin, end, x, residual, weight, eps, out, h):
    width = x.shape[1]
    for i in range(begin, end):
        for j in range(width):
            h[i, j] = narrow(widen(x[i, j]) + widen(residual[i, j]), x[i, j])
        _norm_row(h[i], weight, eps, out[i])


@njit(**SUMS)
def _norm_row(row, weight, eps, out):
    scale = inverse_rms(row, eps)
    for j in range(row.shape[0]):
        out[j] = narrow(widen(row[j]) * scale * widen(weight[j]), row[j])


@njit(**SUMS)
def inverse_rms(row, eps):
    """`1 / sqrt(mean(row^2) + eps)`, inside compiled code."""
    width = row.shape[0]
    squares = np.float32(0)
    for j in range(width):
        value = widen(row[j])
        squares += value * value
    return np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
