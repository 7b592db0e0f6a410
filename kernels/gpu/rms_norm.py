"""RMSNorm, alone or with the residual addition before it: one pass over memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant, power_of_two, type_name

MAX_WIDTH = 32_768  # a row is held in registers
TILE_ELEMENTS = 2048  # narrow rows (the norm of single heads) share a program up to here


@triton.jit(do_not_specialize=["num_rows"])  # else compiled again for batches of one row and of sixteens
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    h_ptr,
    num_rows,
    inner_rows,
    outer_stride,
    inner_stride,
    width,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Row r of x is at `r // inner_rows * outer_stride + r % inner_rows * inner_stride`; the others are contiguous.

    h = x (+ residual), rounded to its type before it is used, as it is stored; y = weight h / sqrt(mean(h^2) + eps).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
    rows = rows.to(tl.int64)
    source = (rows // inner_rows) * outer_stride + (rows % inner_rows) * inner_stride
    place = rows[:, None] * width + columns[None, :]
    h = tl.load(x_ptr + source[:, None] + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        h += tl.load(residual_ptr + place, mask=mask, other=0.0).to(tl.float32)
        narrow = h.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + place, narrow, mask=mask)
        h = narrow.to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(h * h, axis=1) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)
    y = h * scale[:, None] * weight[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`weight * h / sqrt(mean(h^2) + eps)` over the last axis; with a residual also `h = x + residual`. New tensors.

    Shapes: x, residual: [..., width], width up to 32,768; weight: [width]. x may be a strided view of up to three
    axes (the q or k part of a fused projection). A row's bits depend on that row alone.
    Bytes moved: x (and residual) in, y (and h) out, each once: 2 x or 4 x rows x width x itemsize.
    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """
    width = x.shape[-1]
    if width > MAX_WIDTH:
        raise ValueError(f"rms_norm: width {width} is above {MAX_WIDTH}, the longest row held in registers")
    if x.stride(-1) != 1 or x.dim() > 3:
        x = x.contiguous()
    num_rows, (inner_rows, outer_stride, inner_stride) = x.numel() // width if width else 0, _rows(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = None
    if residual is not None:
        residual, h = residual.contiguous(), torch.empty_like(y)
    if num_rows:
        rows, block, options = _tile(width)
        _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
            x,
            residual if residual is not None else x,
            weight,
            y,
            h if h is not None else y,
            num_rows,
            inner_rows,
            outer_stride,
            inner_stride,
            width,
            eps,
            HAS_RESIDUAL=residual is not None,
            ROWS=rows,
            BLOCK=block,
            **options,
        )
    return y if h is None else (y, h)


def _rows(x: Tensor) -> tuple[int, int, int]:
    """(inner rows, outer stride, inner stride) of x's rows."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    if x.is_contiguous():
        return 1, x.shape[-1], 0
    return 1, x.stride(0), 0


def _tile(width: int) -> tuple[int, int, dict[str, object]]:
    block = power_of_two(width)
    warps = min(max(block // 1024, 4), 16)
    return max(TILE_ELEMENTS // block, 1), block, {"num_warps": warps, "enable_fp_fusion": True}


def variants(arch: int) -> Iterator[Variant]:
    """Widths of a head, of small and of large models."""
    for width, has_residual, dtype in [
        (128, False, torch.bfloat16),
        (768, True, torch.float32),
        (2048, True, torch.bfloat16),
        (4096, True, torch.bfloat16),
        (8192, True, torch.float16),
        (16384, True, torch.float32),
    ]:
        rows, block, options = _tile(width)
        pointer = POINTERS[dtype]
        yield Variant(
            f"{type_name(dtype)} width={width} residual={'yes' if has_residual else 'no'}",
            _rms_norm_kernel,
            {
                **dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "y_ptr", "h_ptr"), pointer),
                "num_rows": "i32",
                "inner_rows": "i32",
                "outer_stride": "i32:16",
                "inner_stride": "i32:16",
                "width": "i32:16",
                "eps": "fp32",
            },
            {"HAS_RESIDUAL": has_residual, "ROWS": rows, "BLOCK": block},
            options,
        )
