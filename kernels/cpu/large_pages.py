"""Memory for weights in pages of two megabytes, where the system has them.

A decoding step reads all weights once. In pages of 4 KB that is a look into the page tables for each of some 50,000 of
them, and on a virtual machine each look is two: with large pages the products of a step took a tenth less time.
"""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 26  # that are asked for together; what is not written to takes no memory
_LINE_BYTES = 64


class _Shelf:
    """Places tensors side by side, as most are smaller than a page. Memory goes back when the last of a chunk goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._taken = 0

    def place(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Memory, and where in it so many bytes are free. Raises OSError."""
        with self._lock:
            if self._memory is None or self._taken + num_bytes > len(self._memory):
                self._memory, self._taken = large_pages(max(num_bytes, CHUNK_BYTES)), 0
            at, self._taken = self._taken, self._taken + -(-num_bytes // _LINE_BYTES) * _LINE_BYTES
            return self._memory, at


def large_pages(num_bytes: int) -> mmap.mmap:
    """Zeros, in large pages if the system gives any, which are taken as they are first written to. Raises OSError."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # Linux alone has it, and a kernel may be built without
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


_shelf = _Shelf()


def in_large_pages(tensor: Tensor) -> Tensor:
    """A contiguous copy there; the tensor itself where there is no memory for one, or nothing to copy."""
    if tensor.nbytes == 0 or tensor.device.type != "cpu":
        return tensor.contiguous()
    try:
        memory, at = _shelf.place(tensor.nbytes)
    except OSError:
        return tensor.contiguous()
    found = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=at).view(tensor.shape)
    return found.copy_(tensor)
