"""The numbers of a matrix in AWQ's or GPTQ's layout: `[rows, width]`, float32."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.packed_weights import AWQ_ORDER, PackedFormat


def unpacked(fmt: PackedFormat, parts: list[Tensor]) -> Tensor:
    """`scale x (code - zero)` of each group.

    Shapes: AWQ: qweight [width, rows / 8], qzeros [groups, rows / 8], scales [groups, rows]. GPTQ: qweight [width / 8,
    rows], qzeros and scales as AWQ's, g_idx [width], the group of each column, in any order (act-order).
    """
    qweight, qzeros, scales = parts[:3]
    zeros = _fields(qzeros, fmt.bits)
    if fmt.method == "awq":
        codes, zeros = (_in_order(part) for part in (_fields(qweight, fmt.bits), zeros))
        groups = torch.arange(codes.shape[0]) // (codes.shape[0] // scales.shape[0])
    else:
        codes = _fields(qweight.T.contiguous(), fmt.bits).flatten(1).T
        groups = parts[3].long()
    zeros = zeros.flatten(1) + fmt.zero_shift
    return ((codes - zeros[groups]).float() * scales.float()[groups]).T


def _fields(words: Tensor, bits: int) -> Tensor:
    """What each word of the last axis holds, lowest bits first: one axis more."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.to(torch.int32)[..., None] >> shifts) & ((1 << bits) - 1)


def _in_order(fields: Tensor) -> Tensor:
    """AWQ's eights as rows lie: [n, rows]."""
    order = torch.tensor([AWQ_ORDER.index(i) for i in range(len(AWQ_ORDER))])
    return fields[..., order].flatten(1)
