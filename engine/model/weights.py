"""Weights in memory, fused as the decoder reads them; their loading from safetensors files, and their offloading.

Projections that read the same input are one matrix: query, key and value; gate and up. Each tensor is read from its
file straight into its place, so loading needs no second copy of the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.directory import ModelDir
from engine.model.tensor_names import expert_names, layer_prefix, router_name
from kernels.linear import Weight, pack


@dataclass(slots=True)
class DenseWeights:
    """A gated feed-forward network."""

    gate_up: Weight  # [2 x intermediate, hidden]
    down: Weight  # [hidden, intermediate]
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


@dataclass(slots=True)
class ExpertWeights:
    """A mixture of experts; lists once they are packed."""

    router: Weight  # [experts, hidden]
    gate_up: Tensor | list[Weight]  # [experts, 2 x intermediate, hidden]
    down: Tensor | list[Weight]  # [experts, hidden, intermediate]


@dataclass(slots=True)
class LayerWeights:
    """One layer. Norms are [hidden], those of heads [head_dim]; biases are as long as their matrix has rows."""

    input_norm: Tensor
    qkv: Weight  # [(heads + 2 x kv heads) x head_dim, hidden]
    output: Weight  # [hidden, heads x head_dim]
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
    head: Weight  # [vocab, hidden]; the embedding itself when tied and not packed
    final_norm: Tensor
    layers: list[LayerWeights] = field(default_factory=list)

    def pack(self) -> None:
        """Puts every matrix into the layout that this CPU multiplies fastest from, one after the other.

        Needs the memory of one matrix more, and that of the head again when it is tied to the embedding. What can't
        be packed stays as it is.
        """
        self.head = _packed(self.head)
        for layer in self.layers:
            layer.qkv, layer.output = _packed(layer.qkv), _packed(layer.output)
            mlp = layer.mlp
            if isinstance(mlp, DenseWeights):
                mlp.gate_up, mlp.down = _packed(mlp.gate_up, is_gated=True), _packed(mlp.down)
            else:
                mlp.router = _packed(mlp.router)
                mlp.gate_up = [_packed(weight, is_gated=True) for weight in mlp.gate_up]
                mlp.down = [_packed(weight) for weight in mlp.down]

    def tensors(self) -> list[Tensor]:
        """Every tensor once, whatever reads it. Packed matrices, which only a CPU has, are left out."""
        found: list[Tensor] = []
        pending: list[object] = [self.embedding, self.head, self.final_norm, *self.layers]
        while pending:
            part = pending.pop()
            if isinstance(part, Tensor):
                found.append(part)
            elif isinstance(part, list):
                pending += part
            elif isinstance(part, LayerWeights | DenseWeights | ExpertWeights):
                pending += [getattr(part, field.name) for field in fields(part)]
        return list({tensor.data_ptr(): tensor for tensor in found}.values())


def _packed(weight: Weight, *, is_gated: bool = False) -> Weight:
    return pack(weight, is_gated=is_gated) if isinstance(weight, Tensor) else weight


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
    model: ModelDir, *, dtype: torch.dtype, device: str, progress: Callable[[str, float], None] | None = None
) -> DecoderWeights:
    """The model's weights in `dtype` on `device`. `progress` is called with ("loading", 0 to 1)."""
    weights, places = _allocate(model.config, dtype, device)
    by_file = defaultdict(list)
    for name in places:
        by_file[model.files[name]].append(name)
    done = 0
    for path in sorted(by_file):
        with safe_open(path, framework="pt") as file:
            for name in by_file[path]:
                places[name].copy_(file.get_tensor(name))
                done += 1
                if progress is not None:
                    progress("loading", done / len(places))
    return weights


def _allocate(config: ModelConfig, dtype: torch.dtype, device: str) -> tuple[DecoderWeights, dict[str, Tensor]]:
    """Empty weights, and for each stored tensor the part of them that it fills."""
    places: dict[str, Tensor] = {}

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    embedding = new(config.vocab_size, config.hidden_size)
    head = embedding if config.tied_embeddings else new(config.vocab_size, config.hidden_size)
    weights = DecoderWeights(embedding, head, new(config.hidden_size))
    places["model.embed_tokens.weight"], places["model.norm.weight"] = embedding, weights.final_norm
    if not config.tied_embeddings:
        places["lm_head.weight"] = head
    for i in range(config.num_layers):
        weights.layers.append(_allocate_layer(config, i, new, places))
    return weights, places


def _allocate_layer(
    config: ModelConfig, index: int, new: Callable[..., Tensor], places: dict[str, Tensor]
) -> LayerWeights:
    prefix, hidden = layer_prefix(index), config.hidden_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = LayerWeights(
        input_norm=new(hidden),
        qkv=new(q + 2 * kv, hidden),
        output=new(hidden, q),
        mlp_norm=new(hidden),
        mlp=_allocate_experts(config, index, new, places)
        if config.has_experts(index)
        else _allocate_dense(config, index, new, places),
    )
    places[f"{prefix}input_layernorm.weight"] = layer.input_norm
    places[f"{prefix}post_attention_layernorm.weight"] = layer.mlp_norm
    places[f"{prefix}self_attn.o_proj.weight"] = layer.output
    for name, part in zip("qkv", layer.qkv.split([q, kv, kv]), strict=True):
        places[f"{prefix}self_attn.{name}_proj.weight"] = part
    if config.qkv_bias:
        layer.qkv_bias = new(q + 2 * kv)
        for name, part in zip("qkv", layer.qkv_bias.split([q, kv, kv]), strict=True):
            places[f"{prefix}self_attn.{name}_proj.bias"] = part
    if config.output_bias:
        layer.output_bias = places[f"{prefix}self_attn.o_proj.bias"] = new(hidden)
    if config.qk_norm:
        layer.q_norm = places[f"{prefix}self_attn.q_norm.weight"] = new(config.head_dim)
        layer.k_norm = places[f"{prefix}self_attn.k_norm.weight"] = new(config.head_dim)
    return layer


def _allocate_dense(
    config: ModelConfig, index: int, new: Callable[..., Tensor], places: dict[str, Tensor]
) -> DenseWeights:
    prefix, width, hidden = layer_prefix(index), config.intermediate_size, config.hidden_size
    dense = DenseWeights(gate_up=new(2 * width, hidden), down=new(hidden, width))
    places[f"{prefix}mlp.gate_proj.weight"], places[f"{prefix}mlp.up_proj.weight"] = dense.gate_up.split(width)
    places[f"{prefix}mlp.down_proj.weight"] = dense.down
    if config.mlp_bias:
        dense.gate_up_bias, dense.down_bias = new(2 * width), new(hidden)
        gate, up = dense.gate_up_bias.split(width)
        places[f"{prefix}mlp.gate_proj.bias"], places[f"{prefix}mlp.up_proj.bias"] = gate, up
        places[f"{prefix}mlp.down_proj.bias"] = dense.down_bias
    return dense


def _allocate_experts(
    config: ModelConfig, index: int, new: Callable[..., Tensor], places: dict[str, Tensor]
) -> ExpertWeights:
    moe, hidden = config.moe, config.hidden_size
    width = moe.intermediate_size
    experts = ExpertWeights(
        router=new(moe.num_experts, hidden),
        gate_up=new(moe.num_experts, 2 * width, hidden),
        down=new(moe.num_experts, hidden, width),
    )
    places[router_name(config, index)] = experts.router
    for i in range(moe.num_experts):
        gate, up, down = expert_names(config, index, i)
        places[gate], places[up] = experts.gate_up[i].split(width)
        places[down] = experts.down[i]
    return experts
