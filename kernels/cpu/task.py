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

Field 0 comes before the layout's own: how many chunks of the work were taken so far (`next_chunk`).
"""

from __future__ import annotations

from struct import Struct
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu.numba_options import EXACT

__all__ = ["FIELD_BYTES", "encode", "field", "float32_field", "next_chunk", "offsets_of", "pointer"]

FIELD_BYTES = 8
_FIELD = ir.IntType(64)
_FLOAT32, _INT32 = Struct("=f"), Struct("=i")
_Layout = TypeVar("_Layout", bound=tuple[Any, ...])


def offsets_of(layout: type[_Layout], *, first: int = 1) -> Any:
    """A layout's offsets under its own names, constants in compiled code. `first` 0: the layout is no task."""
    return layout(*range(first, first + len(layout._fields)))  # type: ignore[attr-defined]


def encode(values: tuple[object, ...]) -> np.ndarray:
    """The task as compiled code reads it: [1 + fields], int64, no chunk taken.

    Tensors and arrays are their addresses, whoever reads them must keep them alive; a float is its float32 bits, None
    is 0.
    """
    return np.array([0, *map(_bits, values)], dtype=np.int64)


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
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, np.ndarray):
        return value.ctypes.data
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
def next_chunk(context, task):
    """The index of a chunk that no thread has taken yet, one atomic addition: OpenMP's dynamic schedule."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _at(builder, arguments[0], _FIELD(0)), _FIELD(1), "monotonic")

    return types.intp(types.intp), generate
