"""`kernels.silu_mul` in one pass."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.number import EXACT, array, exp32, narrow, prange, use_threads, widen

GRAIN_ELEMENTS = 32_768  # some 15 microseconds of work: what waking a thread costs


def silu_mul(gate_up: Tensor) -> Tensor:
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
    rows, products = array(gate_up.contiguous()).reshape(-1, 2 * width), array(out).reshape(-1, width)
    (_parallel if use_threads(products.size, GRAIN_ELEMENTS) else _serial)(rows, products)
    return out


@njit(**EXACT)
def _serial(gate_up, out):
    for i in range(out.shape[0]):
        _row(gate_up[i], out[i])


@njit(parallel=True, **EXACT)
def _parallel(gate_up, out):
    for i in prange(out.shape[0]):
        _row(gate_up[i], out[i])


@njit(**EXACT)
def _row(gate_up, out):
    width = np.uintp(out.shape[0])  # unsigned: see `rope_store`
    for j in range(width):
        gate = widen(gate_up[j])
        out[j] = narrow(gate / (np.float32(1) + exp32(-gate)) * widen(gate_up[width + j]), gate_up[j])
