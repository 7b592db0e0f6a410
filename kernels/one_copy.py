"""Several tensors to a device in one copy, which is not waited for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGN_BYTES = 16  # for a pointer that is not aligned so, Triton compiles a kernel again


def in_one_copy(parts: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Tensors of one dtype and of any shape, from the CPU; each begins at a multiple of `ALIGN_BYTES` there."""
    align = ALIGN_BYTES // parts[0].element_size()
    starts = list(accumulate((-(-part.numel() // align) * align for part in parts), initial=0))
    whole = torch.zeros(starts[-1], dtype=parts[0].dtype, pin_memory=torch.device(device).type == "cuda")
    for part, start in zip(parts, starts, strict=False):
        whole[start : start + part.numel()] = part.flatten()
    moved = whole.to(device, non_blocking=True)
    return [moved[start : start + part.numel()].view(part.shape) for part, start in zip(parts, starts, strict=False)]
