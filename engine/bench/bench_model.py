"""The model that engines are compared on: a Llama of 109 million random weights, made once in a cache folder.

12 layers, hidden 768, 12 heads, 4 KV heads, vocabulary 8,192. Speed does not depend on what weights say, so nothing
is downloaded; the directory is a whole Hugging Face one that any engine loads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from engine.model.config import parse_config
from engine.model.make import make_model
from engine.model.tensor_names import expected_tensors

RECIPE = 1
MARK = "bench.json"
VOCAB_SIZE = 8_192
FIRST_WORD_ID = 300  # below lie special tokens and lone bytes
SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2_816,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4_096,
    "vocab_size": VOCAB_SIZE,
    "torch_dtype": "float32",
}


def bench_model(folder: Path) -> Path:
    """The model's directory inside `folder`; made when it is not there. Takes 450 MB of disk."""
    target = folder / f"bench-model-{RECIPE}"
    if (target / MARK).is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".bench-model-", dir=folder))
    try:
        made = make_model(scratch / "model")
        _grow(made)
        if target.exists():
            shutil.rmtree(target)  # a half-made one: the mark is written last
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _grow(directory: Path) -> None:
    """Turns the small made model into the large one: same tokenizer with more words, other sizes, new weights."""
    (directory / "manifest.json").unlink()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    missing = VOCAB_SIZE - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f" word{i}", special=False, normalized=False) for i in range(missing)])
    tokenizer.save(str(directory / "tokenizer.json"))
    tree = json.loads((directory / "config.json").read_bytes()) | SHAPE
    (directory / "config.json").write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in expected_tensors(parse_config(tree)).items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
            continue
        weights[name] = random.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        if name == "lm_head.weight":
            # Never special tokens or lone bytes: every token is text at once, and no answer ends early.
            weights[name][:FIRST_WORD_ID] = 0.0
            weights[name] *= np.float32(4.0)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / MARK).write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf-8")
