"""A GGUF file's metadata as the tree that a `config.json` would hold, so that one parser judges both.

BadGgufError   ValueError: of an architecture that we don't run, or with a key that we can't follow
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engine.gguf.header import BadGgufError, GgufHeader

# llama.cpp's name to Hugging Face's. Mistral and Mixtral files call themselves llama.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
# Llama 3's rotary scaling is not said in words there, but as the factors of each frequency that these numbers give.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192
_DTYPES = {"F32": "float32", "F64": "float32", "BF16": "bfloat16"}
_END_NAMES = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>")  # end a turn wherever they are control tokens
_CONTROL = 3


def config_tree(header: GgufHeader, rope_factors: Sequence[float] | None = None) -> dict[str, Any]:
    """`rope_factors`: what the tensor `rope_freqs.weight` holds, where there is one. Raises BadGgufError."""
    found = header.metadata.get("general.architecture")
    if found not in ARCHITECTURES:
        raise BadGgufError(
            f"general.architecture: {found!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if (count := header.metadata.get("split.count", 1)) != 1:
        raise BadGgufError(f"one of {count} parts; join them first, with `llama-gguf-split --merge`")
    own = _Keys(header.metadata, found)
    heads, hidden = own.whole("attention.head_count"), own.whole("embedding_length")
    head_dim = own.whole("attention.key_length", hidden // max(heads, 1))
    if own.whole("attention.value_length", head_dim) != head_dim:
        raise BadGgufError(f"{found}.attention.value_length: values of another size than keys are not supported")
    if own.whole("rope.dimension_count", head_dim) != head_dim:
        raise BadGgufError(f"{found}.rope.dimension_count: only whole heads of {head_dim} are supported")
    positions = own.whole("context_length")
    architecture, experts = ARCHITECTURES[found], own.whole("expert_count", 0)
    window = own.whole("attention.sliding_window", 0)
    if found == "llama" and experts:
        architecture = "MixtralForCausalLM"
    elif found == "llama" and window:
        architecture = "MistralForCausalLM"
    tree: dict[str, Any] = {
        "architectures": [architecture],
        "vocab_size": _vocab_size(header),
        "hidden_size": hidden,
        "intermediate_size": own.whole("feed_forward_length"),
        "num_hidden_layers": own.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": own.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_parameters": _rope(own, positions, head_dim, rope_factors),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
        "dtype": _dtype(header),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(eos_token_ids(header.metadata)),
    }
    if window and architecture != "LlamaForCausalLM":
        tree |= {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    if experts:
        tree |= {"num_experts": experts, "num_experts_per_tok": own.whole("expert_used_count")}
        tree |= {"moe_intermediate_size": own.whole("expert_feed_forward_length", tree["intermediate_size"])}
        tree["norm_topk_prob"] = True  # llama.cpp does so for each of these families
        if architecture == "MixtralForCausalLM":
            tree["intermediate_size"] = tree["moe_intermediate_size"]
    return tree


def eos_token_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text or a turn: those named so, and the control tokens that always do."""
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", ()), metadata.get("tokenizer.ggml.token_type", ())
    known = enumerate(zip(tokens, kinds, strict=False))
    ends = [i for i, (text, kind) in known if kind == _CONTROL and text in _END_NAMES]
    return tuple(dict.fromkeys([i for i in named if isinstance(i, int)] + ends))


class _Keys:
    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata, self._prefix = metadata, f"{architecture}."

    def get(self, key: str) -> Any:
        return self._metadata.get(self._prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, tuple):  # one for each layer, in files of models whose layers differ
            if len(set(value)) != 1:
                raise BadGgufError(f"{self._prefix}{key}: layers that differ are not supported")
            value = value[0]
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadGgufError(f"{self._prefix}{key}: expected a whole number, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadGgufError(f"{self._prefix}{key}: expected a number, got {value!r}")
        return float(f"{value:.7g}")  # float32 there: 1e-5 and not 9.99999974e-06


def _vocab_size(header: GgufHeader) -> int:
    """Rows of the embedding: the list of tokens may be shorter."""
    tensor = header.tensors.get("token_embd.weight")
    if tensor is None:
        raise BadGgufError("no tensor token_embd.weight: a model's first shard, or whole file, holds it")
    return tensor.shape[0]


def _dtype(header: GgufHeader) -> str:
    """The type that most weights have. Quantised ones are computed from float16 scales, so that it is float16."""
    bytes_of: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_of[tensor.type] += math.prod(tensor.shape)
    return _DTYPES.get(bytes_of.most_common(1)[0][0], "float16")


def _rope(own: _Keys, positions: int, head_dim: int, factors: Sequence[float] | None) -> dict[str, Any]:
    theta = own.number("rope.freq_base", 10_000.0)
    kind = own.get("rope.scaling.type")
    if factors is not None:
        return _llama3(theta, head_dim, factors)
    if kind in (None, "none"):
        return {"rope_type": "default", "rope_theta": theta}
    factor = own.number("rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = own.whole("rope.scaling.original_context_length", max(1, int(positions / factor)))
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise BadGgufError(f"rope.scaling.type: {kind!r} is not supported; none, linear and yarn are")


def _llama3(theta: float, head_dim: int, factors: Sequence[float]) -> dict[str, Any]:
    """The words that give these factors. Raises BadGgufError if those of Llama 3 don't."""
    largest = max(factors)
    for index, found in enumerate(factors):
        length = 2 * math.pi * theta ** (2 * index / head_dim)
        smooth = (LLAMA3_ORIGINAL / length - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)
        wanted = 1 / ((1 - smooth) / largest + smooth) if 0 < smooth < 1 else (1.0 if smooth >= 1 else largest)
        if not math.isclose(found, wanted, rel_tol=1e-3):
            raise BadGgufError("rope_freqs.weight: these factors are not Llama 3's; others are not supported")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": largest,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_ORIGINAL,
    }
