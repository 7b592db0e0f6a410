"""What a model's matrices can be rounded to while it is loaded. Free of torch."""

from __future__ import annotations

from typing import Literal, TypeGuard, get_args

__all__ = ["QUANTIZATIONS", "CompensatedKind", "Quantization", "is_compensated"]

# `w`: bits of weights, `a`: bits of what they are multiplied with, where it is rounded too.
Quantization = Literal["int8", "int4", "w8a8", "w4a8"]
CompensatedKind = Literal["int4", "w4a8"]  # whose errors are large enough to be made up for
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)


def is_compensated(kind: Quantization | None) -> TypeGuard[CompensatedKind]:
    """Whether the errors of such rounding are made up for at load (`kernels/compensated.py`)."""
    return kind in get_args(CompensatedKind)
