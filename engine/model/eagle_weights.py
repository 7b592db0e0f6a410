"""The weights of an EAGLE-3 drafter in memory, fused as a decoder's are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model.directory import BadModelError
from engine.model.eagle_directory import EMBEDDING, FUSION, HEAD, LAYER, TO_MODEL, EagleDir
from engine.model.weights import DecoderWeights, DenseWeights, LayerWeights
from kernels.linear import Weight


class EagleWeights(NamedTuple):
    """A decoder of one layer, and what stands before it."""

    decoder: DecoderWeights
    feature_norm: Tensor  # [hidden]
    fusion: Weight  # [hidden, number of feature layers x the model's hidden]
    to_model: Tensor | None  # [own vocabulary], int64: the model's token for each of its own; None: they are the same


def load_eagle(eagle: EagleDir, target: DecoderWeights, *, dtype: torch.dtype, device: torch.device) -> EagleWeights:
    """Reads them. Without embeddings of its own it has the model's. Raises BadModelError."""

    def stored(name: str) -> Tensor:
        with safe_open(eagle.files[name], framework="pt") as file:
            return file.get_tensor(eagle.stored_names[name]).to(device)

    def read(*names: str) -> Tensor:
        return torch.cat([stored(name).to(dtype) for name in names])

    attention, mlp, config = f"{LAYER}self_attn.", f"{LAYER}mlp.", eagle.config
    qkv, gate_up = [f"{attention}{name}_proj." for name in "qkv"], [f"{mlp}{name}_proj." for name in ("gate", "up")]
    layer = LayerWeights(
        input_norm=read(f"{LAYER}input_layernorm.weight"),
        qkv=read(*(f"{name}weight" for name in qkv)),
        output=read(f"{attention}o_proj.weight"),
        mlp_norm=read(f"{LAYER}post_attention_layernorm.weight"),
        mlp=DenseWeights(
            gate_up=read(*(f"{name}weight" for name in gate_up)),
            down=read(f"{mlp}down_proj.weight"),
            gate_up_bias=read(*(f"{name}bias" for name in gate_up)) if config.mlp_bias else None,
            down_bias=read(f"{mlp}down_proj.bias") if config.mlp_bias else None,
        ),
        qkv_bias=read(*(f"{name}bias" for name in qkv)) if config.qkv_bias else None,
        output_bias=read(f"{attention}o_proj.bias") if config.output_bias else None,
    )
    embedding = read(EMBEDDING) if eagle.has_embedding else target.embedding
    to_model = None
    if eagle.has_own_vocabulary:
        to_model = torch.arange(config.vocab_size, device=device) + stored(TO_MODEL).long()
        if int(to_model.min()) < 0 or int(to_model.max()) >= eagle.target_vocab_size:
            raise BadModelError(
                eagle.files[TO_MODEL],
                f"tensor {TO_MODEL} leads to tokens outside of the model's {eagle.target_vocab_size}",
                "the drafter must be made for the model that is served",
            )
    decoder = DecoderWeights(embedding, read(HEAD), read("norm.weight"), [layer])
    return EagleWeights(decoder, read(f"{LAYER}hidden_norm.weight"), read(FUSION), to_model)
