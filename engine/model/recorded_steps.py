"""Decoding steps on a CPU, recorded once for each number of sequences and then replayed without Python in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.weights import DecoderWeights, DenseWeights
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.recording import Recording, Room
from kernels.cpu.scalars import has_kernels

if TYPE_CHECKING:
    from engine.model.decoder import Decoder

MOST_ROWS = 64  # above, what Python costs is small beside the step


def can_record(weights: DecoderWeights) -> bool:
    """Whether every part of a step is a task of the compiled kernels: not where experts are chosen on the way."""
    matrices = [weights.head]
    for layer in weights.layers:
        if not isinstance(layer.mlp, DenseWeights):
            return False
        matrices += [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]
    are_tasks = all(isinstance(matrix, PanelMatrix) and matrix.is_one_task for matrix in matrices)
    return are_tasks and has_kernels(weights.embedding)


class RecordedSteps:
    """The steps of one decoder, by number of sequences; each of them gets one token and is sampled."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._room = Room()
        self._steps: dict[tuple[int, int], _Step] = {}
        self._cache_at = 0

    def logits(self, batch: Batch, kv: Tensor) -> Tensor | None:
        """`Decoder.forward`'s result, good until the next step; None if the batch is no such step."""
        rows = batch.token_ids.shape[0]
        if not 0 < rows == batch.seq_lens.shape[0] == batch.sample_rows.shape[0] <= MOST_ROWS:
            return None
        if kv.data_ptr() != self._cache_at:  # the node slept: tasks know the old cache's address
            self._steps.clear()
            self._cache_at = kv.data_ptr()
        key = (rows, torch.get_num_threads())
        if (step := self._steps.get(key)) is None:
            step = self._steps[key] = _Step(self._decoder, batch, kv, self._room)
            return step.logits
        return step.again(batch)


class _Step:
    """Made by doing it: `logits` is the result for the batch that it was made with."""

    def __init__(self, decoder: Decoder, batch: Batch, kv: Tensor, room: Room) -> None:
        self._decoder = decoder
        self._inputs = decoder.embed(batch)
        self._slots = batch.slots.clone()
        self._plans = self._latest = decoder.plans(batch)
        self._recording = Recording(room)
        with self._recording:
            own = replace(batch, slots=self._slots)
            self.logits = decoder.head(*decoder.layers(self._inputs, own, self._plans, kv, room.turn))

    def again(self, batch: Batch) -> Tensor:
        """The logits of another batch of as many sequences."""
        self._decoder.embed(batch, self._inputs)
        self._slots.copy_(batch.slots)
        self._latest = self._decoder.plans(batch)  # kept: the tasks read its arrays
        for window, plan in self._latest.items():
            self._plans[window].numbers[:] = plan.numbers
        self._recording.replay()
        return self.logits
