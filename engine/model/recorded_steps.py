"""Decoding steps on a CPU, recorded once for each number of tokens and then replayed without Python in between.

Prompts have any number of tokens, so theirs are not recorded. But what Python does for a launch takes four times as
long between two launches, whose data the caches are full of then, as it does for all of them at once: so those of a
step's layers are gathered first, and then done in one call, as a recording's are.

With proposals a sequence has more than one token in a step: that is the same step, but for attention's plan. So a
recording is made with room for plans in which all its tokens are one sequence's.

The contract of `kernels.cpu.recorder` is kept here so: a step has inputs and slots of its own, and new ones are copied
over them; its attention plans are redirected to the new batch's, which stay alive until the next step; results lie in
one arena, good until the next step of any size; another KV cache, or another number of threads, needs new recordings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.decoder_stack import DecoderStack, Said
from engine.model.weights import DecoderWeights, ExpertWeights
from kernels.cpu.dtypes import has_kernels
from kernels.cpu.expert_matrices import ExpertMatrices
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording

MAX_ROWS = 64  # above, a step's size hardly comes again
MAX_GATHERED_ROWS = 1024  # above, Python is a hundredth of a step, and results of two layers at once are much memory


def can_record(weights: DecoderWeights) -> bool:
    """Whether every part of a step is a launch of the compiled kernels: matrices are packed, experts alike."""
    matrices: list[object] = [weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]
        if isinstance(layer.mlp, ExpertWeights):
            matrices.append(layer.mlp.router)
    are_recordable = all(isinstance(matrix, PanelMatrix | ExpertMatrices) for matrix in matrices)
    return are_recordable and has_kernels(weights.embedding)


class RecordedSteps:
    """The steps of one decoder, by number of tokens; each of them is sampled.

    Threading: one thread at a time.
    """

    def __init__(self, stack: DecoderStack) -> None:
        self._stack = stack
        self._arena = Arena()
        self._steps: dict[tuple[int, int, int], _Step] = {}
        self._cache_at = 0
        self._has_watched = False

    def drop(self) -> None:
        """Forgets every recording: they hold the KV cache that they were recorded with. Their results' memory, too."""
        self._steps.clear()
        self._arena = Arena()
        self._cache_at = 0

    def said(self, batch: Batch, kv: Tensor) -> Said | None:
        """Of every row, good until the next step; None if the batch is no such step."""
        rows = batch.token_ids.shape[0]
        if not 0 < rows == batch.sample_rows.shape[0] <= MAX_ROWS:
            return None
        if kv.data_ptr() != self._cache_at:  # the node slept: launches have the old cache's address
            self.drop()
            self._cache_at = kv.data_ptr()
        num_threads = torch.get_num_threads()
        # a launch keeps its number of threads: few sequences' attention is work for few of them
        key = (rows, num_threads, min(num_threads, self._stack.config.num_kv_heads * batch.seq_lens.shape[0]))
        if (step := self._steps.get(key)) is None:
            step = self._steps[key] = _Step(self._stack, batch, kv, self._arena)
            return step.said
        return step.replay(batch)

    def layers(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What the stack's layers make of any batch, which is not kept; good until the next step."""
        stack = self._stack
        if len(batch.slots) > MAX_GATHERED_ROWS:
            return stack.layers_of(batch, kv)
        inputs, plans = stack.embed(batch), stack.plans(batch)
        # In the arena of the recordings, whose memory is warm: one of this step alone cost what gathering gains.
        with Recorder(self._arena, defers=True, watches=not self._has_watched) as recorder:
            found = stack.layers(inputs, batch, plans, kv, self._arena.next_generation)
        self._has_watched = True
        Recording(recorder).replay()
        return found


class _Step:
    """Recorded by doing it: `said`, in the arena, is the result for the batch that it was made with."""

    def __init__(self, stack: DecoderStack, batch: Batch, kv: Tensor, arena: Arena) -> None:
        self._stack = stack
        self._inputs = stack.embed(batch)
        self._slots = batch.slots.clone()
        heads_per_kv = stack.config.num_heads // stack.config.num_kv_heads
        plans = stack.plans(batch)
        self._plans = {window: plan.with_room(len(batch.slots) * heads_per_kv) for window, plan in plans.items()}
        self._latest = plans
        with Recorder(arena) as recorder:
            own = replace(batch, slots=self._slots)
            self.said = stack.head(*stack.layers(self._inputs, own, self._plans, kv, arena.next_generation))
        self._recording = Recording(recorder)

    def replay(self, batch: Batch) -> Said:
        """What is said of another batch of as many tokens, in the same cache."""
        assert batch.slots.shape == self._slots.shape, "a step is recorded for one number of tokens"
        self._stack.embed(batch, self._inputs)
        self._slots.copy_(batch.slots)
        self._latest = self._stack.plans(batch)  # kept: the launches read its arrays
        for window, plan in self._latest.items():
            self._plans[window].redirect(plan)
        self._recording.replay()
        return self.said
