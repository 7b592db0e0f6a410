"""The core's one thread: take messages in, plan, run, apply, publish; and say now and then that it is alive.

Nothing here may end the process but the API process (a message, or its end of the connection) and steps that fail
again and again: one bad sequence or one lack of memory costs sequences, never the core.
"""

from __future__ import annotations

import gc
import queue
from collections.abc import Callable
from dataclasses import replace

import structlog

from engine.core.faults import CoreFaults, InjectedOutOfMemoryError
from engine.core.grammar_queue import GrammarCompiled, GrammarQueue
from engine.core.host_tuning import return_freed_memory
from engine.core.pending_step import StepOutcome
from engine.core.runner import Runner
from engine.core.scheduler import Scheduler
from engine.core.scheduler_config import Refused
from engine.core.step_time import StepSize, StepSlowness, StepTimeForecast
from engine.protocol.clock import MonotonicClock
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.frames import ConnectionClosed
from engine.protocol.golden_prompt import golden_sequence
from engine.protocol.heartbeat import CoreState, Heartbeat, HeartbeatPage
from engine.protocol.messages import (
    AbortSequence,
    AddSequence,
    BlocksHeld,
    BlockUse,
    CoreAsleep,
    CoreAwake,
    CoreFailed,
    CoreIdle,
    CountBlocks,
    FinishReason,
    FromCore,
    GoldenAnswer,
    ListBlocks,
    ResetPrefixCache,
    SequenceUpdate,
    SetFaults,
    SetLimits,
    Shutdown,
    Sleep,
    StepKind,
    StepReport,
    ToCore,
    WakeUp,
)
from engine.protocol.request_id import log_ids
from engine.protocol.step import StepPlan, StepResult, TokenLogprobs
from engine.text.grammar_compiler import GrammarCompiler

log = structlog.get_logger()

IDLE_REPORT_S = 1.0
MAX_FAILED_STEPS = 5  # in a row; then something is broken that waiting won't repair


class GoldenError(RuntimeError):
    """The model can't answer the golden prompt."""


class StepLoop:
    """Runs until told to stop. Threading: all in the thread that calls `run_until_shutdown`; only `inbox` is shared."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        inbox: queue.SimpleQueue[ToCore | ConnectionClosed | GrammarCompiled],
        publish: Callable[[FromCore], None],
        clock: MonotonicClock,
        *,
        enable_faults: bool = False,
        idle_report_s: float = IDLE_REPORT_S,
        heartbeats: HeartbeatPage | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._grammar_queue = GrammarQueue(grammars, inbox)
        self._heartbeats = heartbeats or HeartbeatPage.private()
        self._forecast = StepTimeForecast()
        self._slowness = StepSlowness()
        self._slowness_ratio: float | None = None  # of the last step
        self._faults = CoreFaults(scheduler, runner, clock, is_enabled=enable_faults)
        self._runner = runner
        self._is_asleep = False
        self._inbox = inbox
        self._publish = publish
        self._clock = clock
        self._idle_report_s = idle_report_s
        self._news: list[SequenceUpdate] = []  # ends that no step brought about
        self._num_failed_steps = 0  # in a row
        self._last_step_id = 0
        self._checked_at_change = -1
        self._integrity_error: str | None = None  # stays once found: the node should be replaced
        self._exit_code: int | None = None

    def run_until_shutdown(self) -> int:
        """Serve until the end; returns the process's exit code."""
        while True:
            self._handle_messages()
            if self._faults.is_hung:
                self._hang()
            if self._exit_code is not None:
                return self._exit_code
            if self._scheduler.has_work:
                self._step()
            elif self._news:
                self._publish(self._report(StepKind.NONE, 0.0, 0, 0, StepOutcome.nothing()))

    def warm_up(self, message: AddSequence) -> GoldenAnswer:
        """Serve one sequence to its end before any other, and say nothing of it. Raises GoldenError."""
        refused = self._scheduler.add(message, self._clock.now())
        if refused is not None:
            raise GoldenError(f"the golden prompt was refused: {refused}")
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        while (plan := self._scheduler.plan(self._clock.now())) is not None:
            result, seconds = self._compute(plan)
            outcome = self._scheduler.apply(replace(result, seconds=seconds), self._clock.now())
            for update in outcome.updates:
                if update.failure is not None:
                    raise GoldenError(f"the golden prompt failed: {update.failure.message}")
                token_ids += update.token_ids
                logprobs += update.logprobs
        return GoldenAnswer(tuple(token_ids), tuple(logprobs))

    def _handle_messages(self) -> None:
        """Take in all that has arrived; without work, wait for something to arrive."""
        state = CoreState.BETWEEN_STEPS if self._scheduler.has_work else CoreState.IDLE
        self._heartbeats.write(Heartbeat(self._clock.now(), state, self._last_step_id))
        try:
            if not self._scheduler.has_work:
                self._handle(self._inbox.get(timeout=self._idle_report_s))
            while self._exit_code is None:
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            if not self._scheduler.has_work and not self._news and not len(self._grammar_queue):
                self._report_idle()

    def _handle(self, message: ToCore | ConnectionClosed | GrammarCompiled) -> None:
        match message:
            case AddSequence():
                if not self._grammar_queue.holds_back(message):
                    self._add(message)
            case GrammarCompiled():
                self._handle_compiled(message)
            case AbortSequence():
                update = self._abort(message.seq_id)
                if update is not None:
                    log.info("sequence.aborted", **log_ids(message.seq_id), reason=message.reason)
                    self._news.append(update)
            case SetFaults():
                self._faults.set_faults(message)
            case SetLimits():
                self._set_limits(message)
            case ResetPrefixCache():
                self._scheduler.pool.forget_cached()
                log.info("prefix_cache.reset")
            case ListBlocks():
                held = {key: len(sequence.held_block_ids) for key, sequence in self._scheduler.sequences.items()}
                self._publish(BlocksHeld(message.number, held))
            case CountBlocks():
                self._publish(self._block_use(message.number))
            case Sleep():
                self._sleep()
            case WakeUp():
                self._wake()
            case Shutdown():
                self._end_all()
                self._exit_code = 0
            case ConnectionClosed():
                log.warning("core.orphaned", reason=message.reason)
                self._exit_code = 0

    def _block_use(self, number: int) -> BlockUse:
        pool = self._scheduler.pool
        return BlockUse(
            number=number,
            block_size=pool.block_size,
            num_blocks=pool.num_blocks,
            num_held=pool.num_used,
            num_shared=pool.num_shared,
            num_kept=pool.num_kept,
            num_kept_reused=pool.num_kept_reused,
        )

    def _handle_compiled(self, message: GrammarCompiled) -> None:
        sequence = self._grammar_queue.pop_sequence(message.seq_id)
        if sequence is not None and message.failure is None:
            self._add(sequence)
        elif sequence is not None and message.failure is not None:
            self._refuse(message.seq_id, message.failure)

    def _abort(self, seq_id: str) -> SequenceUpdate | None:
        if self._grammar_queue.pop_sequence(seq_id) is not None:
            return SequenceUpdate(seq_id, finish_reason=FinishReason.ABORT)
        return self._scheduler.abort(seq_id)

    def _add(self, message: AddSequence) -> None:
        if self._is_asleep:
            self._refuse(message.seq_id, SequenceFailure(FailureKind.ASLEEP, "the core is asleep"))
            return
        match self._scheduler.add(message, self._clock.now()):
            case Refused(_, reason, is_duplicate=True):
                log.warning("sequence.refused", **log_ids(message.seq_id), reason=reason)
            case Refused(_, reason):
                self._refuse(message.seq_id, SequenceFailure(FailureKind.REFUSED, reason))
            case SequenceUpdate() as update:
                self._news.append(update)

    def _refuse(self, seq_id: str, failure: SequenceFailure) -> None:
        """End a sequence that was never taken in."""
        log.warning("sequence.refused", **log_ids(seq_id), kind=failure.kind.value, reason=failure.message)
        self._news.append(SequenceUpdate(seq_id, finish_reason=FinishReason.ERROR, failure=failure))

    def _set_limits(self, message: SetLimits) -> None:
        limits = {name: getattr(message, name) for name in message.__struct_fields__}
        try:
            self._scheduler.config = replace(self._scheduler.config, **limits)
        except ValueError as error:
            log.warning("limits.refused", reason=str(error))
        else:
            log.info("limits.set", **limits)

    def _sleep(self) -> None:
        if self._scheduler.has_work or len(self._grammar_queue):
            self._publish(CoreAsleep(problem="requests are being served"))
            return
        slept = self._runner.sleep()
        self._scheduler.rebuild_pools()  # what blocks held is gone
        self._is_asleep = True
        gc.collect()
        return_freed_memory()
        log.info("core.fell_asleep", weights=slept.weights, freed_kv_bytes=slept.freed_kv_bytes)
        self._publish(CoreAsleep(slept.weights, slept.freed_kv_bytes))

    def _wake(self) -> None:
        """A core that can't have its memory back ends: a new one starts clean."""
        scheduler = self._scheduler
        try:
            if self._is_asleep:
                self._runner.wake()
            self._is_asleep = False
            golden = self.warm_up(
                golden_sequence(scheduler.config.vocab_size or 1, scheduler.config.max_tokens, self._clock.now())
            )
        except Exception as error:
            log.error("core.waking_failed", exc_info=error)
            self._publish(CoreFailed(f"can't wake up: {type(error).__name__}: {error}"))
            self._exit_code = 1
        else:
            log.info("core.woke_up")
            self._publish(CoreAwake(golden))

    def _hang(self) -> None:
        """As a hung core does: no step, no report, no heartbeat. Only the fault's end or the node's gets it out."""
        waiting: list[ToCore | GrammarCompiled] = []
        while self._faults.is_hung and self._exit_code is None:
            message = self._inbox.get()
            if isinstance(message, SetFaults | Shutdown | ConnectionClosed):
                self._handle(message)
            else:
                waiting.append(message)
        for message in waiting:
            self._handle(message)

    def _end_all(self) -> None:
        """Every sequence that was taken in gets its end, also at shutdown."""
        held = [*self._grammar_queue.seq_ids, *self._scheduler.sequences]
        updates = [self._abort(seq_id) for seq_id in held]
        self._news += [update for update in updates if update is not None]
        if self._news:
            self._publish(self._report(StepKind.NONE, 0.0, 0, 0, StepOutcome.nothing()))

    def _step(self) -> None:
        plan = self._scheduler.plan(self._clock.now())
        assert plan is not None, "work but no plan"
        started_at = self._clock.now()
        try:
            result, seconds = self._compute(plan)
        except Exception as error:  # noqa: BLE001 - whatever a step raises must cost its sequences, not the core
            self._contain(error, plan, self._clock.now() - started_at)
            return
        outcome = self._scheduler.apply(replace(result, seconds=seconds), self._clock.now())
        self._num_failed_steps = 0
        ran_out_of_memory = any(f.kind is FailureKind.OUT_OF_MEMORY for f in result.failed.values())
        self._publish_step(plan, seconds, outcome, out_of_memory=int(ran_out_of_memory))

    def _compute(self, plan: StepPlan) -> tuple[StepResult, float]:
        """Run a step, with a heartbeat before it that says how long it should take. Raises what the step raises."""
        size = StepSize.of(plan)
        started_at = self._clock.now()
        self._last_step_id = plan.step_id
        self._heartbeats.write(
            Heartbeat(
                started_at,
                CoreState.STEP,
                plan.step_id,
                predicted_s=self._forecast.seconds(size),
                num_seqs=len(plan.scheduled),
                num_tokens=plan.num_tokens,
                context_tokens=int(size.context_tokens),
                marks=self._runner.marks_per_step,
            )
        )
        result = self._faults.run_step(plan)
        seconds = self._clock.now() - started_at
        self._forecast.observe(size, seconds)
        self._slowness_ratio = self._slowness.ratio(size, seconds)
        return result, seconds

    def _contain(self, error: Exception, plan: StepPlan, seconds: float) -> None:
        is_oom = isinstance(error, MemoryError)
        text = f"{'out of memory' if is_oom else 'the step failed'}: {type(error).__name__}: {error}"
        failure = SequenceFailure(FailureKind.OUT_OF_MEMORY if is_oom else FailureKind.STEP_FAILED, text)
        log.error(
            "step.failed",
            step_id=plan.step_id,
            seq_ids=[scheduled.seq_id for scheduled in plan.scheduled],
            kind=failure.kind.value,
            is_injected=isinstance(error, InjectedOutOfMemoryError),
            exc_info=error,
        )
        outcome = self._scheduler.fail(failure, self._clock.now())
        if is_oom:
            gc.collect()
        self._num_failed_steps += 1
        self._publish_step(plan, seconds, outcome, failed_steps=1, out_of_memory=int(is_oom))
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            self._publish(CoreFailed(f"{self._num_failed_steps} steps in a row failed, the last one: {text}"))
            self._exit_code = 1

    def _publish_step(
        self,
        plan: StepPlan,
        seconds: float,
        outcome: StepOutcome,
        *,
        failed_steps: int = 0,
        out_of_memory: int,
    ) -> None:
        for preemption in outcome.preemptions:
            log.info(
                "sequence.preempted",
                **log_ids(preemption.seq_id),
                how=preemption.how.value,
                lost_tokens=preemption.lost_tokens,
                num_blocks=preemption.num_blocks,
                for_seq_id=preemption.for_seq_id,
            )
        report = self._report(
            outcome.kind,
            seconds,
            plan.num_tokens - outcome.probe_tokens,
            len(plan.scheduled),
            outcome,
            failed_steps=failed_steps,
            out_of_memory=out_of_memory,
        )
        log.debug("step.done", step_id=plan.step_id, kind=report.kind, seconds=seconds, num_tokens=plan.num_tokens)
        self._publish(report)

    def _report(
        self,
        kind: StepKind,
        seconds: float,
        num_tokens: int,
        num_seqs: int,
        outcome: StepOutcome,
        *,
        failed_steps: int = 0,
        out_of_memory: int = 0,
    ) -> StepReport:
        # News first: an abort ended its sequence before this step's tokens were drawn.
        updates, self._news = (*self._news, *outcome.updates), []
        for update in updates:
            if update.finish_reason is not None:
                log.info(
                    "sequence.finished",
                    **log_ids(update.seq_id),
                    finish_reason=update.finish_reason,
                    error=update.failure.message if update.failure is not None else None,
                    step_id=self._last_step_id,
                )
        scheduler = self._scheduler
        return StepReport(
            step_id=self._last_step_id,
            kind=kind,
            finished_at=self._clock.now(),
            seconds=seconds,
            num_tokens=num_tokens,
            num_seqs=num_seqs,
            updates=updates,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_blocks_used=scheduler.pool.num_used,
            kv_blocks_total=scheduler.pool.num_blocks,
            host_blocks_used=scheduler.host_blocks.num_blocks - scheduler.host_blocks.num_free,
            swapped_out_blocks=0 if failed_steps else outcome.swapped_out_blocks,
            swapped_in_blocks=0 if failed_steps else outcome.swapped_in_blocks,
            preemptions=len(outcome.preemptions),
            preempted_tokens=sum(p.lost_tokens for p in outcome.preemptions),
            prefix_queries_tokens=outcome.prefix_queries_tokens,
            prefix_hits_tokens=outcome.prefix_hits_tokens,
            failed_steps=failed_steps,
            out_of_memory=out_of_memory,
            num_drafts=outcome.num_drafts,
            num_draft_tokens=outcome.num_draft_tokens,
            accepted_per_position=outcome.accepted_per_position,
            slowness_ratio=self._slowness_ratio if kind is not StepKind.NONE and not failed_steps else None,
        )

    def _report_idle(self) -> None:
        scheduler = self._scheduler
        if scheduler.pool.num_changes != self._checked_at_change:
            problem = scheduler.check_integrity()
            if problem is not None:
                log.error("core.integrity_failed", problem=problem)
                self._integrity_error = problem
                scheduler.rebuild_pools()  # nothing runs, so nothing is lost but the prefix cache
            self._checked_at_change = scheduler.pool.num_changes
        self._publish(
            CoreIdle(self._clock.now(), scheduler.pool.num_used, scheduler.pool.num_blocks, self._integrity_error)
        )
