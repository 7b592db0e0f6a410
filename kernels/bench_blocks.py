"""Cases of `kernels.bench` for weights in blocks: decoding by bytes, prompts by products, beside torch's bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels.bench_attention import DTYPE, Case
from kernels.block_weight import BlockWeight, Kind, empty_blocks

SHAPES = ((4096, 4096), (28_672, 4096), (4096, 14_336))  # of a model of 8B parameters: output, gates and ups, down
DECODE_ROWS, PROMPT_ROWS = (1, 16), (64, 512, 4096)
# As files have them, and as checkpoints: the columns that share a scale, 0 for a row.
KINDS: tuple[tuple[Kind, int], ...] = (
    ("int4", 32),
    ("int4 with offsets", 32),
    ("int4 with zeros", 128),
    ("int8", 32),
    ("w8a8", 0),
    ("fp8", 128),
)


def block_cases() -> Iterator[Case]:
    """Each kind and shape; for prompts the largest shape alone."""
    for kind, group in KINDS:
        for shape in SHAPES:
            for rows in DECODE_ROWS:
                yield _case("block_product decode", kind, group, shape, rows)
        for rows in PROMPT_ROWS:
            yield _case("block_product prompt", kind, group, SHAPES[1], rows)


def _case(op: str, kind: Kind, group: int, shape: tuple[int, int], rows: int) -> Case:
    from kernels.gpu.block_matrix import packed
    from kernels.gpu.block_product import block_product

    out_width, width = shape
    blocks = packed(_random(kind, out_width, width, group or width), DTYPE, "cuda")
    x, wide = (torch.randn(size, width, dtype=DTYPE, device="cuda") for size in (rows, out_width))
    num_bytes = blocks.num_bytes + x.nbytes + rows * out_width * DTYPE.itemsize
    columns = f"group={group or 'row'}"
    return Case(
        op,
        f"{kind} {columns} {out_width}x{width} rows={rows}",
        num_bytes,
        2 * rows * out_width * width if op.endswith("prompt") else None,
        {
            "triton": partial(block_product, x, blocks),
            "torch, bfloat16 (GB/s of our bytes)": partial(torch.nn.functional.linear, x, wide),
        },
    )


def _random(kind: Kind, rows: int, width: int, group: int) -> BlockWeight:
    weight = empty_blocks(rows, width, kind)
    low, high = (-128, 128) if weight.codes.dtype == torch.int8 else (0, 127 if kind == "fp8" else 16)
    weight.codes.copy_(torch.randint(low, high, (rows, width)))
    _fill(weight.scales, group, torch.rand)
    if weight.offsets is not None:
        _fill(weight.offsets, group, partial(torch.randint, 16) if "zeros" in kind else torch.rand)
    return weight


def _fill(part: Tensor, group: int, draw: object) -> None:
    """Random numbers that columns of a group have in common."""
    drawn = draw((part.shape[0], part.shape[1]))  # type: ignore[operator] # torch's own signatures
    at = torch.arange(part.shape[1]) * 32 // group * max(group // 32, 1)
    part.copy_(drawn[:, at.clamp(max=part.shape[1] - 1)])
