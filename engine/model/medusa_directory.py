"""Medusa heads on disk, checked against the model that they are for before anything is loaded. Free of torch.

Two layouts are read: vLLM's (`blocks.{head}.layers.{layer}.weight`, `lm_heads.{head}.weight`) and that of the heads'
authors (`{head}.{layer}.linear.weight`, `{head}.{layers}.weight`); `medusa_heads.` may stand before either. How many
heads there are, and of how many layers, is what `config.json` says, else as many as there are tensors of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.model.config import ModelConfig
from engine.model.directory import (
    FLOAT_DTYPES,
    SINGLE,
    BadModelError,
    Progress,
    checked_manifest,
    find_tensors,
    read_json,
)
from engine.model.safetensors_header import TensorInfo

OLD_SINGLE = "medusa_lm_head.safetensors"
MAP = "token_map"
SHARED_HEAD = "lm_head.weight"
_ONE_MODEL = "heads must be made for the model that is served"
_PREFIX = re.compile(r"^(medusa_heads?|medusa)\.")
_OLD_LAYER = re.compile(r"^(\d+)\.(\d+)\.linear\.(weight|bias)$")
_OLD_HEAD = re.compile(r"^(\d+)\.\d+\.weight$")
_LAYER = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$")
_OWN_HEAD = re.compile(r"^lm_heads\.(\d+)\.weight$")
_INTEGERS = {"I64", "I32"}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MedusaDir:
    """Checked heads. `files` and `stored_names` have every tensor that loading reads, by its name in vLLM's layout."""

    path: Path
    num_heads: int
    num_layers: int  # residual ones, of each head
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int  # tokens that can be proposed; fewer than the vocabulary with a token map
    has_bias: bool
    head_names: tuple[str, ...]  # for each head its product with the vocabulary; none: the model's own for all of them
    files: Mapping[str, Path]
    stored_names: Mapping[str, str]

    @property
    def has_token_map(self) -> bool:
        """Whether what a head says is a place in `token_map`, and not a token."""
        return self.draft_vocab_size < self.vocab_size

    def weight_bytes(self, itemsize: int) -> int:
        """Of memory, in numbers of so many bytes."""
        count = sum(math.prod(shape) for shape in self.layer_shapes().values())
        return (count + len(set(self.head_names)) * self.draft_vocab_size * self.hidden_size) * itemsize

    def layer_shapes(self) -> dict[str, Shape]:
        """Name to shape of what the residual layers are made of."""
        return dict(_layer_shapes(self.num_heads, self.num_layers, self.hidden_size, self.has_bias))


def open_medusa(
    directory: Path, target: ModelConfig, *, verify: bool = True, progress: Progress | None = None
) -> MedusaDir:
    """Checks a directory of heads. Takes no memory for weights. Raises BadModelError."""
    if not directory.is_dir():
        raise BadModelError(directory, "no such directory", "give a directory of Medusa heads")
    checked_manifest(directory, verify, progress)
    config_path = directory / "config.json"
    tree = read_json(config_path)
    if (kind := tree.get("model_type", "medusa")) != "medusa":
        raise BadModelError(config_path, f"model_type: {kind!r}, not 'medusa'", "give a directory of Medusa heads")
    is_old = not (directory / SINGLE).exists() and (directory / OLD_SINGLE).exists()
    stored_files, stored = find_tensors(directory, OLD_SINGLE if is_old else SINGLE)
    names = {_plain_name(name): name for name in stored}
    tensors = {name: stored[own] for name, own in names.items()}
    files = {name: stored_files[own] for name, own in names.items()}
    layers = [found.groups() for name in names if (found := _LAYER.match(name))]
    heads = [int(found[1]) for name in names if (found := _LAYER.match(name) or _OWN_HEAD.match(name))]
    if not heads:
        raise BadModelError(directory, "no tensor of a Medusa head", "give a directory of Medusa heads")
    num_heads = _number(config_path, tree, "heads", 1 + max(heads), least=1)
    num_layers = 1 + max((int(layer) for _, layer, _ in layers), default=-1)
    is_shared = bool(tree.get("original_lm_head", False))
    _check_sizes(config_path, tree, target)
    found = MedusaDir(
        path=directory,
        num_heads=num_heads,
        num_layers=_number(config_path, tree, "layers", num_layers, least=num_layers),
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=_truncated(config_path, tree, target.vocab_size),
        has_bias=bool(tree.get("medusa_fc_bias", False)) or any(what == "bias" for _, _, what in layers),
        head_names=_shared_head(names) * num_heads if is_shared else _own_heads(num_heads),
        files=files,
        stored_names=names,
    )
    _check_tensors(found, tensors)
    return found


def _plain_name(stored: str) -> str:
    """The name in vLLM's layout."""
    name = _PREFIX.sub("", stored)
    if layer := _OLD_LAYER.match(name):
        return f"blocks.{layer[1]}.layers.{layer[2]}.{layer[3]}"
    if head := _OLD_HEAD.match(name):
        return f"lm_heads.{head[1]}.weight"
    return name


def _shared_head(names: Mapping[str, str]) -> tuple[str, ...]:
    return next(((name,) for name in (SHARED_HEAD, "lm_heads.0.weight") if name in names), ())


def _own_heads(num_heads: int) -> tuple[str, ...]:
    return tuple(f"lm_heads.{head}.weight" for head in range(num_heads))


def _layer_shapes(num_heads: int, num_layers: int, hidden: int, has_bias: bool) -> Iterator[tuple[str, Shape]]:
    for head in range(num_heads):
        for layer in range(num_layers):
            yield f"blocks.{head}.layers.{layer}.weight", (hidden, hidden)
            if has_bias:
                yield f"blocks.{head}.layers.{layer}.bias", (hidden,)


def _check_sizes(path: Path, tree: Mapping[str, Any], target: ModelConfig) -> None:
    """Those that config.json gives; the authors' files lack them."""
    for key, wanted in {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}.items():
        if tree.get(key) not in (None, wanted):
            raise BadModelError(path, f"{key}: {tree[key]!r}, the model's is {wanted}", _ONE_MODEL)


def _number(path: Path, tree: Mapping[str, Any], what: Literal["heads", "layers"], found: int, *, least: int) -> int:
    """Of heads, or of their layers: as config.json says, in its authors' words or in vLLM's, else as was found.

    The first heads may be used alone; a head that lacks a layer is another one.
    """
    keys = {"heads": ("num_heads", "medusa_num_heads"), "layers": ("num_hidden_layers", "medusa_num_layers")}[what]
    key = next((key for key in keys if tree.get(key) is not None), keys[0])
    value = tree.get(key, found)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= found:
        wanted = f"{found}" if least == found else f"a whole number from {least} to {found}"
        problem = f"{key}: expected {wanted}, as many as there are tensors of, got {value!r}"
        raise BadModelError(path, problem, _ONE_MODEL)
    return value


def _truncated(path: Path, tree: Mapping[str, Any], vocab_size: int) -> int:
    size = tree.get("truncated_vocab_size")
    if size is None:
        return vocab_size
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= vocab_size:
        problem = f"truncated_vocab_size: expected a whole number from 1 to {vocab_size}, got {size!r}"
        raise BadModelError(path, problem, _ONE_MODEL)
    return size


def _check_tensors(found: MedusaDir, tensors: Mapping[str, TensorInfo]) -> None:
    whole, short = (found.vocab_size, found.hidden_size), (found.draft_vocab_size, found.hidden_size)
    allowed: dict[str, tuple[Shape, ...]] = {name: (shape,) for name, shape in found.layer_shapes().items()}
    allowed |= dict.fromkeys(found.head_names, (whole, short))
    if found.has_token_map:
        allowed[MAP] = ((found.draft_vocab_size,),)
    for name, shapes in allowed.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise BadModelError(found.path, f"no tensor {name}, which {found.num_heads} heads call for", _ONE_MODEL)
        if tensor.shape not in shapes:
            problem = (
                f"tensor {found.stored_names[name]} is {list(tensor.shape)}, the model calls for {list(shapes[0])}"
            )
            raise BadModelError(found.files[name], problem, _ONE_MODEL)
        if tensor.dtype not in (_INTEGERS if name == MAP else FLOAT_DTYPES):
            problem = f"tensor {found.stored_names[name]} is {tensor.dtype}"
            raise BadModelError(found.files[name], problem, "give heads that are not quantised")
