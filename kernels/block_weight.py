"""A matrix as blocks of 32 weights with a scale each: what a GGUF file holds, and what quantising at load makes.

A weight is `scale x code + offset`. Every such number fits in a float32 (16 bits of a scale's and a code's digits),
but for the last rounding of an offset, so that what is computed from blocks is what is computed from these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

GROUP = 32  # weights of a row with one scale
INT8_MAX, INT4_MID = 127, 8
SMALLEST = 2.0**-24  # that a float16 can say
Kind = Literal["int8", "int4", "int4 with offsets"]


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """`[rows, width]` in blocks along the rows; all parts have the rows, so that it is cut as a tensor is."""

    kind: Kind
    codes: Tensor  # [rows, width], int8, or uint8 of 0 to 15, which 8 is subtracted from unless there are offsets
    scales: Tensor  # [rows, width / 32], float16
    offsets: Tensor | None = None  # as the scales

    @property
    def shape(self) -> torch.Size:
        """Of the weight."""
        return self.codes.shape

    def dequantised(self) -> Tensor:
        """The numbers that are computed with: [rows, width], float32."""
        codes = self.codes.unflatten(1, (-1, GROUP)).float()
        if self.kind == "int4":
            codes = codes - INT4_MID
        found = codes * self.scales.float()[..., None]
        return (found if self.offsets is None else found + self.offsets.float()[..., None]).flatten(1)

    def split(self, sizes: int | Sequence[int]) -> list[BlockWeight]:
        """Runs of rows, views of this one."""
        parts = zip(*(getattr(self, name).split(sizes) for name in self._parts()), strict=True)
        return [replace(self, **dict(zip(self._parts(), part, strict=True))) for part in parts]

    def copy_(self, other: BlockWeight) -> None:
        """Takes over another's numbers."""
        for name in self._parts():
            getattr(self, name).copy_(getattr(other, name))

    def rows(self, order: Tensor) -> BlockWeight:
        """These rows, in this order."""
        return replace(self, **{name: getattr(self, name)[order] for name in self._parts()})

    def _parts(self) -> list[str]:
        return [f.name for f in fields(self) if isinstance(getattr(self, f.name), Tensor)]


def empty_blocks(rows: int, width: int, kind: Kind) -> BlockWeight:
    """Memory for so many weights; `width` is a multiple of 32."""
    scales = torch.empty(rows, width // GROUP, dtype=torch.float16)
    codes = torch.empty(rows, width, dtype=torch.int8 if kind == "int8" else torch.uint8)
    return BlockWeight(kind, codes, scales, torch.empty_like(scales) if kind == "int4 with offsets" else None)


def quantised(weight: Tensor, kind: Literal["int8", "int4"]) -> BlockWeight:
    """The weight rounded to blocks.

    Shapes: weight: [rows, width], the width a multiple of 32.
    """
    blocks = weight.float().unflatten(1, (-1, GROUP))
    if kind == "int8":
        scales = (blocks.abs().amax(-1) / INT8_MAX).half()
        codes = _rounded(blocks, scales).clamp(-INT8_MAX, INT8_MAX)
        return BlockWeight(kind, codes.to(torch.int8).flatten(1), scales)
    lowest, highest = blocks.amin(-1), blocks.amax(-1)
    # The largest weight is the code -8, which has no positive twin.
    first = torch.where(-lowest > highest, lowest, highest) / -INT4_MID
    codes = _rounded(blocks, first).clamp_(-INT4_MID, INT4_MID - 1)
    # Of these codes the scale with the smallest squared error.
    scales = (codes * blocks).sum(-1).div_(codes.square().sum(-1).clamp_(min=1.0)).half()
    return BlockWeight(kind, codes.add_(INT4_MID).to(torch.uint8).flatten(1), scales)


def _rounded(blocks: Tensor, scales: Tensor) -> Tensor:
    """Codes of the blocks; zeros where a scale is too small for float16, and with it every weight of its block."""
    wide = scales.float()
    inverse = torch.where(wide.abs() < SMALLEST, 0.0, 1.0 / wide)
    return (blocks * inverse[..., None]).round_()
