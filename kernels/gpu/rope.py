"""Rotary position embedding of q and k in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import POINTERS, Variant, power_of_two, type_name

_OPTIONS = {"num_warps": 2, "enable_fp_fusion": True}
HEADS = 8  # heads a program rotates: its cosines are read once for all of them


@triton.jit
def _rotate(
    x_ptr,
    out_ptr,
    token,
    group,
    heads,
    token_stride,
    head_stride,
    low_cos,
    low_sin,
    high_cos,
    high_sin,
    half: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """Rotates one group of a token's heads: HEADS of q, or of k."""
    head = group * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF_BLOCK)
    mask = (head < heads)[:, None] & (pair < half)[None, :]
    source = x_ptr + token * token_stride + head[:, None] * head_stride + pair[None, :]
    a = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + half, mask=mask, other=0.0).to(tl.float32)
    target = out_ptr + (token * heads + head[:, None]) * (2 * half) + pair[None, :]
    low = a * low_cos[None, :] + b * low_sin[None, :]
    high = b * high_cos[None, :] + a * high_sin[None, :]
    tl.store(target, low.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(target + half, high.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    q_out_ptr,
    k_out_ptr,
    q_heads,
    k_heads,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """Program (token, group): the first groups are heads of q, the rest heads of k.

    out[i] = x[i] cos[i] + x[i + half] sin[i]; out[i + half] = x[i + half] cos[i + half] + x[i] sin[i + half].
    """
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    q_groups = tl.cdiv(q_heads, HEADS)
    pair = tl.arange(0, HALF_BLOCK)
    angle = token * (2 * HALF) + pair
    low_cos = tl.load(cos_ptr + angle, mask=pair < HALF, other=0.0)
    low_sin = tl.load(sin_ptr + angle, mask=pair < HALF, other=0.0)
    high_cos = tl.load(cos_ptr + angle + HALF, mask=pair < HALF, other=0.0)
    high_sin = tl.load(sin_ptr + angle + HALF, mask=pair < HALF, other=0.0)
    if group < q_groups:
        _rotate(
            q_ptr,
            q_out_ptr,
            token,
            group,
            q_heads,
            q_token_stride,
            q_head_stride,
            low_cos,
            low_sin,
            high_cos,
            high_sin,
            HALF,
            HEADS,
            HALF_BLOCK,
        )
    else:
        _rotate(
            k_ptr,
            k_out_ptr,
            token,
            group - q_groups,
            k_heads,
            k_token_stride,
            k_head_stride,
            low_cos,
            low_sin,
            high_cos,
            high_sin,
            HALF,
            HEADS,
            HALF_BLOCK,
        )


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotates pairs (i, i + head_dim / 2) of each head: `(a cos - b sin, b cos + a sin)`. New, contiguous tensors.

    Shapes: q: [num_tokens, num_heads, head_dim]; k: [num_tokens, num_kv_heads, head_dim], each a view with any token
    and head stride; cos, sin: [num_tokens, head_dim], float32, as `full_tables` makes them. Computed in float32.
    Bytes moved: q and k once in and out; cos and sin once per eight heads, from cache after the first.
    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    q = q if q.stride(-1) == 1 else q.contiguous()
    k = k if k.stride(-1) == 1 else k.contiguous()
    num_tokens, q_heads, head_dim = q.shape
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    if num_tokens:
        groups = triton.cdiv(q_heads, HEADS) + triton.cdiv(k.shape[1], HEADS)
        _rope_kernel[(num_tokens, groups)](
            q,
            k,
            cos.contiguous(),
            sin.contiguous(),
            q_out,
            k_out,
            q_heads,
            k.shape[1],
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            HALF=head_dim // 2,
            HEADS=HEADS,
            HALF_BLOCK=power_of_two(head_dim // 2),
            **_OPTIONS,
        )
    return q_out, k_out


def variants(arch: int) -> Iterator[Variant]:
    """Head sizes of common models, one that is no power of two among them."""
    for head_dim, dtype in [(64, torch.bfloat16), (80, torch.float16), (128, torch.bfloat16), (256, torch.float32)]:
        yield Variant(
            f"{type_name(dtype)} head_dim={head_dim}",
            _rope_kernel,
            {
                "q_ptr": POINTERS[dtype],
                "k_ptr": POINTERS[dtype],
                "cos_ptr": "*fp32",
                "sin_ptr": "*fp32",
                "q_out_ptr": POINTERS[dtype],
                "k_out_ptr": POINTERS[dtype],
                "q_heads": "i32",
                "k_heads": "i32",
                **dict.fromkeys(("q_token_stride", "q_head_stride", "k_token_stride", "k_head_stride"), "i32:16"),
            },
            {"HALF": head_dim // 2, "HEADS": HEADS, "HALF_BLOCK": power_of_two(head_dim // 2)},
            _OPTIONS,
        )
