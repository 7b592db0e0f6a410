"""Checkpoints in AWQ's and GPTQ's layouts: which tensors hold a matrix, and what numbers they say. Four or eight bits.

Both keep a matrix transposed, `[width, rows]`, as integers in 32-bit words beside a scale and a zero for each group of
columns: GPTQ packs eight columns of a row in a word, AWQ eight rows of a column, in an order of its own. Here they
become numbers again at load.

    BadConfigError   ValueError: `quantization_config` says something else
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.model.config import BadConfigError

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight rows each four bits of a word belong to
_ENDINGS = {"awq": ("qweight", "qzeros", "scales"), "gptq": ("qweight", "qzeros", "scales", "g_idx")}


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """What `quantization_config` says. `zero_shift`: what is added to a stored zero (GPTQ stores one less)."""

    method: Literal["awq", "gptq"]
    bits: int
    zero_shift: int = 0

    def parts(self, name: str) -> tuple[str, ...]:
        """The tensors that hold a matrix `...weight`."""
        return tuple(f"{name.removesuffix('weight')}{ending}" for ending in _ENDINGS[self.method])


def packed_format(tree: Mapping[str, Any]) -> PackedFormat | None:
    """Of a decoded `config.json`; None for one that is not quantised. Raises BadConfigError."""
    told = tree.get("quantization_config")
    if not told:
        return None
    method = told.get("quant_method") if isinstance(told, dict) else None
    if method not in _ENDINGS:
        raise BadConfigError(
            f"quantization_config.quant_method: {method!r} is not supported; awq and gptq are, and GGUF files"
        )
    bits = told.get("bits", 4)
    if bits not in ((4,) if method == "awq" else (4, 8)):
        raise BadConfigError(f"quantization_config.bits: {bits!r} is not supported with {method}")
    if method == "awq" and str(told.get("version", "gemm")).lower() != "gemm":
        raise BadConfigError(f"quantization_config.version: {told['version']!r} is not supported; gemm is")
    is_shifted = method == "gptq" and told.get("checkpoint_format", "gptq") != "gptq_v2"
    return PackedFormat(method, bits, int(is_shifted))


def packed_shape(fmt: PackedFormat, qweight: tuple[int, ...]) -> tuple[int, ...]:
    """`[rows, width]` of the matrix that a `qweight` of this shape holds."""
    if len(qweight) != 2:
        return qweight
    many = 32 // fmt.bits
    return (qweight[1] * many, qweight[0]) if fmt.method == "awq" else (qweight[1], qweight[0] * many)
