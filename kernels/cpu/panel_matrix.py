"""What the packed matrices share: panels of a weight's rows, the task of a product, and its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from numba import njit
from torch import Tensor

from kernels.cpu.memory import copy
from kernels.cpu.numba_options import EXACT
from kernels.cpu.parallel_region import ParallelRegion
from kernels.cpu.recorder import computing_constants, empty_result
from kernels.cpu.task import offsets_of
from kernels.cpu.vector import store_gated, store_sums

__all__ = ["AT", "PanelMatrix", "ProductTask", "epilogue"]

GROUP_BYTES = 1 << 20  # of inputs that stay in the L2 cache while the weight goes by
SERIAL_PRODUCTS = 1 << 18  # fewer multiplications are not worth a second thread


class ProductTask(NamedTuple):
    """A chunk is one panel and one group of rows: all panels for the first group, then for the next."""

    num_chunks: int
    num_panels: int
    rows: int  # of the input
    width: int  # of the input
    out_width: int  # of the result
    group_rows: int  # rows of the input that go by while a panel stays in the L1 cache
    x: Tensor  # [rows, width]
    packed: Tensor  # [num_panels, ...], as the matrix packs it
    bias: Tensor | None  # [num_panels, panel], float32
    result: Tensor  # [rows, out_width]
    is_gated: bool
    itemsize: int  # of x, the result and the packed weight. 2: bfloat16, 4: float32


AT = offsets_of(ProductTask)


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
    region: ClassVar[ParallelRegion]  # carries out a `ProductTask`

    def __init__(self, weight: Tensor, *, is_gated: bool = False) -> None:
        self.shape, self.dtype, self.is_gated = weight.shape, weight.dtype, is_gated
        self._bias: Tensor | None = None  # of the last call, and `_panel_bias` what it is by panel: a layer has one
        self._panel_bias: Tensor | None = None
        self._packed = self._pack(self._by_panel(weight))

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, added before it is rounded.

        Shapes: x: [num_rows, width]; bias: [out]; result: [num_rows, out], half as wide when gated.
        Bytes moved: x and the result once, the weight once for each group of rows.
        """
        x = x.to(self.dtype).contiguous()
        rows, (out, width) = x.shape[0], self.shape
        out //= 1 + self.is_gated
        result = empty_result((rows, out), self.dtype)
        if bias is not self._bias:
            with computing_constants():
                self._bias, self._panel_bias = bias, None if bias is None else self._by_panel(bias.float()[:, None])
        num_panels, group_rows = self._packed.shape[0], self._group_rows()
        task = ProductTask(
            num_chunks=num_panels * -(-rows // group_rows),
            num_panels=num_panels,
            rows=rows,
            width=width,
            out_width=out,
            group_rows=group_rows,
            x=x,
            packed=self._packed,
            bias=self._panel_bias,
            result=result,
            is_gated=self.is_gated,
            itemsize=self.dtype.itemsize,
        )
        max_threads = task.num_chunks if self._packed.numel() * rows >= SERIAL_PRODUCTS else 1
        self.region.launch(max_threads, task, self._scratch_bytes(rows, width, group_rows))
        return result

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
