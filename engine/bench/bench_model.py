"""The models that engines are compared on: Llamas of random weights, made once in a cache folder.

`110m`: 12 layers, hidden 768, 12 heads, 4 KV heads. `0.5b`: 24 layers, hidden 1,152, 18 heads, 6 KV heads. Vocabulary
8,192. `1b` and `8b`, for a GPU: the sizes of Llama 3's, vocabulary 128,256, bfloat16. Speed does not depend on what
weights say, so nothing is downloaded; the directory is a whole Hugging Face one that any engine loads.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
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

RECIPE = 2
MARK = "bench.json"
VOCAB_SIZE = 8_192
FIRST_WORD_ID = 300  # below lie special tokens and lone bytes
MAX_MODEL_LEN = 32_768
_SAME: dict[str, int | str] = {
    "head_dim": 64,
    "max_position_embeddings": MAX_MODEL_LEN,
    "vocab_size": VOCAB_SIZE,
    "torch_dtype": "float32",
}
_LARGE: dict[str, int | str] = {"vocab_size": 128_256, "torch_dtype": "bfloat16"}
SHAPES: dict[str, dict[str, int | str]] = {
    "110m": {
        "hidden_size": 768,
        "intermediate_size": 2_816,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        **_SAME,
    },
    "0.5b": {
        "hidden_size": 1_152,
        "intermediate_size": 4_608,
        "num_hidden_layers": 24,
        "num_attention_heads": 18,
        "num_key_value_heads": 6,
        **_SAME,
    },
    "1b": {
        "hidden_size": 2_048,
        "intermediate_size": 8_192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        **_SAME,
        **_LARGE,
    },
    "8b": {
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        **_SAME,
        **_LARGE,
        "head_dim": 128,
    },
}

_DRAFT_SHAPE: dict[str, int | str] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **_SAME,
}


def bench_model(folder: Path, shape: str = "110m") -> Path:
    """The model's directory inside `folder`; made when it is not there. Takes 450 MB of disk, 2 GB of `0.5b`."""
    return _made(folder / f"bench-model-{RECIPE}-{shape}", SHAPES[shape], _speak_at_random)


def walking_model(folder: Path) -> Path:
    """One of shape `110m` that says of each word the one that `next_words` says, whatever came before.

    So a prompt decides how much of an answer is in it already.
    """
    return _made(folder / f"bench-walking-model-{RECIPE}", SHAPES["110m"], partial(_walk, next_words()))


def walking_draft_model(folder: Path, known: Mapping[int, int], name: str) -> Path:
    """A small one beside it, that says so behind the words that it knows, and anything behind others."""
    return _made(folder / f"bench-walking-draft-{RECIPE}-{name}", _DRAFT_SHAPE, partial(_walk, known))


def next_words() -> dict[int, int]:
    """What the walking model says after each word: one way through all words, which ends where it began."""
    words = (np.random.default_rng(1).permutation(VOCAB_SIZE - FIRST_WORD_ID) + FIRST_WORD_ID).tolist()
    return dict(zip(words, [*words[1:], words[0]], strict=True))


def _made(target: Path, shape: Mapping[str, int | str], finish: Callable[[dict[str, Tensor]], None]) -> Path:
    if (target / MARK).is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".bench-model-", dir=target.parent))
    try:
        made = make_model(scratch / "model")
        _grow(made, shape, finish)
        if target.exists():
            shutil.rmtree(target)  # a half-made one: the mark is written last
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _grow(directory: Path, shape: Mapping[str, int | str], finish: Callable[[dict[str, Tensor]], None]) -> None:
    """Turns the small made model into the large one: same tokenizer with more words, other sizes, new weights."""
    (directory / "manifest.json").unlink()
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    missing = int(shape["vocab_size"]) - tokenizer.get_vocab_size()
    tokenizer.add_tokens([AddedToken(f" word{i}", special=False, normalized=False) for i in range(missing)])
    tokenizer.save(str(directory / "tokenizer.json"))
    tree = json.loads((directory / "config.json").read_bytes()) | shape
    (directory / "config.json").write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    if shape["torch_dtype"] == "bfloat16":
        _save_large(directory, expected_tensors(parse_config(tree)))
        return
    random = np.random.default_rng(0)
    weights = {}
    for name, sizes in expected_tensors(parse_config(tree)).items():
        if len(sizes) == 1:
            weights[name] = np.ones(sizes, np.float32)
            continue
        weights[name] = random.standard_normal(sizes, np.float32) * np.float32(sizes[1] ** -0.5)
    # Never special tokens or lone bytes: every token is text at once, and no answer ends early.
    weights["lm_head.weight"][:FIRST_WORD_ID] = 0.0
    finish(weights)
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / MARK).write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf-8")


def _save_large(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """As bfloat16, from one pool of random numbers that is read over and over: drawing 8B would take two minutes."""
    import torch
    from safetensors.torch import save_file as save_tensors

    pool = torch.randn(2**24, generator=torch.Generator().manual_seed(0)).bfloat16()
    weights = {}
    for name, sizes in shapes.items():
        if len(sizes) == 1:
            weights[name] = torch.ones(sizes, dtype=pool.dtype)
            continue
        count = math.prod(sizes)
        drawn = pool.repeat(-(-count // len(pool)))[:count].view(sizes)
        weights[name] = drawn * sizes[1] ** -0.5
    weights["lm_head.weight"] *= 4.0
    weights["lm_head.weight"][:FIRST_WORD_ID] = 0.0
    save_tensors(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / MARK).write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf-8")


def _speak_at_random(weights: dict[str, Tensor]) -> None:
    weights["lm_head.weight"] *= np.float32(4.0)


def _walk(following: Mapping[int, int], weights: dict[str, Tensor]) -> None:
    """The layers add next to nothing to a word's embedding, and the head finds the next word for that."""
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight *= np.float32(0.01)
    for word, next_word in following.items():
        weights["lm_head.weight"][next_word] = 4.0 * weights["model.embed_tokens.weight"][word]
