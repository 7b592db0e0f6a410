"""A recording: the launches that a recorder kept, done again in one call.

In Python, launching the 110 regions of a step of 12 layers costs 2 to 3 milliseconds, a fifth of what a small model
computes for one sequence. A replay does them all in one parallel region, in order, on the same memory: whoever replays
first puts new inputs where the old ones were. It is what CUDA graphs are on a GPU. What must hold in between is in
`kernels.cpu.recorder`.

Threads wait for work, never for each other: a launch is over when every thread that began it has left it, and the next
begins, whoever is there. One that the system has put aside holds up the chunk that it was computing and nothing else,
and takes part again where the others are by then. Who waits spins shortly and then sleeps: one that gave way by
`sched_yield` gave a neighbour, however nice, a whole tick of the CPU at each launch.
"""

from __future__ import annotations

import platform
import sys
import time
from array import array
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import KernelError, ParallelRegion
from kernels.cpu.recorder import Recorder, RecordingError
from kernels.cpu.task import AT_HEADER as AT_TASK_HEADER
from kernels.cpu.task import FIELD_BYTES, field, offsets_of

__all__ = ["Recording"]

_FIELD = ir.IntType(64)
SPIN_NS = 300_000  # before a thread sleeps: longer than most chunks and small launches take; being woken takes 50,000
_SPINS_BETWEEN_LOOKS = 64  # at the clock, which costs as much as one or two of them
_INSIDE, _ENTRY, _CLOSED = (
    (1 << 16) - 1,
    1 << 16,
    1 << 62,
)  # of a launch's state: who is in, who ever was, and if it is over


class ReplayHeader(NamedTuple):
    """What the threads of a replay share."""

    current: int  # the launch that is under way; its lower half is a futex
    sleepers: int  # threads that want to be woken when that changes
    num_launches: int
    row_bytes: int  # of the table of launches
    launches: int  # its address


class LaunchRow(NamedTuple):
    """A row of the table of launches: these, then the encoded task, padded to the longest one."""

    function: int
    num_threads: int  # that may take part: there is scratch for so many
    state: int  # see `_ENTRY`


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
        table, padding = array("q"), array("q", [0] * width)
        for launch in launches:
            table.extend(LaunchRow(launch.function, launch.num_threads, state=0))
            table.extend(launch.fields)
            table.extend(padding[len(launch.fields) :])
        self._rows = np.array(table, dtype=np.int64).reshape(len(launches), AT_TASK + width)
        self._header = np.array(
            ReplayHeader(0, 0, len(launches), self._rows.shape[1] * FIELD_BYTES, self._rows.ctypes.data), dtype=np.int64
        )
        self._header_at = self._header.ctypes.data
        self._counters = self._rows[:, AT_LAUNCH.state : AT_TASK + AT_TASK_HEADER.left + 1]
        self._entered, self._left = (
            self._rows[:, AT_TASK + counter] for counter in (AT_TASK_HEADER.entered, AT_TASK_HEADER.left)
        )
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
            self._counters.fill(0)
            self._header[: AT_HEADER.num_launches] = 0
            _replay.launch_encoded(self._num_threads, self._header_at)
            if not self._entered.all() or not np.array_equal(self._entered, self._left):
                raise KernelError("compiled code raised in a recorded step; see the process's stderr")
        finally:
            self._arena.replaying.release()


def _body(header):
    _run_launches(header)


_replay = ParallelRegion(_body)


def _pointer(builder: ir.IRBuilder, address: ir.Value, offset: ir.Value) -> ir.Value:
    return builder.inttoptr(builder.add(address, builder.mul(offset, _FIELD(FIELD_BYTES))), _FIELD.as_pointer())


@intrinsic
def _load(context, address, offset):
    """A field that other threads change, and what they wrote before they changed it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(_pointer(builder, *arguments), "acquire", FIELD_BYTES)

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _add(context, address, offset, amount):
    """Adds to a field that other threads change; what it is then."""

    def generate(context, builder, signature, arguments):
        former = builder.atomic_rmw("add", _pointer(builder, *arguments[:2]), arguments[2], "seq_cst")
        return builder.add(former, arguments[2])

    return types.intp(types.intp, types.intp, types.intp), generate


@intrinsic
def _replace(context, address, offset, expected, value):
    """Puts a value in the place of the expected one; whether that was there."""

    def generate(context, builder, signature, arguments):
        at = _pointer(builder, *arguments[:2])
        found = builder.cmpxchg(at, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.intp, types.intp, types.intp, types.intp), generate


@intrinsic
def _call_body(context, function, task):
    """Calls a region's compiled body by its address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_FIELD])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


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


@intrinsic
def _now_ns(context):
    """A clock that never goes back."""

    def generate(context, builder, signature, arguments):
        number, timespec = ir.IntType(32), ir.ArrayType(_FIELD, 2)
        now = cgutils.alloca_once(builder, timespec)
        kind = ir.FunctionType(number, [number, timespec.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [number(time.CLOCK_MONOTONIC), now])
        seconds, rest = (builder.load(builder.gep(now, [number(0), number(k)])) for k in range(2))
        return builder.add(builder.mul(seconds, _FIELD(10**9)), rest)

    return types.intp(), generate


_FUTEX_CALLS = {"x86_64": 202, "amd64": 202, "aarch64": 98}  # Linux's number of the call
_WAIT_PRIVATE, _WAKE_PRIVATE, _EVERYBODY = 128, 129, 2**31 - 1
_futex_call = _FUTEX_CALLS.get(platform.machine().lower()) if sys.platform == "linux" else None


@intrinsic
def _futex(context, address, operation, value):
    """The system call on 32 bits; without one, as on other systems, it gives way and returns."""

    def generate(context, builder, signature, arguments):
        if _futex_call is None:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        else:
            kind = ir.FunctionType(_FIELD, [_FIELD], var_arg=True)
            call = cgutils.get_or_insert_function(builder.module, kind, "syscall")
            builder.call(call, [_FIELD(_futex_call), *arguments, *[_FIELD(0)] * 3])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@njit(**EXACT)
def _run_launches(header):
    """One thread's part: it joins the launch that is under way, as long as there is one."""
    rows, row_bytes = field(header, AT_HEADER.launches), field(header, AT_HEADER.row_bytes)
    i, count = _load(header, AT_HEADER.current), field(header, AT_HEADER.num_launches)
    while i < count:
        row = rows + i * row_bytes
        if _enter(row):
            _call_body(field(row, AT_LAUNCH.function), row + AT_TASK * FIELD_BYTES)
            if _leave(row):
                _add(header, AT_HEADER.current, 1)
                if _add(header, AT_HEADER.sleepers, 0) > 0:
                    _futex(header + AT_HEADER.current * FIELD_BYTES, _WAKE_PRIVATE, _EVERYBODY)
        i = _next_launch(header, i)


@njit(**EXACT)
def _enter(row):
    """Begins a launch, if it is not over and there is scratch for one thread more."""
    while True:
        state = _load(row, AT_LAUNCH.state)
        if state >= field(row, AT_LAUNCH.num_threads) * _ENTRY:  # which one that is over is too
            return False
        if _replace(row, AT_LAUNCH.state, state, state + _ENTRY + 1):
            return True


@njit(**EXACT)
def _leave(row):
    """Ends this thread's part of a launch: no chunk of it is left. Whether that was the end of the launch."""
    state = _add(row, AT_LAUNCH.state, -1)
    return state & _INSIDE == 0 and _replace(row, AT_LAUNCH.state, state, state | _CLOSED)


@njit(**EXACT)
def _next_launch(header, i):
    """Waits for the end of launch `i`; which one is under way then."""
    began = _now_ns()
    while _now_ns() - began < SPIN_NS:
        for _ in range(_SPINS_BETWEEN_LOOKS):
            current = _load(header, AT_HEADER.current)
            if current > i:
                return current
            _pause()
    _add(header, AT_HEADER.sleepers, 1)
    current = _load(header, AT_HEADER.current)
    while current <= i:
        _futex(header + AT_HEADER.current * FIELD_BYTES, _WAIT_PRIVATE, i)
        current = _load(header, AT_HEADER.current)
    _add(header, AT_HEADER.sleepers, -1)
    return current
