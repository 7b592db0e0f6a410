"""A kernel around `uniform_number`, to read its numbers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.uniform import uniform_number


@triton.jit
def _uniform_kernel(seed_ptr, position_ptr, out_ptr):
    i = tl.program_id(0)
    number = uniform_number(tl.load(seed_ptr + i), tl.load(position_ptr + i))
    tl.store(out_ptr + i + tl.arange(0, 1), number)


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(seeds), dtype=torch.float64, device=seeds.device)
    _uniform_kernel[(len(seeds),)](seeds, positions, out)
    return out
