"""One serving node: admits requests, feeds the engine core, gives each request its tokens and exactly one fate.

All state lives on the event loop. HTTP handlers call `admit`, take deltas from the flight, and call `close` in the
end; updates of the core are applied in `on_step` only. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import structlog

from engine.config import NodeConfig
from engine.node.core_link import CoreLink
from engine.node.drain import Drain, DrainState
from engine.node.faults import Faults
from engine.node.golden_probe import GoldenProbe
from engine.node.health import STUCK_FLOOR_S, CorePhase, Health, Reason
from engine.node.inflight import Ask, Choice, Fate, Flight, Progress
from engine.node.limits import LiveLimits
from engine.node.metrics import NodeMetrics
from engine.node.metrics_faults import MetricsFaults
from engine.node.model_facts import ModelFacts
from engine.node.new_choice import make_choice
from engine.node.queue_guard import QUEUE_TIMEOUT, QueueGuard
from engine.node.refusal import RefusedError, check_fits
from engine.node.request_log import RequestLog, SpanWriter
from engine.node.request_record import Arrival, RequestRecord, record_of
from engine.node.sleep import Sleeper
from engine.protocol.core_config import CoreConfig
from engine.protocol.golden_prompt import GoldenAnswerFile
from engine.protocol.messages import (
    AbortSequence,
    AddSequence,
    CoreAwake,
    CoreIdle,
    CoreReady,
    ResetPrefixCache,
    StepReport,
)
from engine.protocol.request_id import new_admission
from engine.text.grammar_compiler import GrammarCompiler
from engine.text.tokenizer import Tokenizer

log = structlog.get_logger()

LARGE_TEXTS_AT_ONCE = 2


class Node:
    """Owner of everything in flight here. Threading: event loop only."""

    def __init__(
        self,
        config: NodeConfig,
        core_config: CoreConfig,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        metrics: NodeMetrics,
        spans: SpanWriter | None = None,
    ) -> None:
        self.config = config
        self.facts = facts
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.grammars = GrammarCompiler(
            lambda: tokenizer, vocab_size=facts.vocab_size, eos_token_ids=facts.eos_token_ids
        )
        self.tool_format = config.tool_call_parser or tokenizer.tool_format
        self.core = CoreLink(core_config, metrics, self)
        self.started_at = time.time()
        self.drain = Drain(since=self.started_at)
        self.health = Health(Reason.LOADING, self.started_at)
        self.faults = Faults()
        self._request_log = RequestLog(spans)
        self.limits = LiveLimits.of(config, core_config)
        self.queue = QueueGuard()
        self.golden = GoldenProbe(
            vocab_size=facts.vocab_size,
            revision=facts.revision,
            send=self.core.send,
            file=None if config.golden_file is None else GoldenAnswerFile(config.golden_file),
            interval_s=config.golden_interval_s,
            on_result=metrics.note_golden,
        )
        self.sleeper = Sleeper(self)
        self._metrics_faults = MetricsFaults()
        self.large_texts = asyncio.Semaphore(LARGE_TEXTS_AT_ONCE)  # held while one is tokenised
        self.flights: set[Flight] = set()
        self._choices: dict[str, tuple[Flight, Choice]] = {}  # by sequence id, until the core's terminal update
        self._changed = asyncio.Event()  # a flight ended, or the drain's deadline or state changed
        self._emptied = asyncio.Event()
        self._drain_task: asyncio.Task[None] | None = None

    # Admission

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence served: the context, or all of the KV cache when that is less."""
        capacity, ready = self.core.kv_capacity_tokens, self.core.ready
        if capacity is None or ready is None:
            return self.facts.max_model_len
        return min(ready.max_model_len, capacity)

    def check_admission(self, ask: Ask | None = None) -> None:
        """Raises RefusedError when this request, or any more (None), can't be taken now; it is counted then."""
        try:
            if self.drain.state is not DrainState.SERVING:
                raise RefusedError("draining", "this node is being drained")
            reason = self.judge_health()
            if reason is not Reason.READY:
                raise RefusedError("not_ready", f"this node is not ready: {reason.value}")
            core = self.core
            self.queue.check(self.flights, ask, self.limits, core.kv_capacity_tokens or 0, core.tokens_per_s)
        except RefusedError as refusal:
            self.metrics.note_refused(refusal.reason, refusal.limit)
            self.drain.note(Fate.REFUSED, len(self.flights), time.time())
            raise

    def admit(
        self,
        ask: Ask,
        *,
        arrival: Arrival,
        accepts_handoff: bool = False,
        progress: Sequence[Progress] = (),
        elapsed_before_s: float = 0.0,
    ) -> Flight:
        """Takes a request in, or goes on with one that another node handed off (`progress`).

        Nothing is awaited between the check and the entry into `flights`: a drain that begins finds the request
        either refused or held. Raises RefusedError, TooLongError, ReplayError.
        """
        for prompt in ask.prompts:
            check_fits(len(prompt), ask.sampling.max_tokens, self.max_sequence_tokens)
        self.check_admission(ask)
        admission = new_admission()
        flight = Flight(
            ask=ask,
            choices=[make_choice(ask, index, admission, self.tokenizer) for index in range(ask.n * len(ask.prompts))],
            arrived_at=arrival.at,
            accepts_handoff=accepts_handoff,
            elapsed_before_s=elapsed_before_s,
            is_continued=arrival.is_continued,
            trace_headers=arrival.trace_headers,
            admitted_at=time.monotonic(),
        )
        for step in progress:
            flight.choices[step.index].replay(step)
        self.flights.add(flight)
        loop = asyncio.get_running_loop()
        if ask.deadline_s is not None:
            left_s = ask.deadline_s - elapsed_before_s - (flight.admitted_at - arrival.at)
            flight.timers.append(loop.call_later(max(0.0, left_s), self._expire, flight))
        if (wait_s := self.limits.max_queue_wait_s) is not None and not progress:
            flight.timers.append(loop.call_later(wait_s, self._expire_waiting, flight, wait_s))
        for choice in flight.open_choices:
            self._choices[choice.seq_id] = (flight, choice)
            self.core.send(
                AddSequence(
                    seq_id=choice.seq_id,
                    prompt_token_ids=choice.prompt,
                    sampling=choice.sampling,
                    arrived_at=arrival.at,
                    priority=ask.priority,
                    output_token_ids=tuple(choice.output_token_ids),
                    cache_salt=ask.cache_salt,
                )
            )
        flight.settle()
        return flight

    # What the core says

    def on_ready(self, message: CoreReady) -> None:
        self.golden.on_ready(message, self.max_sequence_tokens)

    def on_awake(self, message: CoreAwake) -> None:
        self.golden.on_awake(message.golden)

    def on_step(self, report: StepReport) -> None:
        if report.out_of_memory and self.faults.oom_next:
            self.faults = self.faults.after_out_of_memory(report.out_of_memory)
        now = time.monotonic()
        for update in report.updates:
            entry = self._choices.get(update.seq_id)
            if entry is None:
                if update.seq_id == self.golden.pending_id:
                    self.golden.take(update)
                continue
            flight, choice = entry
            if update.finish_reason is not None:
                del self._choices[update.seq_id]
            if not flight.waits_for(choice):
                continue  # drawn after the client left or a stop string was found
            num_before, is_new = len(choice.output_token_ids), choice.scheduled_at is None
            delta = choice.apply(update)
            if is_new:
                self.metrics.note_scheduled(flight, choice)
            self.metrics.note_tokens(flight, choice, len(choice.output_token_ids) - num_before, now)
            if delta is not None:
                flight.add(delta)
            if choice.is_closed:
                self._on_closed(flight, choice, is_core_done=update.finish_reason is not None, now=now)

    def _on_closed(self, flight: Flight, choice: Choice, *, is_core_done: bool, now: float) -> None:
        if not is_core_done:
            self.core.send(AbortSequence(choice.seq_id, "stop_string"))
        if not choice.is_moved:  # it counts where it finishes
            self.metrics.note_closed(flight, choice, now)
        if choice.error is not None:
            self.fail(flight, choice.error, choice.error_code)
        elif choice.finish_reason is not None:
            self.queue.note_finished(len(choice.output_token_ids))
        flight.settle()

    def on_idle(self, message: CoreIdle) -> None:
        """The core holds nothing. A request that it was given long before is lost: nobody would ever end it."""
        for flight in self.flights:
            if flight.outcome is None and message.at - flight.admitted_at > STUCK_FLOOR_S:
                log.error("request.lost", request_id=flight.ask.request_id)
                self.fail(flight, "the engine core lost this request", "engine_error")

    def on_core_lost(self, reason: str) -> None:
        self._choices.clear()
        self.faults = self.faults.without_core()
        self.golden.on_core_lost()
        for flight in self.flights:
            flight.fail(f"the engine core died: {reason}", "core_dead")

    # The end of a request

    def abandon(self, flight: Flight) -> None:
        """The client is gone: frees what the core holds for it."""
        if flight.outcome is None:
            flight.end(Fate.ABORTED)
            self._abort_open(flight, "client_gone")

    def fail(self, flight: Flight, reason: str, code: str, abort_reason: str = "admin") -> None:
        """Ends a request with an error towards its client."""
        if flight.outcome is None:
            flight.fail(reason, code)
            self._abort_open(flight, abort_reason)

    def _expire(self, flight: Flight) -> None:
        self.fail(flight, f"the deadline of {flight.ask.deadline_s:g} s passed", "deadline_exceeded", "deadline")

    def _expire_waiting(self, flight: Flight, waited_s: float) -> None:
        if flight.outcome is None and flight.is_waiting:
            self.metrics.rejected.labels(reason=QUEUE_TIMEOUT).inc()
            reason = f"it waited for {waited_s:g} s without being begun: this node has too much to do"
            self.fail(flight, reason, QUEUE_TIMEOUT, QUEUE_TIMEOUT)

    def abort(self, request_ids: Sequence[str] | None) -> list[str]:
        """Ends these requests (by X-Request-Id or by the answer's id), or all, with an error event; returns whose."""
        chosen = [
            flight
            for flight in self.flights
            if flight.outcome is None
            and (request_ids is None or flight.ask.request_id in request_ids or flight.ask.id in request_ids)
        ]
        for flight in chosen:
            self.fail(flight, "aborted by an operator", "aborted")
        log.warning("node.requests_aborted", count=len(chosen), asked_for="all" if request_ids is None else "some")
        return [flight.ask.request_id for flight in chosen]

    def close(self, flight: Flight, fate: Fate) -> None:
        """The answer was written, or never will be: the one place where a held request ends, counted once."""
        if flight not in self.flights:
            return
        now = time.monotonic()
        self.abandon(flight)
        for timer in flight.timers:
            timer.cancel()
        self.flights.discard(flight)
        for choice in flight.choices:
            # One that was to move ends here when its client left, or another choice failed, before it was handed off.
            if not choice.is_closed or (choice.is_moved and fate is not Fate.MOVED):
                self.metrics.note_closed(flight, choice, now)
        self.metrics.note_ended(flight, fate)
        self.drain.note(fate, len(self.flights), time.time())
        self._changed.set()
        if not self.flights:
            self._emptied.set()
        self._request_log.write(record_of(flight, fate, flight.status, now))

    def turn_away(self, arrival: Arrival, fate: Fate, status: int, code: str | None) -> None:
        """A request ended before it was taken in. Refusals were counted when they were made."""
        if fate is not Fate.REFUSED:
            self.metrics.note_fate(fate)
        # No message: it may quote what the client sent.
        self._request_log.write(RequestRecord(arrival, fate, time.monotonic(), status, error_code=code))

    def _abort_open(self, flight: Flight, reason: str) -> None:
        for choice in flight.open_choices:
            if choice.abort_reason is None:
                choice.abort_reason = reason
                self.core.send(AbortSequence(choice.seq_id, reason))

    # Drain and hand-off

    def begin_drain(self, deadline_s: float) -> None:
        """No new work from now on; held requests finish, and those that can are handed off at the deadline."""
        if self.drain.state is DrainState.SERVING:
            log.info("node.drain_started", in_flight=len(self.flights), deadline_s=deadline_s)
        self.drain.begin(len(self.flights), deadline_s, time.time())
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
                self.hand_off()
            try:
                await asyncio.wait_for(self._changed.wait(), left_s if left_s > 0 else None)
            except TimeoutError:
                continue
        log.info("node.drain_ended", state=self.drain.state.value, **asdict(self.drain.receipt))

    def hand_off(self) -> None:
        """Stops every request that can go on elsewhere. Its state is taken when the core has confirmed, so that a
        token drawn meanwhile is neither lost nor drawn twice."""
        for flight in self.flights:
            if flight.accepts_handoff and flight.outcome is None:
                self._abort_open(flight, "moved")

    async def is_emptied_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self.flights:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    # What others ask of it

    def judge_health(self) -> Reason:
        """Readiness now; a change is logged."""
        reason = self.core.judge(
            takes_work=self.drain.state is DrainState.SERVING,
            output_is_wrong=self.golden.is_wrong,
            rests=not self.sleeper.takes_work,
            now=time.monotonic(),
        )
        before = self.health.reason
        if self.health.note(reason, time.time()):
            log.info("node.health_changed", reason=reason.value, before=before.value)
        return reason

    def tick(self, now: float) -> None:
        """To be called a few times a second: changes of health are noticed also when nobody probes."""
        self.judge_health()
        self.core.kill_if_stuck(self.config.stuck_core_kill_after_s, now)
        if self.core.phase is CorePhase.UP:
            self.golden.tick(now)

    def counts(self) -> tuple[int, int]:
        """(running, waiting) sequences. What the core has not reported as running is waiting, also when it hangs."""
        held = sum(len(f.open_choices) for f in self.flights if f.outcome is None)
        running = min(self.core.running, held)
        return running, held - running

    def drain_status(self) -> dict[str, object]:
        running, waiting = self.counts()
        return self.drain.status(running=running, waiting=waiting)

    def set_faults(self, changes: dict[str, Any]) -> None:
        """Turns the named faults on, or off with None. Values were checked."""
        self.faults = self.faults.changed(changes)
        self.core.send(self.faults.for_core())
        log.warning("node.faults_set", **self.faults.shown())

    def set_limits(self, changes: dict[str, Any]) -> None:
        """Puts these limits in force, also for cores that start later. Raises ValueError, with nothing changed."""
        self.limits = self.limits.changed(changes)
        self.core.set_limits(self.limits.for_core())
        log.info("node.limits_set", **self.limits.shown())

    def reset_prefix_cache(self) -> bool:
        """Whether there is a core to do it."""
        return self.core.send(ResetPrefixCache())

    def exposition(self) -> bytes:
        running, waiting = self.counts()
        self.judge_health()
        self.metrics.note_state(
            flights=list(self.flights),
            running=running,
            waiting=waiting,
            kv_ratio=self.core.kv_ratio,
            drain=self.drain.state,
            sleep_level=self.sleeper.level,
            now=time.monotonic(),
        )
        return self._metrics_faults.apply(self.metrics.exposition(), self.faults)
