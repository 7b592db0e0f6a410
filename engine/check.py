"""What a model directory holds and what serving it takes, without serving it."""

from __future__ import annotations

from pathlib import Path

from engine.model.directory import kv_bytes_per_token, open_model, weight_bytes
from engine.text.tokenizer import load_tokenizer


def describe_model(directory: str, dtype: str) -> str:
    """Lines for people. Raises BadModelError, BadTokenizerError."""
    path = Path(directory)
    model = open_model(path)
    tokenizer = load_tokenizer(path)
    config = model.config
    used = config.dtype if dtype == "auto" else dtype
    per_token = kv_bytes_per_token(config, used)
    longest = config.max_position_embeddings
    facts = {
        "directory": f"{path} (revision {model.revision}, {'checksums agree' if model.is_verified else 'no manifest'})",
        "architecture": config.architecture,
        "layers": f"{config.num_layers}, {config.num_heads} heads, {config.num_kv_heads} KV heads of {config.head_dim}",
        "vocabulary": f"{config.vocab_size} ({tokenizer.vocab_size} in the tokenizer)",
        "chat template": "yes" if tokenizer.template is not None else "no: completions only",
        "end of sequence": ", ".join(map(str, tokenizer.eos_token_ids)) or "none: answers end at max_tokens",
        "longest sequence": f"{longest} tokens",
        "weights": f"{_size(weight_bytes(config, used))} as {used} ({_size(model.weight_bytes)} stored)",
        "KV cache": f"{per_token} bytes a token, {_size(per_token * longest)} for one longest sequence",
    }
    width = max(map(len, facts))
    return "".join(f"{name:<{width}}  {value}\n" for name, value in facts.items())


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.4g} TiB"
