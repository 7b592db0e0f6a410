"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor

# torch splits elementwise work between threads at this many elements, in the middle of rows. A vector loop and its
# scalar tail round `exp` differently, so a row's bits would depend on where the split fell.
GRAIN_ELEMENTS = 32_768


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, with gate the first and up the second half of the last axis.

    Shapes: gate_up: [num_tokens, 2 x width]; result: [num_tokens, width]. A row's bits depend on that row alone.
    """
    if gate_up.is_cuda:
        from kernels.gpu import silu_mul as on_gpu

        return on_gpu.silu_mul(gate_up)
    width = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :width], gate_up[..., width:]
    if torch.get_num_threads() == 1 or gate.numel() <= GRAIN_ELEMENTS:
        return torch.nn.functional.silu(gate).mul_(up)
    rows = max(GRAIN_ELEMENTS // width, 1)
    return torch.cat(
        [torch.nn.functional.silu(g).mul_(u) for g, u in zip(gate.split(rows), up.split(rows), strict=True)]
    )
