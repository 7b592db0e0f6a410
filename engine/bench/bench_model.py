"""The model that engines are compared on: a Llama of 109 million random weights, made once in a cache folder.

12 layers, hidden 768, 12 heads, 4 KV heads, vocabulary 8,192. Speed does not depend on what weights say, so nothing
is downloaded; the directory is a whole Hugging Face one that any engine loads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer

from engine.model.config import parse_config
from engine.model.make import make_model
from engine.model.tensor_names import expected_tensors

Tensor: TypeAlias = npt.NDArray[np.float32]

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
    return _made(folder / f"bench-model-{RECIPE}", _speak_at_random)


def walking_model(folder: Path) -> Path:
    """One of the same shape that says of each word the one that `next_words` says, whatever came before.

    So a prompt decides how much of an answer is in it already.
    """
    return _made(folder / f"bench-walking-model-{RECIPE}", _walk)


def next_words() -> dict[int, int]:
    """What the walking model says after each word: one way through all words, which ends where it began."""
    words = (np.random.default_rng(1).permutation(VOCAB_SIZE - FIRST_WORD_ID) + FIRST_WORD_ID).tolist()
    return dict(zip(words, [*words[1:], words[0]], strict=True))


def _made(target: Path, finish: Callable[[dict[str, Tensor]], None]) -> Path:
    if (target / MARK).is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".bench-model-", dir=target.parent))
    try:
        made = make_model(scratch / "model")
        _grow(made, finish)
        if target.exists():
            shutil.rmtree(target)  # a half-made one: the mark is written last
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _grow(directory: Path, finish: Callable[[dict[str, Tensor]], None]) -> None:
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
    # Never special tokens or lone bytes: every token is text at once, and no answer ends early.
    weights["lm_head.weight"][:FIRST_WORD_ID] = 0.0
    finish(weights)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / MARK).write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf-8")


def _speak_at_random(weights: dict[str, Tensor]) -> None:
    weights["lm_head.weight"] *= np.float32(4.0)


def _walk(weights: dict[str, Tensor]) -> None:
    """The layers add next to nothing to a word's embedding, and the head finds the next word for that."""
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight *= np.float32(0.01)
    for word, following in next_words().items():
        weights["lm_head.weight"][following] = 4.0 * weights["model.embed_tokens.weight"][word]
