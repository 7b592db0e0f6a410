"""The gated activation of a feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant, type_name

BLOCK = 1024
_OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, row_stride, width, BLOCK: tl.constexpr):
    """out = gate / (1 + exp(-gate)) * up, in float32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    source = gate_up_ptr + row * row_stride + column
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, with gate the first and up the second half of the last axis. A new tensor.

    Shapes: gate_up: [..., 2 x width]; result: [..., width]. Bytes moved: 3 x rows x width x itemsize.
    Source: Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU).
    """
    width = gate_up.shape[-1] // 2
    rows = gate_up if gate_up.dim() == 2 and gate_up.stride(1) == 1 else gate_up.reshape(-1, 2 * width).contiguous()
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (rows.shape[0], triton.cdiv(width, BLOCK))
        _silu_mul_kernel[grid](rows, out, rows.stride(0), width, BLOCK=BLOCK, **_OPTIONS)
    return out


def variants(arch: int) -> Iterator[Variant]:
    """Dtypes of models."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        types = {
            "gate_up_ptr": POINTERS[dtype],
            "out_ptr": POINTERS[dtype],
            "row_stride": "i32:16",
            "width": "i32:16",
        }
        yield Variant(type_name(dtype), _silu_mul_kernel, types, {"BLOCK": BLOCK}, _OPTIONS)
