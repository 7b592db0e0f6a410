"""A GGUF file as a model: its configuration, and its tensors under the names that a Hugging Face directory has.

Free of torch. What may be wrong is raised as BadGgufError or BadConfigError, which name no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.gguf.config_tree import config_tree
from engine.gguf.header import BadGgufError, GgufHeader, GgufTensor, read_gguf
from engine.gguf.tensor_map import Place, place_of
from engine.model.config import ModelConfig, parse_config
from engine.model.safetensors_header import TensorInfo
from engine.model.tensor_names import expected_tensors

_ROPE_FACTORS = "rope_freqs.weight"
_UNUSED_ENDINGS = ("rope_freqs.weight", "attn_rot_embd.weight")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """`tensors` and `places` are by Hugging Face's names: what the configuration calls for and the file has."""

    config: ModelConfig
    header: GgufHeader
    tensors: Mapping[str, TensorInfo]
    places: Mapping[str, Place]
    weight_bytes: int  # as stored
    revision: str


def open_gguf(path: Path) -> GgufModel:
    """Raises BadGgufError, BadConfigError, OSError."""
    header = read_gguf(path)
    config = parse_config(config_tree(header, _rope_factors(path, header)))
    family = str(header.metadata["general.architecture"])
    tensors, places = {}, {}
    for name in expected_tensors(config):
        place = place_of(name, family)
        found = None if place is None else header.tensors.get(place.tensor)
        if place is None or found is None:
            continue
        shape = found.shape if place.expert is None else found.shape[1:]
        tensors[name], places[name] = TensorInfo("F32", shape, found.num_bytes), place
    used = {place.tensor for place in places.values()}
    left_out = [name for name in header.tensors if name.startswith("blk.") and name not in used]
    if left_out := [name for name in left_out if not name.endswith(_UNUSED_ENDINGS)]:
        raise BadGgufError(f"{len(left_out)} tensors that its metadata does not call for, like {left_out[0]}")
    stored = sum(header.tensors[name].num_bytes for name in used)
    return GgufModel(config, header, tensors, places, stored, _revision(path, header))


def _rope_factors(path: Path, header: GgufHeader) -> list[float] | None:
    tensor = header.tensors.get(_ROPE_FACTORS)
    if tensor is None or tensor.type != "F32":
        return None
    return list(map(float, np.frombuffer(read_bytes(path, tensor), "<f4")))


def read_bytes(path: Path, tensor: GgufTensor) -> bytearray:
    """A tensor's blocks as they lie. Raises OSError if they are gone."""
    data = bytearray(tensor.num_bytes)
    with path.open("rb") as file:
        file.seek(tensor.offset)
        if file.readinto(data) != tensor.num_bytes:
            raise OSError(f"{path}: was cut off while it was read")
    return data


def _revision(path: Path, header: GgufHeader) -> str:
    """Of the header and the size: reading all of the file takes too long for that."""
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(header.num_bytes))
    digest.update(str(path.stat().st_size).encode())
    return digest.hexdigest()[:12]
