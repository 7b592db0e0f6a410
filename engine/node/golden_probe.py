"""Asks the core the golden prompt now and then, and keeps the result. Threading: event loop only.

It never asks by itself while the answers are right: somebody must have asked for deep health. While they are wrong it
asks every few seconds, because only a right answer makes the node ready again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

import structlog

from engine.protocol.failure import FailureKind
from engine.protocol.golden_prompt import BadGoldenFileError, GoldenAnswerFile, find_difference, golden_sequence, key_of
from engine.protocol.messages import AbortSequence, CoreReady, GoldenAnswer, SequenceUpdate, ToCore
from engine.protocol.step import TokenLogprobs

log = structlog.get_logger()

INTERVAL_S = 60.0
INTERVAL_WHEN_WRONG_S = 5.0
URGENT_AFTER_S = 15.0  # users come first, but wrong answers are no use to them: then the run comes before the queue
PATIENCE_S = 120.0  # a node that has no place for so long is not asked this time


class GoldenResult(StrEnum):
    """What the last run that had an answer says of the model."""

    UNKNOWN = "unknown"
    PASSED = "passed"
    FAILED = "failed"


class GoldenProbe:
    """Owner of the expected answers and of the one run that may be under way."""

    def __init__(
        self,
        *,
        vocab_size: int,
        revision: str | None,
        send: Callable[[ToCore], object],
        file: GoldenAnswerFile | None = None,
        interval_s: float = INTERVAL_S,
        quantization: str | None = None,
        on_result: Callable[[str], None] = lambda result: None,
    ) -> None:
        """`on_result` hears passed, failed or error for each run."""
        self._vocab_size = vocab_size
        self._revision = revision
        self._quantization = quantization  # what matrices are rounded to at load
        self._send = send
        self._file = file
        self._interval_s = interval_s
        self._on_result = on_result
        self._expected: dict[str, GoldenAnswer] = {}
        self._key: str | None = None  # None while no core is ready
        self._max_tokens = 0
        self._num_runs = 0
        self._started_at = time.monotonic()
        self._is_urgent = False  # the run under way
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.pending_id: str | None = None
        self.result = GoldenResult.UNKNOWN
        self.detail: str | None = None  # why it failed, or why the last run has no result
        self.checked_at: float | None = None  # unix seconds, of the last result

    @property
    def is_wrong(self) -> bool:
        """Whether the node must not serve: only a right answer ends that."""
        return self.result is GoldenResult.FAILED

    def on_ready(self, ready: CoreReady, max_tokens: int) -> None:
        """A core came up, with its own first answer. The very first one becomes what is expected."""
        self._key = key_of(
            self._revision, ready.dtype, ready.device, ready.kv_cache_dtype, self._quantization, ready.rounding
        )
        self._max_tokens = max_tokens
        self.pending_id = None
        self._started_at = time.monotonic()
        if ready.golden is None:
            return
        if self._key not in self._expected:
            self._expected[self._key] = self._known(self._key, ready.golden)
        self._judge(ready.golden)

    def _known(self, key: str, first: GoldenAnswer) -> GoldenAnswer:
        if self._file is None:
            return first
        try:
            kept = self._file.read().get(key)
            if kept is not None:
                return kept
            self._file.add(key, first)
            log.info("golden.recorded", path=str(self._file.path), key=key)
        except (BadGoldenFileError, OSError) as error:
            log.warning("golden.file_not_used", reason=str(error))
        return first

    def on_core_lost(self) -> None:
        """The run under way will have no answer."""
        self._key, self.pending_id = None, None

    def request_run(self, now: float) -> None:
        """Deep health was asked for: start a run unless one is under way or the last one is recent."""
        interval_s = min(INTERVAL_WHEN_WRONG_S, self._interval_s) if self.is_wrong else self._interval_s
        if self._key is None or self.pending_id is not None or now - self._started_at < interval_s:
            return
        self._started_at = now
        self._begin_run(now, is_urgent=self.is_wrong)

    def _begin_run(self, now: float, *, is_urgent: bool) -> None:
        self._num_runs += 1
        self._token_ids, self._logprobs, self._is_urgent = [], [], is_urgent
        self.pending_id = f"golden-{self._num_runs}"
        self._send(golden_sequence(self._vocab_size, self._max_tokens, now, self.pending_id, is_urgent=is_urgent))

    def cancel(self) -> None:
        """Gives up the run under way: the core is wanted for something else."""
        if self.pending_id is not None:
            self._send(AbortSequence(self.pending_id, "sleep"))
            self.pending_id = None

    def on_awake(self, answer: GoldenAnswer) -> None:
        """The same core woke up and answered."""
        self._started_at = time.monotonic()
        if self._key is not None:
            self._judge(answer)

    def tick(self, now: float) -> None:
        """Hurries a run that gets no turn, gives it up in the end, and asks again while the answers are wrong."""
        waited_s = now - self._started_at
        if self.pending_id is not None and waited_s > PATIENCE_S:
            self._send(AbortSequence(self.pending_id, "deadline"))
            self.pending_id = None
            self.detail = f"no turn within {PATIENCE_S:.0f} s: the node is busy"
            self._on_result("error")
        elif self.pending_id is not None and waited_s > URGENT_AFTER_S and not (self._is_urgent or self._token_ids):
            self._send(AbortSequence(self.pending_id, "deadline"))
            self._begin_run(now, is_urgent=True)
        if self.is_wrong:
            self.request_run(now)

    def note_update(self, update: SequenceUpdate) -> None:
        """News of the run under way."""
        self._token_ids += update.token_ids
        self._logprobs += update.logprobs
        if update.finish_reason is None:
            return
        self.pending_id = None
        if update.finish_reason == "length":
            self._judge(GoldenAnswer(tuple(self._token_ids), tuple(self._logprobs)))
            return
        reason = "no reason given" if update.failure is None else update.failure.message
        if update.failure is not None and update.failure.kind is FailureKind.NON_FINITE_LOGITS:
            self._settle(f"no answer: {reason}")  # NaN to a known prompt is as wrong as another token
        else:
            self.detail = f"the last run ended with {update.finish_reason}: {reason}"
            self._on_result("error")

    def _judge(self, answer: GoldenAnswer) -> None:
        assert self._key is not None, "no core, no answer"
        self._settle(find_difference(self._expected[self._key], answer))

    def _settle(self, difference: str | None) -> None:
        """A run has a result; None: the answer is right."""
        self.detail = difference
        result = GoldenResult.PASSED if self.detail is None else GoldenResult.FAILED
        if result is not self.result:
            level = log.info if result is GoldenResult.PASSED else log.error
            level("golden.result_changed", result=result.value, detail=self.detail)
        self.result, self.checked_at = result, time.time()
        self._on_result(result.value)

    def report(self, now: float) -> dict[str, object]:
        """For `/health/deep`; `now` in unix seconds."""
        return {
            "result": self.result.value,
            "detail": self.detail,
            "checked_at": self.checked_at,
            "age_s": None if self.checked_at is None else round(max(0.0, now - self.checked_at), 3),
            "running": self.pending_id is not None,
        }
