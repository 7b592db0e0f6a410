"""Memory for KV blocks: empty, and on a CPU taken from the system as it is first written to.

A cache is made for as many requests as may ever be there, and most nodes rest most of the time. Memory that nobody
wrote to costs nothing: pages come, zeroed, with the first tokens of a block, some 20 microseconds each, and a node is
ready sooner.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from kernels.cpu.large_pages import large_pages


def empty_kv(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, pinned: bool = False) -> Tensor:
    """Zeros of this shape. Given back to the system when the last tensor that looks at them is gone.

    Raises:
        MemoryError: the system does not promise that much.
    """
    num_bytes = prod(shape) * dtype.itemsize
    if device.type != "cpu" or pinned or num_bytes == 0:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)
    try:
        memory = large_pages(num_bytes)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes for KV blocks: {error.strerror}") from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)
