"""Memory that a launch's threads compute in, taken by the host: where there is none, it is the host that raises."""

from __future__ import annotations

import threading

import torch

__all__ = ["scratch_of_thread"]


class _OfThread(threading.local):
    memory: torch.Tensor | None = None


_of_thread = _OfThread()


def scratch_of_thread(num_bytes: int) -> int:
    """The address of so many bytes, for the calling thread's next launch alone. It only grows, in powers of two.

    Raises:
        RuntimeError: there is no memory; torch's own.
    """
    memory = _of_thread.memory
    if memory is None or len(memory) < num_bytes:
        _of_thread.memory = None  # before the larger one is taken
        memory = _of_thread.memory = torch.empty(1 << max(num_bytes - 1, 0).bit_length(), dtype=torch.uint8)
    return memory.data_ptr()
