"""Medusa heads: every layout says the same, what is proposed is what the formula says, and heads of another model are
refused by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.model.directory import BadModelError, open_model
from engine.model.drafter import Wanted
from engine.model.medusa import MedusaHeads
from engine.model.medusa_directory import open_medusa
from engine.model.weights import load_weights
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.medusa import Tensors, in_old_layout, random_heads, write_heads

NUM_HEADS = 3


def _said(tensors: Tensors, num_layers: int, hidden: torch.Tensor) -> list[tuple[int, ...]]:
    """The formula, in torch: by row a token of each head."""
    by_head = []
    for head in range(NUM_HEADS):
        x = hidden
        for layer in range(num_layers):
            name = f"blocks.{head}.layers.{layer}"
            bias = tensors.get(f"{name}.bias")
            weight = torch.from_numpy(tensors[f"{name}.weight"])
            x = x + torch.nn.functional.silu(
                torch.nn.functional.linear(x, weight, None if bias is None else torch.from_numpy(bias))
            )
        by_head.append((x @ torch.from_numpy(tensors[f"lm_heads.{head}.weight"]).T).argmax(-1).tolist())
    return list(zip(*by_head, strict=True))


def _propose(path: Path, hidden: torch.Tensor, nums: list[int]) -> list[tuple[int, ...]]:
    model = open_model(tiny_model_dir())
    weights = load_weights(model, dtype=torch.float32, device="cpu")
    heads = MedusaHeads(open_medusa(path, model.config), weights, dtype=torch.float32, device=torch.device("cpu"))
    weights.pack()
    heads.prepare()
    wanted = [Wanted(f"s{row}", (1, 2), (0,), count, row) for row, count in enumerate(nums)]
    found = heads.propose(wanted, hidden)
    return [found[one.seq_id] for one in wanted]


@pytest.fixture
def hidden() -> torch.Tensor:
    return torch.randn((5, 128), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("layout", ["vllm", "prefixed", "authors"])
def test_proposals_are_those_of_the_formula(tmp_path: Path, hidden: torch.Tensor, layout: str, num_layers: int) -> None:
    tensors = random_heads(tiny_model_dir(), NUM_HEADS, num_layers, has_bias=layout == "authors")
    if layout == "authors":
        config: dict[str, object] = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": num_layers}
        path = write_heads(tmp_path / "heads", in_old_layout(tensors, num_layers), config, "medusa_lm_head.safetensors")
    else:
        prefix = "medusa_heads." if layout == "prefixed" else ""
        config = {"hidden_size": 128, "vocab_size": 1191, "num_heads": NUM_HEADS, "num_hidden_layers": num_layers}
        path = write_heads(tmp_path / "heads", {f"{prefix}{n}": t for n, t in tensors.items()}, config)
    expected = _said(tensors, num_layers, hidden)
    assert _propose(path, hidden, [NUM_HEADS] * 5) == expected
    nums = [1, 9, 2, 3, 1]
    assert _propose(path, hidden, nums) == [said[:count] for said, count in zip(expected, nums, strict=True)]


@pytest.mark.parametrize("stored", ["lm_heads.0.weight", "lm_head.weight", None])
def test_heads_may_share_one_product_with_the_vocabulary(
    tmp_path: Path, hidden: torch.Tensor, stored: str | None
) -> None:
    """Their own, or the model's where they bring none."""
    tensors = random_heads(tiny_model_dir(), NUM_HEADS)
    shared = tensors["lm_heads.0.weight"]
    if stored is None:
        shared = load_weights(open_model(tiny_model_dir()), dtype=torch.float32, device="cpu").head.numpy()  # type: ignore[union-attr]
    layers = {name: tensor for name, tensor in tensors.items() if name.startswith("blocks.")}
    path = write_heads(
        tmp_path / "heads", layers if stored is None else layers | {stored: shared}, {"original_lm_head": True}
    )
    expected = _said(layers | {f"lm_heads.{head}.weight": shared for head in range(NUM_HEADS)}, 1, hidden)
    assert _propose(path, hidden, [NUM_HEADS] * 5) == expected


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_token_map_says_which_tokens_heads_know(tmp_path: Path, hidden: torch.Tensor, is_whole: bool) -> None:
    tensors = random_heads(tiny_model_dir(), NUM_HEADS)
    known = np.sort(np.random.default_rng(5).permutation(1191)[:200])
    short = {n: t[known] if n.startswith("lm_heads") else t for n, t in tensors.items()}
    stored: dict[str, object] = {**(tensors if is_whole else short), "token_map": known}
    path = write_heads(tmp_path / "heads", stored, {"truncated_vocab_size": 200})  # type: ignore[arg-type]
    expected = [tuple(int(known[place]) for place in said) for said in _said(short, 1, hidden)]
    assert _propose(path, hidden, [NUM_HEADS] * 5) == expected


@pytest.mark.parametrize(
    ("config", "changed", "words"),
    [
        ({"hidden_size": 64}, {}, "config.json: hidden_size: 64, the model's is 128"),
        ({"vocab_size": 32_000}, {}, "config.json: vocab_size: 32000, the model's is 1191"),
        ({"num_heads": 4}, {}, "config.json: num_heads: expected a whole number from 1 to 3"),
        ({"medusa_num_layers": 2}, {}, "config.json: medusa_num_layers: expected 1, as many as there are tensors of"),
        ({"num_hidden_layers": 0}, {}, "config.json: num_hidden_layers: expected 1, as many as there are tensors of"),
        ({"model_type": "llama"}, {}, "config.json: model_type: 'llama', not 'medusa'"),
        ({"truncated_vocab_size": 2_000}, {}, "config.json: truncated_vocab_size: expected a whole number from 1 to"),
        ({"truncated_vocab_size": 200}, {}, "no tensor token_map"),
        ({"medusa_fc_bias": True}, {}, "no tensor blocks.0.layers.0.bias"),
        ({}, {"lm_heads.1.weight": None}, "no tensor lm_heads.1.weight, which 3 heads call for"),
        (
            {},
            {"lm_heads.1.weight": np.zeros((99, 128), np.float32)},
            r"model.safetensors: tensor lm_heads.1.weight is \[99, 128\], the model calls for \[1191, 128\]",
        ),
        ({}, {"blocks.2.layers.0.weight": np.zeros((128, 128), np.int8)}, "tensor blocks.2.layers.0.weight is I8"),
        (
            {"truncated_vocab_size": 2},
            {"token_map": np.array([1, 1191])},
            "tensor token_map names tokens outside of the model's 1191",
        ),
    ],
)
def test_heads_of_another_model_are_refused(
    tmp_path: Path, hidden: torch.Tensor, config: dict[str, object], changed: dict[str, object], words: str
) -> None:
    tensors: dict[str, object] = random_heads(tiny_model_dir(), NUM_HEADS) | changed  # type: ignore[operator]
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    path = write_heads(tmp_path / "heads", kept, config)  # type: ignore[arg-type]
    with pytest.raises(BadModelError, match=words):
        _propose(path, hidden, [1] * 5)


def test_a_directory_without_heads_is_refused(tmp_path: Path) -> None:
    stored = {"lm_heads.weight": np.zeros((2, 2), np.float32), "blocks.weight": np.zeros((2, 2), np.float32)}
    path = write_heads(tmp_path / "heads", stored, {})
    with pytest.raises(BadModelError, match="no tensor of a Medusa head"):
        open_medusa(path, open_model(tiny_model_dir()).config)
