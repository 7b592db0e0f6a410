"""Fixed row counts for matrix products, so that a row's result does not depend on the other rows, to the last bit.

A GEMM library picks its kernel by the number of rows, and kernels add up in different orders. Measured with MKL,
float32: with AVX-512 a row among 5 differs from the same row among 17; with AVX2 the last rows of 8 differ from the
first ones, because its kernel takes six rows at a time. 16, 64 and 256 leave the same remainder by six, eight and
twelve, and agree with one another almost everywhere; `agreeing_tiles` measures it, and what does not agree is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

ROW_TILES = (256, 64, 16)
PACKED_TILES = (256, 128, 64, 32, 16, 8, 4)  # of `packed_matrix`, whose kernels agree over more row counts
MIN_ROWS = ROW_TILES[-1]
# Measured in bfloat16 with AMX, two threads, 109 million weights: 11 ms and 0.1 ms for each row.
PASS_ROWS = 100

Product = Callable[[Tensor], Tensor]


class Agreement(NamedTuple):
    """`tiles`: row counts that give equal bits here, falling, always with 16. `exact`: so does every row of them."""

    tiles: tuple[int, ...]
    exact: bool


@lru_cache(maxsize=8192)
def padded_rows(rows: int, tiles: tuple[int, ...] = (MIN_ROWS,)) -> int:
    """`rows` rounded up to the tiles that cover them in the least time.

    A product reads its whole matrix for each tile, which costs what `PASS_ROWS` rows of arithmetic cost: 300 rows are
    faster as 256 + 64 than as 256 + 32 + 8 + 4.
    """
    whole, rest = divmod(rows, tiles[0])
    return whole * tiles[0] + _cover(rest, tiles)[1]


@lru_cache(maxsize=8192)
def _cover(rows: int, tiles: tuple[int, ...]) -> tuple[int, int]:
    """The least cost of covering `rows`, and the rows it computes."""
    if rows <= 0:
        return 0, 0
    found = []
    for tile in tiles:
        cost, computed = _cover(rows - tile, tiles)
        found.append((cost + tile + PASS_ROWS, computed + tile))
    return min(found)


def split_rows(rows: int, tiles: tuple[int, ...] = ROW_TILES) -> list[tuple[int, int]]:
    """(start, size) of tiles that cover `rows`, largest first; the last one may reach beyond."""
    parts, start = [], 0
    while start < rows:
        size = next((tile for tile in tiles if tile <= rows - start), tiles[-1])
        parts.append((start, size))
        start += size
    return parts


def agreeing_tiles(
    products: Iterable[tuple[Product, int, torch.dtype]], candidates: tuple[int, ...] = ROW_TILES
) -> Agreement:
    """Which tiles may be used together for all of these products, each with its input's width and type.

    Measured on random rows: another order of additions shows in some of them for certain. Each size must give what 16
    gives, also with the rows the other way round. `candidates` hold 16.
    """
    agreed, exact = set(candidates), True
    generator = torch.Generator().manual_seed(0)
    for product, width, dtype in products:
        rows = torch.randn((max(candidates), width), generator=generator).to(dtype)
        turned = rows.flip(0)
        expected = _by_tile(product, rows, MIN_ROWS)
        exact = exact and torch.equal(_by_tile(product, turned, MIN_ROWS).flip(0), expected)
        agreed = {
            tile
            for tile in agreed
            if tile == MIN_ROWS
            or (
                torch.equal(_by_tile(product, rows, tile), expected)
                and torch.equal(_by_tile(product, turned, tile).flip(0), expected)
            )
        }
    return Agreement(tuple(sorted(agreed, reverse=True)), exact)


def _by_tile(product: Product, rows: Tensor, tile: int) -> Tensor:
    return torch.cat([product(part) for part in rows.contiguous().split(tile)])
