"""Which tensors a model's files must hold, by name and shape: checked before any memory is taken. Free of torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.model.config import ModelConfig

Shape = tuple[int, ...]
PREFIX = "model."  # of all but the heads; files of models without a head leave it out
CLASSES = "score.weight"
_LAYERS = "model.layers."
_UNUSED_ENDINGS = (
    *(f".rotary_emb.{name}" for name in ("inv_freq", "cos_cached", "sin_cached")),
    *(f".{name}_scale" for name in ("k", "v", "kv", "q", "input", "output")),
    *(f".{name}_zero_point" for name in ("k", "v", "input")),
    ".weight_shape",
)


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape of every tensor that loading reads. `lm_head.weight` is left out when tied."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    if config.num_labels:
        shapes[CLASSES] = (config.num_labels, config.hidden_size)
    for layer in range(config.num_layers):
        shapes.update(_layer_tensors(config, layer))
    return shapes


def unexpected_tensors(config: ModelConfig, names: Iterable[str]) -> list[str]:
    """Weights of layers that loading would leave out, sorted: of layers past the last one, or of no place in theirs.

    What changes no answer is expected: buffers that old files carry, scales of activations and of a quantised KV cache.
    So is everything outside of the layers: heads that are tied or not used, say.
    """
    expected = expected_tensors(config)
    left_out = (name for name in names if name.startswith(_LAYERS) and name not in expected)
    return sorted(name for name in left_out if not name.endswith(_UNUSED_ENDINGS))


def layer_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"{_LAYERS}{layer}."


def expert_names(config: ModelConfig, layer: int, expert: int) -> tuple[str, str, str]:
    """Names of one expert's gate, up and down projections."""
    prefix = layer_prefix(layer)
    if config.architecture == "MixtralForCausalLM":
        return tuple(f"{prefix}block_sparse_moe.experts.{expert}.{w}.weight" for w in ("w1", "w3", "w2"))  # type: ignore[return-value]
    gate, up, down = (f"{prefix}mlp.experts.{expert}.{w}_proj.weight" for w in ("gate", "up", "down"))
    return gate, up, down


def router_name(config: ModelConfig, layer: int) -> str:
    """The name of the matrix that scores experts: [experts, hidden]."""
    block = "block_sparse_moe" if config.architecture == "MixtralForCausalLM" else "mlp"
    return f"{layer_prefix(layer)}{block}.gate.weight"


def _layer_tensors(config: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    prefix, hidden = layer_prefix(layer), config.hidden_size
    yield f"{prefix}input_layernorm.weight", (hidden,)
    yield f"{prefix}post_attention_layernorm.weight", (hidden,)
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        yield f"{prefix}self_attn.{name}_proj.weight", (rows, hidden)
        if config.qkv_bias:
            yield f"{prefix}self_attn.{name}_proj.bias", (rows,)
    yield f"{prefix}self_attn.o_proj.weight", (hidden, q)
    if config.output_bias:
        yield f"{prefix}self_attn.o_proj.bias", (hidden,)
    if config.qk_norm:
        yield f"{prefix}self_attn.q_norm.weight", (config.head_dim,)
        yield f"{prefix}self_attn.k_norm.weight", (config.head_dim,)
    if config.moe is not None and config.has_experts(layer):
        yield router_name(config, layer), (config.moe.num_experts, hidden)
        width = config.moe.intermediate_size
        for expert in range(config.moe.num_experts):
            gate, up, down = expert_names(config, layer, expert)
            yield gate, (width, hidden)
            yield up, (width, hidden)
            yield down, (hidden, width)
        return
    width = config.intermediate_size
    for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
        yield f"{prefix}mlp.{name}_proj.weight", shape
        if config.mlp_bias:
            yield f"{prefix}mlp.{name}_proj.bias", shape[:1]
