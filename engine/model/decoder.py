"""The decoder: token ids of a ragged batch to logits, by replaying a recorded or captured step where there is one.

No sampling, no scheduling here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.config import ModelConfig
from engine.model.decoder_stack import DecoderStack
from engine.model.layer_features import LayerFeatures
from engine.model.recorded_steps import RecordedSteps, can_record
from engine.model.weights import DecoderWeights
from kernels.cpu.dtypes import has_kernels

if TYPE_CHECKING:
    from engine.model.graph_steps import GraphSteps


class Decoder:
    """Weights and the forward pass.

    `is_batch_invariant`: whether a sequence's bits are the same in every batch; None where nothing promises it.
    `last_hidden`: [num_rows, hidden], what the latest logits were made from; good for as long as they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        num_positions: int,
        stack: DecoderStack | None = None,
        features: LayerFeatures | None = None,
        enforce_eager: bool = False,
    ) -> None:
        """`stack`: other stages than a decoder's; `features`: where what its layers begin with is kept.

        `enforce_eager`: on a GPU no step is captured.
        """
        self.config = config
        self.weights = weights
        self.is_batch_invariant: bool | None = None
        self.last_hidden = weights.embedding.new_empty((0, config.hidden_size))
        self._likeliest: Callable[[], list[int]] | None = None
        self._stack = DecoderStack(config, weights, num_positions=num_positions) if stack is None else stack
        self._stack.features = features
        self._enforces_eager = enforce_eager
        self._recorded: RecordedSteps | GraphSteps | None = None

    def prepare(self) -> None:
        """Packs the weights. To be called once, before the first forward pass."""
        self.weights.pack()
        if self._stack.device.type == "cpu":
            self.is_batch_invariant = has_kernels(self.weights.embedding)
            self._recorded = RecordedSteps(self._stack) if can_record(self.weights) else None
        elif not self._enforces_eager:
            self._recorded = _graph_steps(self._stack)

    @torch.inference_mode()
    def capture_ahead(self, kv: Tensor) -> None:
        """On a GPU captures steps of the sizes that traffic begins with; writes nothing into kv."""
        if self._recorded is not None and not isinstance(self._recorded, RecordedSteps):
            self._recorded.capture_ahead(kv)

    def drop_recordings(self) -> None:
        """Gives up recorded steps, and with them the KV cache that they hold; to be called before it is dropped."""
        if self._recorded is not None:
            self._recorded.drop()

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: Tensor) -> Tensor:
        """Logits of `batch.sample_rows`: [num_samples, vocab]. Writes the batch's keys and values into kv.

        They may be overwritten by the next call.

        Shapes: kv: [layers, 2, num_blocks, block_size, kv_heads, head_dim].
        """
        said = None if self._recorded is None else self._recorded.said(batch, kv)
        if said is None and isinstance(self._recorded, RecordedSteps):
            said = self._recorded.sampled(batch, kv)
        if said is None:
            batch = batch.to(self._stack.device)
            said = self._stack.said(batch, self._stack.plans(batch), kv, batch.sample_rows)
        self.last_hidden, self._likeliest = said.hidden, said.likeliest
        return said.logits

    def likeliest(self) -> list[int] | None:
        """The likeliest token of each row of the latest `forward`, -1 where logits are not finite; None: not known.

        To be asked before the next one; it may tell of more rows. A captured step looks for them as it goes.
        """
        return None if self._likeliest is None else self._likeliest()

    @torch.inference_mode()
    def hidden(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What `logits` of any row of the batch is made from. Writes the batch's keys and values into kv."""
        return (self._stack.layers_of if self._recorded is None else self._recorded.layers)(batch, kv)

    @torch.inference_mode()
    def normed(self, hidden: tuple[Tensor, Tensor]) -> Tensor:
        """What the head would be given: [num_tokens, hidden]."""
        return self._stack.final_norm(*hidden)

    @torch.inference_mode()
    def logits(self, hidden: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Logits of the asked rows alone, [num_rows, vocab]: the head is the largest matrix."""
        self._likeliest = None
        x, residual = hidden
        if rows.shape[0] == 0:
            self.last_hidden = x[:0]
            return x.new_empty((0, self.config.vocab_size))
        said = self._stack.head(x[rows], residual[rows])
        self.last_hidden = said.hidden
        return said.logits


def _graph_steps(stack: DecoderStack) -> GraphSteps | None:
    from engine.model.graph_steps import GraphSteps, can_capture  # needs Triton, which a CPU does not

    return GraphSteps(stack) if can_capture(stack.weights) else None
