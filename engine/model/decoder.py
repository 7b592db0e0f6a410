"""The decoder: token ids of a ragged batch to logits, keys and values through the paged cache on the way.

One code path for every family; what differs between them is in `ModelConfig`. No sampling, no scheduling here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.experts import moe_forward
from engine.model.recorded_steps import RecordedSteps, can_record
from engine.model.rope import rope_tables
from engine.model.weights import DecoderWeights, DenseWeights, LayerWeights
from kernels.cpu.scalars import has_kernels
from kernels.linear import gated_linear, row_linear
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from kernels.rms_norm import rms_norm
from kernels.rope_store import rope_store

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor]  # of the layers: embeddings, and cosine and sine of the positions


class Decoder:
    """Weights and the forward pass.

    `is_batch_invariant`: whether a sequence's bits are the same in every batch; None where nothing promises it.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, num_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        cos, sin = rope_tables(config.rope, config.head_dim, num_positions)
        self.cos, self.sin = cos.to(self.device), sin.to(self.device)
        self.is_batch_invariant: bool | None = None
        self._recorded: RecordedSteps | None = None

    def prepare(self) -> None:
        """On a CPU: packs the weights. To be called once, before the first forward pass."""
        if self.device.type == "cpu":
            self.weights.pack()
            self.is_batch_invariant = has_kernels(self.weights.embedding)
            self._recorded = RecordedSteps(self) if can_record(self.weights) else None

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: Tensor) -> Tensor:
        """Logits of `batch.sample_rows`: [num_samples, vocab]. Writes the batch's keys and values into kv.

        On a CPU they may be overwritten by the next call.

        Shapes: kv: [layers, 2, num_blocks, block_size, kv_heads, head_dim].
        """
        if self._recorded is not None and (logits := self._recorded.logits(batch, kv)) is not None:
            return logits
        return self.logits(self.hidden(batch, kv), batch.sample_rows)

    @torch.inference_mode()
    def hidden(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What `logits` of any row of the batch is made from. Writes the batch's keys and values into kv."""
        return self.layers(self.embed(batch), batch, self.plans(batch), kv)

    @torch.inference_mode()
    def logits(self, hidden: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Logits of the asked rows alone, [num_rows, vocab]: the head is the largest matrix."""
        x, residual = hidden
        if rows.shape[0] == 0:
            return x.new_empty((0, self.config.vocab_size))
        return self.head(x[rows], residual[rows])

    def embed(self, batch: Batch, into: Inputs | None = None) -> Inputs:
        """What the layers begin with, written over earlier inputs of the same shapes if there are any."""
        tables = (self.weights.embedding, self.cos, self.sin)
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
        """All layers but the last normalisation: what is to be added and what it is added to."""
        config, eps = self.config, self.config.rms_norm_eps
        residual, cos, sin = inputs
        x = rms_norm(residual, self.weights.layers[0].input_norm, eps)
        for index, layer in enumerate(self.weights.layers):
            before_layer()
            x = self._attend(x, layer, batch, kv[index], cos, sin, plans[config.window_of(index)])
            x, residual = rms_norm(x, layer.mlp_norm, eps, residual)
            x = self._feed_forward(x, layer)
            if index + 1 < config.num_layers:
                x, residual = rms_norm(x, self.weights.layers[index + 1].input_norm, eps, residual)
        return x, residual

    def head(self, x: Tensor, residual: Tensor) -> Tensor:
        """The last normalisation and the product with the vocabulary."""
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
        return moe_forward(x, mlp, self.config.moe)
