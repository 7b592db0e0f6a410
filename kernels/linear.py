"""A linear layer, computed on a CPU so that no row's bits depend on the batch: by `TileMatrix`, else in `row_tiles`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from kernels.cpu import amx
from kernels.cpu.tile_matrix import TileMatrix
from kernels.packed_matrix import PackedMatrix, pack_for_onednn
from kernels.row_tiles import ROW_TILES, Product
from kernels.silu_mul import silu_mul

Weight = Tensor | PackedMatrix | TileMatrix


def pack(weight: Tensor, *, is_gated: bool = False) -> Weight:
    """The weight `[out, width]` in the layout that this machine multiplies fastest from; itself where there is none.

    `is_gated`: it is only given to `gated_linear`.
    """
    if weight.device.type != "cpu":
        return weight
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 32 == 0 and amx.has_amx():
        return TileMatrix(weight, is_gated=is_gated)
    packed = pack_for_onednn(weight)
    return weight if packed is None else packed


def row_linear(x: Tensor, weight: Weight, bias: Tensor | None = None, tiles: tuple[int, ...] = ROW_TILES) -> Tensor:
    """`x @ weight.T + bias`.

    Shapes: x: [num_rows, width]; weight: [out, width]; bias: [out]. On a CPU num_rows is a multiple of 16 for a plain
    matrix, of its smallest tile for a packed one, and any number for a `TileMatrix`. `tiles` are for plain matrices. On
    CUDA it is one plain call: last bits may differ with the batch there. Bytes moved: weight once a tile.
    """
    if not isinstance(weight, Tensor):
        return weight(x, bias)
    rows = x.shape[0]
    if x.is_cuda or rows in tiles:
        return torch.nn.functional.linear(x, weight, bias)
    out = torch.empty((rows, weight.shape[0]), dtype=x.dtype)
    start = 0
    for tile in tiles:
        while rows - start >= tile:
            out[start : start + tile] = torch.nn.functional.linear(x[start : start + tile], weight, bias)
            start += tile
    assert start == rows, f"{rows} rows are no multiple of {tiles[-1]}"
    return out


def gated_linear(x: Tensor, weight: Weight, bias: Tensor | None = None, tiles: tuple[int, ...] = ROW_TILES) -> Tensor:
    """`silu(gate) * up` of `row_linear`'s result: its first half are gates. Shape: [num_rows, out / 2]."""
    found = row_linear(x, weight, bias, tiles)
    return found if isinstance(weight, TileMatrix) else silu_mul(found)


def linear_products(weights: Iterable[Tensor]) -> Iterator[tuple[Product, int, torch.dtype]]:
    """One product for each distinct shape and type among the weights, to be given to `agreeing_tiles`."""
    for out, width, dtype in {(*w.shape, w.dtype): None for w in weights}:
        weight = torch.randn((out, width), generator=torch.Generator().manual_seed(1)).mul_(width**-0.5).to(dtype)
        yield partial(torch.nn.functional.linear, weight=weight), width, dtype
