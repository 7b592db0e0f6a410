"""Parallel regions: compiled functions run by the team of threads that torch's OpenMP pool has, without the GIL.

numba has a pool of its own for parallel loops. Two pools on the same CPUs, each with threads that spin while they wait,
slow both down: measured, a copy of 20 microseconds took 150. So work goes to the pool that torch has. Chunks of it are
taken rather than dealt out (`task.next_chunk`): a thread that the system has put aside leaves its share to the others.
"""

from __future__ import annotations

import ctypes
import gc
from array import array
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numba import types
from numba.core.ccallback import CFunc

from kernels.cpu.dtypes import FLOAT32, UINT16
from kernels.cpu.kernel_cache import KernelFile
from kernels.cpu.openmp import openmp
from kernels.cpu.recorder import Launch, RecordingError, open_recorder
from kernels.cpu.scratch import scratch_of_thread
from kernels.cpu.task import AT_HEADER, encode

__all__ = ["KernelError", "ParallelRegion", "RegionOfType", "region_of", "threads_for"]

_ELEMENTS_PER_THREAD = 1 << 14  # that are worth a thread more: some 10 microseconds of work


class KernelError(RuntimeError):
    """A compiled kernel did not come to its end: what it should have written is whatever lay in memory."""


class ParallelRegion:
    """A function of one argument, the address of a task, that every thread of the team runs until no chunk is left.

    It begins with `task.enter`, ends with `task.leave` and allocates nothing. It is compiled at the first launch. One
    that is not `is_recordable` gives its result to Python, so that a replay of it would be for nothing.
    """

    def __init__(self, body: Callable[[int], None], *, is_recordable: bool = True) -> None:
        self._body = body
        self._is_recordable = is_recordable

    def launch(self, max_threads: int, task: tuple[object, ...], scratch_bytes: int = 0) -> None:
        """Runs the body on as many threads as torch has, at most so many; returns when all of them are done.

        `task` is an instance of the kernel's layout (see `kernels.cpu.task`). An open recorder keeps it, and with it
        the tensors whose addresses the body gets; one that defers leaves the work to a replay. Each thread has so many
        bytes of scratch, uninitialised.

        Raises:
            RecordingError: a recorder is open and this region can't be replayed.
            RuntimeError: there is no memory for the scratch; torch's own.
            KernelError: a thread did not come to the body's end.
        """
        num_threads = max(min(torch.get_num_threads(), max_threads), 1)
        recorder = open_recorder()
        if recorder is None:
            scratch = scratch_of_thread(num_threads * scratch_bytes)
            fields = encode(task, scratch=scratch, scratch_bytes=scratch_bytes)
        else:
            if not self._is_recordable:
                raise RecordingError(f"{self._body.__module__} gives its result to Python: a replay could not")
            memory = recorder.arena.scratch(num_threads * scratch_bytes)
            fields = encode(task, scratch=memory.data_ptr(), scratch_bytes=scratch_bytes)
            recorder.add(Launch(self._address, num_threads, fields, (task, memory)))
            if recorder.defers:
                return
        self._run(num_threads, fields)

    def launch_again(self, max_threads: int, fields: array[int]) -> None:
        """As `launch`, of a task that was encoded before and has no scratch; outside of recorders.

        Raises:
            KernelError: a thread did not come to the body's end.
        """
        fields[AT_HEADER.chunks_taken] = fields[AT_HEADER.entered] = fields[AT_HEADER.left] = 0
        self._run(max(min(torch.get_num_threads(), max_threads), 1), fields)

    def _run(self, num_threads: int, fields: array[int]) -> None:
        self.launch_encoded(num_threads, fields.buffer_info()[0])
        if fields[AT_HEADER.left] != fields[AT_HEADER.entered] or not fields[AT_HEADER.entered]:
            raise KernelError(f"{self._body.__module__}: compiled code raised; see the process's stderr")

    def launch_encoded(self, num_threads: int, address: int) -> None:
        """Runs the body on so many threads with the address of encoded fields; nothing keeps or checks them."""
        library = openmp() if num_threads > 1 else None
        if library is None:
            self._on_this_thread(address)
        else:
            library.GOMP_parallel(self._address, address, num_threads, 0)

    @cached_property
    def _address(self) -> int:
        return self._compiled.address

    @cached_property
    def _compiled(self):
        compiled = CFunc(self._body, ((types.intp,), types.void), locals={}, options={})
        compiled._cache = KernelFile(self._body)
        # The compiler leaves hundreds of thousands of objects: looking through them for garbage is a third of its time.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            compiled.compile()
        finally:
            if was_collecting:
                gc.enable()
        return compiled

    @cached_property
    def _on_this_thread(self) -> Callable[[int], None]:
        return ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(self._address)


class RegionOfType:
    """A region for each type of elements, bfloat16 and float32, which a task's `itemsize` says.

    So a node that computes in one of them compiles nothing for the other.
    """

    def __init__(
        self, in_bfloat16: Callable[[int], None], in_float32: Callable[[int], None], *, is_recordable: bool = True
    ) -> None:
        bodies = {2: in_bfloat16, 4: in_float32}
        self._regions = {size: ParallelRegion(body, is_recordable=is_recordable) for size, body in bodies.items()}

    def of(self, itemsize: int) -> ParallelRegion:
        """The region for elements of so many bytes."""
        return self._regions[itemsize]

    def launch(self, max_threads: int, task: Any, scratch_bytes: int = 0) -> None:
        """As `ParallelRegion.launch`."""
        self._regions[task.itemsize].launch(max_threads, task, scratch_bytes)


def region_of(name: str, run: Callable[..., None], held: np.ndarray) -> RegionOfType:
    """Of compiled code `run(task, like, held)`: `held` is one of the ways that a module's weights may be packed."""

    def in_bfloat16(task):
        run(task, UINT16, held)

    def in_float32(task):
        run(task, FLOAT32, held)

    for body in (in_bfloat16, in_float32):  # as compiled code is called, on disk and in memory
        body.__module__ = run.__module__
        body.__name__ = body.__qualname__ = f"{name.replace(' ', '_')}_{body.__name__}"
    return RegionOfType(in_bfloat16, in_float32)


def threads_for(num_elements: int) -> int:
    """How many threads a pass over so many elements is worth, at least one."""
    return max(num_elements // _ELEMENTS_PER_THREAD, 1)
