"""The shape of a decoder, read from Hugging Face's `config.json`: one frozen type for every family we run.

Knows names in configuration files; knows no tensors, no files and no torch. A family is data here (biases, norms on
queries and keys, windows, experts), so that the decoder itself has no family names in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
# What an architecture's name ends with: Qwen3ForCausalLM generates, Qwen3Model gives vectors.
HEADS: Mapping[str, Literal["lm", "none", "classes"]] = {
    "ForCausalLM": "lm",
    "ForSequenceClassification": "classes",
    "Model": "none",
}
# How the names of families begin that see a text from both sides: their vectors are asked for most often.
ENCODERS = (
    "Albert",
    "Bert",
    "Deberta",
    "DistilBert",
    "Electra",
    "MPNet",
    "ModernBert",
    "NomicBert",
    "Roberta",
    "XLMRoberta",
)
ROPE_KINDS = ("default", "linear", "llama3", "yarn")
MAX_LAYERS, MAX_WIDTH, MAX_VOCAB, MAX_POSITIONS, MAX_EXPERTS = 1_000, 1 << 18, 1 << 22, 1 << 24, 1_024
MAX_LABELS = 10_000


class BadConfigError(ValueError):
    """`config.json` describes no model that this engine runs; the message names the key."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. The fields after `theta` mean something to the kinds named beside them only."""

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0  # linear, llama3, yarn
    original_max_positions: int = 0  # llama3, yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: from mscale, or 0.1 ln(factor) + 1
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """A layer of experts in place of the dense feed-forward network."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalise: bool  # the chosen experts' weights sum to 1
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's sizes and options. Sizes are counts; `dtype` is the stored one, as in "float32".

    `max_position_embeddings` counts the positions that the rotary scaling opens, not only those trained before it.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = field(default_factory=RopeConfig)
    head: Literal["lm", "none", "classes"] = "lm"  # without one of its own the tied one serves the golden prompt
    num_labels: int = 0  # with a head for classes
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    windowed_layers: frozenset[int] = frozenset()
    moe: MoeConfig | None = None
    dtype: str = "float32"
    eos_token_ids: tuple[int, ...] = ()

    def window_of(self, layer: int) -> int | None:
        """How many of the latest positions this layer sees, its own included; None is all."""
        return self.sliding_window if layer in self.windowed_layers else None

    @property
    def widest_window(self) -> int | None:
        """How many of the latest positions any layer sees; None: one sees all."""
        return self.sliding_window if len(self.windowed_layers) == self.num_layers else None

    def has_experts(self, layer: int) -> bool:
        """Whether this layer is a mixture of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers


def parse_config(tree: Mapping[str, Any]) -> ModelConfig:
    """The configuration in a decoded `config.json`. Raises BadConfigError."""
    architecture, kind, head = _architecture(tree)
    act = tree.get("hidden_act", "silu")
    if act != "silu":
        raise BadConfigError(f"hidden_act: {act!r} is not supported; silu is")
    layers = _count(tree, "num_hidden_layers", MAX_LAYERS)
    hidden = _count(tree, "hidden_size", MAX_WIDTH)
    heads = _count(tree, "num_attention_heads", MAX_WIDTH)
    kv_heads = _count(tree, "num_key_value_heads", MAX_WIDTH, default=heads)
    head_dim = _count(tree, "head_dim", MAX_WIDTH, default=hidden // heads)
    if heads % kv_heads:
        raise BadConfigError(f"num_attention_heads: {heads} is no multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise BadConfigError(f"head_dim: {head_dim} is odd; rotary embedding rotates pairs")
    positions = _count(tree, "max_position_embeddings", MAX_POSITIONS)
    bias = bool(tree.get("attention_bias", False)) and kind in ("llama", "qwen3", "qwen3_moe")
    window, rope = _window(tree, kind), _rope(tree, positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=_count(tree, "vocab_size", MAX_VOCAB),
        hidden_size=hidden,
        intermediate_size=_count(tree, "intermediate_size", MAX_WIDTH),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_longest(positions, rope),
        rms_norm_eps=_number(tree, "rms_norm_eps", 1e-6),
        rope=rope,
        head=head,
        num_labels=_num_labels(tree) if head == "classes" else 0,
        tied_embeddings=head != "lm" or bool(tree.get("tie_word_embeddings", False)),
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias,
        mlp_bias=bool(tree.get("mlp_bias", False)) and kind == "llama",
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        sliding_window=window,
        windowed_layers=_windowed_layers(tree, kind, layers, window),
        moe=_moe(tree, kind, layers),
        dtype=str(tree.get("dtype") or tree.get("torch_dtype") or "float32").removeprefix("torch."),
        eos_token_ids=_token_ids(tree, "eos_token_id"),
    )


def _architecture(tree: Mapping[str, Any]) -> tuple[str, str, Literal["lm", "none", "classes"]]:
    """The family's name with a head for language, its kind, and the head that this one has."""
    named = tree.get("architectures")
    for name in named if isinstance(named, list) else ():
        for ending, head in HEADS.items():
            family = f"{str(name).removesuffix(ending)}ForCausalLM"
            if str(name).endswith(ending) and family in MODEL_TYPES:
                return family, MODEL_TYPES[family], head
    if isinstance(named, list) and any(str(name).startswith(ENCODERS) for name in named):
        message = "is an encoder: vectors and scores come from decoders here, such as Qwen3-Embedding"
        raise BadConfigError(f"architectures: {named!r} {message}")
    raise BadConfigError(f"architectures: {named!r} is not supported; supported are {', '.join(MODEL_TYPES)}")


def _num_labels(tree: Mapping[str, Any]) -> int:
    labels = tree.get("id2label")
    named = len(labels) if isinstance(labels, dict) and labels else 2  # as transformers has it
    return _count(tree, "num_labels", MAX_LABELS, default=named)


def _count(tree: Mapping[str, Any], key: str, limit: int, default: int | None = None) -> int:
    value = tree.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise BadConfigError(f"{key}: expected a whole number from 1 to {limit}, got {value!r}")
    return value


def _number(tree: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = tree.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
        raise BadConfigError(f"{key}: expected a positive number, got {value!r}")
    return float(value)


def _maybe(tree: Mapping[str, Any], key: str) -> float | None:
    return None if tree.get(key) is None else _number(tree, key)


def _token_ids(tree: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = tree.get(key)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise BadConfigError(f"{key}: expected token ids, got {value!r}")
    return tuple(values)


def _rope(tree: Mapping[str, Any], positions: int) -> RopeConfig:
    """Old files have `rope_theta` and `rope_scaling`, newer ones one tree `rope_parameters`."""
    scaling = tree.get("rope_parameters") or tree.get("rope_scaling") or {}
    if not isinstance(scaling, dict) or any(isinstance(v, dict) for v in scaling.values()):
        raise BadConfigError("rope_parameters: one set for all layers is supported, this file has another shape")
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise BadConfigError(
            f"rope_parameters.rope_type: {kind!r} is not supported; supported are {', '.join(ROPE_KINDS)}"
        )
    if scaling.get("partial_rotary_factor", tree.get("partial_rotary_factor", 1.0)) not in (None, 1.0):
        raise BadConfigError("partial_rotary_factor: only 1.0 is supported")
    theta = _number(scaling, "rope_theta", _number(tree, "rope_theta", 10_000.0))
    if kind == "default":
        return RopeConfig(theta=theta)
    before = scaling.get("original_max_position_embeddings") or tree.get("original_max_position_embeddings")
    original = _count(
        {"original_max_position_embeddings": before}, "original_max_position_embeddings", MAX_POSITIONS, positions
    )
    factor = _number(scaling, "factor", positions / original if kind == "yarn" else None)
    if kind == "linear":
        return RopeConfig(kind, theta, factor)
    if kind == "llama3":
        low, high = _number(scaling, "low_freq_factor", 1.0), _number(scaling, "high_freq_factor", 4.0)
        if low >= high:
            raise BadConfigError(f"rope_parameters.low_freq_factor: {low} must be below high_freq_factor {high}")
        return RopeConfig(kind, theta, factor, original, low, high)
    return RopeConfig(
        kind,
        theta,
        factor,
        original,
        beta_fast=_maybe(scaling, "beta_fast") or 32.0,
        beta_slow=_maybe(scaling, "beta_slow") or 1.0,
        attention_factor=_maybe(scaling, "attention_factor"),
        mscale=_maybe(scaling, "mscale"),
        mscale_all_dim=_maybe(scaling, "mscale_all_dim"),
        truncate=bool(scaling.get("truncate", True)),
    )


def _longest(positions: int, rope: RopeConfig) -> int:
    """The context that the scaling opens, as vLLM derives it (`_get_and_verify_max_len`).

    A file with YaRN may keep the trained length in `max_position_embeddings` (Qwen's cards say so) or hold the longer
    one (DeepSeek): the trained one times the factor is right for both. Llama 3's factor is in its number already.
    """
    trained = rope.original_max_positions if rope.kind == "yarn" else positions
    longest = int(trained * rope.factor) if rope.kind in ("yarn", "linear") else positions
    if not 1 <= longest <= MAX_POSITIONS:
        raise BadConfigError(f"rope_parameters.factor: {rope.factor} x {trained} positions; at most {MAX_POSITIONS}")
    return longest


def _window(tree: Mapping[str, Any], kind: str) -> int | None:
    # Qwen files carry a window that is switched off; Llama has none whatever the file says.
    if tree.get("sliding_window") is None or kind == "llama":
        return None
    if kind.startswith("qwen") and not tree.get("use_sliding_window", False):
        return None
    return _count(tree, "sliding_window", MAX_POSITIONS)


def _windowed_layers(tree: Mapping[str, Any], kind: str, layers: int, window: int | None) -> frozenset[int]:
    if window is None:
        return frozenset()
    types = tree.get("layer_types")
    if isinstance(types, list) and len(types) == layers:
        return frozenset(i for i, name in enumerate(types) if name == "sliding_attention")
    if kind in ("qwen2", "qwen3"):
        first = tree.get("max_window_layers", 28)
        return frozenset(i for i in range(layers) if isinstance(first, int) and i >= first)
    return frozenset(range(layers))


def _moe(tree: Mapping[str, Any], kind: str, layers: int) -> MoeConfig | None:
    if kind not in ("mixtral", "qwen3_moe"):
        return None
    key = "num_experts" if "num_experts" in tree else "num_local_experts"
    experts = _count(tree, key, MAX_EXPERTS, default=8 if kind == "mixtral" else 128)
    chosen = _count(tree, "num_experts_per_tok", experts, default=2 if kind == "mixtral" else 8)
    if kind == "mixtral":
        return MoeConfig(experts, chosen, _count(tree, "intermediate_size", MAX_WIDTH), renormalise=True)
    every = _count(tree, "decoder_sparse_step", MAX_LAYERS, default=1)
    named = tree.get("mlp_only_layers") or []
    dense = frozenset(i for i in range(layers) if i in named or (i + 1) % every)
    width = _count(tree, "moe_intermediate_size", MAX_WIDTH)
    return MoeConfig(experts, chosen, width, bool(tree.get("norm_topk_prob", False)), dense)
