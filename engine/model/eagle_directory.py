"""An EAGLE-3 drafter on disk, checked against the model that it is for before anything is loaded. Free of torch.

One layer of Llama whose input is twice as wide: a token's embedding beside a feature. Features are made of the model's
own hidden states in front of some of its layers (`fc`). The layer is called `midlayer` or `layers.0`; it may bring the
embeddings (`embed_tokens`), and a smaller vocabulary of its own with the way to the model's (`d2t`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.model.config import MAX_VOCAB, BadConfigError, ModelConfig, parse_config
from engine.model.directory import FLOAT_DTYPES, BadModelError, Progress, checked_manifest, find_tensors, read_json
from engine.model.safetensors_header import TensorInfo

EMBEDDING, HEAD, TO_MODEL, FUSION = "embed_tokens.weight", "lm_head.weight", "d2t", "fc.weight"
LAYER = "layers.0."
_NUM_FEATURES = 3
_ONE_MODEL = "the drafter must be made for the model that is served"
_UNUSED = {"t2d"}

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EagleDir:
    """A checked drafter. `config` is that of its layer, `vocab_size` the number of tokens that it can propose.

    `files` and `stored_names` have every tensor by its plain name: no `model.` before it, `layers.0.` for the layer.
    """

    path: Path
    config: ModelConfig
    target_hidden_size: int
    target_vocab_size: int
    feature_layers: tuple[int, ...]  # of the model: their inputs are what features are made of
    norms_residual: bool  # what the layer adds to is the feature after its norm
    has_embedding: bool
    files: Mapping[str, Path]
    stored_names: Mapping[str, str]

    @property
    def has_own_vocabulary(self) -> bool:
        """Whether its tokens are not the model's."""
        return self.config.vocab_size < self.target_vocab_size

    def weight_bytes(self, itemsize: int) -> int:
        """Of memory, in numbers of so many bytes."""
        return sum(math.prod(shape) for name, shape in expected_shapes(self).items() if name != TO_MODEL) * itemsize

    def bytes_per_token(self, itemsize: int) -> int:
        """What is kept of each token in a KV block: its keys and values, and the hidden states of the model."""
        kv = 2 * self.config.num_kv_heads * self.config.head_dim
        return (kv + len(self.feature_layers) * self.target_hidden_size) * itemsize


def open_eagle(
    directory: Path, target: ModelConfig, *, verify: bool = True, progress: Progress | None = None
) -> EagleDir:
    """Checks a directory. Takes no memory for weights. Raises BadModelError."""
    if not directory.is_dir():
        raise BadModelError(directory, "no such directory", "give a directory of an EAGLE-3 drafter")
    checked_manifest(directory, verify, progress)
    path = directory / "config.json"
    tree = read_json(path)
    stored_files, stored = find_tensors(directory)
    names = {_plain_name(name): name for name in stored if name not in _UNUSED}
    try:
        config = parse_config({**tree, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False})
        _check_tree(tree, config, target)
        found = EagleDir(
            path=directory,
            config=replace(config, vocab_size=_own_vocabulary(tree, target.vocab_size)),
            target_hidden_size=target.hidden_size,
            target_vocab_size=target.vocab_size,
            feature_layers=_feature_layers(tree, target.num_layers),
            norms_residual=bool(tree.get("norm_before_residual", False)),
            has_embedding=EMBEDDING in names,
            files={name: stored_files[own] for name, own in names.items()},
            stored_names=names,
        )
    except BadConfigError as exc:
        raise BadModelError(path, str(exc), _ONE_MODEL) from exc
    _check_tensors(found, {name: stored[own] for name, own in names.items()})
    return found


def expected_shapes(eagle: EagleDir) -> dict[str, Shape]:
    """Name to shape of every tensor that loading reads."""
    config, layer, attention, mlp = eagle.config, LAYER, f"{LAYER}self_attn.", f"{LAYER}mlp."
    hidden, width = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {
        FUSION: (hidden, len(eagle.feature_layers) * eagle.target_hidden_size),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}hidden_norm.weight": (hidden,),
        f"{attention}q_proj.weight": (q, 2 * hidden),
        f"{attention}k_proj.weight": (kv, 2 * hidden),
        f"{attention}v_proj.weight": (kv, 2 * hidden),
        f"{attention}o_proj.weight": (hidden, q),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{mlp}gate_proj.weight": (width, hidden),
        f"{mlp}up_proj.weight": (width, hidden),
        f"{mlp}down_proj.weight": (hidden, width),
        "norm.weight": (hidden,),
        HEAD: (config.vocab_size, hidden),
    }
    for kind, is_there in (("self_attn.", config.qkv_bias), ("mlp.", config.mlp_bias)):
        weights = [name for name in shapes if name.startswith(f"{layer}{kind}")] if is_there else []
        shapes |= {name.removesuffix("weight") + "bias": shapes[name][:1] for name in weights}
    if eagle.has_embedding:
        shapes[EMBEDDING] = (eagle.target_vocab_size, hidden)
    if eagle.has_own_vocabulary:
        shapes[TO_MODEL] = (config.vocab_size,)
    return shapes


def _plain_name(stored: str) -> str:
    name = stored.removeprefix("model.")
    return f"{LAYER}{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _check_tree(tree: Mapping[str, Any], config: ModelConfig, target: ModelConfig) -> None:
    """What of the configuration the model decides, and what is not computed here."""
    if config.vocab_size != target.vocab_size:
        raise BadConfigError(f"vocab_size: {config.vocab_size}, the model's is {target.vocab_size}")
    if tree.get("target_hidden_size") not in (None, target.hidden_size):
        raise BadConfigError(f"target_hidden_size: {tree['target_hidden_size']}, the model's is {target.hidden_size}")
    if config.num_layers != 1:
        raise BadConfigError(f"num_hidden_layers: {config.num_layers}, a drafter of one layer is supported")
    for key in ("norm_before_fc", "fc_norm"):
        if tree.get(key):
            raise BadConfigError(f"{key}: {tree[key]!r} is not supported")
    if not _eagle_config(tree).get("use_aux_hidden_state", True):
        raise BadConfigError("eagle_config.use_aux_hidden_state: false is not supported: that is an older EAGLE")


def _eagle_config(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tree.get("eagle_config")
    return found if isinstance(found, dict) else {}


def _own_vocabulary(tree: Mapping[str, Any], vocab_size: int) -> int:
    size = tree.get("draft_vocab_size")
    if size is None:
        return vocab_size
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= min(vocab_size, MAX_VOCAB):
        raise BadConfigError(f"draft_vocab_size: expected a whole number from 1 to {vocab_size}, got {size!r}")
    return size


def _feature_layers(tree: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Told, or an early, a middle and a late one: those that drafters are trained on where nothing is said."""
    key = "eagle_aux_hidden_state_layer_ids"
    told = tree.get(key) or _eagle_config(tree).get(key)
    if told is None:
        return tuple(min(max(index, 0), num_layers - 1) for index in (2, num_layers // 2, num_layers - 3))
    is_good = isinstance(told, list) and len(told) == _NUM_FEATURES
    if not is_good or not all(type(index) is int and 0 <= index < num_layers for index in told):
        raise BadConfigError(f"{key}: expected {_NUM_FEATURES} layers of the model's {num_layers}, got {told!r}")
    return tuple(told)


def _check_tensors(found: EagleDir, tensors: Mapping[str, TensorInfo]) -> None:
    expected = expected_shapes(found)
    if not found.has_embedding and found.config.hidden_size != found.target_hidden_size:
        problem = f"no tensor {EMBEDDING}, and the model's embeddings are {found.target_hidden_size} wide"
        raise BadModelError(found.path, problem, _ONE_MODEL)
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise BadModelError(found.path, f"no tensor {name}, which config.json calls for", _ONE_MODEL)
        if tensor.shape != shape:
            problem = f"tensor {found.stored_names[name]} is {list(tensor.shape)}, {list(shape)} is called for"
            raise BadModelError(found.files[name], problem, _ONE_MODEL)
        if tensor.dtype not in ({"I64", "I32"} if name == TO_MODEL else FLOAT_DTYPES):
            problem = f"tensor {found.stored_names[name]} is {tensor.dtype}"
            raise BadModelError(found.files[name], problem, "give a drafter that is not quantised")
    if left_out := sorted(name for name in tensors if name.startswith(("layers.", "fc")) and name not in expected):
        problem = f"tensor {found.stored_names[left_out[0]]} is of no place in this drafter"
        raise BadModelError(found.files[left_out[0]], problem, "config and weights must be of one EAGLE-3 drafter")
