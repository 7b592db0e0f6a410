"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.scalars import has_kernels


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, with gate the first and up the second half of the last axis.

    Shapes: gate_up: [num_tokens, 2 x width]; result: [num_tokens, width]. On CUDA and in the types that a CPU has a
    kernel for, a row's bits depend on that row alone.
    """
    if gate_up.is_cuda:
        from kernels.gpu import silu_mul as on_gpu

        return on_gpu.silu_mul(gate_up)
    if has_kernels(gate_up):
        from kernels.cpu import silu_mul as on_cpu

        return on_cpu.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
