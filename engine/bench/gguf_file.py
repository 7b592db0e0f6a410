"""Writes a Hugging Face directory as a GGUF file, of any type, as llama.cpp's converter does: for it, and for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
KIND_OF = {"float32": "F32", "bfloat16": "BF16"}  # what matrices of a dtype are stored as
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_ROTATED = re.compile(r"\.[qk]_proj\.(weight|bias)$")


def write_gguf(
    source: Path,
    target: Path,
    kind: str = "F32",
    *,
    pre: str = "gpt-2",
    describe_tokenizer: Callable[[Any], None] | None = None,
    quantise: Callable[[Array, str], Array] | None = None,
    kind_of: Callable[[str], str | None] = lambda name: None,
) -> Path:
    """Matrices become `kind`; norms, biases and routers stay float32. The file is there when it is whole.

    `pre`: how a byte-level tokenizer cuts; `describe_tokenizer` writes another's metadata. `quantise` makes the blocks
    of `kind`, where the library can't. `kind_of`: what a tensor of this name (llama.cpp's) becomes in place of `kind`.
    """
    gguf: Any = import_module("gguf")
    config = json.loads((source / "config.json").read_bytes())
    architecture = ARCHITECTURES[config["architectures"][0]]
    scratch = target.with_suffix(".part")
    writer = gguf.GGUFWriter(scratch, architecture)
    _describe(gguf, writer, config)
    if describe_tokenizer is not None:
        describe_tokenizer(writer)
    elif (source / "tokenizer.json").exists():
        _add_tokenizer(gguf, writer, source, pre)
    model_arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(model_arch, config["num_hidden_layers"])
    for name, tensor in _converted(source, config, names):
        own = kind_of(name) or kind
        if tensor.ndim == 1 or "ffn_gate_inp" in name or own == "F32":
            writer.add_tensor(name, tensor)
        else:
            type_ = gguf.GGMLQuantizationType[own]
            if tensor.shape[-1] % gguf.GGML_QUANT_SIZES[type_][0]:  # rows that are no whole blocks, as llama.cpp does
                own, type_ = "F16", gguf.GGMLQuantizationType.F16
            blocks = gguf.quants.quantize(tensor, type_) if quantise is None else quantise(tensor, own)
            writer.add_tensor(name, blocks, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.replace(target)
    return target


def rotated(name: str, tensor: Array, config: dict[str, Any], *, undo: bool = False) -> Array:
    """llama.cpp's rotary pairs lie side by side in its llama files, Hugging Face's half a head apart."""
    if ARCHITECTURES[config["architectures"][0]] != "llama" or not _ROTATED.search(name):
        return tensor
    heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
    sides = (heads, -1, 2) if undo else (heads, 2, tensor.shape[0] // heads // 2)
    return np.ascontiguousarray(tensor.reshape(*sides, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape))


def _converted(source: Path, config: dict[str, Any], names: Any) -> Iterator[tuple[str, Array]]:
    """Tensors by llama.cpp's names, float32; the experts of a layer are one."""
    from safetensors.torch import load_file

    experts: dict[str, dict[int, Array]] = {}
    for name, stored in load_file(source / "model.safetensors").items():
        tensor = stored.float().numpy()
        if match := _EXPERT.fullmatch(name):
            layer = name.split(".")[2]
            experts.setdefault(f"blk.{layer}.ffn_{_EXPERT_PARTS[match[3]]}_exps.weight", {})[int(match[2])] = tensor
            continue
        yield names.get_name(name, try_suffixes=(".weight", ".bias")), rotated(name, tensor, config)
    for name, parts in experts.items():
        yield name, np.stack([parts[i] for i in sorted(parts)])


def _describe(gguf: Any, writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0))
    if rope.get("rope_type") in ("linear", "yarn"):
        scaling = gguf.RopeScalingType
        writer.add_rope_scaling_type(scaling.YARN if rope["rope_type"] == "yarn" else scaling.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if head_dim := config.get("head_dim"):
        writer.add_rope_dimension_count(head_dim)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if width := config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(width)


def _add_tokenizer(gguf: Any, writer: Any, source: Path, pre: str) -> None:
    tree = json.loads((source / "tokenizer.json").read_bytes())
    settings = json.loads((source / "tokenizer_config.json").read_bytes())
    words = dict(tree["model"]["vocab"]) | {token["content"]: token["id"] for token in tree["added_tokens"]}
    added = {token["id"]: token["special"] for token in tree["added_tokens"]}
    ordered = sorted(words, key=lambda word: words[word])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(ordered)
    writer.add_token_types(
        [(kinds.CONTROL if added[i] else kinds.USER_DEFINED) if i in added else kinds.NORMAL for i in range(len(words))]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tree["model"]["merges"]])
    writer.add_bos_token_id(words[settings["bos_token"]])
    writer.add_eos_token_id(words[settings["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(settings["chat_template"])
