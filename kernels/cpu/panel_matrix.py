"""What the packed matrices share: panels of a weight's rows, the task of a product, and its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from kernels.cpu.byte_rows import MAX_OUTLIERS
from kernels.cpu.dtypes import FLOAT32, INT32
from kernels.cpu.large_pages import in_large_pages
from kernels.cpu.memory import carray, copy, elements_at, same_bits
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion, RegionOfType
from kernels.cpu.recorder import computing_constants, empty_result
from kernels.cpu.task import FIELD_BYTES, TaskHeader, field, offsets_of
from kernels.cpu.vector import add_codes, store_gated, store_sums

__all__ = ["AT", "PART_FIELDS", "PanelMatrix", "ProductTask", "add_outliers", "epilogue", "part_of", "scale_sums"]

GROUP_BYTES = 1 << 20  # of inputs that stay in the L2 cache while the weight goes by
RUN_ROWS, RUN_BYTES, RUNS_OF_THREAD = 8, 1 << 17, 3
SERIAL_PRODUCTS = 1 << 18  # fewer multiplications are not worth a second thread


class ProductTask(NamedTuple):
    """A chunk is one panel and one group of rows: all panels for the first group, then for the next.

    Of several parts each is such a task of its own, header included, and this one only says where they are and how
    much scratch a thread has (`expert_matrices.py`).
    """

    num_chunks: int
    num_panels: int
    rows: int  # of the input
    width: int  # of the input
    out_width: int  # of the result
    group_rows: int  # rows of the input that go by while a panel stays in the L1 cache
    x: Tensor | None  # [rows, width], or as `inputs` makes them
    packed: Tensor  # [num_panels, ...], as the matrix packs it
    bias: Tensor | None  # [num_panels, panel], float32
    result: Tensor | None  # [rows, out_width]
    is_gated: bool
    itemsize: int  # of the result, and of x and the packed weight where these are numbers. 2: bfloat16, 4: float32
    run: int = 1  # chunks that a thread takes together: each is less work than taking it is worth, where rows are few
    num_parts: int = 1
    parts: Tensor | None = None  # [num_parts, PART_FIELDS], int64; None: this task is the part


AT = offsets_of(ProductTask)
PART_FIELDS = len(TaskHeader._fields) + len(ProductTask._fields)


@njit(**EXACT)
def part_of(task, index):
    """The address of a part of a product, which is read and worked off as a task of one is."""
    parts = field(task, AT.parts)
    return task if parts == 0 else parts + index * PART_FIELDS * FIELD_BYTES


class PanelMatrix:
    """A weight `[out, width]` on a CPU, packed once.

    A row of a product is summed in the order of the weight's columns, whatever else is in the batch: any number of rows
    gives the same bits. Of a gated one the first half of the rows are gates: `silu(gate) * up` is computed before it is
    rounded and written.
    """

    __slots__ = ("_bias", "_packed", "_panel_bias", "dtype", "is_gated", "shape")
    panel: ClassVar[int]  # rows of the weight that one pass multiplies, a multiple of 32
    element_bytes: ClassVar[int]  # of the input's elements, as they are multiplied
    block_rows: ClassVar[int]  # rows of the input that one pass multiplies
    max_group_rows: ClassVar[int]  # rows of the input that a panel is multiplied with before the next one is taken
    region: ClassVar[ParallelRegion | RegionOfType]  # carries out a `ProductTask`

    def __init__(self, weight: Tensor, *, is_gated: bool = False) -> None:
        self.shape, self.dtype, self.is_gated = weight.shape, weight.dtype, is_gated
        self._bias: Tensor | None = None  # of the last call, and `_panel_bias` what it is by panel: a layer has one
        self._panel_bias: Tensor | None = None
        self._packed = in_large_pages(self._pack(self._by_panel(weight)))

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, added before it is rounded.

        Shapes: x: [num_rows, width]; bias: [out]; result: [num_rows, out], half as wide when gated.
        Bytes moved: x and the result once, the weight once for each group of rows.
        """
        x = x.to(self.dtype).contiguous()
        rows = x.shape[0]
        x = x if self.rounds_itself(rows) else self.inputs(x, self.empty_inputs(x))
        result = empty_result((rows, self.out_width), self.dtype)
        if bias is not self._bias:
            with computing_constants():
                self._bias, self._panel_bias = bias, None if bias is None else self._by_panel(bias.float()[:, None])
        task = self.task(rows, x, result, self._panel_bias)
        region = self.region_of_few if self.rounds_itself(rows) else self.region
        region.launch(self.threads_for(rows, task.num_chunks), task, self.scratch_bytes(rows))
        return result

    def rounds_itself(self, rows: int) -> bool:
        """Whether `region_of_few` takes so many rows as they are, and each thread makes `inputs` of them for itself."""
        return False

    @property
    def region_of_few(self) -> ParallelRegion | RegionOfType:
        """Carries out the task of a few rows."""
        raise NotImplementedError

    @property
    def out_width(self) -> int:
        """Columns of a result."""
        return self.shape[0] // (1 + self.is_gated)

    def task(self, rows: int, x: Tensor | None, result: Tensor | None, bias: Tensor | None = None) -> ProductTask:
        """The product of so many rows; `bias` by panel."""
        num_panels, group_rows = self._packed.shape[0], self._group_rows()
        return ProductTask(
            num_chunks=num_panels * -(-rows // group_rows),
            num_panels=num_panels,
            rows=rows,
            width=self.shape[1],
            out_width=self.out_width,
            group_rows=group_rows,
            x=x,
            packed=self._packed,
            bias=bias,
            result=result,
            is_gated=self.is_gated,
            itemsize=self.dtype.itemsize,
            run=self._run(rows),
        )

    def _run(self, rows: int) -> int:
        """Of few rows so many panels that they take some microseconds to be read, and that all threads have several."""
        num_panels = self._packed.shape[0]
        if rows > RUN_ROWS or num_panels == 0:
            return 1
        worth = RUN_BYTES * num_panels // max(self._packed.nbytes, 1)
        return max(min(worth, num_panels // (RUNS_OF_THREAD * torch.get_num_threads())), 1)

    def threads_for(self, rows: int, num_chunks: int) -> int:
        """How many threads a product of so many rows is worth."""
        return num_chunks if self._packed.numel() * rows >= SERIAL_PRODUCTS else 1

    def scratch_bytes(self, rows: int) -> int:
        """What a thread needs for a product of so many rows, or of fewer."""
        return self._scratch_bytes(rows, self.shape[1], self._group_rows())

    @property
    def layout(self) -> tuple[object, ...]:
        """What two weights have in common whose products one launch can compute."""
        return type(self), self.region, self.shape, self.dtype, self.is_gated

    def empty_inputs(self, x: Tensor) -> Tensor:
        """Memory for `inputs` of such rows, or those themselves where they are read as they are."""
        return x

    def inputs(self, x: Tensor, into: Tensor) -> Tensor:
        """The rows as `region` reads them, which are put `into` what `empty_inputs` gave."""
        return into

    def _group_rows(self) -> int:
        """Rows of the input that are multiplied by a panel before the next one is taken: whole blocks."""
        fitting = min(GROUP_BYTES // (self.element_bytes * self.shape[1]), self.max_group_rows)
        return max(fitting // self.block_rows, 1) * self.block_rows

    def _by_panel(self, weight: Tensor) -> Tensor:
        """Rows in the order of the panels, zeros in the last; a gated weight's panel is half gates, half their ups."""
        parts = weight.unflatten(0, (1 + self.is_gated, -1))
        size = self.panel // parts.shape[0]
        whole = torch.nn.functional.pad(parts, (0, 0, 0, -parts.shape[1] % size))
        return whole.unflatten(1, (-1, size)).transpose(0, 1).reshape(-1, weight.shape[1])

    def _pack(self, weight: Tensor) -> Tensor:
        """Whole panels of rows in the layout that `region` reads; the first axis counts them."""
        raise NotImplementedError

    def _scratch_bytes(self, rows: int, width: int, group_rows: int) -> int:
        """What a thread of `region` needs for so many rows of so many columns."""
        raise NotImplementedError


@njit(**EXACT)
def scale_sums(sums, row, row_bytes, panel):
    """Makes float32 of int32 sums: scale and zero of the first row lie at `row`, the scales and sums at `panel`."""
    whole, count = same_bits(sums, INT32), sums.shape[1]
    scales = carray(elements_at(panel, FLOAT32), (count,))
    totals = carray(elements_at(panel + count * 4, INT32), (count,))
    for i in range(sums.shape[0]):
        at = row + i * row_bytes
        scale, zero = carray(elements_at(at, FLOAT32), (1,))[0], carray(elements_at(at + 4, INT32), (1,))[0]
        for j in range(np.uintp(count)):
            sums[i, j] = np.float32(np.int32(whole[i, j] - np.int32(zero * totals[j]))) * (scale * scales[j])


@njit(**EXACT)
def add_outliers(sums, row, row_bytes, codes, scales, is_tiled):
    """Adds to scaled sums what the rows' outliers make: they lie at `row`, as `byte_rows.py` says.

    `codes`: of a panel, whose scales lie at `scales`: words of four columns for each of its rows, or, `is_tiled`, in
    the matrix registers' order.
    """
    size, step = sums.shape[1], 4 * sums.shape[1]
    for i in range(sums.shape[0]):
        into = sums[i].ctypes.data
        kept = carray(elements_at(row + i * row_bytes, INT32), (2 + 2 * MAX_OUTLIERS,))
        for k in range(kept[0]):
            column, value = np.intp(kept[2 + 2 * k]), np.int32(kept[3 + 2 * k]).view(np.float32)
            up = np.int32(24 - 8 * (column % 4))
            if is_tiled:
                at = codes + column // 64 * (64 * size) + column % 64 // 4 * 64
                add_codes(into, at, up, value, scales)
                add_codes(into + 64, at + 1024, up, value, scales + 64)
            else:
                at = codes + column // 4 * step
                for first in range(0, 4 * size, 64):
                    add_codes(into + first, at + first, up, value, scales + first)


def epilogue(panel: int) -> Callable[..., None]:
    """Compiled code that adds the bias to the sums of some rows, gates them, rounds and stores them. Changes `sums`.

    Gated, it is silu of the first half of each row times the second half.
    Shapes: sums: [num_rows, panel], float32; bias: [panel], float32; the result's first `columns`, elements like those
    of `like`, from the address `target` on, a row every `stride` bytes.
    """

    @njit(**EXACT)
    def store(sums, bias, target, stride, columns, is_gated, like):
        bias_at, width = bias.ctypes.data, panel // 2 if is_gated else panel
        for i in range(sums.shape[0]):
            source, row = sums[i].ctypes.data, target + i * stride
            into = row if columns == width else source
            for j in range(0, width, 16):
                gates, ups, place = j * 4, (width + j) * 4, into + j * like.itemsize
                if is_gated:
                    store_gated(source + gates, bias_at + gates, source + ups, bias_at + ups, place, like)
                else:
                    store_sums(source + j * 4, bias_at + j * 4, place, like)
            if columns < width:
                copy(source, row, columns * like.itemsize)

    return store
