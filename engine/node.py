"""One serving node: admits requests, feeds the engine core, gives each request its tokens and exactly one fate.

All state lives on the event loop. HTTP handlers call `admit`, take deltas from the flight, and call `close` in the
end; the dispatch loop is the only one that applies the core's updates. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from engine.config import NodeConfig
from engine.core_client import CoreClient
from engine.detokenizer import TextStream
from engine.drain import Drain, DrainState
from engine.health import CorePhase, Health, Reason, StepClock, judge
from engine.inflight import Ask, Choice, Fate, Flight, Progress
from engine.messages import (
    AbortRequest,
    AddRequest,
    CoreFailed,
    CoreIdle,
    CoreProgress,
    CoreReady,
    FromCore,
    SetFaults,
    StepReport,
)
from engine.metrics import NodeMetrics
from engine.tokenizer import Tokenizer

log = structlog.get_logger()

HEALTH_TICK_S = 0.25
HANDOFF_GRACE_S = 5.0  # after the drain deadline of a stopping node, for hand-offs to be written
DEFAULT_QUEUE_CAPACITIES = 4  # waiting tokens admitted, in multiples of the KV cache


@dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """The request was not accepted and left no trace: another node may take it."""

    reason: str  # draining, not_ready, overloaded
    message: str
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class TooLongError(Exception):
    """The request can never be served here: it does not fit the context or the KV cache."""

    message: str


class Node:
    """Owner of everything in flight on this node. Threading: event loop only."""

    def __init__(self, config: NodeConfig, tokenizer: Tokenizer, metrics: NodeMetrics, max_model_len: int) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.started_at = time.time()
        self.max_model_len = max_model_len  # the core may lower it
        self.core_ready: CoreReady | None = None
        self.core_error: str | None = None  # why the core ended
        self.progress: CoreProgress | None = None
        self.slow_steps: float | None = None
        self.drain = Drain(since=self.started_at)
        self.health = Health(Reason.LOADING, self.started_at)
        self.flights: dict[str, Flight] = {}  # by core id prefix, unique in this process
        self._choices: dict[str, tuple[Flight, Choice]] = {}  # until the core's terminal update
        self._core: CoreClient | None = None
        self._phase = CorePhase.LOADING
        self._heard_at = time.monotonic()
        self._steps = StepClock()
        self._core_running = 0
        self._kv_ratio = 0.0
        self._tokens_per_s = 0.0
        self._changed = asyncio.Event()
        self._drain_task: asyncio.Task[None] | None = None
        self._next_number = 0

    # Admission

    def check_admission(self, num_tokens: int = 0) -> None:
        """Raises RefusedError when a request of this many tokens can't be taken now."""
        self.judge_health()
        if self.drain.state is not DrainState.SERVING:
            self._refuse("draining", "this node is being drained")
        if self.health.reason is not Reason.READY:
            self._refuse("not_ready", f"this node is not ready: {self.health.reason.value}")
        waiting = [f for f in self.flights.values() if f.outcome is None and f.is_waiting]
        queued_tokens = sum(f.num_prompt_tokens + f.num_output_tokens for f in waiting)
        too_many = len(waiting) >= self.config.max_num_queued_reqs
        if too_many or (waiting and queued_tokens + num_tokens > self.max_queued_tokens):
            what = f"{len(waiting)} requests with {queued_tokens} tokens wait"
            self._refuse("overloaded", f"the queue is full: {what}", self._retry_after_s(queued_tokens))

    @property
    def max_queued_tokens(self) -> int:
        if self.config.max_num_queued_tokens is not None:
            return self.config.max_num_queued_tokens
        return DEFAULT_QUEUE_CAPACITIES * self.kv_capacity_tokens

    @property
    def kv_capacity_tokens(self) -> int:
        ready = self.core_ready
        return 0 if ready is None else ready.num_kv_blocks * ready.block_size

    @property
    def max_tokens_of_one(self) -> int:
        """Longest sequence that can be served: the context, or all of the KV cache when that is less."""
        return min(self.max_model_len, self.kv_capacity_tokens) if self.core_ready else self.max_model_len

    def _refuse(self, reason: str, message: str, retry_after_s: int | None = None) -> None:
        self.metrics.note_refused(reason)
        self.drain.note(Fate.REFUSED, len(self.flights), time.time())
        log.info("request.refused", reason=reason)
        raise RefusedError(reason, message, retry_after_s)

    def _retry_after_s(self, queued_tokens: int) -> int:
        if self._tokens_per_s <= 0:
            return 1
        return int(min(30.0, max(1.0, queued_tokens / self._tokens_per_s)))

    def admit(
        self,
        ask: Ask,
        *,
        arrived_at: float,
        accepts_handoff: bool = False,
        progress: Sequence[Progress] = (),
        elapsed_before_s: float = 0.0,
    ) -> Flight:
        """Takes a request in, or one that another node handed off (`progress`), and sends it to the core.

        Nothing is awaited between the check and the entry into `flights`: a drain that begins finds the request
        either refused or held. Raises RefusedError, TooLongError, ReplayError.
        """
        for prompt in ask.prompts:
            if len(prompt) + ask.sampling.max_tokens > self.max_tokens_of_one:
                raise TooLongError(
                    f"This model's maximum context length is {self.max_tokens_of_one} tokens. You asked for "
                    f"{len(prompt) + ask.sampling.max_tokens} tokens ({len(prompt)} in the prompt, "
                    f"{ask.sampling.max_tokens} for the answer). Shorten the prompt or lower max_tokens."
                )
        self.check_admission(sum(len(p) for p in ask.prompts))
        key = self._new_key()
        flight = Flight(
            ask=ask,
            choices=[self._make_choice(ask, index, key) for index in range(ask.n * len(ask.prompts))],
            arrived_at=arrived_at,
            accepts_handoff=accepts_handoff,
            elapsed_before_s=elapsed_before_s,
            is_continued=bool(progress),
        )
        for step in progress:
            flight.choices[step.index].replay(step)
        self.flights[key] = flight
        for choice in flight.open_choices:
            self._choices[choice.core_id] = (flight, choice)
            self._send(
                AddRequest(
                    request_id=choice.core_id,
                    prompt_token_ids=choice.prompt,
                    sampling=choice.sampling,
                    arrived_at=arrived_at,
                    priority=ask.priority,
                    output_token_ids=tuple(choice.output_token_ids),
                )
            )
        flight.settle()
        return flight

    def _make_choice(self, ask: Ask, index: int, key: str) -> Choice:
        sampling = ask.sampling_of(index)
        return Choice(
            index=index,
            core_id=f"{key}-{index}",
            prompt=ask.prompts[index // ask.n],
            sampling=sampling,
            text=TextStream(
                self.tokenizer.bytes_of,
                stop=ask.stop,
                include_stop=ask.include_stop,
                min_tokens=sampling.min_tokens,
            ),
            include_stop=ask.include_stop,
            keeps_text=not ask.stream,
        )

    def _new_key(self) -> str:
        # Clients choose request ids and repeat them; the core's ids must be unique, over core restarts too.
        self._next_number += 1
        return f"r{self._next_number}-{secrets.token_hex(4)}"

    # The end of a request

    def abandon(self, flight: Flight) -> None:
        """The client is gone: frees what the core holds for it."""
        if flight.outcome is None:
            flight.end(Fate.ABORTED)
            self._abort_open(flight, "client_gone")

    def close(self, flight: Flight, fate: Fate, now: float) -> None:
        """The answer was written, or never will be. The one place where a request ends: counted and logged once."""
        key = next((k for k, f in self.flights.items() if f is flight), None)
        if key is None:
            return
        self.abandon(flight)
        del self.flights[key]
        for choice in flight.open_choices:
            self.metrics.note_closed(flight, choice, now)
        self.metrics.note_fate(fate)
        self.drain.note(fate, len(self.flights), time.time())
        self._changed.set()
        _log_finished(flight, fate, now)

    def fail(self, flight: Flight, reason: str, code: str) -> None:
        """Ends a request with an error towards its client."""
        if flight.outcome is None:
            flight.fail(reason, code)
            self._abort_open(flight, "admin")

    def _abort_open(self, flight: Flight, reason: str) -> None:
        for choice in flight.open_choices:
            if choice.abort_reason is None:
                choice.abort_reason = reason
                self._send(AbortRequest(choice.core_id, reason))

    # Drain and hand-off

    def begin_drain(self, deadline_s: float) -> None:
        """No new work from now on; held requests finish, and those that can are handed off at the deadline."""
        before = self.drain.state
        self.drain.begin(len(self.flights), deadline_s, time.time())
        if before is DrainState.SERVING:
            log.info("node.drain_started", in_flight=len(self.flights), deadline_s=deadline_s)
        self._changed.set()
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.create_task(self._run_drain(), name="drain")

    def resume(self) -> None:
        self.drain.resume(time.time())
        self._changed.set()
        log.info("node.resumed")

    async def _run_drain(self) -> None:
        while self.drain.state is DrainState.DRAINING:
            self._changed.clear()
            left_s = (self.drain.deadline_at or 0.0) - time.time()
            if left_s <= 0:
                self._hand_off()
            try:
                await asyncio.wait_for(self._changed.wait(), left_s if left_s > 0 else None)
            except TimeoutError:
                continue
        log.info("node.drain_ended", state=self.drain.state.value, **_receipt_facts(self.drain))

    def _hand_off(self) -> None:
        """Stops every request that can go on elsewhere. Its state is taken when the core has confirmed, so that a
        token drawn meanwhile is neither lost nor drawn twice."""
        for flight in self.flights.values():
            if flight.accepts_handoff and flight.outcome is None:
                self._abort_open(flight, "moved")

    async def wait_drained(self) -> None:
        """Returns when the node holds no request."""
        while self.flights:
            self._changed.clear()
            await self._changed.wait()

    async def shut_down(self, drain_timeout_s: float) -> None:
        """Drains, moves what can be moved at the deadline, ends the rest with an error. Then nothing is held."""
        self.begin_drain(drain_timeout_s)
        try:
            await asyncio.wait_for(self._until_only_movable(), drain_timeout_s)
            await asyncio.wait_for(self.wait_drained(), HANDOFF_GRACE_S)
        except TimeoutError:
            for flight in list(self.flights.values()):
                self.fail(flight, "the node is stopping", "node_stopping")
            try:
                await asyncio.wait_for(self.wait_drained(), HANDOFF_GRACE_S)
            except TimeoutError:
                log.warning("node.requests_cut", count=len(self.flights))
