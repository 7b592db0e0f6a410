"""Which tensor of a GGUF file holds which weight of a Hugging Face model, and how its rows lie there."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERT_PARTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")
_ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(?:weight|bias)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight lies: a tensor, or one expert's part of one."""

    tensor: str
    expert: int | None = None
    rotated: str | None = None  # "q" or "k": rows of each head go in pairs that llama.cpp rotates side by side


def place_of(name: str, architecture: str) -> Place | None:
    """`architecture` as the file calls it. None for a name that has no place there."""
    if name in _TOP:
        return Place(_TOP[name])
    match = _LAYER.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match.groups()
    if expert := _EXPERT.fullmatch(part):
        own = _EXPERT_PARTS.get(expert[2])
        return None if own is None else Place(f"blk.{layer}.{own}.{kind}", int(expert[1]))
    if part not in _PARTS:
        return None
    tensor = f"blk.{layer}.{_PARTS[part]}.{kind}"
    rotated = _ROTATED.fullmatch(tensor)
    # Only these are converted so: the other families rotate halves of a head, as Hugging Face does.
    return Place(tensor, rotated=rotated[1] if rotated and architecture == "llama" else None)


def row_order(rows: int, heads: int) -> list[int]:
    """The rows of a rotated tensor in Hugging Face's order: of each head the even ones, then the odd ones."""
    size = rows // heads
    return [head * size + 2 * i + odd for head in range(heads) for odd in (0, 1) for i in range(size // 2)]
