"""The core's one thread: take messages in, plan, run, apply, publish; and say now and then that it is alive.

Nothing here may end the process but the API process (a message, or its end of the connection) and steps that fail
again and again: one bad request or one lack of memory costs requests, never the core.
"""

from __future__ import annotations

import gc
import math
import queue
from collections.abc import Callable
from dataclasses import replace

import structlog

from engine.clock import Clock
from engine.draft import StepOutcome
from engine.frames import Closed
from engine.messages import (
    AbortRequest,
    AddRequest,
    CoreFailed,
    CoreIdle,
    FromCore,
    RequestUpdate,
    SetFaults,
    Shutdown,
    StepReport,
    ToCore,
)
from engine.request import FinishReason
from engine.runner import Runner
from engine.scheduler import Refused, Scheduler
from engine.step import StepPlan

log = structlog.get_logger()

IDLE_REPORT_S = 1.0
MAX_FAILED_STEPS = 5  # in a row; then something is broken that waiting won't repair
MIN_SLOWED_STEP_S = 0.002  # a fault must show also on steps that take no time
MAX_SLEEP_S = 30.0  # of one slowed step
_MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a step failed for lack of memory, on the device or on the host. Recognised without importing torch."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _MEMORY_SIGNS)


class StepLoop:
    """Runs until told to stop. Threading: all in the thread that calls `run`; only `inbox` is shared."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        inbox: queue.SimpleQueue[ToCore | Closed],
        publish: Callable[[FromCore], None],
        clock: Clock,
        *,
        enable_faults: bool = False,
        idle_report_s: float = IDLE_REPORT_S,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._inbox = inbox
        self._publish = publish
        self._clock = clock
        self._enable_faults = enable_faults
        self._idle_report_s = idle_report_s
        self._slow_steps = 1.0
        self._news: list[RequestUpdate] = []  # ends that no step brought about
        self._num_failed_steps = 0  # in a row
        self._last_step_id = 0
        self._checked_at_change = -1
        self._integrity_error: str | None = None  # stays once found: the node should be replaced
        self._exit_code: int | None = None

    def run(self) -> int:
        """Serve until the end; returns the process's exit code."""
        while True:
            self._take_messages()
            if self._exit_code is not None:
                return self._exit_code
            if self._scheduler.has_work:
                self._step()
            elif self._news:
                self._publish(self._report("none", 0.0, 0, 0, StepOutcome.nothing()))

    def _take_messages(self) -> None:
        """Take in all that has arrived; without work, wait for something to arrive."""
        try:
            if not self._scheduler.has_work:
                self._take(self._inbox.get(timeout=self._idle_report_s))
            while self._exit_code is None:
                self._take(self._inbox.get_nowait())
        except queue.Empty:
            if not self._scheduler.has_work and not self._news:
                self._report_idle()

    def _take(self, message: ToCore | Closed) -> None:
        match message:
            case AddRequest():
                self._add(message)
            case AbortRequest():
                update = self._scheduler.abort(message.request_id)
                if update is not None:
                    log.info("request.aborted", request_id=message.request_id, reason=message.reason)
                    self._news.append(update)
            case SetFaults():
                self._set_faults(message)
            case Shutdown():
                self._end_all()
                self._exit_code = 0
            case Closed():
                log.warning("core.orphaned", reason=message.reason)
                self._exit_code = 0

    def _add(self, message: AddRequest) -> None:
        match self._scheduler.add(message, self._clock.now()):
            case Refused(_, reason, is_duplicate):
                log.warning("request.refused", request_id=message.request_id, reason=reason)
                if not is_duplicate:
                    self._news.append(
                        RequestUpdate(message.request_id, finish_reason=FinishReason.ERROR.value, error=reason)
                    )
            case RequestUpdate() as update:
                self._news.append(update)

    def _set_faults(self, message: SetFaults) -> None:
        factor = 1.0 if message.slow_steps is None else message.slow_steps
        if not self._enable_faults:
            log.warning("fault.refused", reason="the core was started without faults enabled")
        elif not math.isfinite(factor) or factor < 1.0:
            log.warning("fault.refused", reason="slow_steps must be at least 1", slow_steps=factor)
        else:
            self._slow_steps = factor
            log.warning("fault.set", slow_steps=factor)

    def _end_all(self) -> None:
        """Every request that was taken in gets its end, also at shutdown."""
        updates = [self._scheduler.abort(request_id) for request_id in self._scheduler.request_ids]
        self._news += [update for update in updates if update is not None]
        if self._news:
            self._publish(self._report("none", 0.0, 0, 0, StepOutcome.nothing()))

    def _step(self) -> None:
        plan = self._scheduler.plan(self._clock.now())
        assert plan is not None, "work but no plan"
        self._last_step_id = plan.step_id
        started_at = self._clock.now()
        try:
            result = self._runner.run(plan)
        except Exception as error:  # noqa: BLE001 - whatever a step raises must cost its requests, not the core
            self._contain(error, plan, self._clock.now() - started_at)
            return
        self._slow_down(self._clock.now() - started_at)
        seconds = self._clock.now() - started_at
        outcome = self._scheduler.apply(replace(result, seconds=seconds), self._clock.now())
        self._num_failed_steps = 0
        lacked_memory = any(_MEMORY_SIGNS[0] in reason for reason in result.failed.values())
        self._publish_step(plan, seconds, outcome, out_of_memory=int(lacked_memory))

    def _contain(self, error: Exception, plan: StepPlan, seconds: float) -> None:
        lacks_memory = is_out_of_memory(error)
        reason = f"{'out of memory' if lacks_memory else 'the step failed'}: {type(error).__name__}: {error}"
        log.error("step.failed", step_id=plan.step_id, num_seqs=len(plan.scheduled), exc_info=error)
        outcome = self._scheduler.fail(reason, self._clock.now(), only_largest=lacks_memory)
        if lacks_memory:
            gc.collect()
        self._num_failed_steps += 1
        self._publish_step(plan, seconds, outcome, failed_steps=1, out_of_memory=int(lacks_memory))
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            self._publish(CoreFailed(f"{self._num_failed_steps} steps in a row failed, the last one: {reason}"))
            self._exit_code = 1

    def _slow_down(self, own_seconds: float) -> None:
        if self._slow_steps > 1.0:
            extra = (self._slow_steps - 1.0) * max(own_seconds, MIN_SLOWED_STEP_S)
            self._clock.sleep(min(extra, MAX_SLEEP_S))

    def _publish_step(
        self,
        plan: StepPlan,
        seconds: float,
        outcome: StepOutcome,
        *,
        failed_steps: int = 0,
        out_of_memory: int = 0,
    ) -> None:
        for preemption in outcome.preemptions:
            log.info(
                "request.preempted",
                request_id=preemption.request_id,
                how=preemption.how.value,
                lost_tokens=preemption.lost_tokens,
                num_blocks=preemption.num_blocks,
                for_request_id=preemption.for_request_id,
            )
        report = self._report(
            outcome.kind.value,
            seconds,
            plan.num_tokens,
            len(plan.scheduled),
            outcome,
            failed_steps=failed_steps,
            out_of_memory=out_of_memory,
        )
        log.debug("step.done", step_id=plan.step_id, kind=report.kind, seconds=seconds, num_tokens=plan.num_tokens)
        self._publish(report)

    def _report(
        self,
        kind: str,
        seconds: float,
        num_tokens: int,
        num_seqs: int,
        outcome: StepOutcome,
        *,
        failed_steps: int = 0,
        out_of_memory: int = 0,
    ) -> StepReport:
        # News first: an abort ended its request before this step's tokens were drawn.
        updates, self._news = (*self._news, *outcome.updates), []
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
            preemptions=len(outcome.preemptions),
            preempted_tokens=sum(p.lost_tokens for p in outcome.preemptions),
            prefix_queries_tokens=outcome.prefix_queries_tokens,
            prefix_hits_tokens=outcome.prefix_hits_tokens,
            failed_steps=failed_steps,
            out_of_memory=out_of_memory,
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
