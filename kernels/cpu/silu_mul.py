"""`kernels.silu_mul` in one pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import EXACT, array, exp32, narrow, widen
from kernels.cpu.threads import over_rows


def silu_mul(gate_up: Tensor) -> Tensor:
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
    rows, products = array(gate_up.contiguous()).reshape(-1, 2 * width), array(out).reshape(-1, width)
    over_rows(_multiply, rows.shape[0], rows.size, rows, products)
    return out


@njit(**EXACT)
def _multiply(begin, end, gate_up, out):
    width = np.uintp(out.shape[1])  # unsigned: an index that may be negative is not made vector code
    for i in range(begin, end):
        for j in range(width):
            gate = widen(gate_up[i, j])
            out[i, j] = narrow(gate / (np.float32(1) + exp32(-gate)) * widen(gate_up[i, width + j]), gate_up[i, j])
