"""Decoding steps on a GPU: captured once as CUDA graphs for each size of batch, and then launched in one call.

A step of a model of 1B parameters takes an H100 1.4 ms and Python 17 ms to launch (docs/benchmarks.md). What recorded
steps are on a CPU (`recorded_steps.py`), these are here, by the same contract: a step has inputs of its own, over which
a batch's are copied; its attention plans have room and are filled anew (`kernels.gpu.fixed_plan`); results are good
until the next step of any size; another KV cache, or weights at other places, need new captures.

A batch is padded to the next size of a few: rows that pad it have a negative slot, which writes nothing, and no query.
"""

from __future__ import annotations

from dataclasses import replace

import structlog
import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.decoder_stack import DecoderStack, Said
from engine.model.weights import DecoderWeights, ExpertWeights
from kernels.gpu.attention_plan import HostPlan, plan_on_host
from kernels.gpu.fixed_plan import FixedPlan, PlanRoom, num_numbers, room_for

log = structlog.get_logger()

MAX_ROWS = 256  # above, launching costs little beside the step
MAX_STEPS = 128  # captures that are kept; each holds some hundred launches


def can_capture(weights: DecoderWeights) -> bool:
    """Whether a step never waits for the device: which experts rows go to is read back from it."""
    return not any(isinstance(layer.mlp, ExpertWeights) for layer in weights.layers)


def padded(num_rows: int) -> int:
    """The next size that steps are captured for: 1, 2, 4, then by eights, sixteens and thirty-twos."""
    if num_rows <= 4:
        return 1 << (num_rows - 1).bit_length()
    unit = 8 if num_rows <= 64 else 16 if num_rows <= 128 else 32
    return -(-num_rows // unit) * unit


class GraphSteps:
    """The steps of one decoder, by size and by the room of their plans; each row of them is sampled.

    Threading: one thread at a time.
    """

    def __init__(self, stack: DecoderStack) -> None:
        self._stack = stack
        self._steps: dict[tuple[int, tuple[PlanRoom, ...]], _Step] = {}
        self._cache_at = 0
        self._pool = torch.cuda.graph_pool_handle()
        self._is_refused = False

    def drop(self) -> None:
        """Forgets every capture: they hold the KV cache, and the places of the weights."""
        self._steps.clear()
        self._cache_at = 0

    def said(self, batch: Batch, kv: Tensor) -> Said | None:
        """Of every row, good until the next step; None if the batch is no such step."""
        rows = batch.token_ids.shape[0]
        if self._is_refused or not 0 < rows == batch.sample_rows.shape[0] <= MAX_ROWS:
            return None
        if kv.data_ptr() != self._cache_at:  # the node slept
            self.drop()
            self._cache_at = kv.data_ptr()
        size, plans = padded(rows), self._stack.planned(batch, plan_on_host)
        rooms = [room for plan in plans.values() if (room := room_for(plan, size)) is not None]
        if len(rooms) < len(plans):
            return None
        key = (size, tuple(rooms))
        if (step := self._steps.get(key)) is not None:
            step.fill(batch, plans)
            step.graph.replay()
            return step.of(rows)
        step = PaddedStep(self._stack, batch, kv, size, dict(zip(plans, rooms, strict=True)))
        step.fill(batch, plans)
        said = step.computed()
        self._keep(key, step)
        return Said(said.hidden[:rows], said.logits[:rows])

    def layers(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What the stack's layers make of any batch, launched one by one: prompts have any number of tokens."""
        return self._stack.layers_of(batch, kv)

    def _keep(self, key: tuple[int, tuple[PlanRoom, ...]], step: PaddedStep) -> None:
        """Captures it for the next batch; this one is computed already, whatever comes of it."""
        if len(self._steps) >= MAX_STEPS:
            self._steps.clear()
        try:
            self._steps[key] = _Step(step, self._pool)
        except RuntimeError as exc:  # memory, or an operation that a stream can't capture
            self._is_refused = True
            self._steps.clear()
            log.warning(
                "runner.steps_not_captured", reason=str(exc), remedy="steps are launched one by one, and slower"
            )


class PaddedStep:
    """A step of `size` rows: the latest batch's, and behind them rows that do nothing.

    All that a batch says lies in one buffer, so that it goes to the device in one copy. Beside a step that is launched
    in one call, each further call counts: on a virtual machine with an H100 it takes some 80 us.
    """

    def __init__(
        self, stack: DecoderStack, batch: Batch, kv: Tensor, size: int, rooms: dict[int | None, PlanRoom]
    ) -> None:
        """`batch`: the first one."""
        self._stack, self._kv = stack, kv
        row = size + size % 2  # aligned to 16 bytes
        sizes = [3 * row * 2, *(num_numbers(room) for room in rooms.values())]  # int32, two of them an int64
        on_device = torch.zeros(sum(sizes), dtype=torch.int32, device=kv.device)
        self._on_device, self._on_host = on_device, torch.zeros_like(on_device, device="cpu", pin_memory=True)
        rows, *plans = self._on_device.split(sizes)
        self._host_rows, *self._host_plans = self._on_host.split(sizes)
        self._host_rows = self._host_rows.view(torch.int64).view(3, row)
        token_ids, positions, slots = rows.view(torch.int64).view(3, row)[:, :size]
        self._batch = replace(batch, token_ids=token_ids, positions=positions, slots=slots)
        self._fixed = {
            window: FixedPlan(room, size, window, numbers)
            for (window, room), numbers in zip(rooms.items(), plans, strict=True)
        }
        self._copied = torch.cuda.Event()

    def fill(self, batch: Batch, plans: dict[int | None, HostPlan]) -> None:
        """Takes over a batch that has room. The copy to the device is not waited for."""
        count = batch.token_ids.shape[0]
        self._copied.synchronize()  # the buffer is read until then: that was over before the last step was
        rows = self._host_rows
        rows.zero_()
        for target, part in zip(rows, (batch.token_ids, batch.positions, batch.slots), strict=True):
            target[:count] = part
        rows[2, count:] = -1
        for (window, fixed), numbers in zip(self._fixed.items(), self._host_plans, strict=True):
            fixed.fill(plans[window], numbers)
        self._on_device.copy_(self._on_host, non_blocking=True)
        self._copied.record()

    def computed(self) -> Said:
        """Of all rows, those that pad it too; logits in float32, as they are sampled."""
        plans = {window: fixed.plan for window, fixed in self._fixed.items()}
        stack = self._stack
        said = stack.head(*stack.layers(stack.embed(self._batch), self._batch, plans, self._kv))
        return Said(said.hidden, said.logits.float())


class _Step:
    """A padded step's launches, captured: `said` is written anew by each replay."""

    def __init__(self, step: PaddedStep, pool: tuple[int, int]) -> None:
        self.fill = step.fill
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: the grammar's worker does.
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self._said = step.computed()

    def of(self, rows: int) -> Said:
        """What is said of the first rows."""
        return Said(self._said.hidden[:rows], self._said.logits[:rows])
