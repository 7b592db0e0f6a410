"""The bench model as a GGUF file, for llama.cpp."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def write_gguf(model_dir: Path, target: Path, dtype: str) -> str | None:
    """Writes `target` unless it is there. Returns why it can't be written, or None."""
    if target.exists():
        return None
    if find_spec("gguf") is None:
        return "llama.cpp: the `gguf` package is missing, which writes its model file"
    import torch
    from safetensors.torch import load_file

    gguf: Any = import_module("gguf")
    config = json.loads((model_dir / "config.json").read_bytes())
    scratch = target.with_suffix(".part")
    writer = gguf.GGUFWriter(scratch, "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if dtype == "float32" else gguf.LlamaFileType.MOSTLY_BF16)
    _add_tokenizer(gguf, writer, model_dir)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in load_file(model_dir / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kv_heads
            # llama.cpp's rotary pairs lie side by side, Hugging Face's half a head apart.
            tensor = tensor.view(count, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        new_name = names.get_name(name, try_suffixes=(".weight",))
        if tensor.dim() == 1 or dtype == "float32":
            writer.add_tensor(new_name, tensor.float().numpy())
        else:
            raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(new_name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.replace(target)
    return None


def _add_tokenizer(gguf: Any, writer: Any, model_dir: Path) -> None:
    tree = json.loads((model_dir / "tokenizer.json").read_bytes())
    words = dict(tree["model"]["vocab"]) | {token["content"]: token["id"] for token in tree["added_tokens"]}
    special = {token["id"] for token in tree["added_tokens"] if token["special"]}
    ordered = sorted(words, key=lambda word: words[word])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ordered)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if words[word] in special else normal for word in ordered])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tree["model"]["merges"]]
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
