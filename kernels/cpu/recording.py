"""A row of crews' tasks, kept to be done again in one call: a decoding step without the interpreter between its parts.

In Python, handing over the 110 tasks of a step of 12 layers costs 2 to 3 milliseconds, a fifth of what a small model
computes for one sequence. While a recording is open, each task is done as always and kept: its function and its
numbers, addresses among them. `replay` does them all again, in order, on the same memory: whoever replays first puts
new inputs where the old ones were. It is what CUDA graphs are on a GPU.

Results that are made meanwhile lie in a `Room`, which later recordings share: only one of them runs at a time, and what
one leaves there is good until the next.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu import thread_team as crew
from kernels.cpu.scalars import EXACT
from kernels.cpu.thread_team import Crew, field

__all__ = ["Recording", "Room"]

_NUMBER = ir.IntType(64)
PATIENCE = 4_000  # turns of waiting, some 200 microseconds, before a thread lets others have its CPU


class Room:
    """Memory for results, in two halves that are filled in turns: what is made in one turn is kept in the next."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int, int], Tensor] = {}
        self._half, self._place = 0, 0

    def turn(self) -> None:
        self._half, self._place = 1 - self._half, 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        num_bytes = max(int(np.prod(shape)) * dtype.itemsize, 1)
        # Powers of two: recordings of many sizes share a few blocks.
        key = (self._half, self._place, 1 << (num_bytes - 1).bit_length())
        self._place += 1
        if key not in self._blocks:
            self._blocks[key] = torch.empty(key[2], dtype=torch.uint8)
        return self._blocks[key][:num_bytes].view(dtype).view(shape)


class Recording:
    """`with recording:` keeps the tasks that are done inside; then `replay()`. One thread at a time."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._kept: list[tuple[int, int, np.ndarray]] = []
        self._steps = np.empty((0, 0), dtype=np.int64)
        self._header = np.zeros(6, dtype=np.int64)
        self._threads = 1

    def __enter__(self) -> Recording:
        crew.set_recording(self)
        self.room.turn()
        return self

    def __exit__(self, *problem: object) -> None:
        crew.set_recording(None)
        width = max((len(numbers) for _, _, numbers in self._kept), default=0)
        self._steps = np.zeros((len(self._kept), 2 + width), dtype=np.int64)
        for step, (function, threads, numbers) in zip(self._steps, self._kept, strict=True):
            step[0], step[1], step[2 : 2 + len(numbers)] = function, threads, numbers
        self._threads = max((threads for _, threads, _ in self._kept), default=1)
        self._kept.clear()

    def add(self, function: int, threads: int, numbers: np.ndarray) -> None:
        self._kept.append((function, threads, numbers))

    def replay(self) -> None:
        """Does all tasks again. What their addresses point to must still live."""
        self._steps[:, 2] = 0  # pieces taken
        # Threads come, threads met, how many there are, the steps.
        self._header[:] = (0, 0, crew.team_size_address(), *self._steps.shape, self._steps.ctypes.data)
        _all_steps.on(self._threads, self._header)


def _work(header):
    _run(header)


_all_steps = Crew(_work)


@intrinsic
def _add(context, address, index):
    """Adds one to a number that all threads share; what it was. What was written before is seen by who reads it."""

    def generate(context, builder, signature, arguments):
        at = builder.add(arguments[0], builder.mul(arguments[1], _NUMBER(8)))
        return builder.atomic_rmw("add", builder.inttoptr(at, _NUMBER.as_pointer()), _NUMBER(1), "acq_rel")

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _look(context, address, index):
    """A number that other threads change."""

    def generate(context, builder, signature, arguments):
        at = builder.add(arguments[0], builder.mul(arguments[1], _NUMBER(8)))
        return builder.load_atomic(builder.inttoptr(at, _NUMBER.as_pointer()), "acquire", 8)

    return types.intp(types.intp, types.intp), generate


@intrinsic
def _call(context, function, task):
    """Calls a crew's function by its address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [_NUMBER])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _ask(context, function):
    """What a C function without arguments returns."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), []), _NUMBER)

    return types.intp(types.intp), generate


def _without_arguments(name: str, result: ir.Type) -> Callable[[], None]:
    @intrinsic
    def function(context):
        def generate(context, builder, signature, arguments):
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, []), name), [])
            return context.get_dummy_value()

        return types.void(), generate

    return function


_let_others = _without_arguments("sched_yield", ir.IntType(32))  # have the CPU, if one waits for it
_is_x86 = platform.machine().lower() in ("x86_64", "amd64")
_pause = _without_arguments("llvm.x86.sse2.pause", ir.VoidType()) if _is_x86 else _let_others


@njit(**EXACT)
def _run(header):
    """One thread's part of all steps: it takes part in those that want so many, and waits for the others after each."""
    own = _add(header, 0)
    team = 1 if field(header, 2) == 0 else _ask(field(header, 2))
    num_steps, width, steps = field(header, 3), field(header, 4), field(header, 5)
    for i in range(num_steps):
        step = steps + i * width * 8
        if own < field(step, 1):
            _call(field(step, 0), step + 16)
        _add(header, 1)
        turns = 0
        while _look(header, 1) < (i + 1) * team:
            turns += 1
            if turns < PATIENCE:
                _pause()
            else:
                _let_others()
