"""What proposes tokens, as it lies on disk: the kind of directory that each method calls for. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from engine.model.directory import BadModelError, ModelDir, Progress, dtype_bytes, kv_bytes_per_token, open_model
from engine.model.directory import weight_bytes as weight_bytes_of
from engine.model.eagle_directory import EagleDir, open_eagle
from engine.model.medusa_directory import MedusaDir, open_medusa

DrafterDir: TypeAlias = ModelDir | MedusaDir | EagleDir


def open_drafter(
    method: str, path: Path | str, target: ModelDir, *, verify: bool = True, progress: Progress | None = None
) -> DrafterDir:
    """What a method of speculation needs, checked to be for that model. Raises BadModelError."""
    if method == "medusa":
        return open_medusa(Path(path), target.config, verify=verify, progress=progress)
    if method == "eagle3":
        return open_eagle(Path(path), target.config, verify=verify, progress=progress)
    draft = open_model(path, verify=verify, progress=progress)
    if draft.config.vocab_size != target.config.vocab_size:
        raise BadModelError(
            draft.path,
            f"vocab_size: it has {draft.config.vocab_size} tokens, {target.path} has {target.config.vocab_size}",
            "give a model of the same family, with the same tokenizer",
        )
    return draft


def most_proposed(drafter: DrafterDir, num_tokens: int) -> int:
    """How many of the tokens that are asked for it can propose."""
    return min(num_tokens, drafter.num_heads) if isinstance(drafter, MedusaDir) else num_tokens


def weight_bytes(drafter: DrafterDir, dtype: str) -> int:
    """Of memory, once loaded in `dtype`."""
    if isinstance(drafter, MedusaDir | EagleDir):
        return drafter.weight_bytes(dtype_bytes(dtype))
    return weight_bytes_of(drafter.config, dtype)


def bytes_per_token(drafter: DrafterDir, dtype: str, kv_dtype: str) -> int:
    """What it keeps of each token in a KV block."""
    if isinstance(drafter, MedusaDir):
        return 0
    if isinstance(drafter, EagleDir):
        return drafter.bytes_per_token(dtype_bytes(dtype))
    return kv_bytes_per_token(drafter.config, kv_dtype)
