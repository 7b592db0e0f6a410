"""A recording: the launches that a recorder kept, done again in one call.

In Python, launching the 110 regions of a step of 12 layers costs 2 to 3 milliseconds, a fifth of what a small model
computes for one sequence. A replay does them all in one parallel region, in order, on the same memory: whoever replays
first puts new inputs where the old ones were. It is what CUDA graphs are on a GPU. What must hold in between is in
`kernels.cpu.recorder`.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.numba_options import EXACT
from kernels.cpu.openmp import omp_get_num_threads_address
from kernels.cpu.parallel_region import KernelError, ParallelRegion
from kernels.cpu.recorder import Recorder, RecordingError
from kernels.cpu.task import AT_HEADER as AT_TASK_HEADER
from kernels.cpu.task import FIELD_BYTES, fetch_add, field, offsets_of

__all__ = ["Recording"]

_FIELD = ir.IntType(64)
SPINS_BEFORE_YIELD = 4_000  # some 200 microseconds at the barrier before a thread lets others have its CPU


class ReplayHeader(NamedTuple):
    """What the threads of a replay share."""

    arrived: int  # threads that have begun
    passed: int  # arrivals at barriers, over all threads and launches
    omp_get_num_threads: int  # its address, 0 without OpenMP
    num_launches: int
    row_bytes: int  # of the table of launches
    launches: int  # its address


class LaunchRow(NamedTuple):
    """A row of the table of launches: these, then the encoded task, padded to the longest one."""

    function: int
    num_threads: int


AT_HEADER = offsets_of(ReplayHeader, first=0)
AT_LAUNCH = offsets_of(LaunchRow, first=0)
AT_TASK = len(LaunchRow._fields)


class Recording:
    """What a closed recorder kept. It holds the tensors of every task, and so their memory, for as long as it lives.

    Raises:
        RecordingError: the recorder was left by an exception, or is still open.
    """

    def __init__(self, recorder: Recorder) -> None:
        if not recorder.is_complete:
            raise RecordingError("the recorder did not come to its end: what it kept is a part of a step")
        launches = recorder.launches
        width = max((len(launch.fields) for launch in launches), default=0)
        self._rows = np.zeros((len(launches), AT_TASK + width), dtype=np.int64)
        for row, launch in zip(self._rows, launches, strict=True):
            row[:AT_TASK] = LaunchRow(launch.function, launch.num_threads)
            row[AT_TASK : AT_TASK + len(launch.fields)] = launch.fields
        self._header = np.zeros(len(ReplayHeader._fields), dtype=np.int64)
        self._num_threads = max((launch.num_threads for launch in launches), default=1)
        self._kept = [launch.kept for launch in launches]  # keeps alive what the rows' addresses point to
        self._arena = recorder.arena

    def replay(self) -> None:
        """Does all launches again, in order; returns when the last is done. Results lie where they lay.

        Raises:
            RecordingError: another thread replays in the same arena.
            KernelError: a thread did not come to the end of a launch.
        """
        if not self._arena.replaying.acquire(blocking=False):
            raise RecordingError("another thread replays in this arena: its results would be overwritten")
        try:
            header = self._rows[:, AT_TASK:]
            for counter in (AT_TASK_HEADER.chunks_taken, AT_TASK_HEADER.entered, AT_TASK_HEADER.left):
                header[:, counter] = 0
            count, width = self._rows.shape
            self._header[:] = ReplayHeader(
                arrived=0,
                passed=0,
                omp_get_num_threads=omp_get_num_threads_address(),
                num_launches=count,
                row_bytes=width * FIELD_BYTES,
                launches=self._rows.ctypes.data,
            )
            _replay.launch_encoded(self._num_threads, self._header.ctypes.data)
            entered, left = header[:, AT_TASK_HEADER.entered], header[:, AT_TASK_HEADER.left]
            if not entered.all() or (entered != left).any():
                raise KernelError("compiled code raised in a recorded step; see the process's stderr")
        finally:
            self._arena.replaying.release()


def _body(header):
    _run_launches(header)


_replay = ParallelRegion(_body)


@intrinsic
def _load_acquire(context, address, offset):
    """A field that other threads change."""

    def generate(context, builder, signature, arguments):
        at = builder.add(arguments[0], builder.mul(arguments[1], _FIELD(FIELD_BYTES)))
        return builder.load_atomic(builder.inttoptr(at, _FIELD.as_pointer()), "acquire", FIELD_BYTES)

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _call_body(context, function, task):
    """Calls a region's compiled body by its address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_FIELD])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _call_int(context, function):
    """What a C function `int f(void)` returns."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), []), _FIELD)

    return types.intp(types.intp), generate


def _without_arguments(name: str, result: ir.Type) -> Callable[[], None]:
    @intrinsic
    def function(context):
        def generate(context, builder, signature, arguments):
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, []), name), [])
            return context.get_dummy_value()

        return types.void(), generate

    return function


_sched_yield = _without_arguments("sched_yield", ir.IntType(32))
_is_x86 = platform.machine().lower() in ("x86_64", "amd64")
_pause = _without_arguments("llvm.x86.sse2.pause", ir.VoidType()) if _is_x86 else _sched_yield


@njit(**EXACT)
def _run_launches(header):
    """One thread's part: it takes part in launches of more threads than its index, and meets the team after each."""
    index = fetch_add(header, AT_HEADER.arrived)
    function = field(header, AT_HEADER.omp_get_num_threads)
    team = 1 if function == 0 else _call_int(function)
    rows, row_bytes = field(header, AT_HEADER.launches), field(header, AT_HEADER.row_bytes)
    for i in range(field(header, AT_HEADER.num_launches)):
        row = rows + i * row_bytes
        if index < field(row, AT_LAUNCH.num_threads):
            _call_body(field(row, AT_LAUNCH.function), row + AT_TASK * FIELD_BYTES)
        fetch_add(header, AT_HEADER.passed)
        spins = 0
        while _load_acquire(header, AT_HEADER.passed) < (i + 1) * team:
            spins += 1
            if spins < SPINS_BEFORE_YIELD:
                _pause()
            else:
                _sched_yield()
