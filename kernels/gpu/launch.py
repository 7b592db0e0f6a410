"""What all launchers share: block sizes, and how a kernel is named and typed to be compiled without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

IS_INTERPRETED: bool = triton.knobs.runtime.interpret

POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


HOPPER = 90  # sm_90, as `arch` says it


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of a kernel: what `kernels.compile_report` builds for a GPU that is not there.

    `types` are Triton's names of the run-time arguments' types; a type that ends in ":16" is an integer divisible by
    sixteen. Pointers are aligned to 16 bytes, as torch allocates them.
    """

    label: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def arch_of(x: torch.Tensor) -> int:
    """The architecture of the GPU that a tensor is on, like 90; that of a H100 in the interpreter."""
    if not x.is_cuda:
        return HOPPER
    major, minor = torch.cuda.get_device_capability(x.device)
    return 10 * major + minor


def power_of_two(at_least: int) -> int:
    """The smallest power of two that is not below `at_least`."""
    return 1 << max(at_least - 1, 0).bit_length()


def dot_type(dtype: torch.dtype) -> Any:
    """The type that `tl.dot` reads. Triton's interpreter multiplies bfloat16 as integers, so it gets float32 there."""
    return tl.float32 if IS_INTERPRETED and dtype == torch.bfloat16 else _TRITON_TYPES[dtype]


def type_name(dtype: torch.dtype) -> str:
    """As in "bfloat16"."""
    return str(dtype).removeprefix("torch.")
