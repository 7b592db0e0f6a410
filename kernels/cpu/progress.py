"""When a kernel last took a chunk of its work: a monotonic time in eight bytes that another process may watch.

A step can take minutes; its chunks take milliseconds. Who judges whether this process hangs looks at the time of the
last one. Kernels write it (`kernels.cpu.task.next_chunk`), and so does `mark_progress` where Python computes.
"""

from __future__ import annotations

import time

import numpy as np

__all__ = ["address_of_progress", "mark_progress", "use_progress_memory"]

_at = np.zeros(1, dtype=np.float64)  # a place of this process alone, until it is given a shared one
_address = _at.ctypes.data
_former: list[np.ndarray] = []  # which recorded launches may still write to


def use_progress_memory(memory: memoryview) -> None:
    """From now on the time of the last progress is written into these eight writable bytes, aligned to eight.

    Kernels that were launched or recorded before keep writing where they did.
    """
    global _at, _address
    _former.append(_at)
    _at = np.frombuffer(memory, dtype=np.float64, count=1)
    _address = _at.ctypes.data


def address_of_progress() -> int:
    """Where compiled code writes the time, in seconds of `time.monotonic`."""
    return _address


def mark_progress() -> None:
    """Says that this process has got on: between the parts of a step that no kernel computes."""
    _at[0] = time.monotonic()
