"""One step of a run: ask the guard, begin, act, end; again after a temporary error. Knows no other step."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

import structlog

from runbooks.context import Context
from runbooks.fleet_view import Change
from runbooks.guard import GuardAnswer, Ruling, judge_capacity, judge_undo
from runbooks.ports import NotPossibleError, PermanentError, Receipt, TemporaryError
from runbooks.run import Phase, Run, StepRecord, StepStatus, taken_out
from runbooks.target import TargetKind
from runbooks.verb import EffectCall, Word

log = structlog.get_logger()


async def carry_step(context: Context, run: Run, phase: Phase, index: int) -> Run:
    """The run with this step over: done, failed, or skipped because a guard said no or a person cancelled."""
    while True:
        step = run.step(phase, index)
        if step.attempts >= context.limits.max_begins:
            return await _stop(context, run, step, f"begun {step.attempts} times without an end")
        begun = await _begin(context, run, step)
        if isinstance(begun, _PassedOver):
            return await _pass_over(context, run, step, begun)
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
            did_nothing = isinstance(outcome, NotPossibleError) and step.attempts == 1  # of an earlier try nobody knows
            return await _stop(context, run, step, str(outcome), did_nothing=did_nothing)
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
        if skipped := _skip_text(run, step):
            receipt = {"skipped": skipped, "last_error": str(outcome)}
            now = context.clock.now()
            return await context.stored(
                context.journal.end_step, run.id, phase, index, StepStatus.DONE, now, receipt=receipt
            )


class _PassedOver(NamedTuple):
    """Why a step is left out. `group`: of the condition that did not hold."""

    text: str
    group: int | None = None


async def _begin(context: Context, run: Run, step: StepRecord) -> Run | Ruling | _PassedOver:
    """The run with its step begun, or the guard's last word. A guard, and a condition of unknown value, is asked
    again for a while: signals lag. While the run is paused nothing begins."""
    limits = context.limits
    ruling: Ruling | None = None
    looks_left = max(1, math.ceil(limits.guard_wait_s / limits.poll_s)) + 1
    while looks_left:
        if ruling is not None:
            await context.clock.sleep(limits.poll_s)
            run = await context.stored(context.journal.get, run.id)
            if _cancel_text(run, step.phase):
                break
        if not step.has_begun:
            if skipped := _skip_text(run, step):
                return _PassedOver(skipped)
            if run.paused_by:
                ruling = Ruling(GuardAnswer.NO, f"paused by {run.paused_by}")
                continue
        looks_left -= 1
        async with context.gate:
            judged = await _judge_conditions(context, run, step)
            if isinstance(judged, _PassedOver):
                return judged
            ruling = judged if not judged.allows else await _judge(context, run, step)
            if ruling.allows:
                now = context.clock.now()
                return await context.stored(context.journal.begin_step, run.id, step.phase, step.index, now)
        log.info("step.waiting", run_id=run.id, step=step.index, phase=step.phase, ruling=str(ruling))
    assert ruling is not None
    return ruling


async def _judge_conditions(context: Context, run: Run, step: StepRecord) -> Ruling | _PassedOver:
    """Whether the step is to be done. What was judged for another step of the same group is not judged again."""
    if step.has_begun:
        return Ruling(GuardAnswer.YES, "it has begun")
    for condition in step.when:
        group = [one for one in run.do_steps if condition in one.when]
        if any(one.has_begun for one in group):
            continue
        if any(one.receipt.get("group") == condition.group and one.is_passed_over for one in group):
            return _PassedOver(f"as the steps before it: not {condition.expression}", condition.group)
        value = await context.evaluate(condition.expression)
        if value is None or math.isnan(value):
            return Ruling(GuardAnswer.UNKNOWN, f"could not tell whether {condition.expression}")
        if value == 0:
            return _PassedOver(f"not {condition.expression}", condition.group)
    return Ruling(GuardAnswer.YES, "its conditions hold")


async def _judge(context: Context, run: Run, step: StepRecord, change: Change | None = None) -> Ruling:
    others = await context.stored(context.journal.running_steps, run.id)
    if step.wave is not None:
        run = await context.stored(context.journal.get, run.id)
        beside = [one for one in run.steps if one.status is StepStatus.RUNNING and one.index != step.index]
        others = (*others, *beside)
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

    async def word() -> Word | None:
        standing = await context.stored(context.journal.get, run.id)
        if standing.cancelled_by is not None and step.phase == "do":
            return Word("cancel", standing.cancelled_by)
        order = standing.order_on(step, "skip", "yes", "no")
        return Word(order.what, order.by, order.comment) if order is not None else None

    try:
        async with asyncio.timeout(limit_s):
            call = EffectCall(
                context.effects,
                action,
                before_removal,
                run.decided_by or run.requested_by,
                run.reason,
                run.override,
                key=f"{run.id}-{step.phase}-{step.index}",
                run_id=run.id,
                incident_id=run.incident_id,
                clock=context.clock,
                poll_s=context.limits.poll_s,
                word=word,
                evaluate=context.evaluate,
            )
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


async def _pass_over(context: Context, run: Run, step: StepRecord, passed: _PassedOver) -> Run:
    receipt: Receipt = {"skipped": passed.text, **({} if passed.group is None else {"group": passed.group})}
    error = passed.text if step.phase == "undo" else ""  # what was not undone is told
    now = context.clock.now()
    run = await context.stored(
        context.journal.end_step, run.id, step.phase, step.index, StepStatus.SKIPPED, now, receipt=receipt, error=error
    )
    step = run.step(step.phase, step.index)
    context.emit("step.skipped", f"{_label(run, step)}: left out: {passed.text}", run, **_facts(step))
    return run


async def _stop(context: Context, run: Run, step: StepRecord, reason: str, *, did_nothing: bool = False) -> Run:
    status = StepStatus.FAILED if step.has_begun and not did_nothing else StepStatus.SKIPPED
    now = context.clock.now()
    run = await context.stored(context.journal.end_step, run.id, step.phase, step.index, status, now, error=reason)
    step = run.step(step.phase, step.index)
    context.emit("step.failed", f"{_label(run, step)}: {status.value}: {reason}", run, **_facts(step))
    return run


def _cancel_text(run: Run, phase: Phase) -> str | None:
    """An undo goes on: half undone is worse than either end."""
    return f"cancelled by {run.cancelled_by}" if run.cancelled_by is not None and phase == "do" else None


def _skip_text(run: Run, step: StepRecord) -> str:
    order = run.order_on(step, "skip")
    return f"by {order.by}" + (f": {order.comment}" if order.comment else "") if order is not None else ""


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
