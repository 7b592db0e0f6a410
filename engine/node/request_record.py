"""What became of one client request: the facts that its log line and its span tell. No prompt and no text.

Every request that reaches a generating route ends in exactly one record, also one that was never taken in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from engine.node.generation_request import Kind
from engine.node.inflight import Fate, InflightRequest
from engine.protocol.step import SamplingParams


class Phase(NamedTuple):
    """A part of a request's time here; monotonic seconds."""

    name: str  # queue, prefill, decode
    start: float
    end: float
    is_whole: bool  # False: the request ended in the middle of it


@dataclass(frozen=True, slots=True)
class Arrival:
    """A client request as it stands before anything of it was read."""

    request_id: str
    kind: Kind | None  # None: a hand-off that could not be read
    at: float  # monotonic
    trace_headers: Mapping[str, str] = field(default_factory=dict)  # W3C trace context of the caller
    is_continued: bool = False  # comes from another node
    client: str = ""  # who sent it, for fair shares; in no log
    shadow_of: str = ""  # the request that it is a copy of, by id; its answer goes to no user

    @property
    def seed_id(self) -> str:
        """The id that gives the seed where none is named: a copy draws as its request does."""
        return self.shadow_of or self.request_id


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are monotonic. None: not known, or it never came to it."""

    arrival: Arrival
    state: Fate
    ended_at: float
    status: int | None = None  # of the HTTP answer; None when none was begun
    error: str | None = None
    error_code: str | None = None
    answer_id: str | None = None  # OpenAI's `id`
    model: str | None = None
    sampling: SamplingParams | None = None
    stream: bool = False
    priority: int = 0
    num_choices: int = 0
    finish_reasons: Sequence[str | None] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    num_preemptions: int = 0
    elapsed_before_s: float = 0.0  # on other nodes
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None

    @property
    def queue_s(self) -> float | None:
        """Arrival to the first step."""
        return _between(self.arrival.at, self.scheduled_at)

    @property
    def prefill_s(self) -> float | None:
        """First step to first token."""
        return _between(self.scheduled_at, self.first_token_at)

    @property
    def decode_s(self) -> float | None:
        """First token to last."""
        return _between(self.first_token_at, self.last_token_at)

    @property
    def ttft_s(self) -> float | None:
        """Arrival to the first token of this node."""
        return _between(self.arrival.at, self.first_token_at)

    @property
    def e2e_s(self) -> float:
        """Since the first arrival, on whatever node that was."""
        return max(0.0, self.ended_at - self.arrival.at) + self.elapsed_before_s

    @property
    def phases(self) -> list[Phase]:
        """What the request went through, in order. One that was not taken in has none."""
        if self.num_choices == 0:
            return []
        steps = [("queue", self.arrival.at), ("prefill", self.scheduled_at), ("decode", self.first_token_at)]
        begun = [(name, start) for name, start in steps if start is not None]
        found = []
        for (name, start), (_, end) in pairwise(begun):
            found.append(Phase(name, start, max(start, end), is_whole=True))
        name, start = begun[-1]
        is_whole = name == "decode" and self.state is Fate.FINISHED
        last = self.last_token_at if is_whole and self.last_token_at is not None else self.ended_at
        return [*found, Phase(name, start, max(start, last), is_whole)]


def record_of(inflight: InflightRequest, fate: Fate, status: int | None, now: float) -> RequestRecord:
    """The record of a request that was taken in and ended. `now` is monotonic."""
    request, choices = inflight.request, inflight.choices
    cached = [c.num_cached_tokens for c in choices if c.index % request.n == 0 and c.num_cached_tokens is not None]
    return RequestRecord(
        arrival=Arrival(
            request.request_id,
            request.kind,
            inflight.arrived_at,
            inflight.trace_headers,
            is_continued=inflight.is_continued,
            shadow_of=inflight.shadow_of,
        ),
        state=fate,
        ended_at=now,
        status=status,
        error=inflight.error,
        error_code=inflight.error_code,
        answer_id=request.answer_id,
        model=request.model,
        sampling=request.sampling,
        stream=request.stream,
        priority=request.priority,
        num_choices=len(choices),
        finish_reasons=[c.finish_reason for c in choices],
        prompt_tokens=inflight.num_prompt_tokens,
        output_tokens=inflight.num_output_tokens,
        cached_tokens=sum(cached) if cached else None,
        num_preemptions=sum(c.num_preemptions for c in choices),
        elapsed_before_s=inflight.elapsed_before_s,
        scheduled_at=min((c.scheduled_at for c in choices if c.scheduled_at is not None), default=None),
        first_token_at=inflight.first_token_at,
        last_token_at=max((c.last_token_at for c in choices if c.last_token_at is not None), default=None),
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)
