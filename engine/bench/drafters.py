"""Drafters for the walking model, made so that they know some of its words: right behind those, wrong behind others.

What a drafter of such sizes costs does not depend on what it knows; how often real ones are right is theirs to say.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from engine.bench.bench_model import next_words, walking_draft_model

Tensors: TypeAlias = dict[str, npt.NDArray[np.float32]]
Made = Literal["draft", "medusa", "eagle3"]
NUM_HEADS = 4  # of Medusa


def made_drafter(method: Made, model: Path, folder: Path, share: float) -> Path:
    """The directory of one that knows this share of the words, inside of `folder`; made where it is not there."""
    words = next_words()
    # any of them: beside each other they would be whole answers, and none of others
    known = {word: words[word] for word in random.Random(1).sample(list(words), round(share * len(words)))}
    if method == "draft":
        return walking_draft_model(folder, known, f"{share:.0%}")
    target = folder / f"bench-{method}-{share:.0%}"
    if target.is_dir():
        return target
    tree, embedding = json.loads((model / "config.json").read_bytes()), _embedding(model)
    if method == "medusa":
        tensors, config = medusa_heads(embedding, words, NUM_HEADS, known), {"num_heads": NUM_HEADS}
        return _written(target, tensors, {"model_type": "medusa"} | config)
    sizes = {"heads": tree["num_attention_heads"], "head_dim": tree["head_dim"], "width": tree["intermediate_size"]}
    tensors = eagle_drafter(embedding, known, **sizes)
    return _written(target, tensors, eagle_config(tensors, head_dim=tree["head_dim"]))


def medusa_heads(
    embedding: npt.NDArray[np.float32],
    following: Mapping[int, int],
    num_heads: int,
    known: Mapping[int, int] | None = None,
) -> Tensors:
    """For a model whose last hidden state is its word's: head i knows the word that comes i + 2 later."""
    hidden, tensors = embedding.shape[1], {}
    for head in range(num_heads):
        tensors[f"blocks.{head}.layers.0.weight"] = np.zeros((hidden, hidden), np.float32)
        tensors[f"lm_heads.{head}.weight"] = product = np.zeros((len(embedding), hidden), np.float32)
        for word in following if known is None else known:
            said = word
            for _ in range(head + 2):
                said = following[said]
            product[said] = embedding[word]
    return tensors


def eagle_drafter(
    embedding: npt.NDArray[np.float32], known: Mapping[int, int], *, heads: int, head_dim: int, width: int
) -> Tensors:
    """An EAGLE-3 layer, each of whose positions sees itself alone and says what follows its word."""
    hidden, size, name = embedding.shape[1], heads * head_dim, "midlayer.self_attn."
    attention = {f"{name}{x}_proj.weight": np.zeros((size, 2 * hidden), np.float32) for x in "qkv"}
    # the same at every position: rotated apart, it is itself that each finds
    attention |= {f"{name}{x}_proj.bias": np.full(size, 0.0 if x == "v" else 30.0, np.float32) for x in "qkv"}
    attention[f"{name}v_proj.weight"][:, :hidden] = np.eye(size, hidden, dtype=np.float32)
    one, head = np.ones(hidden, np.float32), np.zeros((len(embedding), hidden), np.float32)
    for word, following in known.items():
        head[following] = embedding[word]
    return attention | {
        "fc.weight": np.zeros((hidden, 3 * hidden), np.float32),
        "midlayer.input_layernorm.weight": one,
        "midlayer.hidden_norm.weight": one * np.float32(0.01),  # what it said before is as good as forgotten
        f"{name}o_proj.weight": np.eye(hidden, size, dtype=np.float32),
        f"{name}o_proj.bias": np.zeros(hidden, np.float32),
        "midlayer.post_attention_layernorm.weight": one.copy(),
        "midlayer.mlp.gate_proj.weight": np.zeros((width, hidden), np.float32),
        "midlayer.mlp.up_proj.weight": np.zeros((width, hidden), np.float32),
        "midlayer.mlp.down_proj.weight": np.zeros((hidden, width), np.float32),
        "norm.weight": one.copy(),
        "lm_head.weight": head,
    }


def eagle_config(tensors: Tensors, *, head_dim: int) -> dict[str, Any]:
    """Of an `eagle_drafter`, as published drafters have it."""
    heads = len(tensors["midlayer.self_attn.q_proj.bias"]) // head_dim
    vocab_size, hidden = tensors["lm_head.weight"].shape
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": len(tensors["midlayer.mlp.gate_proj.weight"]),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab_size,
        "torch_dtype": "float32",
        "attention_bias": True,
        "norm_before_residual": True,
    }


def _embedding(model: Path) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    return found


def _written(target: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".bench-drafter-", dir=target.parent))
    try:
        (scratch / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
