"""Weights in memory, fused as the decoder reads them; their loading from files, and their offloading.

Projections that read the same input are one matrix: query, key and value; gate and up. Each tensor is read from its
file straight into its place, so loading needs no second copy of the model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import safe_open
from torch import Tensor

from engine.gguf.header import is_gguf
from engine.model.config import ModelConfig
from engine.model.directory import ModelDir
from engine.model.gguf_tensors import GgufTensors
from engine.model.packed_tensors import PackedTensors
from engine.model.tensor_names import CLASSES, expert_names, layer_prefix, router_name
from kernels.block_weight import BlockLayout, BlockWeight, empty_blocks
from kernels.experts import Experts, together
from kernels.linear import DeviceMatrix, Weight, pack, pack_blocks, takes_blocks
from kernels.quantization import Quantization

EMBEDDING = "model.embed_tokens.weight"
_LAYER_MATRIX = re.compile(r"\.layers\..*(_proj|\.w[123])\.weight$")  # routers are not rounded either

log = structlog.get_logger()


@dataclass(slots=True)
class DenseWeights:
    """A gated feed-forward network."""

    gate_up: Weight | BlockWeight  # [2 x intermediate, hidden]
    down: Weight | BlockWeight  # [hidden, intermediate]
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(slots=True)
class ExpertWeights:
    """A mixture of experts."""

    router: Weight  # [experts, hidden]
    gate_up: Experts | list[Weight | BlockWeight]  # of each expert [2 x intermediate, hidden]
    down: Experts | list[Weight | BlockWeight]  # of each expert [hidden, intermediate]


@dataclass(slots=True)
class LayerWeights:
    """One layer. Norms are [hidden], those of heads [head_dim]; biases are as long as their matrix has rows."""

    input_norm: Tensor
    qkv: Weight | BlockWeight  # until it is packed; [(heads + 2 x kv heads) x head_dim, hidden]
    output: Weight | BlockWeight  # [hidden, heads x head_dim]
    mlp_norm: Tensor
    mlp: DenseWeights | ExpertWeights
    qkv_bias: Tensor | None = None
    output_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(slots=True)
class DecoderWeights:
    """All of a model, in one dtype on one device."""

    embedding: Tensor  # [vocab, hidden]
    head: Weight | BlockWeight  # [vocab, hidden]; the embedding itself when tied and not packed
    final_norm: Tensor
    layers: list[LayerWeights] = field(default_factory=list)
    quantization: Quantization | None = None  # what matrices are rounded to when they are packed
    classes: Tensor | None = None  # [num_labels, hidden]: the head of a model that classifies

    def pack(self) -> None:
        """Puts every matrix into the layout that the device multiplies fastest from, one after the other.

        Needs the memory of one matrix more, and that of the head again when it is tied to the embedding. What can't
        be packed stays as it is. Of quantised models the router is not rounded, which decides rather than computes, and
        the head to no fewer than eight bits: its error is the logits' own.
        """
        dtype, kind, device = self.embedding.dtype, self.quantization, self.embedding.device

        def packed(weight: Weight | BlockWeight, *, is_gated: bool = False) -> Weight:
            if not isinstance(weight, Tensor | BlockWeight):
                return weight  # it is packed
            return pack_blocks(weight, dtype, kind, is_gated=is_gated, device=device)

        if isinstance(self.head, Tensor | BlockWeight):
            self.head = pack_blocks(self.head, dtype, kind and "int8", device=device)
        for layer in self.layers:
            layer.qkv, layer.output = packed(layer.qkv), packed(layer.output)
            mlp = layer.mlp
            if isinstance(mlp, DenseWeights):
                mlp.gate_up, mlp.down = packed(mlp.gate_up, is_gated=True), packed(mlp.down)
            else:
                if isinstance(mlp.router, Tensor):
                    mlp.router = pack(mlp.router)
                if isinstance(mlp.gate_up, list):
                    mlp.gate_up = together([packed(weight, is_gated=True) for weight in mlp.gate_up])
                if isinstance(mlp.down, list):
                    mlp.down = together([packed(weight) for weight in mlp.down])

    def tensors(self) -> list[Tensor]:
        """Every tensor of a GPU once, whatever reads it. Matrices that are packed for a CPU are left out."""
        found: list[Tensor] = []
        pending: list[object] = [self.embedding, self.head, self.final_norm, self.classes, *self.layers]
        while pending:
            part = pending.pop()
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, list):
                pending += part
            elif isinstance(part, LayerWeights | DenseWeights | ExpertWeights):
                pending += [getattr(part, field.name) for field in fields(part)]
            elif isinstance(part, DeviceMatrix):
                pending += part.tensors()
        return list({tensor.data_ptr(): tensor for tensor in found}.values())


class OffloadedWeights:
    """Weights that leave the device for host memory and come back, in the same tensors.

    Holds the only copy while the device's is given up. Tensors keep their identity, not their address.
    """

    def __init__(self, weights: DecoderWeights) -> None:
        self._weights = weights
        self._host: list[tuple[Tensor, Tensor]] = []  # (of the device, its copy)

    @torch.inference_mode()
    def offload(self) -> None:
        """Takes as much host memory as the weights have on the device."""
        if self._host:
            return
        for tensor in self._weights.tensors():
            self._host.append((tensor, tensor.to("cpu", copy=True)))
            tensor.untyped_storage().resize_(0)

    @torch.inference_mode()
    def restore(self) -> None:
        """Does nothing when nothing was offloaded. Raises what torch raises when the device has not the memory."""
        while self._host:
            tensor, copy = self._host[-1]
            tensor.untyped_storage().resize_(copy.nbytes)
            tensor.copy_(copy)
            self._host.pop()


def load_weights(
    model: ModelDir,
    *,
    dtype: torch.dtype,
    device: str,
    quantization: Quantization | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> DecoderWeights:
    """The model's weights in `dtype` on `device`. `progress` is called with ("loading", 0 to 1).

    Matrices that are quantised in their file stay as they lie where there are kernels for such blocks, in host memory
    until they are packed; `quantization` is what the others are rounded to then.
    """
    packed = None if model.packed is None else PackedTensors(model)
    layout_of = _block_layouts(model, packed) if takes_blocks(device, dtype) else _no_blocks
    weights, places = _allocate(model.config, dtype, device, layout_of)
    weights.quantization = quantization
    by_file, done = defaultdict(list), 0
    for name in places:
        by_file[None if name in model.parts else model.files[name]].append(name)
    for path in sorted(by_file, key=str):
        with _opened(path, packed) as file:
            for name in by_file[path]:
                for place in places[name]:
                    is_block = isinstance(place, BlockWeight)
                    place.copy_(
                        file.get_blocks(name, place.kind) if is_block else file.get_tensor(model.stored_name(name))
                    )
                done += 1
                if progress is not None:
                    progress("loading", done / len(places))
    if _tell(model, places) and quantization is not None:
        remedy = "blocks stay as the file has them: leave --quantization out, or give the unquantised model"
        log.warning("quantization.not_applied", quantization=quantization, remedy=remedy)
    return weights


def kept_bytes(model: ModelDir, *, dtype: torch.dtype, device: str) -> int:
    """What the weights take on the device once they are packed, at most; nothing is allocated for it."""
    packed = None if model.packed is None else PackedTensors(model)
    layout_of = _block_layouts(model, packed) if takes_blocks(device, dtype) else _no_blocks

    def read_layout(names: list[str]) -> BlockLayout | None:
        with torch.device("cpu"):  # scales are looked at for it
            return layout_of(names)

    with torch.device("meta"):
        _, places = _allocate(model.config, dtype, "meta", read_layout)
    return sum(p.num_bytes if isinstance(p, BlockWeight) else p.nbytes for of in places.values() for p in of)


def _opened(path: Path | None, packed: PackedTensors | None) -> Any:
    """A file, or without a path what is packed: its parts may lie in several."""
    if path is None:
        return nullcontext(packed)
    return GgufTensors(path) if is_gguf(path) else safe_open(path, framework="pt")


def _tell(model: ModelDir, places: dict[str, list[Tensor | BlockWeight]]) -> bool:
    """Logs what became of a quantised checkpoint: bytes that are kept in blocks, and bytes that were expanded. Whether
    every matrix of its layers is kept."""
    if is_gguf(model.path):
        scheme, names = "gguf", GgufTensors(model.path).quantised(places)
    else:
        scheme, names = None if model.packed is None else model.packed.method, list(model.parts)
    if not names:
        return False
    kept, expanded = defaultdict(int), 0
    for name in names:
        for place in places[name]:
            if isinstance(place, BlockWeight):
                kept[place.kind] += place.num_bytes
            else:
                expanded += place.nbytes
    log.info("weights.quantised", scheme=scheme, kept_bytes=dict(kept), expanded_bytes=expanded)
    in_layers = [place for name, of in places.items() for place in of if _LAYER_MATRIX.search(name)]
    return all(isinstance(place, BlockWeight) for place in in_layers)


def _no_blocks(names: list[str]) -> BlockLayout | None:
    return None


def _block_layouts(model: ModelDir, packed: PackedTensors | None) -> Callable[[list[str]], BlockLayout | None]:
    """What blocks the tensors of a fused matrix lie in; None unless all lie in the same."""
    if packed is not None:
        return packed.block_layout
    if not is_gguf(model.path):
        return _no_blocks
    return GgufTensors(model.path).block_layout


class _Places:
    """Empty tensors, and for each stored one the parts of them that it fills."""

    def __init__(self, dtype: torch.dtype, device: str, layout_of: Callable[[list[str]], BlockLayout | None]) -> None:
        self._dtype, self._device, self._layout_of = dtype, device, layout_of
        self.by_name: dict[str, list[Tensor | BlockWeight]] = defaultdict(list)

    def new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def vector(self, size: int, *names: str, parts: list[int] | None = None) -> Tensor:
        """A vector that these are the parts of, one after the other."""
        whole = self.new(size)
        for name, part in zip(names, whole.split(parts or size), strict=True):
            self.by_name[name].append(part)
        return whole

    def matrix(self, rows: int, width: int, *names: str, parts: list[int] | None = None) -> Tensor | BlockWeight:
        """A matrix that these are the rows of, one after the other: in blocks if all of them are."""
        layout = self._layout_of(list(names))
        whole = (
            self.new(rows, width)
            if layout is None
            else empty_blocks(rows, width, layout.kind, has_order=layout.has_order)
        )
        for name, part in zip(names, whole.split(parts or rows), strict=True):
            self.by_name[name].append(part)
        return whole


def _allocate(
    config: ModelConfig, dtype: torch.dtype, device: str, layout_of: Callable[[list[str]], BlockLayout | None]
) -> tuple[DecoderWeights, dict[str, list[Tensor | BlockWeight]]]:
    """Empty weights, and for each stored tensor the parts of them that it fills."""
    places = _Places(dtype, device, layout_of)
    embedding, head = places.new(config.vocab_size, config.hidden_size), None
    places.by_name[EMBEDDING].append(embedding)
    if not config.tied_embeddings:
        head = places.matrix(config.vocab_size, config.hidden_size, "lm_head.weight")
    elif layout_of([EMBEDDING]) is not None:  # looked up as numbers, multiplied as blocks
        head = places.matrix(config.vocab_size, config.hidden_size, EMBEDDING)
    norm = places.vector(config.hidden_size, "model.norm.weight")
    weights = DecoderWeights(embedding, embedding if head is None else head, norm)
    if config.num_labels:
        weights.classes = places.new(config.num_labels, config.hidden_size)
        places.by_name[CLASSES].append(weights.classes)
    for i in range(config.num_layers):
        weights.layers.append(_allocate_layer(config, i, places))
    return weights, places.by_name


def _allocate_layer(config: ModelConfig, index: int, places: _Places) -> LayerWeights:
    prefix, hidden = layer_prefix(index), config.hidden_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    own = f"{prefix}self_attn."
    projections, sizes = [f"{own}{name}_proj" for name in "qkv"], [q, kv, kv]
    layer = LayerWeights(
        input_norm=places.vector(hidden, f"{prefix}input_layernorm.weight"),
        qkv=places.matrix(q + 2 * kv, hidden, *(f"{name}.weight" for name in projections), parts=sizes),
        output=places.matrix(hidden, q, f"{own}o_proj.weight"),
        mlp_norm=places.vector(hidden, f"{prefix}post_attention_layernorm.weight"),
        mlp=(_allocate_experts if config.has_experts(index) else _allocate_dense)(config, index, places),
    )
    if config.qkv_bias:
        layer.qkv_bias = places.vector(q + 2 * kv, *(f"{name}.bias" for name in projections), parts=sizes)
    if config.output_bias:
        layer.output_bias = places.vector(hidden, f"{own}o_proj.bias")
    if config.qk_norm:
        layer.q_norm = places.vector(config.head_dim, f"{own}q_norm.weight")
        layer.k_norm = places.vector(config.head_dim, f"{own}k_norm.weight")
    return layer


def _allocate_dense(config: ModelConfig, index: int, places: _Places) -> DenseWeights:
    prefix, width, hidden = f"{layer_prefix(index)}mlp.", config.intermediate_size, config.hidden_size
    gate, up, down = (f"{prefix}{name}_proj" for name in ("gate", "up", "down"))
    dense = DenseWeights(
        gate_up=places.matrix(2 * width, hidden, f"{gate}.weight", f"{up}.weight", parts=[width, width]),
        down=places.matrix(hidden, width, f"{down}.weight"),
    )
    if config.mlp_bias:
        dense.gate_up_bias = places.vector(2 * width, f"{gate}.bias", f"{up}.bias", parts=[width, width])
        dense.down_bias = places.vector(hidden, f"{down}.bias")
    return dense


def _allocate_experts(config: ModelConfig, index: int, places: _Places) -> ExpertWeights:
    moe, hidden = config.moe, config.hidden_size
    width = moe.intermediate_size
    gate_up, down = [], []
    for i in range(moe.num_experts):
        *both, last = expert_names(config, index, i)
        gate_up.append(places.matrix(2 * width, hidden, *both, parts=[width, width]))
        down.append(places.matrix(hidden, width, last))
    router = places.new(moe.num_experts, hidden)
    places.by_name[router_name(config, index)].append(router)
    return ExpertWeights(router, gate_up, down)
