"""A weight in blocks as a GPU multiplies it: codes of four or eight bits in tiles, no scale twice."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.block_weight import GROUP, BlockWeight, Kind
from kernels.gpu.block_product import FP8, INT4, INT8, TILE, Blocks, block_product
from kernels.gpu.silu_mul import silu_mul

MAX_STEP = 128  # columns that a program multiplies at a time
MAX_FP8_STEP = 64  # whose codes take more registers to become numbers
_NAN_CODE = 0x7F  # of E4M3, but for its sign


class GpuBlockMatrix:
    """A weight `[out, width]` of any kind of blocks on a GPU, packed once; the inputs of W8A8 are not rounded here."""

    __slots__ = ("_blocks", "_order", "dtype", "is_gated", "shape")

    def __init__(
        self, weight: BlockWeight, dtype: torch.dtype, device: torch.device | str, *, is_gated: bool = False
    ) -> None:
        self.shape, self.dtype, self.is_gated = weight.shape, dtype, is_gated
        self._blocks = packed(weight, dtype, device)
        self._order = None if weight.order is None else weight.order.to(device)  # act-order: columns as the codes lie

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, or of a gated one `silu(gate) * up` of its halves.

        Shapes: x: [num_rows, width]; bias: [out]; result: [num_rows, out], half as wide when gated.
        """
        x = x.to(self.dtype)
        found = block_product(x if self._order is None else x[:, self._order], self._blocks, bias)
        return silu_mul(found) if self.is_gated else found

    def tensors(self) -> list[Tensor]:
        """All that it keeps on the device."""
        kept = (self._blocks.codes, self._blocks.scales, self._blocks.offsets, self._order)
        return [tensor for tensor in kept if tensor is not None]


def packed(weight: BlockWeight, dtype: torch.dtype, device: torch.device | str) -> Blocks:
    """The weight's codes and scales in the layout of `Blocks`, on the device."""
    kind, width = _code_of(weight.kind), weight.shape[1]
    scales, offsets = weight.scales, weight.offsets
    if kind == FP8:  # a product with such a number is NaN, which its bits as the kernel reads them are not
        is_nan = ((weight.codes & _NAN_CODE) == _NAN_CODE).unflatten(1, (scales.shape[1], -1)).any(-1)
        scales = scales.masked_fill(is_nan, torch.nan)
    group = width // scales.shape[1]
    if weight.kind == "int4 with zeros":
        assert offsets is not None
        scales, offsets, group = _coarsest(scales, offsets, width)
        assert offsets is not None
        offsets = offsets.to(torch.uint8)  # whole numbers
    elif offsets is None:
        scales, _, group = _coarsest(scales, None, width)
    step = _step(kind, group, width, dtype)
    codes = _padded(weight.codes.view(torch.uint8) ^ (128 if kind == INT8 else 0))  # whole numbers plus 128
    tiles = codes.unflatten(0, (-1, TILE)).unflatten(2, (-1, step)).transpose(1, 2)  # [tiles, steps, TILE, step]
    if kind == INT4:
        low, high = tiles.split(step // 2, dim=-1)
        tiles = low | (high << 4)
    return Blocks(
        kind,
        tiles.contiguous().to(device),
        _padded(scales).T.contiguous().to(device),
        None if offsets is None else _padded(offsets).T.contiguous().to(device),
        out_width=weight.shape[0],
        width=width,
        group=0 if group == width and not weight.kind.endswith("offsets") else group,
        step=step,
    )


def _code_of(kind: Kind) -> int:
    if kind == "fp8":
        return FP8
    return INT4 if kind.startswith("int4") else INT8


def _coarsest(scales: Tensor, offsets: Tensor | None, width: int) -> tuple[Tensor, Tensor | None, int]:
    """The same scales and zeros with no copies of neighbours, and the columns that share one: a checkpoint's groups."""
    parts = [part for part in (scales, offsets) if part is not None]

    def same(step: int) -> bool:
        halves = ([part[:, i::step] for i in range(step)] for part in parts)
        return all(torch.equal(first, other) for first, *others in halves for other in others)

    count = scales.shape[1]
    if all(torch.equal(part, part[:, :1].expand_as(part)) for part in parts):
        step = count
    else:
        step = 1
        while count % (2 * step) == 0 and same(2 * step):
            step *= 2
    return scales[:, ::step], None if offsets is None else offsets[:, ::step], width // count * step


def _step(kind: int, group: int, width: int, dtype: torch.dtype) -> int:
    """Columns of a step: within a group, but where two of 32 fill the halves of bytes of four bits."""
    if dtype == torch.float32:  # multiplied without tensor cores, from registers
        return min(group, GROUP)
    if kind == INT4 and group == GROUP:
        return 2 * GROUP if width % (2 * GROUP) == 0 else GROUP
    step = MAX_FP8_STEP if kind == FP8 else MAX_STEP
    while group % step:
        step //= 2
    return step


def _padded(part: Tensor) -> Tensor:
    """Rows of zeros behind, so that tiles are whole."""
    return torch.nn.functional.pad(part, (0, 0, 0, -part.shape[0] % TILE))
