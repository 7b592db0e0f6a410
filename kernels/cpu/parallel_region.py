"""Parallel regions: compiled functions run by the team of threads that torch's OpenMP pool has, without the GIL.

numba has a pool of its own for parallel loops. Two pools on the same CPUs, each with threads that spin while they wait,
slow both down: measured, a copy of 20 microseconds took 150. So work goes to the pool that torch has. Chunks of it are
taken rather than dealt out (`task.next_chunk`): a thread that the system has put aside leaves its share to the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numba import cfunc, types

from kernels.cpu.openmp import openmp
from kernels.cpu.recorder import Launch, RecordingError, open_recorder
from kernels.cpu.task import encode

__all__ = ["ParallelRegion", "threads_for"]

_ELEMENTS_PER_THREAD = 1 << 14  # that are worth a thread more: some 10 microseconds of work


class ParallelRegion:
    """A function of one argument, the address of a task, that every thread of the team runs until no chunk is left.

    It is compiled at the first launch. One that is not `is_recordable` gives its result to Python, so that a replay of
    it would be for nothing.
    """

    def __init__(self, body: Callable[[int], None], *, is_recordable: bool = True) -> None:
        self._body = body
        self._is_recordable = is_recordable

    def launch(self, max_threads: int, task: tuple[object, ...]) -> None:
        """Runs the body on as many threads as torch has, at most so many; returns when all of them are done.

        `task` is an instance of the kernel's layout (see `kernels.cpu.task`). An open recorder keeps it, and with it
        the tensors whose addresses the body gets.

        Raises:
            RecordingError: a recorder is open and this region can't be replayed.
        """
        fields = encode(task)
        num_threads = min(torch.get_num_threads(), max_threads)
        recorder = open_recorder()
        if recorder is not None:
            if not self._is_recordable:
                raise RecordingError(f"{self._body.__module__} gives its result to Python: a replay could not")
            recorder.add(Launch(self._compiled.address, num_threads, fields, task))
        self.launch_encoded(num_threads, fields)

    def launch_encoded(self, num_threads: int, fields: np.ndarray) -> None:
        """Runs the body on so many threads with the address of `fields`, which no recorder keeps."""
        library = openmp() if num_threads > 1 else None
        if library is None:
            self._on_this_thread(fields.ctypes.data)
        else:
            library.GOMP_parallel(self._compiled.address, fields.ctypes.data, num_threads, 0)

    @cached_property
    def _compiled(self):
        return cfunc(types.void(types.intp), cache=True)(self._body)

    @cached_property
    def _on_this_thread(self) -> Callable[[int], None]:
        return ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(self._compiled.address)


def threads_for(num_elements: int) -> int:
    """How many threads a pass over so many elements is worth, at least one."""
    return max(num_elements // _ELEMENTS_PER_THREAD, 1)
