"""The core's side of drills: faults that are real in their effect, switched by one message."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace

import structlog

from engine.core.runner import Runner
from engine.core.scheduler import Scheduler
from engine.protocol.clock import MonotonicClock
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.messages import SetFaults
from engine.protocol.step import StepPlan, StepResult

log = structlog.get_logger()

MIN_SLOWED_STEP_S = 0.002  # a fault must show also on steps that take no time
# Of one slowed step. Under the health probe's floor of 4 s: a slow node has to look slow, not hung. It also bounds what
# follows a stopped core: SIGSTOP for 5 s inside a step slowed five times once slept 20 s more after SIGCONT.
MAX_SLEEP_S = 3.0
_WRONG_LOGPROB = 2.0  # what a wrong token's log probability is off by


class InjectedOutOfMemoryError(MemoryError):
    """A step that lacks memory because a drill said so."""


class CoreFaults:
    """Stands between the step loop and the runner. Off, it only passes plans on."""

    def __init__(self, scheduler: Scheduler, runner: Runner, clock: MonotonicClock, *, is_enabled: bool) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._is_enabled = is_enabled
        self._now = SetFaults()
        self._num_oom_left = 0

    @property
    def is_hung(self) -> bool:
        """Whether the step loop must stand still."""
        return self._now.hung_core

    def set_faults(self, message: SetFaults) -> None:
        """The message is the whole state: what it does not name is off."""
        factor = 1.0 if message.slow_steps is None else message.slow_steps
        if not self._is_enabled:
            log.warning("fault.refused", reason="the core was started without faults enabled")
        elif not math.isfinite(factor) or factor < 1.0:
            log.warning("fault.refused", reason="slow_steps must be at least 1", slow_steps=factor)
        else:
            self._now = message
            self._num_oom_left = message.oom_steps
            self._scheduler.finds_prefixes = not message.prefix_cache_off
            log.warning("fault.set", **{name: getattr(message, name) for name in message.__struct_fields__})

    def run_step(self, plan: StepPlan) -> StepResult:
        """The runner's step, as the faults would have it. Raises what the runner raises, and MemoryError."""
        if self._num_oom_left > 0:
            self._num_oom_left -= 1
            raise InjectedOutOfMemoryError("a fault was set")
        started_at = self._clock.now()
        result = self._runner.run_step(plan)
        self._slow_down(plan, self._clock.now() - started_at)
        self._leak()
        result = self._fail(plan, result) if self._now.failing_share else result
        return self._spoil(result) if self._now.wrong_numbers else result

    def _slow_down(self, plan: StepPlan, own_seconds: float) -> None:
        own = max(own_seconds, MIN_SLOWED_STEP_S)
        seconds = (self._now.slow_steps or 1.0) * own + self._now.row_seconds * len(plan.scheduled)
        if self._now.slow_decode is not None and all(row.num_known_tokens == 1 for row in plan.scheduled):
            seconds *= self._now.slow_decode
        if seconds > own:
            self._clock.sleep(min(seconds - own, MAX_SLEEP_S))

    def _fail(self, plan: StepPlan, result: StepResult) -> StepResult:
        """Sequences that are new fail in this share, each by its id: the same one would fail again. With an error, and
        not with numbers that are none: those make a known prompt's answer wrong."""
        failing = {
            new.seq_id: SequenceFailure(FailureKind.STEP_FAILED, "a fault was set")
            for new in plan.new
            if zlib.crc32(new.seq_id.encode()) < self._now.failing_share * 2**32
        }
        return replace(
            result,
            token_ids={seq_id: drawn for seq_id, drawn in result.token_ids.items() if seq_id not in failing},
            failed={**result.failed, **failing},
        )

    def _leak(self) -> None:
        """Takes blocks that nobody will give back; the core's own check of its books finds that."""
        count = self._now.kv_leak_blocks
        if count and self._scheduler.pool.num_free > count:
            self._scheduler.pool.allocate(count)

    def _spoil(self, result: StepResult) -> StepResult:
        vocab_size = self._scheduler.config.vocab_size or 2**31
        return replace(
            result,
            token_ids={
                seq_id: tuple((token_id + 1) % vocab_size for token_id in drawn)
                for seq_id, drawn in result.token_ids.items()
            },
            logprobs={
                seq_id: tuple(replace(entry, chosen=entry.chosen - _WRONG_LOGPROB) for entry in found)
                for seq_id, found in result.logprobs.items()
            },
            prompt_logprobs={
                seq_id: tuple(replace(entry, chosen=entry.chosen - _WRONG_LOGPROB) for entry in found)
                for seq_id, found in result.prompt_logprobs.items()
            },
        )
