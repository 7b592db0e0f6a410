"""A request while it is being served here: its choices, its outcome, and what is ready to be written to its client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine.node.choice import Choice, ChoiceDelta
from engine.node.generation_request import GenerationRequest
from engine.node.stream_progress import ProgressLines

# Error codes of requests that ended with what held them.
CORE_DEAD = "core_dead"
NODE_STOPPING = "node_stopping"


class Fate(StrEnum):
    """How a request ended here. Each request that reached the API has exactly one."""

    FINISHED = "finished"  # every choice ended by itself and the answer was written
    MOVED = "moved"  # handed off; another node goes on
    ABORTED = "aborted"  # the client hung up
    FAILED = "failed"  # ended with an error event or an error answer
    REFUSED = "refused"  # never accepted: another node may take it
    INVALID = "invalid"  # never accepted, and no node would: bad body, unknown model, wrong key


@dataclass(slots=True, eq=False)
class InflightRequest:
    """One request from its admission until its answer was written or its client was gone."""

    request: GenerationRequest
    choices: Sequence[Choice]
    arrived_at: float  # monotonic
    accepts_handoff: bool = False
    progress: ProgressLines | None = None  # the caller is told what each event of the stream covers
    elapsed_before_s: float = 0.0  # on other nodes
    is_continued: bool = False
    shadow_of: str = ""  # the request that it is a copy of
    trace_headers: Mapping[str, str] = field(default_factory=dict)  # W3C trace context of the caller
    status: int | None = None  # of the HTTP answer, once it is begun
    admitted_at: float = 0.0  # monotonic; given to the core
    timers: list[asyncio.TimerHandle] = field(default_factory=list)  # end it at its deadline, or when it waits too long
    outcome: Fate | None = None  # what the answer must be; set once
    error: str | None = None  # with FAILED
    error_code: str | None = None
    first_token_at: float | None = None
    num_sent_tokens: int = 0  # of a stream: output tokens that its events cover, also events of other nodes
    _deltas: list[ChoiceDelta] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def open_choices(self) -> list[Choice]:
        """Those that the core still works on."""
        return [c for c in self.choices if not c.is_closed]

    @property
    def names(self) -> frozenset[str]:
        """What an operator may name it by: its request id, or the id of its answer."""
        return frozenset((self.request.request_id, self.request.answer_id))

    @property
    def num_prompt_tokens(self) -> int:
        """Counted once for each prompt, as usage does."""
        return sum(len(p) for p in self.request.prompts)

    @property
    def num_output_tokens(self) -> int:
        """Of all choices, also those that other nodes generated."""
        return sum(len(c.output_token_ids) for c in self.choices)

    @property
    def is_waiting(self) -> bool:
        """Whether no step has computed anything of it yet."""
        return all(c.scheduled_at is None for c in self.choices if not c.is_closed)

    def waits_for(self, choice: Choice) -> bool:
        """Whether tokens of this choice still matter to the client."""
        return self.outcome is None and not choice.is_closed

    def add(self, delta: ChoiceDelta) -> None:
        """Queues a delta for the stream; a whole answer is built from the choices in the end."""
        if self.request.stream:
            self._deltas.append(delta)
            self._news.set()

    def settle(self) -> None:
        """Sets the outcome once every choice is closed."""
        if self.outcome is not None or self.open_choices:
            return
        failed = next((c for c in self.choices if c.error is not None), None)
        if failed is not None:
            self.fail(failed.error or "", failed.error_code)
        else:
            self.end(Fate.MOVED if any(c.is_moved for c in self.choices) else Fate.FINISHED)

    def end(self, outcome: Fate) -> None:
        """The first outcome stands."""
        if self.outcome is None:
            self.outcome = outcome
        self._news.set()

    def fail(self, reason: str, code: str) -> None:
        """The outcome FAILED, unless there is one; `code` is for programs."""
        if self.outcome is None:
            self.error, self.error_code = reason, code
        self.end(Fate.FAILED)

    async def next_deltas(self) -> list[ChoiceDelta]:
        """Waits for deltas or the outcome; empty means: look at `outcome`."""
        if not self._deltas and self.outcome is None:
            self._news.clear()
            await self._news.wait()
        deltas, self._deltas = self._deltas, []
        return deltas


class Stage(StrEnum):
    """How far a choice in flight is."""

    WAITING = "waiting"  # no step has computed anything of it
    PREFILL = "prefill"  # begun, without a first token
    DECODE = "decode"


def stage_of(choice: Choice) -> Stage:
    """The stage of an open choice."""
    if choice.scheduled_at is None:
        return Stage.WAITING
    return Stage.PREFILL if choice.first_token_at is None else Stage.DECODE


@dataclass(frozen=True, slots=True)
class InflightLoad:
    """What the open choices still ask of the core; histograms tell of a prompt only once its request has ended."""

    longest_prompts: Mapping[Stage, int]  # tokens of the longest prompt at each stage, 0 without one
    prefill_requests: int  # choices that are in prefill
    prefill_backlog_tokens: int  # prompt tokens of choices without a first token, but those found in the prefix cache
    longest_output_tokens: int  # generated for the longest answer that is under way


def load_of(held: Iterable[InflightRequest]) -> InflightLoad:
    """The load of what is held and has no outcome yet."""
    longest = dict.fromkeys(Stage, 0)
    in_prefill = backlog = longest_output = 0
    for choice in (one for inflight in held if inflight.outcome is None for one in inflight.open_choices):
        stage, num_tokens = stage_of(choice), len(choice.prompt)
        longest[stage] = max(longest[stage], num_tokens)
        longest_output = max(longest_output, len(choice.output_token_ids))
        if stage is not Stage.DECODE:
            in_prefill += stage is Stage.PREFILL
            backlog += num_tokens - min(choice.num_cached_tokens or 0, num_tokens)
    return InflightLoad(longest, in_prefill, backlog, longest_output)


def oldest_ages_s(held: Iterable[InflightRequest], now: float) -> tuple[float | None, float | None]:
    """Ages of the oldest waiting and the oldest running request, which histograms would hide until they end."""
    held = [inflight for inflight in held if inflight.outcome is None]
    waited = max((now - f.arrived_at for f in held if f.is_waiting), default=None)
    worked = max((now - f.arrived_at for f in held if not f.is_waiting), default=None)
    return waited, worked
