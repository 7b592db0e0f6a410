"""Work shared out to torch's own threads, without the interpreter's lock: each takes the next piece until none is left.

numba has a pool of its own for parallel loops. Two pools on the same CPUs, each with threads that spin while they wait,
slow both down: measured, a copy of 20 microseconds took 150. So work goes to the OpenMP pool that torch has. Pieces are
taken rather than dealt out: a thread that the system has put aside leaves its share to the others.

A crew's function takes the address of a task: 64-bit numbers, the first of which counts the pieces taken so far.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from torch import Tensor

if TYPE_CHECKING:
    from kernels.cpu.recording import Recording

__all__ = [
    "Crew",
    "as_number",
    "empty",
    "field",
    "pieces_of",
    "pointer",
    "set_recording",
    "take_piece",
    "team_size_address",
]

_NUMBER = ir.IntType(64)
_HAND_OVER = 1 << 14  # elements that are worth a thread more: some 10 microseconds of work


class Crew:
    """`Crew(function)(pieces, *task)` runs the function on as many threads as torch has, at most one for each piece.

    It is compiled at its first call.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function

    def __call__(self, pieces: int, *task: int) -> None:
        """Returns when all pieces are done. What the task's addresses point to must live until then."""
        numbers = np.array([0, *task], dtype=np.int64)
        threads = min(torch.get_num_threads(), pieces)
        if _recording is not None:
            _recording.add(self._compiled.address, threads, numbers)
        self.on(threads, numbers)

    def on(self, threads: int, numbers: np.ndarray) -> None:
        """Runs the function on so many threads of torch's pool with the address of `numbers`."""
        pool = _openmp() if threads > 1 else None
        if pool is None:
            self._alone(numbers.ctypes.data)
        else:
            pool.GOMP_parallel(self._compiled.address, numbers.ctypes.data, threads, 0)

    @cached_property
    def _compiled(self):
        return cfunc(types.void(types.intp), cache=True)(self._function)

    @cached_property
    def _alone(self) -> Callable[[int], None]:
        return ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(self._compiled.address)


_recording: Recording | None = None


def set_recording(recording: Recording | None) -> None:
    """Says who keeps the tasks that are done from now on."""
    global _recording
    _recording = recording


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for a kernel's result; while tasks are recorded, from the recording's room."""
    return torch.empty(shape, dtype=dtype) if _recording is None else _recording.room.take(tuple(shape), dtype)


def pieces_of(num_elements: int) -> int:
    """How many threads' work a loop over so many elements is."""
    return max(num_elements // _HAND_OVER, 1)


def as_number(value: float) -> int:
    """A float32's bits, to be put into a task."""
    return int(np.float32(value).view(np.int32))


@lru_cache(maxsize=1)
def team_size_address() -> int:
    """Of OpenMP's function that says how many threads the calling one works with; 0 where there is no pool."""
    pool = _openmp()
    return 0 if pool is None else ctypes.cast(pool.omp_get_num_threads, ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded; None where it can't be found, and work stays on one thread."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 - read line by line
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line or "libiomp" in line}
    except OSError:
        return None
    ours = [path for path in sorted(paths) if "/torch" in path] or sorted(paths)
    if not ours or not torch.backends.openmp.is_available():
        return None
    pool = ctypes.CDLL(ours[0])
    if not hasattr(pool, "GOMP_parallel"):
        return None
    pool.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    pool.GOMP_parallel.restype = None
    return pool


def _at(builder: ir.IRBuilder, task: ir.Value, index: ir.Value) -> ir.Value:
    address = builder.add(task, builder.mul(index, ir.Constant(_NUMBER, 8)))
    return builder.inttoptr(address, _NUMBER.as_pointer())


@intrinsic
def field(context, task, index):
    """Number `index` of a task; 0 is the count of pieces."""

    def generate(context, builder, signature, arguments):
        return builder.load(_at(builder, *arguments))

    return types.intp(types.intp, types.intp), generate


@intrinsic
def pointer(context, task, index, like):
    """Number `index` of a task as the address of numbers like `like`'s elements, for `numba.carray`."""

    def generate(context, builder, signature, arguments):
        address = builder.load(_at(builder, *arguments[:2]))
        return builder.inttoptr(address, context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, types.intp, like), generate


@intrinsic
def take_piece(context, task):
    """The number of a piece that nobody has taken yet."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(builder, arguments[0], _NUMBER(0)), _NUMBER(1), "monotonic")

    return types.intp(types.intp), generate
