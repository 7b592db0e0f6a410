"""Linear layers. On a CPU in float32 and bfloat16, from packed weights, no row's bits depend on the batch."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kernels.block_weight import GROUP, MAX_BYTE_WIDTH, ROUNDED_INT4, BlockWeight, quantised
from kernels.cpu import amx, instructions
from kernels.cpu.block_matrix import BlockMatrix
from kernels.cpu.byte_matrix import ByteMatrix
from kernels.cpu.byte_tiles import WIDTH_STEP, ByteTileMatrix
from kernels.cpu.dtypes import has_kernels
from kernels.cpu.nibble_matrix import NibbleMatrix
from kernels.cpu.pair_block_matrix import PairBlockMatrix
from kernels.cpu.pair_matrix import PairMatrix
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.quad_matrix import QuadMatrix
from kernels.cpu.tile_matrix import TileMatrix
from kernels.cpu.vector_matrix import VectorMatrix
from kernels.layer_ops import silu_mul
from kernels.quantization import Quantization


@runtime_checkable
class DeviceMatrix(Protocol):
    """A weight that is packed on a GPU (`kernels.gpu.block_matrix`)."""

    shape: torch.Size

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """As `row_linear`."""

    def tensors(self) -> list[Tensor]:
        """All that it keeps on its device."""


Weight = Tensor | PanelMatrix | DeviceMatrix


def pack(weight: Tensor, *, is_gated: bool = False) -> Weight:
    """The weight `[out, width]` in the layout that this machine multiplies fastest from; itself where there is none.

    `is_gated`: it is only given to `gated_linear`.
    """
    if not has_kernels(weight):
        return weight
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 32 == 0 and amx.has_amx():
        return TileMatrix(weight, is_gated=is_gated)
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 4 == 0 and instructions.has_neon_dot():
        return QuadMatrix(weight, is_gated=is_gated)
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0 and instructions.has_dot():
        return PairMatrix(weight, is_gated=is_gated)
    return VectorMatrix(weight, is_gated=is_gated)


def takes_blocks(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Whether inputs of this dtype are multiplied there with weights in blocks."""
    is_on_gpu = torch.device(device).type == "cuda"
    return dtype in (torch.float32, torch.bfloat16) or (is_on_gpu and dtype == torch.float16)


def pack_blocks(
    weight: Tensor | BlockWeight,
    dtype: torch.dtype,
    kind: Quantization | None,
    *,
    is_gated: bool = False,
    device: torch.device | str = "cpu",
) -> Weight:
    """The weight as blocks, for inputs of `dtype` on `device`: those that it is, or else rounded to `kind`.

    Without a kind, and where its rows are no whole blocks, a tensor is packed as it is. A GPU rounds no inputs.
    """
    device = torch.device(device)
    if not isinstance(weight, BlockWeight):
        if kind is None or weight.shape[1] % GROUP or not takes_blocks(device, weight.dtype):
            return pack(weight, is_gated=is_gated)
        weight = quantised(weight, "int8" if kind == "w8a8" and weight.shape[1] > MAX_BYTE_WIDTH else kind)
    if device.type == "cuda":
        from kernels.gpu.block_matrix import GpuBlockMatrix

        return GpuBlockMatrix(weight, dtype, device, is_gated=is_gated)
    if weight.kind == ROUNDED_INT4:
        return NibbleMatrix(weight, dtype, is_gated=is_gated)
    if not weight.is_byte_kind:
        has_pairs = dtype == torch.bfloat16 and instructions.has_dot() and not instructions.has_neon_dot()
        if has_pairs:
            return PairBlockMatrix(weight, is_gated=is_gated)
        return BlockMatrix(weight, dtype, is_gated=is_gated)
    has_tiles = weight.shape[1] % WIDTH_STEP == 0 and amx.has_byte_amx()
    return (ByteTileMatrix if has_tiles else ByteMatrix)(weight, dtype, is_gated=is_gated)


def row_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`.

    Shapes: x: [num_rows, width]; weight: [out, width]; bias: [out]; result: [num_rows, out].
    Bytes moved: x, the weight and the result once; from a packed weight see `PanelMatrix`.
    With a plain weight, on CUDA and in float16 on a CPU, last bits may differ with the batch.
    """
    return torch.nn.functional.linear(x, weight, bias) if isinstance(weight, Tensor) else weight(x, bias)


def gated_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """`silu(gate) * up` of `row_linear`'s result, whose first half are gates; a packed weight must be packed as gated.

    Shapes: as in `row_linear`; result: [num_rows, out / 2].
    """
    found = row_linear(x, weight, bias)
    return silu_mul(found) if isinstance(weight, Tensor) else found
