"""What the packed matrices of this folder share: panels of a weight's rows, and how a row's sums become its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from numba import njit
from torch import Tensor

from kernels.cpu.scalars import EXACT
from kernels.cpu.thread_team import Crew, empty
from kernels.cpu.vector import copy, store_gated, store_sums

__all__ = ["PanelMatrix", "writer"]

GROUP_BYTES = 1 << 20  # of inputs that stay in the second cache while the weight goes by
ALONE_PRODUCTS = 1 << 18  # fewer multiplications are not worth a second thread


class PanelMatrix:
    """A weight `[out, width]` on a CPU, packed once.

    A row of a product is summed in the order of the weight's columns, whatever else is in the batch: any number of rows
    gives the same bits. Of a gated one the first half of the rows are gates: `silu(gate) * up` is computed before it is
    rounded and written.
    """

    __slots__ = ("_added", "_bias", "_packed", "dtype", "is_gated", "shape")
    panel: ClassVar[int]  # rows of the weight that one pass multiplies, a multiple of 32
    input_dtype: ClassVar[torch.dtype]  # that `crew` reads; other inputs are converted
    rows: ClassVar[int]  # of the input that one pass multiplies
    most_rows: ClassVar[int]  # that a panel is multiplied with before the next one is taken
    crew: ClassVar[Crew]  # pieces are the panels of one group of rows, then of the next

    def __init__(self, weight: Tensor, *, is_gated: bool = False) -> None:
        self.shape, self.dtype, self.is_gated = weight.shape, weight.dtype, is_gated
        self._bias: Tensor | None = None  # of the last call, and `_added` what it is by panel: a layer has one
        self._added: Tensor | None = None
        self._packed = self._pack(self._by_panel(weight))

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, added before it is rounded.

        Shapes: x: [num_rows, width]; bias: [out]; result: [num_rows, out], half as wide when gated.
        """
        x = x.to(self.input_dtype).contiguous()
        rows, (out, width) = x.shape[0], self.shape
        out //= 1 + self.is_gated
        result = empty((rows, out), self.dtype)
        if bias is not self._bias:
            self._bias, self._added = bias, None if bias is None else self._by_panel(bias.float()[:, None])
        added, panels, group = self._added, self._packed.shape[0], self._group_rows()
        pieces = panels * -(-rows // group)
        addresses = (x.data_ptr(), self._packed.data_ptr(), 0 if added is None else added.data_ptr(), result.data_ptr())
        threads = pieces if self._packed.numel() * rows >= ALONE_PRODUCTS else 1
        numbers = (panels, rows, width, out, group, *addresses, self.is_gated, self.dtype.itemsize)
        self.crew(threads, pieces, *numbers)
        return result

    @property
    def is_one_task(self) -> bool:
        """Whether a product is one task of `crew` and nothing else, so that it can be recorded."""
        return self.dtype == self.input_dtype

    def _group_rows(self) -> int:
        """Rows of the input that are multiplied by a panel before the next one is taken: whole passes."""
        fitting = min(GROUP_BYTES // (self.input_dtype.itemsize * self.shape[1]), self.most_rows)
        return max(fitting // self.rows, 1) * self.rows

    def _by_panel(self, weight: Tensor) -> Tensor:
        """Rows in the order of the panels, zeros in the last; a gated weight's panel is half gates, half their ups."""
        parts = weight.unflatten(0, (1 + self.is_gated, -1))
        size = self.panel // parts.shape[0]
        whole = torch.nn.functional.pad(parts, (0, 0, 0, -parts.shape[1] % size))
        return whole.unflatten(1, (-1, size)).transpose(0, 1).reshape(-1, weight.shape[1])

    def _pack(self, weight: Tensor) -> Tensor:
        """Whole panels of rows in the layout that `crew` reads; the first axis counts them."""
        raise NotImplementedError


def writer(panel: int) -> Callable[..., None]:
    """A function that puts each row's sums, with what is added to all, where they belong. It changes `sums`.

    Of gated ones it is what the gates, the first half of each row, let through of the second.
    Shapes: sums: [num_rows, panel]; added: [panel]; the result's first `columns`, numbers like the elements of `like`,
    from the address `target` on, a row every `stride` bytes.
    """

    @njit(**EXACT)
    def write(sums, added, target, stride, columns, is_gated, like):
        more, width = added.ctypes.data, panel // 2 if is_gated else panel
        for i in range(sums.shape[0]):
            source, row = sums[i].ctypes.data, target + i * stride
            into = row if columns == width else source
            for j in range(0, width, 16):
                gates, ups, place = j * 4, (width + j) * 4, into + j * like.itemsize
                if is_gated:
                    store_gated(source + gates, more + gates, source + ups, more + ups, place, like)
                else:
                    store_sums(source + j * 4, more + j * 4, place, like)
            if columns < width:
                copy(source, row, columns * like.itemsize)

    return write
