"""Copies whole KV blocks: copy on write inside one cache, and swaps between device and host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Pairs = Sequence[tuple[int, int]]


def copy_blocks(cache: Tensor, pairs: Pairs) -> None:
    """Copies block `source` onto block `target` for each (source, target), as if one after the other.

    Shapes: cache: [layers, 2, num_blocks, ...]. Changes cache.
    """
    swap_blocks(cache, cache, pairs)


def swap_blocks(source: Tensor, target: Tensor, pairs: Pairs) -> None:
    """Copies block `a` of source onto block `b` of target for each (a, b), as if one after the other.

    Shapes: source, target: [layers, 2, num_blocks, ...], equal but for num_blocks; on any two devices.
    """
    if not pairs:
        return
    if _is_within_gpu_reach(source, target):
        from kernels.gpu import block_copy as on_gpu

        on_gpu.swap_blocks(source, target, pairs)
        return
    reads, writes = [a for a, _ in pairs], [b for _, b in pairs]
    ordered = len(set(writes)) < len(writes) or (source is target and not set(reads).isdisjoint(writes))
    if ordered:  # a block is both written and read, or written twice: the order decides
        for a, b in pairs:
            target[:, :, b].copy_(source[:, :, a])
        return
    moved = source.index_select(2, torch.tensor(reads, device=source.device)).to(target.device)
    target.index_copy_(2, torch.tensor(writes, device=target.device), moved)


def _is_within_gpu_reach(source: Tensor, target: Tensor) -> bool:
    if not (source.is_cuda or target.is_cuda):
        return False
    return all(cache.is_cuda or cache.is_pinned() for cache in (source, target))
