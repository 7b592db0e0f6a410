"""Logits through the paged path are transformers' logits, for every family, in prefill, chunks and decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.model.batch import make_batch
from engine.model.decoder import Decoder
from engine.model.directory import open_model
from engine.model.recorded_steps import can_record
from engine.model.sequence import Sequence
from engine.model.weights import load_weights
from engine.protocol.step import NewSequence, SamplingParams, Scheduled

BLOCK_SIZE = 4
SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama multi-query": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama multi-head": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama three heads a group": ("LlamaConfig", {"num_attention_heads": 6, "head_dim": 8}),
    "llama 3.1 rope": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama linear rope": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}},
    ),
    "llama yarn": ("LlamaConfig", {"rope_parameters": YARN}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "mistral window": ("MistralConfig", {"sliding_window": 16}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2 window on some layers": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _make(path: Path, family: str, *, max_positions: int = 512, rope: dict[str, Any] | None = None, **save: Any) -> Any:
    """A random model of the family in `path`; returns transformers' own, in eval mode."""
    name, extra = FAMILIES[family]
    scaled = {} if rope is None else {"rope_parameters": {"rope_type": rope["type"], **rope}}
    config = getattr(transformers, name)(**{**SMALL, "max_position_embeddings": max_positions, **extra, **scaled})
    config.architectures = [name.replace("Config", "ForCausalLM")]
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases start at 1 and 0, where a mix-up would not show
            torch.nn.init.normal_(parameter, mean=float("norm" in parameter_name), std=0.2)
    model.save_pretrained(path, **save)
    return model


class Paged:
    """The decoder with a cache, fed by hand."""

    def __init__(self, path: Path, num_blocks: int = 128) -> None:
        model = open_model(path)
        config = model.config
        self.decoder = Decoder(config, load_weights(model, dtype=torch.float32, device="cpu"), num_positions=512)
        self.decoder.prepare()
        shape = (config.num_layers, 2, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.kv = torch.full(shape, torch.nan)  # what was not written must not be read

    def logits(self, sequences: dict[int, list[int]], work: list[tuple[int, int, int]]) -> torch.Tensor:
        """Last logits of each (seq_id, start, num_tokens); sequence i has every fourth block, from the last down."""
        states = {
            i: Sequence(NewSequence(i, tuple(tokens), len(tokens), SamplingParams(max_tokens=1)))
            for i, tokens in sequences.items()
        }
        scheduled = [
            Scheduled(i, start, count, tuple(range(124 + i, 3, -4))[: -(-(start + count) // BLOCK_SIZE)], samples=True)
            for i, start, count in work
        ]
        batch = make_batch(scheduled, states, block_size=BLOCK_SIZE)
        return self.decoder.forward(batch, self.kv)


def _prompt(seed: int, length: int) -> list[int]:
    return torch.randint(0, 96, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def _reference(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_in_prefill_chunks_and_decode(tmp_path: Path, family: str) -> None:
    reference = _make(tmp_path, family)
    paged = Paged(tmp_path)
    assert can_record(paged.decoder.weights)
    sequences = {0: _prompt(1, 60), 1: _prompt(2, 23), 2: _prompt(3, 41), 3: _prompt(4, 5)}
    wanted = {i: _reference(reference, tokens) for i, tokens in sequences.items()}

    # A whole prompt beside a first chunk; then a decode, the chunk's rest, a whole prompt and a short one together;
    # two sequences token by token, where all but the first step of two and of one is a replay; and chunks again.
    steps = [
        [(0, 0, 54), (1, 0, 10)],
        [(0, 54, 1), (1, 10, 12), (2, 0, 41), (3, 0, 1)],
        [(3, 1, 1), (0, 55, 1)],
        [(0, 56, 1), (3, 2, 1)],
        [(1, 22, 1)],
        [(0, 57, 1)],
        [(0, 58, 1), (3, 3, 1)],
        [(0, 58, 2), (3, 2, 3)],
    ]
    for work in steps:
        got = paged.logits(sequences, work)
        expected = torch.stack([wanted[i][start + count - 1] for i, start, count in work])
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


BEYOND = {
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 30},
    "linear": {"type": "linear", "factor": 4.0},
}


@pytest.mark.parametrize("kind", BEYOND)
def test_logits_equal_transformers_past_the_positions_that_were_trained(tmp_path: Path, kind: str) -> None:
    """A directory as Qwen's cards say: the trained length, and the scaling that lengthens it."""
    reference = _make(tmp_path, "qwen3", max_positions=30, rope={"rope_theta": 10000.0, **BEYOND[kind]})
    paged = Paged(tmp_path)
    assert paged.decoder.config.max_position_embeddings == 120
    tokens = _prompt(6, 120)
    wanted = _reference(reference, tokens)
    for start, count in ((0, 25), (25, 60), (85, 34), (119, 1)):
        got = paged.logits({0: tokens}, [(0, start, count)])
        torch.testing.assert_close(got[0], wanted[start + count - 1], atol=1e-4, rtol=1e-4)


def test_logits_equal_transformers_when_weights_are_sharded(tmp_path: Path) -> None:
    reference = _make(tmp_path, "llama", max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = _prompt(5, 30)
    got = Paged(tmp_path).logits({0: tokens}, [(0, 0, 30)])
    torch.testing.assert_close(got[0], _reference(reference, tokens)[-1], atol=1e-4, rtol=1e-4)


def test_bfloat16_weights_load_into_float32(tmp_path: Path) -> None:
    _make(tmp_path, "llama").to(torch.bfloat16).save_pretrained(tmp_path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = _prompt(6, 20)
    got = Paged(tmp_path).logits({0: tokens}, [(0, 0, 20)])
    torch.testing.assert_close(got[0], _reference(reference, tokens)[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen3 moe", "mixtral", "mistral window", "llama three heads a group"])
def test_logits_have_the_same_bits_alone_in_a_batch_and_in_chunks(tmp_path: Path, family: str) -> None:
    _make(tmp_path, family)
    sequences = {0: _prompt(1, 60), 1: _prompt(2, 23), 2: _prompt(3, 41)}
    alone = Paged(tmp_path)
    expected = [alone.logits(sequences, [(i, 0, len(tokens))])[0].clone() for i, tokens in sequences.items()]
    batched = Paged(tmp_path)
    batched.logits(sequences, [(0, 0, 31), (2, 0, 40), (1, 0, 7)])
    batched.logits(sequences, [(0, 31, 28), (1, 7, 15)])
    got = batched.logits(sequences, [(0, 59, 1), (1, 22, 1), (2, 40, 1)])
    assert torch.equal(got, torch.stack(expected))
