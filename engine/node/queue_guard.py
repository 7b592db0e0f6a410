"""How much may wait here before more is refused: requests, the tokens they will need, and how long.

A waiting request needs KV for its prompt and for an answer of unknown length; what answers came to so far predicts it.
The sums are kept and not counted anew for each request: a client that retries its 429s must not cost the event loop.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from engine.node.generation_request import GenerationRequest
from engine.node.inflight import InflightRequest
from engine.node.limits import LiveLimits
from engine.node.refusal import RefusedError, retry_after_s
from engine.protocol.output_length import OutputLengthForecast

QUEUE_TIMEOUT = "queue_timeout"  # why a request ended that waited too long
DEFAULT_QUEUE_CAPACITIES = 4  # tokens that may wait, in multiples of the KV cache
LEAST_OUTPUT_TOKENS = 16  # predicted while no answer has finished yet, or of one that became longer than most


class _Wait(NamedTuple):
    """What one waiting request counts for."""

    num_prompt_tokens: int
    num_choices: int
    produced: int  # tokens of each choice; a continued request brings some
    max_tokens: int


class QueueGuard:
    """Owner of the sums over all that waits, and of the lengths of answers before. Threading: event loop only."""

    def __init__(self) -> None:
        self._outputs = OutputLengthForecast()
        self._waits: dict[InflightRequest, _Wait] = {}
        self._prompt_tokens = 0
        self._answers: Counter[tuple[int, int]] = Counter()  # choices that wait, by (produced, max_tokens)
        self._answer_tokens: int | None = 0  # of all `_answers`; None: the forecast has changed since

    def note_finished(self, num_output_tokens: int) -> None:
        """One answer ended by itself with so many tokens."""
        self._outputs.observe(num_output_tokens)
        self._answer_tokens = None

    def note_changed(self, inflight: InflightRequest) -> None:
        """A request came, was begun, lost a choice or ended: the sums follow."""
        before = self._waits.pop(inflight, None)
        if before is not None:
            self._count(before, -1)
        if inflight.outcome is None and inflight.is_waiting:
            now = self._waits[inflight] = _wait_of(inflight.request, inflight.num_output_tokens)
            self._count(now, 1)

    def _count(self, wait: _Wait, sign: int) -> None:
        answer = wait.produced, wait.max_tokens
        self._prompt_tokens += sign * wait.num_prompt_tokens
        self._answers[answer] += sign * wait.num_choices
        if not self._answers[answer]:
            del self._answers[answer]
        if self._answer_tokens is not None:
            self._answer_tokens += sign * wait.num_choices * self._answer_of(*answer)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waits)

    @property
    def queued_tokens(self) -> int:
        """KV that all waiting requests are predicted to need."""
        if self._answer_tokens is None:
            self._answer_tokens = sum(count * self._answer_of(*answer) for answer, count in self._answers.items())
        return self._prompt_tokens + self._answer_tokens

    def tokens_of(self, request: GenerationRequest, num_output_tokens: int = 0) -> int:
        """KV that a request is predicted to need: its prompts once, and each choice's answer."""
        wait = _wait_of(request, num_output_tokens)
        return wait.num_prompt_tokens + wait.num_choices * self._answer_of(wait.produced, wait.max_tokens)

    def _answer_of(self, produced: int, max_tokens: int) -> int:
        """Tokens of one choice's answer, those that it has included."""
        return produced + self._outputs.remaining_tokens(produced, max_tokens, LEAST_OUTPUT_TOKENS)

    def max_tokens(self, limits: LiveLimits, kv_capacity_tokens: int) -> int:
        """What all that waits may need together."""
        most = limits.max_num_queued_tokens
        return most if most is not None else DEFAULT_QUEUE_CAPACITIES * kv_capacity_tokens

    def check(
        self, request: GenerationRequest | None, limits: LiveLimits, kv_capacity_tokens: int, tokens_per_s: float
    ) -> None:
        """Raises RefusedError when this request, or any more (None), can't wait behind those that wait."""
        if not self._waits:
            return
        queued = self.queued_tokens
        wanted = 0 if request is None else self.tokens_of(request)
        if self.num_waiting >= limits.max_num_queued_reqs:
            limit = "max_num_queued_reqs"
        elif queued + wanted > self.max_tokens(limits, kv_capacity_tokens):
            limit = "max_num_queued_tokens"
        else:
            return
        message = f"the queue is full ({limit}): {self.num_waiting} requests wait that need {queued} tokens of KV cache"
        raise RefusedError("overloaded", message, retry_after_s(queued, tokens_per_s), limit=limit)


def _wait_of(request: GenerationRequest, num_output_tokens: int) -> _Wait:
    num_choices = request.n * len(request.prompts)
    return _Wait(
        num_prompt_tokens=sum(map(len, request.prompts)),
        num_choices=num_choices,
        produced=num_output_tokens // num_choices,
        max_tokens=request.sampling.max_tokens,
    )
