"""A matrix as blocks of 32 weights, or 16, with a scale each: of quantised files, and what quantising at load makes.

A weight is `scale x code + offset`, or `scale x (code - zero)`. Every such number fits in a float32 (16 bits of a
scale's and a code's digits), but for the last rounding of an offset and of a product with a scale in float32, so that
what is computed from blocks is what is computed from these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from kernels.quantization import Quantization

GROUP = 32  # weights of a row with one scale
INT8_MAX, INT4_MID = 127, 8
SMALLEST = 2.0**-24  # that a float16 can say
GroupKind = Literal[
    "int8",
    "int4",
    "int4 with offsets",
    "int4 with zeros",
    "int8 with wide scales",
    "fp8",
    "int4 with wide offsets",
    "int8 with wide offsets",
    "int8 by sixteens",
    "int8 by sixteens with wide offsets",
]
# Of eight bits with a scale for each row, multiplied with inputs that are rounded to eight bits: by a scale for each
# row, by a scale and a zero for each row, or as calibrated beforehand; or by a scale for each row but for its outliers,
# which are multiplied as they are.
ByteKind = Literal["w8a8", "w8a8 asymmetric", "w8a8 static", "w8a8 with outliers"]
# As int4, and multiplied with inputs of eight bits, a scale for each row but for its outliers (W4A8).
RoundedKind = Literal["int4 with rounded inputs"]
ROUNDED_INT4: RoundedKind = "int4 with rounded inputs"
Kind = GroupKind | ByteKind | RoundedKind
MAX_BYTE_WIDTH = 2**16  # sums of more such products may not fit in 32 bits
SIXTEENS: tuple[GroupKind, ...] = ("int8 by sixteens", "int8 by sixteens with wide offsets")  # groups of 16 weights
_WIDE_OFFSETS = ("int4 with wide offsets", "int8 with wide offsets", "int8 by sixteens with wide offsets")
_WITH_OFFSETS = ("int4 with offsets", "int4 with zeros", *_WIDE_OFFSETS)
_WITH_WIDE_SCALES = ("int8 with wide scales", "fp8", *_WIDE_OFFSETS, *SIXTEENS)


class BlockLayout(NamedTuple):
    """What blocks a matrix is kept in. `has_order`: its columns lie in an order of their own (act-order)."""

    kind: Kind
    has_order: bool = False


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """`[rows, width]` in blocks along the rows; all parts but the order have the rows, so it is cut as a tensor is."""

    kind: Kind
    codes: Tensor  # [rows, width], int8, or uint8: an E4M3's bits, or 0 to 15 ("int4": 8 is subtracted from them)
    # [rows, width / 32], or / 16; float16, or float32 where they or offsets are wide, of fp8 and by sixteens; of bytes
    # [rows, 1], float32
    scales: Tensor
    offsets: Tensor | None = None  # as the scales; or whole numbers, zeros, that are subtracted from the codes
    inputs: Tensor | None = None  # "w8a8 static": [rows, 2], float32, scale and zero of what the row is multiplied with
    order: Tensor | None = None  # [width], int64: which column of the matrix each column of codes is; None: the same

    @property
    def shape(self) -> torch.Size:
        """Of the weight."""
        return self.codes.shape

    @property
    def num_bytes(self) -> int:
        """Of what is kept: codes of four bits lie two in a byte in the end."""
        codes = self.codes.nbytes // (2 if self.kind.startswith("int4") else 1)
        beside = (part.nbytes for part in (self.scales, self.offsets, self.order) if part is not None)
        return codes + sum(beside)

    @property
    def is_byte_kind(self) -> bool:
        """Whether inputs are rounded too."""
        return self.kind in get_args(ByteKind)

    def fixed_inputs(self) -> tuple[float, int] | None:
        """Scale and zero of the inputs, where they are calibrated: matrices that read the same may say several ranges,
        and the widest of them is taken.
        """
        if self.inputs is None:
            return None
        scales, zeros = self.inputs.double().unbind(1)
        low, high = float((scales * (-128 - zeros)).min()), float((scales * (127 - zeros)).max())
        if low == float(scales[0] * (-128 - zeros[0])) and high == float(scales[0] * (127 - zeros[0])):
            return float(scales[0]), int(zeros[0])
        if not zeros.any():
            return float(scales.max()), 0
        scale = (high - low) / 255
        return scale, min(max(round(-128 - low / scale), -128), 127)

    def dequantised(self) -> Tensor:
        """The numbers that are computed with: [rows, width], float32."""
        codes = self.codes.view(torch.float8_e4m3fn) if self.kind == "fp8" else self.codes
        codes = codes.float().unflatten(1, (self.scales.shape[1], -1))
        offsets = None if self.offsets is None else self.offsets.float()[..., None]
        if self.kind in ("int4", ROUNDED_INT4):
            codes = codes - INT4_MID
        elif self.kind == "int4 with zeros":
            codes, offsets = codes - offsets, None
        found = codes * self.scales.float()[..., None]
        found = (found if offsets is None else found + offsets).flatten(1)
        return found if self.order is None else found[:, self.order.argsort()]

    def by_sixteens(self) -> BlockWeight:
        """The same numbers as the kind that takes in all of whole numbers: "int8 by sixteens with wide offsets"."""
        times = self.scales.shape[1] * GROUP // self.codes.shape[1]  # scales for each 32 columns
        scales = self.scales.float().repeat_interleave(2 // times, dim=1)
        codes, offsets = self.codes.to(torch.int8), torch.zeros_like(scales)
        if self.kind in ("int4", ROUNDED_INT4):
            codes = codes - INT4_MID
        elif self.offsets is not None:
            offsets = self.offsets.float().repeat_interleave(2 // times, dim=1)
        return BlockWeight("int8 by sixteens with wide offsets", codes, scales, offsets, order=self.order)

    def split(self, sizes: int | Sequence[int]) -> list[BlockWeight]:
        """Runs of rows, views of this one."""
        parts = zip(*(getattr(self, name).split(sizes) for name in self._parts()), strict=True)
        return [replace(self, **dict(zip(self._parts(), part, strict=True))) for part in parts]

    def copy_(self, other: BlockWeight) -> None:
        """Takes over another's numbers; of parts of one matrix all have the same order."""
        if self.order is not None and other.order is not None:
            self.order.copy_(other.order)
        for name in self._parts():
            getattr(self, name).copy_(getattr(other, name))

    def rows(self, order: Tensor) -> BlockWeight:
        """These rows, in this order."""
        return replace(self, **{name: getattr(self, name)[order] for name in self._parts()})

    def _parts(self) -> list[str]:
        return [f.name for f in fields(self) if f.name != "order" and isinstance(getattr(self, f.name), Tensor)]


def empty_blocks(rows: int, width: int, kind: Kind, *, has_order: bool = False) -> BlockWeight:
    """Memory for so many weights; `width` is a multiple of 32."""
    order = torch.arange(width) if has_order else None
    if kind in get_args(ByteKind):
        inputs = torch.empty(rows, 2) if kind == "w8a8 static" else None
        return BlockWeight(
            kind, torch.empty(rows, width, dtype=torch.int8), torch.empty(rows, 1), inputs=inputs, order=order
        )
    groups = width // GROUP * (2 if kind in SIXTEENS else 1)
    scales = torch.empty(rows, groups, dtype=torch.float32 if kind in _WITH_WIDE_SCALES else torch.float16)
    codes = torch.empty(rows, width, dtype=torch.int8 if kind.startswith("int8") else torch.uint8)
    offsets = torch.empty_like(scales) if kind in _WITH_OFFSETS else None
    return BlockWeight(kind, codes, scales, offsets, order=order)


def quantised(weight: Tensor, kind: Quantization) -> BlockWeight:
    """The weight rounded to blocks.

    Shapes: weight: [rows, width], the width a multiple of 32.
    """
    if kind == "w8a8":
        rows = weight.float()[:, None]
        wide = rows.abs().amax(-1) / INT8_MAX
        codes = _rounded(rows, wide).clamp(-INT8_MAX, INT8_MAX).to(torch.int8).flatten(1)
        return BlockWeight("w8a8 with outliers", codes, wide)
    blocks = weight.float().unflatten(1, (-1, GROUP))
    if kind == "int8":
        scales = (blocks.abs().amax(-1) / INT8_MAX).half()
        codes = _rounded(blocks, scales).clamp(-INT8_MAX, INT8_MAX)
        return BlockWeight(kind, codes.to(torch.int8).flatten(1), scales)
    codes, scales = four_bits(blocks)
    kept = ROUNDED_INT4 if kind == "w4a8" else kind
    return BlockWeight(kept, codes.add_(INT4_MID).to(torch.uint8).flatten(1), scales)


def four_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Codes from -8 to 7, and of these codes the scale with the smallest squared error, as float16.

    Shapes: blocks: [..., weights of a group], float32; codes: the same; scales: [...].
    """
    lowest, highest = blocks.amin(-1), blocks.amax(-1)
    # The largest weight is the code -8, which has no positive twin.
    first = torch.where(-lowest > highest, lowest, highest) / -INT4_MID
    codes = _rounded(blocks, first).clamp_(-INT4_MID, INT4_MID - 1)
    # Of these codes the scale with the smallest squared error.
    return codes, (codes * blocks).sum(-1).div_(codes.square().sum(-1).clamp_(min=1.0)).half()


def _rounded(blocks: Tensor, scales: Tensor) -> Tensor:
    """Codes of the blocks; zeros where a scale is too small for float16, and with it every weight of its block."""
    wide = scales.float()
    inverse = torch.where(wide.abs() < SMALLEST, 0.0, 1.0 / wide)
    return (blocks * inverse[..., None]).round_()
