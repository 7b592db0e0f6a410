"""Inputs of products rounded to eight bits, each row by itself, so that its codes are the same in every batch.

A few numbers of a row may be far larger than all others, and would leave those a handful of codes. Such outliers can be
kept as they are: their code is zero, and who multiplies the row adds them (Dettmers et al. 2022, arXiv:2208.07339,
where they are columns of a whole batch; here each row has its own).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from torch import Tensor

from kernels.cpu.dtypes import FLOAT32, INT32, UINT8, UINT16, widen
from kernels.cpu.memory import carray, elements_at
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import RegionOfType, threads_for
from kernels.cpu.sums import sum_of_squares
from kernels.cpu.task import enter, field, float32_field, leave, next_chunk, offsets_of, pointer

__all__ = ["ENTRY", "MAX_OUTLIERS", "OUTLIERS_AT", "ROW_TAIL", "TAIL", "RoundRowsTask", "round_row", "round_rows"]

TAIL = 8  # bytes: a scale, float32, and a zero, int32
MAX_OUTLIERS, ENTRY = 16, 8  # of a row; bytes of one: its column, int32, and the number, float32
OUTLIERS_AT = TAIL  # in a row's tail: how many it has, int32, then they
ROW_TAIL = TAIL + 8 + MAX_OUTLIERS * ENTRY  # bytes behind a row's codes
CHUNK_ROWS = 4
_SHIFT = np.float32(12582912.0)  # 1.5 x 2^23: added, it rounds to a whole number, whose low byte is the sum's
_SMALLEST = np.uint32(0x0D800000)  # 2^-100: a row of less is zeros
_INFINITE, _SIGNLESS = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)
_MIDDLE = np.int32(128)
_BLOCK = 64  # columns that are looked through for outliers together
_FAR = np.float32(36)  # times the mean square: six times as large as is usual


class RoundRowsTask(NamedTuple):
    """A chunk is `CHUNK_ROWS` rows."""

    itemsize: int  # of x. 2: bfloat16, 4: float32
    rows: int
    width: int
    is_symmetric: bool
    scale: float  # of every row; 0: each has its own, and its own zero
    zero: int  # of every row, where the scale is; 128 stands for 0
    keeps_outliers: bool
    x: Tensor  # [rows, width]
    codes: Tensor  # [rows, width + ROW_TAIL], uint8


AT = offsets_of(RoundRowsTask)


def round_rows(
    x: Tensor,
    codes: Tensor,
    *,
    is_symmetric: bool = True,
    fixed: tuple[float, int] | None = None,
    keeps_outliers: bool = False,
) -> None:
    """Codes from 0 to 255: a number is `scale x (code - zero)` of its row. What is not finite makes the scale so.

    `is_symmetric`: every zero is 128. `fixed`: the scale of all rows, and their zero less 128, as calibrated.
    `keeps_outliers`: up to 16 numbers of a row that are six times as large as is usual in it, where it is symmetric.
    Shapes: x: [rows, width], float32 or bfloat16; codes: [rows, width + ROW_TAIL], uint8, which are written.
    Bytes moved: x twice, the codes once.
    """
    (rows, width), (scale, zero) = x.shape, fixed or (0.0, 0)
    task = RoundRowsTask(
        x.element_size(), rows, width, is_symmetric, float(scale), zero + 128, keeps_outliers, x, codes
    )
    _region.launch(threads_for(x.numel()), task)


def _body_in_bfloat16(task):
    enter(task)
    _round(task, UINT16)
    leave(task)


def _body_in_float32(task):
    enter(task)
    _round(task, FLOAT32)
    leave(task)


_region = RegionOfType(_body_in_bfloat16, _body_in_float32)


@njit(**EXACT)
def _round(task, like):
    rows, width = field(task, AT.rows), field(task, AT.width)
    is_symmetric, fixed = field(task, AT.is_symmetric) != 0, float32_field(task, AT.scale)
    keeps_outliers = field(task, AT.keeps_outliers) != 0
    x, codes = carray(pointer(task, AT.x, like), (rows, width)), field(task, AT.codes)
    first = next_chunk(task) * CHUNK_ROWS
    while first < rows:
        for i in range(first, min(first + CHUNK_ROWS, rows)):
            at = codes + i * (width + ROW_TAIL)
            if fixed > np.float32(0):
                low, high = _range(x[i])
                scale = fixed if _is_finite(low) and _is_finite(high) else np.float32(np.nan)
                _write_row(x[i], scale, np.int32(field(task, AT.zero)), False, at)
            elif is_symmetric:
                round_row(x[i], keeps_outliers, at)
            else:
                low, high = _range(x[i])
                scale, zero = _asymmetric(low, high)
                _write_row(x[i], scale, zero, False, at)
        first = next_chunk(task) * CHUNK_ROWS


@njit(**EXACT)
def round_row(row, keeps_outliers, at):
    """One row, symmetric: its codes from the address `at` on, then its tail."""
    low, high = _range(row)
    kept = carray(elements_at(at + row.shape[0] + OUTLIERS_AT, INT32), (2 + 2 * MAX_OUTLIERS,))
    kept[0] = 0
    if keeps_outliers and _is_finite(low) and _is_finite(high):
        low, high = _set_aside(row, low, high, kept)
    count = kept[0]
    _write_row(row, _symmetric(low, high), _MIDDLE, True, at)
    kept[0] = count
    codes = carray(elements_at(at, UINT8), (row.shape[0],))
    for k in range(count):
        codes[kept[2 + 2 * k]] = np.uint8(_MIDDLE)


@njit(**EXACT)
def _write_row(row, scale, zero, is_even, at):
    """Codes, scale and zero of a row without outliers."""
    width = row.shape[0]
    _encode(row, scale, zero, is_even, carray(elements_at(at, UINT8), (width,)))
    carray(elements_at(at + width, FLOAT32), (1,))[0] = scale
    carray(elements_at(at + width + 4, INT32), (1,))[0] = zero
    carray(elements_at(at + width + OUTLIERS_AT, INT32), (1,))[0] = 0


@njit(**EXACT)
def _is_finite(value):
    return (np.float32(value).view(np.uint32) & _SIGNLESS) < _INFINITE


@njit(**EXACT)
def _swapped(bits):
    """Bits of a float32 as a whole number in the order of the numbers, NaN outermost; and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(**EXACT)
def _range(row):
    """The least and the largest number, 0 among them; NaN where there is one."""
    low, high = np.int32(0), np.int32(0)
    for j in range(np.uintp(row.shape[0])):
        key = _swapped(np.float32(widen(row[j])).view(np.int32))
        low = key if key < low else low
        high = key if key > high else high
    return np.int32(_swapped(low)).view(np.float32), np.int32(_swapped(high)).view(np.float32)


@njit(**EXACT)
def _set_aside(row, low, high, kept):
    """Notes the row's outliers: their number, then column and bits of each. The range of what is left."""
    width = row.shape[0]
    square = sum_of_squares(row.ctypes.data, width, row) / np.float32(width) * _FAR
    limit = np.float32(np.sqrt(square))
    while limit > np.float32(0) and (-low > limit or high > limit):
        count, least, most = 0, np.float32(0), np.float32(0)
        for first in range(0, width, _BLOCK):
            last = min(first + _BLOCK, width)
            lowest, highest = _range(row[first:last])
            if -lowest <= limit and highest <= limit:
                least, most = min(least, lowest), max(most, highest)
                continue
            for j in range(first, last):
                value = np.float32(widen(row[j]))
                if -limit <= value <= limit:
                    least, most = min(least, value), max(most, value)
                else:
                    if count < MAX_OUTLIERS:
                        kept[2 + 2 * count] = j
                        kept[3 + 2 * count] = np.float32(value).view(np.int32)
                    count += 1
        if count <= MAX_OUTLIERS:
            kept[0] = count
            return least, most
        limit = np.float32(limit * np.float32(2))
    return low, high


@njit(**EXACT)
def _symmetric(low, high):
    least, most = np.float32(-low).view(np.uint32) & _SIGNLESS, np.float32(high).view(np.uint32) & _SIGNLESS
    peak = np.uint32(least if least > most else most)  # as whole numbers: NaN is the largest
    return np.uint32(peak).view(np.float32) / np.float32(127) if peak >= _SMALLEST else np.float32(0)


@njit(**EXACT)
def _asymmetric(low, high):
    scale = np.float32(high - low) / np.float32(255)
    if not _is_finite(scale) or np.float32(scale).view(np.uint32) < _SMALLEST:
        return np.float32(scale if not _is_finite(scale) else 0), _MIDDLE
    whole = np.float32(np.float32(-low / scale) + _SHIFT) - _SHIFT
    return scale, np.int32(min(max(whole, np.float32(0)), np.float32(255)))


@njit(**EXACT)
def _encode(row, scale, zero, is_even, codes):
    """`is_even`: codes lie from -127 to 127 around the zero, else as far as a byte goes."""
    inverse = np.float32(1) / scale if scale > np.float32(0) else np.float32(0)
    least = np.float32(-127) if is_even else np.float32(-zero)
    most = np.float32(127) if is_even else np.float32(255 - zero)
    for j in range(np.uintp(row.shape[0])):
        value = np.float32(widen(row[j]) * inverse)
        value = value if value > least else least  # also of NaN
        value = value if value < most else most
        codes[j] = np.uint8(np.int32(np.float32(value + _SHIFT).view(np.int32) + zero))
