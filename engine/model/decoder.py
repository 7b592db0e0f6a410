"""The decoder: token ids of a ragged batch to logits, keys and values through the paged cache on the way.

One code path for every family; what differs between them is in `ModelConfig`. No sampling, no scheduling here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.experts import moe_forward
from engine.model.rope import rope_tables
from engine.model.weights import DecoderWeights, DenseWeights, LayerWeights
from kernels.cpu.number import has_kernels
from kernels.linear import gated_linear, linear_products, row_linear
from kernels.packed_matrix import PackedMatrix
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from kernels.rms_norm import rms_norm
from kernels.rope_store import rope_store
from kernels.row_tiles import MIN_ROWS, ROW_TILES, agreeing_tiles, padded_rows


class Decoder:
    """Weights and the forward pass. `tiles` are the row counts in use; `is_batch_invariant` None until measured."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, num_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        cos, sin = rope_tables(config.rope, config.head_dim, num_positions)
        self.cos, self.sin = cos.to(self.device), sin.to(self.device)
        self.tiles = ROW_TILES
        self.batch_tiles: tuple[int, ...] = (
            MIN_ROWS,
        )  # row counts that every matrix takes: batches are padded to them
        self.is_batch_invariant: bool | None = None

    def prepare(self) -> None:
        """On a CPU: packs the weights, and keeps only row counts that give equal bits here for this model's matrices.

        To be called once, before the first forward pass.
        """
        if self.device.type != "cpu":
            return
        self.weights.pack()
        matrices = self.weights.matrices()
        plain = [matrix for matrix in matrices if isinstance(matrix, Tensor)]
        self.tiles, is_exact = agreeing_tiles(linear_products(plain))
        self.is_batch_invariant = is_exact and has_kernels(self.weights.embedding)
        limits = [set(matrix.tiles) for matrix in matrices if isinstance(matrix, PackedMatrix)]
        limits += [set(self.tiles)] if plain else []
        self.batch_tiles = tuple(sorted(set.intersection(*limits), reverse=True)) if limits else (1,)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: Tensor) -> Tensor:
        """Logits of `batch.sample_rows`: [num_samples, vocab]. Writes the batch's keys and values into kv.

        Shapes: kv: [layers, 2, num_blocks, block_size, kv_heads, head_dim].
        """
        return self.logits(self.hidden(batch, kv), batch.sample_rows)

    @torch.inference_mode()
    def hidden(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What `logits` of any row of the batch is made from. Writes the batch's keys and values into kv."""
        config, eps = self.config, self.config.rms_norm_eps
        plans = self._plans(batch)
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        residual = self.weights.embedding[batch.token_ids]
        x = rms_norm(residual, self.weights.layers[0].input_norm, eps)
        for index, layer in enumerate(self.weights.layers):
            x = self._attend(x, layer, batch, kv[index], cos, sin, plans[config.window_of(index)])
            x, residual = rms_norm(x, layer.mlp_norm, eps, residual)
            x = self._feed_forward(x, layer, batch.num_tokens)
            if index + 1 < config.num_layers:
                x, residual = rms_norm(x, self.weights.layers[index + 1].input_norm, eps, residual)
        return x, residual

    def _plans(self, batch: Batch) -> dict[int | None, AttentionPlan]:
        tensors = (batch.block_tables, batch.seq_lens, batch.query_starts)
        heads = {"num_heads": self.config.num_heads, "num_kv_heads": self.config.num_kv_heads}
        return {
            window: plan_attention(*tensors, **heads, sliding_window=window, device=self.device)
            for window in {self.config.window_of(i) for i in range(self.config.num_layers)}
        }

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
        qkv = row_linear(x, layer.qkv, layer.qkv_bias, self.tiles)
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
        return row_linear(out.view(x.shape[0], -1), layer.output, layer.output_bias, self.tiles)

    def _feed_forward(self, x: Tensor, layer: LayerWeights, num_tokens: int) -> Tensor:
        mlp = layer.mlp
        if isinstance(mlp, DenseWeights):
            inner = gated_linear(x, mlp.gate_up, mlp.gate_up_bias, self.tiles)
            return row_linear(inner, mlp.down, mlp.down_bias, self.tiles)
        return moe_forward(x, num_tokens, mlp, self.config.moe, self.tiles, self.batch_tiles)

    @torch.inference_mode()
    def logits(self, hidden: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Final norm and head for the asked rows alone, [num_rows, vocab]: the head is the largest matrix."""
        x, residual = hidden
        count = rows.shape[0]
        if count == 0:
            return x.new_empty((0, self.config.vocab_size))
        rows = torch.nn.functional.pad(rows, (0, padded_rows(count, self.batch_tiles) - count))
        x, _ = rms_norm(x[rows], self.weights.final_norm, self.config.rms_norm_eps, residual[rows])
        return row_linear(x, self.weights.head, tiles=self.tiles)[:count]
