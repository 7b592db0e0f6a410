"""The decoder's layers: from token ids to what the logits are made of, keys and values through the paged cache.

One code path for every family; what differs between them is in `ModelConfig`. Each function is one stage, so that a
decoding step can be recorded (`recorded_steps.py`) or computed as it comes (`decoder.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.layer_features import LayerFeatures
from engine.model.rope import rope_tables
from engine.model.weights import DecoderWeights, DenseWeights, LayerWeights
from kernels.cpu.progress import mark_progress
from kernels.experts import mix_experts
from kernels.layer_ops import rms_norm, rope_store
from kernels.linear import gated_linear, row_linear
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention

Plan = TypeVar("Plan")
Inputs: TypeAlias = tuple[Tensor, ...]  # of the layers: embeddings, cosine and sine of the positions, and what else


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """The same memory, for copies: numpy knows no bfloat16."""
    return (tensor.view(torch.int16) if tensor.element_size() == 2 else tensor).numpy()


class Said(NamedTuple):
    """What the model makes of some rows."""

    hidden: Tensor  # [num_rows, hidden]: the last normalisation's result, which Medusa heads read too
    logits: Tensor  # [num_rows, vocab]
    # Waits for each row's likeliest token, -1 where there is none; None: they were not looked for
    likeliest: Callable[[], list[int]] | None = None


class DecoderStack:
    """Weights and the stages of a forward pass, on the device of the weights."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, num_positions: int) -> None:
        self.config = config
        self.weights = weights
        self.device = weights.embedding.device
        cos, sin = rope_tables(config.rope, config.head_dim, num_positions)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)
        self.windows = tuple(dict.fromkeys(config.window_of(i) for i in range(config.num_layers)))
        self._rows_of: tuple[np.ndarray, ...] = ()  # the three tables, once a step wants few of their rows
        self.features: LayerFeatures | None = None  # what layers begin with is kept there, if anybody wants it

    def first(self, count: int) -> DecoderStack:
        """A stack of the first layers alone, of the same weights."""
        found = copy(self)
        found.config = replace(self.config, num_layers=count)
        found.weights = replace(self.weights, layers=self.weights.layers[:count])
        return found

    def embed(self, batch: Batch, into: Inputs | None = None) -> Inputs:
        """What the layers begin with, written over earlier inputs of the same shapes if there are any.

        Shapes: [num_tokens, hidden], in the weights' dtype; twice [num_tokens, head_dim], float32.
        """
        tables = (self.weights.embedding, self._cos, self._sin)
        rows = (batch.token_ids, batch.positions, batch.positions)
        if into is None:
            residual, cos, sin = (torch.index_select(table, 0, own) for table, own in zip(tables, rows, strict=True))
            return residual, cos, sin
        if not self._rows_of:
            self._rows_of = tuple(_as_numpy(table) for table in tables)
        for table, own, target in zip(self._rows_of, rows, into, strict=True):
            # Beside a step whose caches are full of weights numpy's way to a row is a third of torch's.
            table.take(own.numpy(), axis=0, out=_as_numpy(target), mode="clip")
        return into

    def plans(self, batch: Batch) -> dict[int | None, AttentionPlan]:
        """Attention's plan for each window that a layer has."""
        return self.planned(batch, partial(plan_attention, device=self.device))

    def planned(self, batch: Batch, plan: Callable[..., Plan]) -> dict[int | None, Plan]:
        """What `plan` makes of a batch for each window that a layer has: as `plan_attention`, but for a device."""
        tensors = (batch.block_tables, batch.seq_lens, batch.query_starts)
        heads = {"num_heads": self.config.num_heads, "num_kv_heads": self.config.num_kv_heads}
        return {window: plan(*tensors, **heads, sliding_window=window) for window in self.windows}

    def layers_of(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """`layers` of a batch, from its tokens on."""
        batch = batch.to(self.device)
        return self.layers(self.embed(batch), batch, self.plans(batch), kv)

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
        return self.rest(*self.attended(inputs, batch, plans, kv, before_layer))

    def attended(
        self,
        inputs: Inputs,
        batch: Batch,
        plans: dict[int | None, AttentionPlan],
        kv: Tensor,
        before_layer: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """`layers` as far as rows depend on each other: what the last layer's attention says, and what is added to.

        They are [num_tokens, heads x head_dim] and [num_tokens, hidden].
        """
        config, eps, layers = self.config, self.config.rms_norm_eps, self.weights.layers
        residual, cos, sin = inputs
        out: Tensor | None = None
        for index, layer in enumerate(layers):
            before_layer()
            mark_progress()
            if out is None:
                x = rms_norm(residual, layer.input_norm, eps)
            else:
                x, residual = self._behind_attention(out, residual, layers[index - 1])
                x, residual = rms_norm(x, layer.input_norm, eps, residual)
            if self.features is not None:
                self.features.keep(index, residual, batch.slots)
            out = self._attend(x, layer, batch, kv[index], cos, sin, plans[config.window_of(index)])
        assert out is not None, "a model has a layer"
        return out, residual

    def rest(self, out: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Of some rows of what is `attended`, what `layers` makes of them."""
        return self._behind_attention(out, residual, self.weights.layers[-1])

    def said(
        self, batch: Batch, plans: dict[int | None, AttentionPlan], kv: Tensor, sample_rows: Tensor | None
    ) -> Said:
        """Of the rows that are asked for, None being all: behind the last attention no other row matters."""
        out, residual = self.attended(self.embed(batch), batch, plans, kv)
        if sample_rows is not None:
            out, residual = out.index_select(0, sample_rows), residual.index_select(0, sample_rows)
        if not residual.shape[0]:
            return Said(residual, residual.new_empty((0, self.config.vocab_size)))
        return self.head(*self.rest(out, residual))

    def head(self, x: Tensor, residual: Tensor) -> Said:
        """The last normalisation and the product with the vocabulary, of [num_rows, hidden]."""
        hidden = self.final_norm(x, residual)
        return Said(hidden, row_linear(hidden, self.weights.head))

    def final_norm(self, x: Tensor, residual: Tensor) -> Tensor:
        """The last normalisation: [num_rows, hidden]."""
        return rms_norm(x, self.weights.final_norm, self.config.rms_norm_eps, residual)[0]

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
        return out.view(x.shape[0], -1)

    def _behind_attention(self, out: Tensor, residual: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor]:
        """A layer from its attention on, row by row: what is to be added, and what it is added to."""
        x = row_linear(out, layer.output, layer.output_bias)
        x, residual = rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps, residual)
        return self._feed_forward(x, layer), residual

    def _feed_forward(self, x: Tensor, layer: LayerWeights) -> Tensor:
        mlp = layer.mlp
        if isinstance(mlp, DenseWeights):
            inner = gated_linear(x, mlp.gate_up, mlp.gate_up_bias)
            return row_linear(inner, mlp.down, mlp.down_bias)
        moe, scores = self.config.moe, row_linear(x, mlp.router)
        options = {"per_token": moe.experts_per_token, "renormalise": moe.renormalise}
        return mix_experts(x, scores, mlp.gate_up, mlp.down, **options)
