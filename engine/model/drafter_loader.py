"""From a checked directory to what proposes tokens."""

from __future__ import annotations

import torch

from engine.model.draft_model import DraftModel
from engine.model.drafter import Drafter
from engine.model.drafter_directory import DrafterDir
from engine.model.eagle import Eagle
from engine.model.eagle_directory import EagleDir
from engine.model.medusa import MedusaHeads
from engine.model.medusa_directory import MedusaDir
from engine.model.weights import DecoderWeights
from kernels.kv_codes import KvCacheDtype


def load_drafter(
    drafter: DrafterDir,
    target: DecoderWeights,
    *,
    num_blocks: int,
    num_host_blocks: int,
    block_size: int,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device,
    kv_cache_dtype: KvCacheDtype = "auto",
    enforce_eager: bool = False,
) -> Drafter:
    """What proposes tokens for `target`. Raises BadModelError, and what torch raises where memory runs out."""
    if isinstance(drafter, MedusaDir):
        return MedusaHeads(drafter, target, dtype=dtype, device=device)
    if isinstance(drafter, EagleDir):
        return Eagle(
            drafter,
            target,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            block_size=block_size,
            max_len=max_len,
            dtype=dtype,
            device=device,
        )
    return DraftModel(
        drafter,
        num_blocks=num_blocks,
        block_size=block_size,
        max_len=max_len,
        dtype=dtype,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
        enforce_eager=enforce_eager,
    )
