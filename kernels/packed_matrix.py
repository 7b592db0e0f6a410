"""Weights in the layout that oneDNN multiplies fastest from, on CPUs: stored once, read at memory speed.

A plain matrix is reordered inside every product, or read by kernels that leave half of the memory's bandwidth unused.
Packed at load, a product of few rows runs as fast as the weights can be read: with AMX, 16 rows in bfloat16 cost what
one row does, so tiles of 16 (see `row_tiles`) are free there.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from kernels.row_tiles import PACKED_TILES, Agreement, Product, agreeing_tiles, split_rows

# oneDNN lays a matrix out for the number of rows that it is told to expect. What it chooses for many rows is faster;
# what it chooses for one agrees over more row counts where a layer is wide.
EXPECTED_ROWS = (256, 1)


class PackedMatrix:
    """A weight `[out, width]` on a CPU. `tiles`: row counts that give equal bits here, falling."""

    __slots__ = ("_packed", "dtype", "shape", "tiles")

    def __init__(self, weight: Tensor, expected_rows: int, tiles: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.tiles = weight.shape, weight.dtype, tiles
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, expected_rows)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`. Shapes: x: [num_rows, width], num_rows a multiple of the smallest tile."""
        rows = x.shape[0]
        if rows in self.tiles:
            return _multiply(x, self._packed, bias)
        out = torch.empty((rows, self.shape[0]), dtype=x.dtype)
        for start, size in split_rows(rows, self.tiles):
            assert start + size <= rows, f"{rows} rows are no multiple of {self.tiles[-1]}"
            out[start : start + size] = _multiply(x[start : start + size], self._packed, bias)
        return out


def pack_for_onednn(weight: Tensor) -> PackedMatrix | None:
    """The packed matrix, or None where packing is of no use: no oneDNN, a type it is slow in, rows that disagree."""
    if not can_pack(weight.dtype) or weight.device.type != "cpu":
        return None
    expected_rows, agreement = _layout(tuple(weight.shape), weight.dtype, torch.get_num_threads())
    return PackedMatrix(weight, expected_rows, agreement.tiles) if agreement.exact else None


def can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return has_fast_bfloat16()
    return dtype == torch.float32


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware (AMX or AVX-512 BF16, on ARM BF16): else float32 is faster."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported() and _has_instructions()


def _has_instructions() -> bool:
    # oneDNN says yes to every AVX-512 machine, and emulates.
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - one line is enough
            for line in file:
                if line.startswith(("flags", "Features")):
                    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(line.split())
    except OSError:
        return False
    return False


@lru_cache(maxsize=256)
def _layout(shape: tuple[int, int], dtype: torch.dtype, num_threads: int) -> tuple[int, Agreement]:
    """The layout whose products agree up to the largest tile; the same answer at every start on one machine."""
    out, width = shape
    weight = torch.randn((out, width), generator=torch.Generator().manual_seed(1)).mul_(width**-0.5).to(dtype)
    found = []
    for expected_rows in EXPECTED_ROWS:
        product: Product = partial(_plain, PackedMatrix(weight, expected_rows, PACKED_TILES))
        found.append((expected_rows, agreeing_tiles([(product, width, dtype)], PACKED_TILES)))
    return max(found, key=lambda layout: (layout[1].exact, layout[1].tiles[0]))


def _plain(matrix: PackedMatrix, rows: Tensor) -> Tensor:
    return _multiply(rows, matrix._packed, None)


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
