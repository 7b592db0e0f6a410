"""Carries out step plans on a real model: owns the weights, the KV cache and what it must know of each sequence.

The scheduler decides; this module computes. One bad sequence is reported in `StepResult.failed` and never stops the
others. One thread uses a runner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import structlog
import torch
from torch import Tensor

from engine.core.runner import NO_GRAMMARS, Slept, grammar_failure
from engine.core.team_judge import TeamJudge
from engine.model.batch import Batch, make_batch, why_not
from engine.model.calibration import calibrate
from engine.model.decoder import Decoder
from engine.model.directory import BadModelError, ModelDir, open_model
from engine.model.drafter import Wanted
from engine.model.drafter_directory import DrafterDir
from engine.model.drafter_loader import load_drafter
from engine.model.kv_memory import empty_kv
from engine.model.mask_worker import MaskWorker, Matching
from engine.model.pooler import pool
from engine.model.prompt_logprobs import score_prompts
from engine.model.sequence import Sequence
from engine.model.verification import accept
from engine.model.weights import OffloadedWeights, kept_bytes, load_weights
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.grammar import BadGrammarError
from engine.protocol.request_id import log_ids
from engine.protocol.step import NewSequence, SamplingParams, Scheduled, StepPlan, StepResult, TokenLogprobs
from engine.text.grammar_compiler import GrammarCompiler
from kernels.kv_cache import copy_blocks, swap_blocks
from kernels.kv_codes import KvCacheDtype, kv_format
from kernels.quantization import Quantization
from kernels.sample_row import LIKELIEST, Drawn, SampleRow
from kernels.sampling import sample

log = structlog.get_logger()

Progress = Callable[[str, float], None]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NON_FINITE_LOGITS = SequenceFailure(FailureKind.NON_FINITE_LOGITS, "non-finite logits")
_OUT_OF_MEMORY_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc")
WARM_UP_TOKENS = 80
# On a GPU each form of a kernel is compiled when it is first launched, for up to a second: the keys of so long a prompt
# are split, and its last tokens are a chunk of few queries.
GPU_WARM_UP_TOKENS, GPU_CHUNK_TOKENS = 600, 16
MARKS_PER_LAYER = 128  # of compiled kernels: a chunk takes milliseconds, so this is few for a layer that takes long
WARM_UP_SEQ_ID = "warm-up"  # those of requests hold a slash


class DeviceError(RuntimeError):
    """The device is not there, or has not enough memory; the message says what to change."""


@dataclass(slots=True)
class OfPrompts:
    """What a step tells of prompts, by sequence id."""

    logprobs: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    pooled: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Facts about a loaded runner, for `/info` and `CoreReady`."""

    num_blocks: int
    block_size: int
    num_host_blocks: int
    max_model_len: int
    vocab_size: int
    device: str
    dtype: str
    kv_cache_dtype: str  # auto: as `dtype`
    revision: str
    weight_bytes: int
    kv_bytes: int
    load_seconds: float
    warmup_seconds: float | None  # None before warm-up
    is_batch_invariant: bool | None  # None before warm-up, and where nothing promises it
    rounding: str | None = None  # hex digits of what calibration made of the weights; None: there was none


class ModelRunner:
    """`warm_up()` once, then `run_step(plan)` for every step."""

    def __init__(
        self,
        model_dir: ModelDir | Path | str,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        device: str = "cpu",
        dtype: str = "auto",
        quantization: Quantization | None = None,
        calibration: bool = False,
        kv_cache_dtype: KvCacheDtype = "auto",
        num_threads: int | None = None,
        progress: Progress | None = None,
        grammars: GrammarCompiler | None = None,
        eos_token_ids: tuple[int, ...] | None = None,
        drafter: DrafterDir | None = None,
        enforce_eager: bool = False,
    ) -> None:
        """Loads the model and takes the memory of the KV cache.

        `dtype` "auto" is that of `auto_dtype`. `num_threads` is the process's, for CPU work. `eos_token_ids` None is
        what the model says. `enforce_eager`: on a GPU no step is captured. `calibration`: of four bits on a
        CPU. `progress` is called with ("loading", "calibrating" or "warming_up", 0 to 1). Raises BadModelError,
        DeviceError.
        """
        started = time.perf_counter()
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks {num_blocks} and block_size {block_size} must be at least 1")
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        model = model_dir if isinstance(model_dir, ModelDir) else open_model(model_dir)
        self._progress = progress or (lambda phase, done: None)
        self._device = _device(device)
        self._dtype = _dtype(dtype, model, self._device)
        self._model, self._config = model, model.config
        self._block_size = block_size
        self._sequences: dict[str, Sequence] = {}
        self._grammars = grammars
        self._eos_token_ids = self._config.eos_token_ids if eos_token_ids is None else eos_token_ids
        self._mask_worker = MaskWorker()
        self._team = TeamJudge(torch.get_num_threads()) if self._device.type == "cpu" else None
        self._team_size = torch.get_num_threads()  # of the latest step
        self._kv_cache_dtype = kv_cache_dtype
        self._kv_dtype, row = kv_format(kv_cache_dtype, self._dtype, self._config.head_dim)
        shape = (num_blocks, block_size, self._config.num_kv_heads, row)
        try:
            weights = load_weights(
                model,
                dtype=self._dtype,
                device=str(self._device),
                quantization=quantization,
                progress=self._progress,
            )
            is_calibrated = calibration and self._device.type == "cpu"
            self._rounding = calibrate(model, weights, self._progress) if is_calibrated else None
            self._kv_shape = (self._config.num_layers, 2, *shape)
            self._host_kv_shape = (self._config.num_layers, 2, num_host_blocks, *shape[1:])
            self._kv, self._host_kv = self._new_kv()
            self._drafter = None
            if drafter is not None:
                self._drafter = load_drafter(
                    drafter,
                    weights,
                    num_blocks=num_blocks,
                    num_host_blocks=num_host_blocks,
                    block_size=block_size,
                    max_len=self._config.max_position_embeddings,
                    dtype=self._dtype,
                    device=self._device,
                    kv_cache_dtype=self._kv_cache_dtype,
                    enforce_eager=enforce_eager,
                )
        except (RuntimeError, MemoryError) as exc:
            if not _is_out_of_memory(exc):
                raise
            raise DeviceError(
                f"not enough memory on {self._device} for the model and {num_blocks} KV blocks: {exc}"
            ) from exc
        self._num_blocks = num_blocks
        self._max_len = min(self._config.max_position_embeddings, num_blocks * block_size)
        self._weights = OffloadedWeights(weights)
        features = None if self._drafter is None else self._drafter.features
        self._decoder = Decoder(
            self._config, weights, num_positions=self._max_len, features=features, enforce_eager=enforce_eager
        )
        self._load_seconds = time.perf_counter() - started
        self._warmup_seconds: float | None = None

    @property
    def info(self) -> RunnerInfo:
        """Sizes and facts of what was loaded."""
        return RunnerInfo(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            num_host_blocks=self._host_kv.shape[2],
            max_model_len=self._max_len,
            vocab_size=self._config.vocab_size,
            device=str(self._device),
            dtype=str(self._dtype).removeprefix("torch."),
            kv_cache_dtype=self._kv_cache_dtype,
            revision=self._model.revision,
            weight_bytes=self._model.weight_bytes,
            kv_bytes=self._kv.nbytes,
            load_seconds=self._load_seconds,
            warmup_seconds=self._warmup_seconds,
            is_batch_invariant=self._decoder.is_batch_invariant,
            rounding=self._rounding,
        )

    @property
    def marks_per_step(self) -> int:
        """On a CPU each layer and each chunk of a kernel's work; a GPU computes a step out of sight."""
        if self._device.type != "cpu":
            return 1
        marks = MARKS_PER_LAYER if self._decoder.is_batch_invariant else 1
        return marks * self._config.num_layers

    def warm_up(self) -> None:
        """Packs the weights and computes a prompt and a few tokens, so that the first request is as fast as the next.

        On a GPU captures steps of the usual sizes. Leaves the cache empty. Raises BadModelError when the model
        answers what is no number.
        """
        started = time.perf_counter()
        self._progress("warming_up", 0.0)
        self._decoder.prepare()
        if self._drafter is not None:
            self._drafter.prepare()
        if self._decoder.is_batch_invariant is False:
            log.warning("runner.rows_depend_on_batch", remedy="tokens may differ in rare ties with what else runs")
        self._progress("warming_up", 0.5)
        is_on_gpu = self._device.type == "cuda"
        length = max(min(GPU_WARM_UP_TOKENS if is_on_gpu else WARM_UP_TOKENS, self._max_len - 2), 1)
        blocks = tuple(range(-(-min(length + 2, self._max_len) // self._block_size)))
        tokens = tuple(i % self._config.vocab_size for i in range(length))
        sampling = SamplingParams(max_tokens=2, top_p=0.9, presence_penalty=0.1, num_logprobs=1)
        new: tuple[NewSequence, ...] = (NewSequence(WARM_UP_SEQ_ID, tokens, length, sampling),)
        start = 0
        if is_on_gpu and length > GPU_CHUNK_TOKENS:
            start = length - GPU_CHUNK_TOKENS
            self._expect_answer(
                self.run_step(StepPlan(0, (Scheduled(WARM_UP_SEQ_ID, 0, start, blocks, False),), new=new))
            )
            new = ()
        plan = StepPlan(0, (Scheduled(WARM_UP_SEQ_ID, start, length - start, blocks, samples=True),), new=new)
        for position in range(length, min(length + 2, self._max_len)):
            self._expect_answer(self.run_step(plan))
            plan = StepPlan(0, (Scheduled(WARM_UP_SEQ_ID, position, 1, blocks, samples=True),))
        self._expect_answer(self.run_step(plan))
        sample(self._kv.new_zeros((1, self._config.vocab_size), dtype=self._dtype), [LIKELIEST])
        self.run_step(StepPlan(0, (), forgotten=(WARM_UP_SEQ_ID,)))
        self._kv[:, :, : len(blocks)] = 0
        self._decoder.capture_ahead(self._kv)
        self._warmup_seconds = time.perf_counter() - started
        self._progress("warming_up", 1.0)

    def _new_kv(self) -> tuple[Tensor, Tensor]:
        pinned = self._device.type == "cuda" and self._host_kv_shape[2] > 0
        return (
            empty_kv(self._kv_shape, self._kv_dtype, self._device),
            empty_kv(self._host_kv_shape, self._kv_dtype, torch.device("cpu"), pinned=pinned),
        )

    def sleep(self) -> Slept:
        """Drops the KV cache; on a GPU moves the weights to host memory. On a CPU they are there already and stay."""
        self._sequences.clear()
        self._decoder.drop_recordings()
        freed = self._kv.nbytes + self._host_kv.nbytes + (0 if self._drafter is None else self._drafter.sleep())
        self._kv = self._host_kv = torch.empty(0)
        if self._device.type != "cuda":
            return Slept(freed, "kept")
        self._weights.offload()
        torch.cuda.empty_cache()
        return Slept(freed, "offloaded")

    def wake(self) -> None:
        """Takes the memory again. Raises DeviceError, or what torch raises, when there is not enough."""
        try:
            self._weights.restore()
            self._kv, self._host_kv = self._new_kv()
            if self._drafter is not None:
                self._drafter.wake()
        except (RuntimeError, MemoryError) as exc:
            if not _is_out_of_memory(exc):
                raise
            raise DeviceError(f"not enough memory on {self._device} to wake up: {exc}") from exc

    def run_step(self, plan: StepPlan) -> StepResult:
        """One forward pass. A sequence in `failed` has no token and its state is as before the step.

        Raises MemoryError where memory ran out for something else than the forward pass, which drops sequences.
        """
        try:
            return self._run_step(plan)
        except RuntimeError as exc:
            if not _is_out_of_memory(exc):
                raise
            raise MemoryError(str(exc)) from exc

    def _run_step(self, plan: StepPlan) -> StepResult:
        started, own_started = time.perf_counter(), time.thread_time()
        for seq_id in plan.forgotten:
            self._sequences.pop(seq_id, None)
        for new in plan.new:
            self._sequences[new.seq_id] = self._sequence_of(new)
        if self._drafter is not None:
            for seq_id in (*plan.forgotten, *(new.seq_id for new in plan.new)):
                self._drafter.forget(seq_id)
        if plan.swap_out or plan.swap_in or plan.copies:
            self._move_blocks(plan)
        failed = {s.seq_id: why for s in plan.scheduled if (why := self._why_not(s)) is not None}
        scheduled = [s for s in plan.scheduled if s.seq_id not in failed]
        token_ids: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[TokenLogprobs, ...]] = {}
        of_prompts = OfPrompts()
        with self._mask_worker.working_on(self._matchers_of(scheduled)) as masks:
            with self._team_for(scheduled):
                logits = self._forward(scheduled, failed, of_prompts)
            allowed = masks()
        sampling = [s for s in scheduled if s.samples]
        if sampling:
            rows = [
                row
                for s in sampling
                for row in self._sequences[s.seq_id].sample_rows(
                    self._eos_token_ids, s.draft, allowed.masks.get(s.seq_id)
                )
            ]
            all_drawn = iter(self._drawn(logits, rows))
            for s in sampling:
                accepted = accept(s.draft, list(islice(all_drawn, 1 + len(s.draft))))
                if s.seq_id in allowed.failures:
                    failed[s.seq_id] = grammar_failure(allowed.failures[s.seq_id])
                    continue
                if not accepted.token_ids:
                    failed[s.seq_id] = NON_FINITE_LOGITS
                    continue
                self._sequences[s.seq_id].extend(accepted.token_ids)
                token_ids[s.seq_id] = accepted.token_ids
                if accepted.logprobs:
                    logprobs[s.seq_id] = accepted.logprobs
        if failed:
            reasons = {seq_id: failure.message for seq_id, failure in failed.items()}
            log.warning("step.sequences_failed", step_id=plan.step_id, failed=reasons)
        proposals = self._propose(scheduled, token_ids)
        # It computes beside its team and spins where it waits: without a neighbour, that is the step's time.
        own_seconds = time.thread_time() - own_started if self._device.type == "cpu" else 0.0
        return StepResult(
            plan.step_id,
            token_ids,
            time.perf_counter() - started,
            logprobs,
            failed,
            of_prompts.logprobs,
            proposals,
            of_prompts.pooled,
            own_seconds,
        )

    def _drawn(self, logits: Tensor | None, rows: list[SampleRow]) -> list[Drawn]:
        assert logits is not None, "sequences that sample were computed"
        if all(row is LIKELIEST for row in rows) and (tokens := self._decoder.likeliest()) is not None:
            return [Drawn(token if token >= 0 else None) for token in tokens[: len(rows)]]
        return sample(logits, rows)

    @torch.inference_mode()
    def _move_blocks(self, plan: StepPlan) -> None:
        swap_blocks(self._kv, self._host_kv, plan.swap_out)
        swap_blocks(self._host_kv, self._kv, plan.swap_in)
        copy_blocks(self._kv, plan.copies)
        if self._drafter is not None:
            self._drafter.move(plan.swap_out, plan.swap_in, plan.copies)

    @contextmanager
    def _team_for(self, scheduled: list[Scheduled]) -> Iterator[None]:
        """As many threads as the judge says for a decoding step; all of them for prompts."""
        rows, self._team_size = sum(s.num_tokens for s in scheduled), torch.get_num_threads()
        if self._team is None or not all(s.samples and s.num_known_tokens == 1 for s in scheduled):
            yield
            return
        started = time.perf_counter()
        self._team_size = min(self._team.num_threads(rows, started), torch.get_num_threads())
        try:
            with _threads(self._team_size):
                yield
        finally:
            now = time.perf_counter()
            self._team.observe(rows, self._team_size, now - started, now)

    def _propose(self, scheduled: list[Scheduled], token_ids: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        if self._drafter is None:
            return {}
        wanted, row = [], 0
        for s in scheduled:
            if s.num_wanted and (drawn := token_ids.get(s.seq_id)):
                tokens = self._sequences[s.seq_id].token_ids
                wanted.append(Wanted(s.seq_id, tokens, s.block_ids, s.num_wanted, row + len(drawn) - 1))
            row += 1 + len(s.draft) if s.samples else 0
        if not wanted:
            return {}
        with _threads(self._team_size):  # what is faster for the model is so for what drafts
            return self._drafter.propose(wanted, self._decoder.last_hidden)

    def _sequence_of(self, new: NewSequence) -> Sequence:
        grammar = new.sampling.grammar
        if grammar is None:
            return Sequence(new)
        if self._grammars is None:
            return Sequence(new, problem=NO_GRAMMARS)
        try:
            return Sequence(new, self._grammars.matcher(grammar, new.token_ids[new.num_prompt_tokens :]))
        except BadGrammarError as error:
            return Sequence(new, problem=grammar_failure(error))

    def _matchers_of(self, scheduled: list[Scheduled]) -> list[Matching]:
        found = ((s, self._sequences[s.seq_id].matcher) for s in scheduled if s.samples)
        return [Matching(s.seq_id, matcher, s.draft) for s, matcher in found if matcher is not None]

    def _why_not(self, s: Scheduled) -> SequenceFailure | None:
        sequence = self._sequences.get(s.seq_id)
        if sequence is not None and sequence.problem is not None:
            return sequence.problem
        problem = why_not(
            s,
            self._sequences.get(s.seq_id),
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            vocab_size=self._config.vocab_size,
            max_len=self._max_len,
        )
        return None if problem is None else SequenceFailure(FailureKind.DEFECT, problem)

    def _forward(
        self,
        scheduled: list[Scheduled],
        failed: dict[str, SequenceFailure],
        of_prompts: OfPrompts,
    ) -> Tensor | None:
        """Logits of the sampling sequences; what is asked of prompts goes into `of_prompts`.

        Out of memory drops the largest sequence and tries the others again.

        Trying again is safe: the same keys and values are written to the same slots.
        """
        while scheduled:
            try:
                batch = make_batch(scheduled, self._sequences, block_size=self._block_size)
                if not any(self._sequences[s.seq_id].reads_prompt_states for s in scheduled):
                    return self._decoder.forward(batch, self._kv)
                return self._forward_scored(scheduled, batch, of_prompts, failed)
            except (RuntimeError, MemoryError) as exc:
                if not _is_out_of_memory(exc):
                    raise
                largest = max(scheduled, key=lambda s: (s.num_tokens, s.start))
                log.error(
                    "step.out_of_memory",
                    **log_ids(largest.seq_id),
                    num_tokens=largest.num_tokens,
                    reason=str(exc),
                )
            # Outside of the handler: the exception would keep the failed attempt's tensors alive.
            scheduled.remove(largest)
            failed[largest.seq_id] = SequenceFailure(FailureKind.OUT_OF_MEMORY, "out of memory")
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return None

    @torch.inference_mode()
    def _forward_scored(
        self,
        scheduled: list[Scheduled],
        batch: Batch,
        of_prompts: OfPrompts,
        failed: dict[str, SequenceFailure],
    ) -> Tensor:
        hidden = self._decoder.hidden(batch, self._kv)
        found, non_finite = score_prompts(
            scheduled, self._sequences, batch, lambda rows: self._decoder.logits(hidden, rows)
        )
        of_prompts.logprobs |= found
        if any(self._sequences[s.seq_id].sampling.pooling is not None for s in scheduled):
            normed, classes = self._decoder.normed(hidden), self._decoder.weights.classes
            of_prompts.pooled, bad = pool(scheduled, self._sequences, batch, normed, classes)
            non_finite += bad
        failed |= dict.fromkeys(non_finite, NON_FINITE_LOGITS)
        return self._decoder.logits(hidden, batch.sample_rows)

    def _expect_answer(self, result: StepResult) -> None:
        if WARM_UP_SEQ_ID in result.failed:
            problem = f"the model can't compute its first tokens: {result.failed[WARM_UP_SEQ_ID].message}"
            raise BadModelError(self._model.path, problem, "the weights are damaged, or too large for this dtype")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as exc:
        raise DeviceError(f"device {name!r} is unknown; use cpu or cuda") from exc
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "device cuda: no GPU is usable here; use cpu, or install the CUDA build of torch and the driver"
        )
    return device


def auto_dtype(stored: str, device: str) -> str:
    """The stored type; on a CPU float32 for those that its kernels don't take."""
    return "float32" if device.startswith("cpu") and stored == "float16" else stored


def kept_weight_bytes(model: ModelDir, dtype: str, device: str) -> int:
    """What the model's weights take at most on a device once they are packed."""
    return kept_bytes(model, dtype=DTYPES[dtype], device=device)


def _dtype(name: str, model: ModelDir, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = auto_dtype(model.config.dtype, device.type)
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; supported are auto, {', '.join(DTYPES)}")
    return DTYPES[name]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads of torch's team."""
    most = torch.get_num_threads()
    if count != most:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != most:
            torch.set_num_threads(most)


def _is_out_of_memory(exc: BaseException) -> bool:
    """The one place that reads a text: torch's CPU allocator and some CUDA calls raise a plain RuntimeError."""
    if isinstance(exc, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(exc).lower()
    return isinstance(exc, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY_TEXTS)
