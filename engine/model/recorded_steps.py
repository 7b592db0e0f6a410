"""Decoding steps on a CPU, recorded once for each number of tokens and then replayed without Python in between.

Prompts have any number of tokens, so theirs are not recorded. But what Python does for a launch takes four times as
long between two launches, whose data the caches are full of then, as it does for all of them at once: so those of a
step's layers are gathered first, and then done in one call, as a recording's are. Where layers are alike, Python goes
through the first of them alone (`alike_layers.py`). Behind the last layer's attention only the rows that are sampled
are computed on: of a prompt of any length that is one, and recorded.

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

from engine.model.alike_layers import AlikeLayers, first_layers
from engine.model.batch import Batch
from engine.model.decoder_stack import DecoderStack, Inputs, Said
from engine.model.weights import DecoderWeights, DenseWeights, ExpertWeights, LayerWeights
from kernels.cpu.dtypes import has_kernels
from kernels.cpu.expert_matrices import ExpertMatrices
from kernels.cpu.panel_matrix import PanelMatrix
from kernels.cpu.recorder import Arena, Recorder
from kernels.cpu.recording import Recording
from kernels.paged_attention import AttentionPlan

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
        self._rests: dict[tuple[int, int], _Rest] = {}
        self._cache_at = 0
        self._has_watched = False
        self._alike = AlikeLayers()
        self._first = _first_of(stack)

    def drop(self) -> None:
        """Forgets every recording: they hold the KV cache that they were recorded with. Their results' memory, too."""
        self._steps.clear()
        self._rests.clear()
        self._arena = Arena()
        self._alike = AlikeLayers()
        self._cache_at = 0

    def said(self, batch: Batch, kv: Tensor) -> Said | None:
        """Of every row, good until the next step; None if the batch is no such step."""
        rows = batch.token_ids.shape[0]
        if not 0 < rows == batch.sample_rows.shape[0] <= MAX_ROWS:
            return None
        self._know(kv)
        num_threads = torch.get_num_threads()
        # a launch keeps its number of threads: few sequences' attention is work for few of them
        key = (rows, num_threads, min(num_threads, self._stack.config.num_kv_heads * batch.seq_lens.shape[0]))
        if (step := self._steps.get(key)) is None:
            step = self._steps[key] = _Step(self._stack, batch, kv, self._arena)
            return step.said
        return step.replay(batch)

    def _know(self, kv: Tensor) -> None:
        """Forgets what was recorded on another cache: the node slept, and launches have the old one's address."""
        if kv.data_ptr() != self._cache_at:
            self.drop()
            self._cache_at = kv.data_ptr()

    def layers(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What the stack's layers make of any batch, which is not kept; good until the next step."""
        if len(batch.slots) > MAX_GATHERED_ROWS:
            return self._stack.layers_of(batch, kv)
        return self._gathered(batch, kv, is_whole=True)

    def sampled(self, batch: Batch, kv: Tensor) -> Said:
        """Of the batch's `sample_rows`, good until the next step: behind the last attention no other row matters."""
        stack, rows = self._stack, batch.sample_rows
        if len(batch.slots) > MAX_GATHERED_ROWS:
            attended = stack.attended(stack.embed(batch), batch, stack.plans(batch), kv)
        else:
            attended = self._gathered(batch, kv, is_whole=False)
        count = rows.shape[0]
        if count == 0:
            empty = attended[1][:0]
            return Said(empty, empty.new_empty((0, stack.config.vocab_size)))
        if count > MAX_ROWS:
            return stack.head(*stack.rest(*(part[rows] for part in attended)))
        key = (count, torch.get_num_threads())
        if (rest := self._rests.get(key)) is None:
            rest = self._rests[key] = _Rest(stack, attended, rows, self._arena)
            return rest.said
        return rest.replay(attended, rows)

    def _gathered(self, batch: Batch, kv: Tensor, *, is_whole: bool) -> tuple[Tensor, Tensor]:
        """All layers, or those to the last one's attention, done in one call."""
        self._know(kv)
        stack = self._stack
        inputs, plans = stack.embed(batch), stack.plans(batch)
        if self._first is not None:
            recorder, begins, found = self._gather(self._first, inputs, batch, plans, kv, is_whole)
            if (launches := self._alike.complete(recorder.launches, begins)) is not None:
                recorder.launches = launches
                Recording(recorder).replay()
                return found
        recorder, begins, found = self._gather(stack, inputs, batch, plans, kv, is_whole)
        if self._first is not None:
            self._alike.learn(recorder.launches, begins, len(batch.slots))
        Recording(recorder).replay()
        return found

    def _gather(
        self,
        stack: DecoderStack,
        inputs: Inputs,
        batch: Batch,
        plans: dict[int | None, AttentionPlan],
        kv: Tensor,
        is_whole: bool,
    ) -> tuple[Recorder, list[int], tuple[Tensor, Tensor]]:
        """Launches that are not done yet, where each layer's begin and end, and what comes of them."""
        begins: list[int] = []

        def before_layer() -> None:
            begins.append(len(recorder.launches))
            self._arena.next_generation()

        # In the arena of the recordings, whose memory is warm: one of this step alone cost what gathering gains.
        with Recorder(self._arena, defers=True, watches=not self._has_watched) as recorder:
            found = stack.attended(inputs, batch, plans, kv, before_layer)
            begins.append(len(recorder.launches))
            if is_whole:
                found = self._stack.rest(*found)
        self._has_watched = True
        return recorder, begins, found


def _first_of(stack: DecoderStack) -> DecoderStack | None:
    """The layers of which all others are copies; None where they are not alike, or too few."""
    layers, config = stack.weights.layers, stack.config
    count, shapes = first_layers(len(layers)), {_shape_of(layer) for layer in layers}
    has_windows = len({config.window_of(i) for i in range(len(layers))}) > 1
    if count is None or has_windows or len(shapes) > 1 or None in shapes or stack.features is not None:
        return None
    return stack.first(count)


def _shape_of(layer: LayerWeights) -> tuple[object, ...] | None:
    """What launches of a layer depend on but for addresses; None of one whose launches depend on more."""
    mlp = layer.mlp
    if not isinstance(mlp, DenseWeights):
        return None
    beside = (layer.qkv_bias, layer.output_bias, layer.q_norm, layer.k_norm, mlp.gate_up_bias, mlp.down_bias)
    matrices = (layer.qkv, layer.output, mlp.gate_up, mlp.down)
    layouts = [matrix.layout for matrix in matrices if isinstance(matrix, PanelMatrix)]
    return (*layouts, *(part is None for part in beside)) if len(layouts) == len(matrices) else None


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


class _Rest:
    """What follows the last attention, recorded by doing it for the rows of one batch: `said` is what comes of them."""

    def __init__(self, stack: DecoderStack, attended: tuple[Tensor, Tensor], rows: Tensor, arena: Arena) -> None:
        self._inputs = tuple(torch.index_select(part, 0, rows) for part in attended)
        with Recorder(arena) as recorder:
            self.said = stack.head(*stack.rest(*self._inputs))
        self._recording = Recording(recorder)

    def replay(self, attended: tuple[Tensor, Tensor], rows: Tensor) -> Said:
        """What is said of as many rows of another batch."""
        for part, own in zip(attended, self._inputs, strict=True):
            torch.index_select(part, 0, rows, out=own)
        self._recording.replay()
        return self.said
