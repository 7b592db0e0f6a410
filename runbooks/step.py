"""One step of a run: ask the guard, begin, act, end; again after a temporary error. Knows no other step."""

from __future__ import annotations

import asyncio
import math

import structlog

from runbooks.context import Context
from runbooks.fleet_view import Change
from runbooks.guard import Ruling, judge_capacity, judge_undo
from runbooks.ports import PermanentError, Receipt, TemporaryError
from runbooks.run import Phase, Run, StepRecord, StepStatus, taken_out
from runbooks.target import TargetKind
from runbooks.verb import EffectCall

log = structlog.get_logger()


async def carry_step(context: Context, run: Run, phase: Phase, index: int) -> Run:
    """The run with this step over: done, failed, or skipped because a guard said no or a person cancelled."""
    while True:
        step = run.step(phase, index)
        if step.attempts >= context.limits.max_begins:
            return await _stop(context, run, step, f"begun {step.attempts} times without an end")
        begun = await _begin(context, run, step)
        if isinstance(begun, Ruling):
            run = await context.stored(context.journal.get, run.id)
            return await _stop(context, run, step, _cancel_text(run, phase) or str(begun))
        run = begun
        step = run.step(phase, index)
        again = f", attempt {step.attempts}" if step.attempts > 1 else ""
        context.emit("step.started", f"{_label(run, step)}{again}", run, **_facts(step))
        outcome = await _act(context, run, step)
        now = context.clock.now()
        if isinstance(outcome, PermanentError):
            return await _stop(context, run, step, str(outcome))
        if not isinstance(outcome, TemporaryError):
            run = await context.stored(
                context.journal.end_step, run.id, phase, index, StepStatus.DONE, now, receipt=outcome
            )
            step = run.step(phase, index)
            context.emit("step.finished", f"{_label(run, step)}: done{_took(step)}", run, **_facts(step))
            return run
        if step.failures + 1 >= context.limits.max_attempts:
            return await _stop(context, run, step, f"{outcome} (tried {step.failures + 1} times)")
        run = await context.stored(context.journal.note_failure, run.id, phase, index, str(outcome), now)
        step = run.step(phase, index)
        pause_s = _pause_s(context, step, outcome)
        text = f"{_label(run, step)}: {outcome}; again in {pause_s:g} s"
        context.emit("step.retried", text, run, **_facts(step))
        await context.clock.sleep(pause_s)
        run = await context.stored(context.journal.get, run.id)
        if cancelled := _cancel_text(run, phase):
            return await _stop(context, run, step, cancelled)


async def _begin(context: Context, run: Run, step: StepRecord) -> Run | Ruling:
    """The run with its step begun, or the guard's last word. A guard is asked again for a while: signals lag."""
    limits = context.limits
    ruling: Ruling | None = None
    for look in range(max(1, math.ceil(limits.guard_wait_s / limits.poll_s)) + 1):
        if look:
            await context.clock.sleep(limits.poll_s)
            if _cancel_text(await context.stored(context.journal.get, run.id), step.phase):
                break
        async with context.gate:
            ruling = await _judge(context, run, step)
            if ruling.allows:
                now = context.clock.now()
                return await context.stored(context.journal.begin_step, run.id, step.phase, step.index, now)
        log.info("step.waiting", run_id=run.id, step=step.index, phase=step.phase, ruling=str(ruling))
    assert ruling is not None
    return ruling


async def _judge(context: Context, run: Run, step: StepRecord, change: Change | None = None) -> Ruling:
    others = await context.stored(context.journal.running_steps, run.id)
    fleet = await context.fleet()
    if step.phase == "do" and change is None and not run.override:
        ruling = await context.budget_ruling(run, [step], fleet)
        if not ruling.allows:
            return ruling
    if step.phase == "undo":
        named = {target.name for target in run.targets if target.kind is TargetKind.NODE}
        acted_on = named | taken_out(one for one in run.do_steps if one.has_begun)
        ruling = judge_undo(step.action, fleet, change=change, fresh=run.fresh_nodes, acted_on=acted_on)
        if not ruling.allows:
            return ruling
    return judge_capacity(
        step.action,
        fleet,
        change=change,
        fresh=run.fresh_nodes,
        gone=taken_out([*(one for one in run.steps if one.has_begun), step]),
        leaving=taken_out(others),
        floor_ratio=context.limits.capacity_floor_ratio,
    )


async def _act(context: Context, run: Run, step: StepRecord) -> Receipt | TemporaryError | PermanentError:
    action = step.action
    limit_s = action.own_time_s + context.limits.step_margin_s * action.num_rounds

    async def before_removal(node: str) -> None:
        ruling = await _judge(context, run, step, Change(removes=frozenset({node})))
        if not ruling.allows:
            raise TemporaryError(str(ruling))

    try:
        async with asyncio.timeout(limit_s):
            asked_by = run.decided_by or run.requested_by
            call = EffectCall(context.effects, action, before_removal, asked_by, run.reason, run.override)
            return await action.verb.effect(call)
    except (TemporaryError, PermanentError) as error:
        return error
    except TimeoutError:
        return TemporaryError(f"no answer in {limit_s:g} s")
    except Exception as error:  # effects promise two errors; any other is a bug, and the run must end all the same
        log.error("step.crashed", run_id=run.id, command=step.command, exc_info=True)
        return PermanentError(f"{type(error).__name__}: {error}")


def _pause_s(context: Context, step: StepRecord, error: TemporaryError) -> float:
    limits = context.limits
    back_off_s: float = limits.back_off_s * 2 ** (step.failures - 1)
    return min(max(error.retry_after_s, back_off_s), limits.back_off_max_s)


async def _stop(context: Context, run: Run, step: StepRecord, reason: str) -> Run:
    status = StepStatus.FAILED if step.has_begun else StepStatus.SKIPPED
    now = context.clock.now()
    run = await context.stored(context.journal.end_step, run.id, step.phase, step.index, status, now, error=reason)
    step = run.step(step.phase, step.index)
    context.emit("step.failed", f"{_label(run, step)}: {status.value}: {reason}", run, **_facts(step))
    return run


def _cancel_text(run: Run, phase: Phase) -> str | None:
    """An undo goes on: half undone is worse than either end."""
    return f"cancelled by {run.cancelled_by}" if run.cancelled_by is not None and phase == "do" else None


def _label(run: Run, step: StepRecord) -> str:
    total = len(run.do_steps if step.phase == "do" else run.undo_steps)
    return f"{'undo ' if step.phase == 'undo' else ''}step {step.index + 1} of {total}: {step.command}"


def _took(step: StepRecord) -> str:
    if step.started_at is None or step.ended_at is None:
        return ""
    return f" in {step.ended_at - step.started_at:.1f} s"


def _facts(step: StepRecord) -> dict[str, object]:
    return {
        "phase": step.phase,
        "index": step.index,
        "title": step.title,
        "command": step.command,
        "target": str(step.target),
        "attempts": step.attempts,
        "receipt": step.receipt,
        "error": step.error,
    }
