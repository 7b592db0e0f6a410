"""What a model's matrices can be rounded to while it is loaded. Free of torch."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["QUANTIZATIONS", "Quantization"]

# `w`: bits of weights, `a`: bits of what they are multiplied with, where it is rounded too.
Quantization = Literal["int8", "int4", "w8a8", "w4a8"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
