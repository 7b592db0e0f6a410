"""Steps on a GPU: captured once as CUDA graphs for each size of batch, and then launched in one call.

A step of a model of 1B parameters takes an H100 1.3 ms, one with a prompt of 128 tokens 1.8, and Python 10 ms or more
to launch (docs/benchmarks.md). What recorded steps are on a CPU (`recorded_steps.py`), these are here, by the same
contract: a step has inputs of its own, over which a batch's are copied; its attention plans have room and are filled
anew (`kernels.gpu.fixed_plan`); results are good until the next step of any size; another KV cache, or weights at other
places, need new captures.

A batch is padded to the next size of a few: rows that pad it have a negative slot, which writes nothing, and no query.
Behind the last attention there are only the rows that are sampled, as on a CPU. The copy of what a batch says to the
device lies inside the graph, and so does that of each row's likeliest token back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from engine.model.batch import Batch
from engine.model.decoder_stack import DecoderStack, Said
from engine.model.weights import DecoderWeights, ExpertWeights
from kernels.gpu.attention_plan import SPLIT, HostPlan, plan_on_host
from kernels.gpu.fixed_plan import FixedPlan, PlanRoom, decoding_room, mixed_room, num_numbers
from kernels.gpu.launch import power_of_two
from kernels.gpu.sampling import likeliest_tokens

log = structlog.get_logger()

MAX_SAMPLES = 256  # of one step; above, launching costs little beside the step
MAX_TOKENS = 2048  # likewise
MIN_SAMPLES = 32  # of a step with chunks of prompts: the head reads its weights for one row or for 32
MAX_STEPS = 128  # captures that are kept, those used last; each holds some hundred launches
AHEAD_ROWS = 32  # decoding steps of up to so many rows are captured before there is traffic


def can_capture(weights: DecoderWeights) -> bool:
    """Whether a step never waits for the device: which experts rows go to is read back from it."""
    return not any(isinstance(layer.mlp, ExpertWeights) for layer in weights.layers)


def padded(num_rows: int) -> int:
    """The next size that decoding steps are captured for: 1, 2, 4, then by eights, sixteens and thirty-twos."""
    if num_rows <= 4:
        return 1 << (num_rows - 1).bit_length()
    unit = 8 if num_rows <= 64 else 16 if num_rows <= 128 else 32
    return -(-num_rows // unit) * unit


def padded_chunks(num_tokens: int) -> int:
    """The same for steps with chunks of prompts: each token costs 2 us of a step of 2 ms, another size a capture."""
    unit = 64 if num_tokens <= 1024 else 128
    return -(-num_tokens // unit) * unit


class StepSize(NamedTuple):
    """What a step has room for: batches of one size are computed by one graph."""

    tokens: int
    samples: int | None  # None: each row is sampled
    rooms: tuple[PlanRoom, ...]  # by window


def size_of(batch: Batch, plans: dict[int | None, HostPlan]) -> StepSize | None:
    """The size of a step for a batch; None where there are too many tokens."""
    tokens, samples = batch.token_ids.shape[0], batch.sample_rows.shape[0]
    if not 0 < tokens <= MAX_TOKENS or samples > MAX_SAMPLES:
        return None
    if tokens == samples:
        size = padded(tokens)
        rooms = [decoding_room(plan, size) for plan in plans.values()]
        if (whole := tuple(room for room in rooms if room is not None)) and len(whole) == len(rooms):
            return StepSize(size, None, whole)
    size = padded_chunks(tokens)
    places = max(power_of_two(samples), MIN_SAMPLES) if samples else 0
    return StepSize(size, places, tuple(mixed_room(plan, size) for plan in plans.values()))


def batches_ahead() -> Iterator[Batch]:
    """Of each size that traffic begins with one that writes nothing: prompts, and decoding with keys split and not.

    Where 32 clients began at once, captures as they were met took 15 to 25 ms each and made the p95 of TTFT 137 ms.
    The largest come first: what they take of the shared pool of memory all others fit into.
    """
    for tokens in dict.fromkeys(map(padded_chunks, range(MAX_TOKENS, 0, -1))):
        yield _idle_batch(1, tokens, tokens, [tokens - 1])
    for rows in dict.fromkeys(map(padded, range(AHEAD_ROWS, 0, -1))):
        for length in (SPLIT + 1, 1):
            yield _idle_batch(rows, 1, length, range(rows))


def _idle_batch(num_seqs: int, count: int, length: int, sample_rows: Sequence[int]) -> Batch:
    zeros = torch.zeros(num_seqs * count, dtype=torch.int64)
    return Batch(
        token_ids=zeros,
        positions=zeros,
        slots=zeros - 1,
        block_tables=torch.zeros((num_seqs, 1), dtype=torch.int32),  # block 0, whatever is in it
        seq_lens=torch.full((num_seqs,), length, dtype=torch.int32),
        query_starts=torch.arange(num_seqs + 1, dtype=torch.int32) * count,
        sample_rows=torch.tensor(sample_rows, dtype=torch.int64),
    )


class GraphSteps:
    """The steps of one decoder, by size.

    Threading: one thread at a time.
    """

    def __init__(self, stack: DecoderStack) -> None:
        self._stack = stack
        self._steps: dict[StepSize, _Step] = {}
        self._cache_at = 0
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._results: _Results | None = None
        self._is_refused = False

    def drop(self) -> None:
        """Forgets every capture: they hold the KV cache, and the places of the weights."""
        self._steps.clear()
        self._results = None
        self._cache_at = 0

    def said(self, batch: Batch, kv: Tensor) -> Said | None:
        """Of the sampled rows, good until the next step; None if the batch is too large for a captured step."""
        if self._is_refused or batch.token_ids.shape[0] > MAX_TOKENS:
            return None
        if kv.data_ptr() != self._cache_at:  # the node slept
            self.drop()
            self._cache_at = kv.data_ptr()
        plans = self._stack.planned(batch, plan_on_host)
        if (size := size_of(batch, plans)) is None:
            return None
        if (step := self._steps.pop(size, None)) is not None:
            self._steps[size] = step  # the last one that was used
            return step.launched(batch, plans)
        padded = PaddedStep(self._stack, batch, kv, size)
        step = _Step(padded, self._results_for(padded.num_samples))
        said = step.launched(batch, plans)
        self._keep(size, step)
        return said

    def capture_ahead(self, kv: Tensor) -> None:
        """Captures what traffic begins with: a second or so of the start, for some hundredths of one's in traffic."""
        torch.cuda.empty_cache()  # what loading left: captures have a pool of their own, and can't take it
        try:
            for batch in batches_ahead():
                self.said(batch, kv)
        except RuntimeError as exc:  # memory: prompts of traffic may be smaller
            self._refuse(exc)

    def layers(self, batch: Batch, kv: Tensor) -> tuple[Tensor, Tensor]:
        """What the stack's layers make of any batch, launched one by one: of each row more is asked than a token."""
        return self._stack.layers_of(batch, kv)

    def _keep(self, size: StepSize, step: _Step) -> None:
        """Captures it for the next batch; this one is computed already, whatever comes of it."""
        if len(self._steps) >= MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        try:
            step.capture(self._pool, self._stream)
            self._steps[size] = step
        except RuntimeError as exc:  # memory, or an operation that a stream can't capture
            self._refuse(exc)

    def _refuse(self, reason: RuntimeError) -> None:
        self._is_refused = True
        self.drop()
        log.warning("runner.steps_not_captured", reason=str(reason), remedy="steps are launched one by one, and slower")

    def _results_for(self, rows: int) -> _Results:
        if self._results is None or self._results.num_rows < rows:
            self._results = _Results(self._stack, max(power_of_two(rows), MIN_SAMPLES))
        return self._results


class PaddedStep:
    """A step of one size: the latest batch's, and behind it rows that do nothing.

    All that a batch says lies in one buffer, so that it goes to the device in one copy. Beside a step that is launched
    in one call, each further call counts: on a virtual machine with an H100 it takes some 80 us.
    """

    def __init__(self, stack: DecoderStack, batch: Batch, kv: Tensor, size: StepSize) -> None:
        """`batch`: the first one."""
        self._stack, self._kv = stack, kv
        self.num_samples = size.tokens if size.samples is None else size.samples
        windows = stack.windows
        row, places = size.tokens + size.tokens % 2, size.samples or 0  # aligned to 16 bytes
        sizes = [2 * (3 * row + places), *map(num_numbers, size.rooms)]  # int32, two of them an int64
        self._on_device = torch.zeros(sum(sizes), dtype=torch.int32, device=kv.device)
        self._on_host = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=kv.is_cuda)
        rows, *plans = self._on_device.split(sizes)
        on_host, *host_plans = self._on_host.split(sizes)
        token_ids, positions, slots, sample_rows = rows.view(torch.int64).split([row, row, row, places])
        own = (part[: size.tokens] for part in (token_ids, positions, slots))
        self._batch = replace(batch, **dict(zip(("token_ids", "positions", "slots"), own, strict=True)))
        self._sample_rows = None if size.samples is None else sample_rows
        self._rows = [part.numpy() for part in on_host.view(torch.int64).split([row, row, row, places])]
        self._fixed = {
            window: FixedPlan(room, size.tokens, window, numbers, own)
            for window, room, numbers, own in zip(windows, size.rooms, plans, host_plans, strict=True)
        }

    def fill(self, batch: Batch, plans: dict[int | None, HostPlan]) -> None:
        """Takes over a batch that has room, on the host: nothing may still be to be copied from there."""
        *rows, sample_rows = self._rows
        for target, part, rest in zip(rows, (batch.token_ids, batch.positions, batch.slots), (0, 0, -1), strict=True):
            target[: len(part)] = part.numpy()
            target[len(part) :] = rest
        if self._sample_rows is not None:
            sample_rows[: len(batch.sample_rows)] = batch.sample_rows.numpy()
            sample_rows[len(batch.sample_rows) :] = 0
        for window, fixed in self._fixed.items():
            fixed.fill(plans[window])

    def computed(self) -> Said:
        """Of all rows that are sampled, those that pad them too."""
        self._on_device.copy_(self._on_host, non_blocking=True)
        plans = {window: fixed.plan for window, fixed in self._fixed.items()}
        return self._stack.said(self._batch, plans, self._kv, self._sample_rows)


class _Results:
    """What steps say, in one place for all of them: the logits of 256 rows of a large vocabulary are 130 MB."""

    def __init__(self, stack: DecoderStack, num_rows: int) -> None:
        self.num_rows, config, device = num_rows, stack.config, stack.device
        dtype = stack.weights.embedding.dtype
        self.hidden = torch.empty((num_rows, config.hidden_size), dtype=dtype, device=device)
        self.logits = torch.empty((num_rows, config.vocab_size), dtype=torch.float32, device=device)
        self.tokens = torch.empty(num_rows, dtype=torch.int32, pin_memory=True)

    def take(self, said: Said) -> None:
        """Takes over a step's, and tells the host each row's likeliest token."""
        rows = said.logits.shape[0]
        self.hidden[:rows].copy_(said.hidden)
        self.logits[:rows].copy_(said.logits)
        if rows:
            self.tokens[:rows].copy_(likeliest_tokens(self.logits[:rows]), non_blocking=True)


class _Step:
    """A padded step and where its results go: launched one by one until it is captured, and then in one call."""

    def __init__(self, step: PaddedStep, results: _Results) -> None:
        self._step, self._results = step, results
        self._is_done = torch.cuda.Event()
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, pool: tuple[int, int], stream: torch.cuda.Stream) -> None:
        """For all launches from now on. Waits for the device, which `torch.cuda.graph` would empty caches of, too."""
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            # Other threads may use the device meanwhile: the grammar's worker does.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._results.take(self._step.computed())
            finally:
                graph.capture_end()
        self._graph = graph

    def launched(self, batch: Batch, plans: dict[int | None, HostPlan]) -> Said:
        """What is said of a batch. Nothing is waited for but this step's last launch."""
        self._is_done.synchronize()  # until then its inputs may be read
        self._step.fill(batch, plans)
        if self._graph is None:
            self._results.take(self._step.computed())
        else:
            self._graph.replay()
        self._is_done.record()
        rows, results = batch.sample_rows.shape[0], self._results
        return Said(results.hidden[:rows], results.logits[:rows], self._likeliest)

    def _likeliest(self) -> list[int]:
        self._is_done.synchronize()
        return self._results.tokens.tolist()
