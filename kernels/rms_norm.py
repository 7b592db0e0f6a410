"""Root-mean-square normalisation, with the residual addition that comes before it in a decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.scalars import has_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * h / sqrt(mean(h^2) + eps)` over the last axis, with h = x, or x + residual; then also h is returned.

    Shapes: x, residual: [..., width]; weight: [width]. A row's bits depend on that row alone.
    Bytes moved: x, residual and both results once.
    """
    if x.is_cuda:
        from kernels.gpu import rms_norm as on_gpu

        return on_gpu.rms_norm(x, weight, eps, residual)
    if has_kernels(x, weight):
        from kernels.cpu import rms_norm as on_cpu

        return on_cpu.rms_norm(x, weight, eps, residual)
    if residual is None:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    h = x + residual
    return torch.nn.functional.rms_norm(h, weight.shape, weight, eps), h
