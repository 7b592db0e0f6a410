"""The layer of an EAGLE-3 drafter as a decoder's stages, so that its steps are recorded like any decoder's.

A token's embedding and a feature, each with a norm of its own, go side by side into query, key and value; what the
layer adds to is the feature. The sum before the last norm is the feature of the token that is proposed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.decoder_stack import DecoderStack, Inputs, Said
from engine.model.weights import DecoderWeights
from kernels.cpu.progress import mark_progress
from kernels.cpu.recorder import computing_constants, empty_result
from kernels.layer_ops import rms_norm, rope_store, store_rows
from kernels.linear import row_linear
from kernels.paged_attention import AttentionPlan


class EagleStack(DecoderStack):
    """`features` are put there before each step: [num_tokens, hidden], of the batch's rows."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        feature_norm: Tensor,
        *,
        norms_residual: bool,
        num_positions: int,
    ) -> None:
        super().__init__(config, weights, num_positions=num_positions)
        self._feature_norm, self._norms_residual = feature_norm, norms_residual
        self.next_features = weights.embedding.new_empty((0, config.hidden_size))

    def embed(self, batch: Batch, into: Inputs | None = None) -> Inputs:
        """A decoder's inputs, and the features."""
        if into is None:
            return *super().embed(batch), self.next_features
        into[3].copy_(self.next_features)
        return *super().embed(batch, into[:3]), into[3]

    def rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each of the positions: [..., head_dim], float32."""
        return self._cos[positions], self._sin[positions]

    def attended(
        self,
        inputs: Inputs,
        batch: Batch,
        plans: dict[int | None, AttentionPlan],
        kv: Tensor,
        before_layer: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """The one layer to its attention, like a decoder's."""
        layer = self.weights.layers[0]
        before_layer()
        mark_progress()
        x, residual = self._side_by_side(inputs)
        return self._attend(x, layer, batch, kv[0], inputs[1], inputs[2], plans[self.config.window_of(0)]), residual

    def head(self, x: Tensor, residual: Tensor) -> Said:
        """The product with its vocabulary; `hidden` is the sum before the norm, the feature of what is proposed."""
        normed, hidden = rms_norm(x, self.weights.final_norm, self.config.rms_norm_eps, residual)
        return Said(hidden, row_linear(normed, self.weights.head))

    @torch.inference_mode()
    def store(self, batch: Batch, kv: Tensor) -> None:
        """Keys and values of the batch, and nothing else: they don't depend on those before them."""
        layer, inputs = self.weights.layers[0], self.embed(batch)
        qkv = row_linear(self._side_by_side(inputs)[0], layer.qkv, layer.qkv_bias)
        rope_store(qkv, inputs[1], inputs[2], kv[0, 0], kv[0, 1], batch.slots)

    def _side_by_side(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """[num_tokens, 2 x hidden], and what the layer adds to."""
        embedded, _, _, features = inputs
        rows, hidden, eps = embedded.shape[0], self.config.hidden_size, self.config.rms_norm_eps
        first = rms_norm(embedded, self.weights.layers[0].input_norm, eps)
        second = rms_norm(features, self._feature_norm, eps)
        if embedded.device.type == "cpu":
            both = empty_result((2 * rows, hidden), embedded.dtype)
        else:
            both = embedded.new_empty((2 * rows, hidden))
        with computing_constants():
            places = torch.arange(2 * rows, device=embedded.device).view(rows, 2).T.contiguous()
        store_rows(first, both, places[0])
        store_rows(second, both, places[1])
        return both.view(rows, 2 * hidden), second if self._norms_residual else features
