"""The decoder's layers: from token ids to what the logits are made of, keys and values through the paged cache.

One code path for every family; what differs between them is in `ModelConfig`. Each function is one stage, so that a
decoding step can be recorded (`recorded_steps.py`) or computed as it comes (`decoder.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig, MoeConfig
from engine.model.rope import rope_tables
from engine.model.weights import DecoderWeights, DenseWeights, ExpertWeights, LayerWeights
from kernels.cpu.progress import mark_progress
from kernels.layer_ops import rms_norm, rope_store
from kernels.linear import gated_linear, row_linear
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # of the layers: embeddings, and cosine and sine of the positions


class DecoderStack:
    """Weights and the stages of a forward pass, on the device of the weights."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, num_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        cos, sin = rope_tables(config.rope, config.head_dim, num_positions)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)

    def embed(self, batch: Batch, into: Inputs | None = None) -> Inputs:
        """What the layers begin with, written over earlier inputs of the same shapes if there are any.

        Shapes: [num_tokens, hidden], in the weights' dtype; twice [num_tokens, head_dim], float32.
        """
        tables = (self.weights.embedding, self._cos, self._sin)
        rows = (batch.token_ids, batch.positions, batch.positions)
        parts = zip(tables, rows, into or (None, None, None), strict=True)
        residual, cos, sin = (torch.index_select(table, 0, own, out=target) for table, own, target in parts)
        return residual, cos, sin

    def plans(self, batch: Batch) -> dict[int | None, AttentionPlan]:
        """Attention's plan for each window that a layer has."""
        tensors = (batch.block_tables, batch.seq_lens, batch.query_starts)
        heads = {"num_heads": self.config.num_heads, "num_kv_heads": self.config.num_kv_heads}
        return {
            window: plan_attention(*tensors, **heads, sliding_window=window, device=self.device)
            for window in {self.config.window_of(i) for i in range(self.config.num_layers)}
        }

    def layers(
        self,
        inputs: Inputs,
        batch: Batch,
        plans: dict[int | None, AttentionPlan],
        kv: Tensor,
        before_layer: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """All layers but the last normalisation: what is to be added, and what it is added to.

        Both are [num_tokens, hidden]. Writes the batch's keys and values into kv: [layers, 2, num_blocks, block_size,
        kv_heads, head_dim].
        """
        config, eps = self.config, self.config.rms_norm_eps
        residual, cos, sin = inputs
        x = rms_norm(residual, self.weights.layers[0].input_norm, eps)
        for index, layer in enumerate(self.weights.layers):
            before_layer()
            mark_progress()
            x = self._attend(x, layer, batch, kv[index], cos, sin, plans[config.window_of(index)])
            x, residual = rms_norm(x, layer.mlp_norm, eps, residual)
            x = self._feed_forward(x, layer)
            if index + 1 < config.num_layers:
                x, residual = rms_norm(x, self.weights.layers[index + 1].input_norm, eps, residual)
        return x, residual

    def head(self, x: Tensor, residual: Tensor) -> Tensor:
        """The last normalisation and the product with the vocabulary: [num_rows, hidden] to [num_rows, vocab]."""
        x, _ = rms_norm(x, self.weights.final_norm, self.config.rms_norm_eps, residual)
        return row_linear(x, self.weights.head)

    def _attend(
        self,
        x: Tensor,
        layer: LayerWeights,
        batch: Batch,
        kv: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        config = self.config
        qkv = row_linear(x, layer.qkv, layer.qkv_bias)
        q = rope_store(
            qkv,
            cos,
            sin,
            kv[0],
            kv[1],
            batch.slots,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=config.rms_norm_eps,
        )
        out = paged_attention(
            q,
            kv[0],
            kv[1],
            batch.block_tables,
            batch.seq_lens,
            batch.query_starts,
            scale=config.head_dim**-0.5,
            sliding_window=plan.sliding_window,
            plan=plan,
        )
        return row_linear(out.view(x.shape[0], -1), layer.output, layer.output_bias)

    def _feed_forward(self, x: Tensor, layer: LayerWeights) -> Tensor:
        mlp = layer.mlp
        if isinstance(mlp, DenseWeights):
            inner = gated_linear(x, mlp.gate_up, mlp.gate_up_bias)
            return row_linear(inner, mlp.down, mlp.down_bias)
        return _mix_experts(x, mlp, self.config.moe)


def _mix_experts(x: Tensor, weights: ExpertWeights, moe: MoeConfig) -> Tensor:
    """A mixture of experts: each token goes through the few experts that its router scores highest.

    Shapes: x and the result: [num_tokens, hidden]. A token's experts are added up in order of their number,
    whatever the batch.
    """
    scores = torch.softmax(row_linear(x, weights.router).float(), dim=-1)
    shares, chosen = scores.topk(moe.experts_per_token, dim=-1)
    if moe.renormalise:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        rows, rank = torch.where(chosen == expert)
        inner = gated_linear(x[rows], weights.gate_up[expert])
        out[rows] += row_linear(inner, weights.down[expert]) * shares[rows, rank, None]
    return out
