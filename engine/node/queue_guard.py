"""How much may wait here before more is refused: requests, the tokens they will need, and how long.

A waiting request needs KV for its prompt and for an answer of unknown length; what answers came to so far predicts it.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.node.generation_request import GenerationRequest
from engine.node.inflight import InflightRequest
from engine.node.limits import LiveLimits
from engine.node.refusal import RefusedError, retry_after_s
from engine.protocol.output_length import OutputLengthForecast

QUEUE_TIMEOUT = "queue_timeout"  # why a request ended that waited too long
DEFAULT_QUEUE_CAPACITIES = 4  # tokens that may wait, in multiples of the KV cache
LEAST_OUTPUT_TOKENS = 16  # predicted while no answer has finished yet, or of one that became longer than most


class QueueGuard:
    """Judges by what is held and by the lengths of answers before. Threading: event loop only."""

    def __init__(self) -> None:
        self._outputs = OutputLengthForecast()

    def note_finished(self, num_output_tokens: int) -> None:
        """One answer ended by itself with so many tokens."""
        self._outputs.observe(num_output_tokens)

    def tokens_of(self, request: GenerationRequest, num_output_tokens: int = 0) -> int:
        """KV that a request is predicted to need: its prompts once, and each choice's answer."""
        num_choices = request.n * len(request.prompts)
        produced = num_output_tokens // num_choices  # of each; a continued request brings some
        left = self._outputs.remaining_tokens(produced, request.sampling.max_tokens, LEAST_OUTPUT_TOKENS)
        return sum(map(len, request.prompts)) + num_choices * (produced + left)

    def max_tokens(self, limits: LiveLimits, kv_capacity_tokens: int) -> int:
        """What all that waits may need together."""
        most = limits.max_num_queued_tokens
        return most if most is not None else DEFAULT_QUEUE_CAPACITIES * kv_capacity_tokens

    def check(
        self,
        held: Iterable[InflightRequest],
        request: GenerationRequest | None,
        limits: LiveLimits,
        kv_capacity_tokens: int,
        tokens_per_s: float,
    ) -> None:
        """Raises RefusedError when this request, or any more (None), can't wait behind those that wait."""
        waiting = [f for f in held if f.outcome is None and f.is_waiting]
        if not waiting:
            return
        queued = sum(self.tokens_of(f.request, f.num_output_tokens) for f in waiting)
        wanted = 0 if request is None else self.tokens_of(request)
        if len(waiting) >= limits.max_num_queued_reqs:
            limit = "max_num_queued_reqs"
        elif queued + wanted > self.max_tokens(limits, kv_capacity_tokens):
            limit = "max_num_queued_tokens"
        else:
            return
        message = f"the queue is full ({limit}): {len(waiting)} requests wait that need {queued} tokens of KV cache"
        raise RefusedError("overloaded", message, retry_after_s(queued, tokens_per_s), limit=limit)
