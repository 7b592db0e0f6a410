"""Tasks: what a compiled kernel is told, as 64-bit fields in memory, named once for writer and reader.

A layout is a `NamedTuple` beside the kernel. Python fills one, with tensors where the kernel wants addresses;
`encode` makes the array of it whose address the kernel gets. Compiled code reads a field by its offset, which
`offsets_of` gives under the same name:

    class CopyTask(NamedTuple):
        rows: int
        source: Tensor

    AT = offsets_of(CopyTask)
    ...
    rows, source = field(task, AT.rows), carray(pointer(task, AT.source, like), (field(task, AT.rows),))

Every body says `space = enter(task)` first and `leave(task)` last. What comes before the layout's own fields is
`TaskHeader`.
"""

from __future__ import annotations

import time
from array import array
from struct import Struct
from typing import Any, NamedTuple, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu.numba_options import EXACT
from kernels.cpu.progress import address_of_progress

__all__ = [
    "AT_HEADER",
    "FIELD_BYTES",
    "TaskHeader",
    "chunk_after",
    "encode",
    "enter",
    "fetch_add",
    "field",
    "float32_field",
    "leave",
    "next_chunk",
    "offsets_of",
    "pointer",
]

FIELD_BYTES = 8
_FIELD, _DOUBLE = ir.IntType(64), ir.DoubleType()
_FLOAT32, _INT32 = Struct("=f"), Struct("=i")
_Layout = TypeVar("_Layout", bound=tuple[Any, ...])


class TaskHeader(NamedTuple):
    """What every task begins with."""

    chunks_taken: int = 0
    entered: int = 0  # threads that began the body
    left: int = 0  # threads that came to its end: fewer than began if compiled code raised
    scratch: int = 0  # address of the threads' own memory
    scratch_bytes: int = 0  # of one thread
    progress: int = 0  # address of the time of the last chunk, `kernels.cpu.progress`


def offsets_of(layout: type[_Layout], *, first: int = len(TaskHeader._fields)) -> Any:
    """A layout's offsets under its own names, constants in compiled code. `first` 0: the layout is no task."""
    return layout(*range(first, first + len(layout._fields)))  # type: ignore[attr-defined]


AT_HEADER = offsets_of(TaskHeader, first=0)


def encode(values: tuple[object, ...], *, scratch: int = 0, scratch_bytes: int = 0) -> array[int]:
    """The task as compiled code reads it: int64, the header and then the fields, no chunk taken.

    Tensors and arrays are their addresses, whoever reads them must keep them alive; a float is its float32 bits, None
    is 0. `scratch` is the address of so many bytes for each thread.
    """
    own = [value if type(value) is int else _bits(value) for value in values]  # most are, and a call costs as much
    return array("q", [0, 0, 0, scratch, scratch_bytes, address_of_progress(), *own])


def _bits(value: object) -> int:
    kind = type(value)  # exact types first: a launch encodes a dozen fields, and asking a tensor's class is slow
    if kind is int:
        return value
    if kind is Tensor:
        return value.data_ptr()
    if value is None:
        return 0
    if kind is float:
        return _INT32.unpack(_FLOAT32.pack(value))[0]
    if kind is np.ndarray:
        return value.ctypes.data
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Tensor):
        return value.data_ptr()
    raise TypeError(f"a task's field is an int, a float, a tensor, an array or None, not {type(value).__name__}")


def _at(builder: ir.IRBuilder, task: ir.Value, offset: ir.Value) -> ir.Value:
    address = builder.add(task, builder.mul(offset, ir.Constant(_FIELD, FIELD_BYTES)))
    return builder.inttoptr(address, _FIELD.as_pointer())


@intrinsic
def field(context, task, offset):
    """The int64 at an offset of a task; compiled code only, as all that follows."""

    def generate(context, builder, signature, arguments):
        return builder.load(_at(builder, *arguments))

    return types.intp(types.intp, types.intp), generate


@njit(**EXACT)
def float32_field(task, offset):
    """The float32 whose bits lie at an offset of a task."""
    return np.int32(field(task, offset)).view(np.float32)


@intrinsic
def pointer(context, task, offset, like):
    """The address at an offset of a task, of elements like those of `like`, for `numba.carray`."""

    def generate(context, builder, signature, arguments):
        address = builder.load(_at(builder, *arguments[:2]))
        return builder.inttoptr(address, context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.intp, types.intp, like), generate


@intrinsic
def fetch_add(context, task, offset, amount):
    """Adds to a field that all threads share; what it was."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(builder, *arguments[:2]), arguments[2], "acq_rel")

    return types.intp(types.intp, types.intp, types.intp), generate


@intrinsic
def _store_time(context, address):
    """Stores the seconds of `time.monotonic` at an address."""

    def generate(context, builder, signature, arguments):
        timespec, number = ir.ArrayType(_FIELD, 2), ir.IntType(32)
        now = cgutils.alloca_once(builder, timespec)
        kind = ir.FunctionType(number, [number, timespec.as_pointer()])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(function, [number(time.CLOCK_MONOTONIC), now])
        seconds, nanoseconds = (
            builder.sitofp(builder.load(builder.gep(now, [number(0), number(i)])), _DOUBLE) for i in range(2)
        )
        at = builder.inttoptr(arguments[0], _DOUBLE.as_pointer())
        builder.store(builder.fadd(seconds, builder.fmul(nanoseconds, _DOUBLE(1e-9))), at)
        return context.get_dummy_value()

    return types.void(types.intp), generate


@njit(**EXACT)
def enter(task):
    """Begins a body: the address of this thread's own scratch, from the start of a cache line on."""
    thread = fetch_add(task, AT_HEADER.entered, 1)
    return field(task, AT_HEADER.scratch) + thread * field(task, AT_HEADER.scratch_bytes)


@njit(**EXACT)
def leave(task):
    """Ends a body: this thread has done what it took."""
    fetch_add(task, AT_HEADER.left, 1)


@njit(**EXACT)
def next_chunk(task):
    """The index of a chunk that no thread has taken yet, one atomic addition: OpenMP's dynamic schedule."""
    return _next_run(task, 1)


@njit(**EXACT)
def chunk_after(task, chunk, last, length):
    """The chunk after this one of a thread's run, and where its run ends; else the first of another run of so many that
    no thread has taken yet, some of which may be past the last one. Of -1, before 0: the first of the first run."""
    if chunk + 1 < last:
        return chunk + 1, last
    first = _next_run(task, length)
    return first, first + length


@njit(**EXACT)
def _next_run(task, length):
    _store_time(field(task, AT_HEADER.progress))
    return fetch_add(task, AT_HEADER.chunks_taken, length)
