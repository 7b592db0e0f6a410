"""Carries one run from wherever it stands to its one end.

Each turn starts from what the journal says, so that going on after a crash is no special case.
"""

from __future__ import annotations

import asyncio
import math

from runbooks.context import Context
from runbooks.errors import IllegalTransitionError
from runbooks.guard import GuardAnswer, Ruling, judge_names, judge_start
from runbooks.run import Run, RunStatus, StepRecord, StepStatus
from runbooks.step import carry_step
from runbooks.verification import look_until_held


async def carry_run(context: Context, run_id: str) -> Run:
    """The run at its end; a proposal that nobody answered comes back as it is."""
    run = await context.stored(context.journal.get, run_id)
    while not run.status.is_terminal:
        match run.status:
            case RunStatus.APPROVED:
                try:
                    run = await _start(context, run)
                except IllegalTransitionError:  # somebody cancelled it while the fleet was looked at
                    run = await context.stored(context.journal.get, run_id)
            case RunStatus.RUNNING:
                run = await _do_next(context, run)
            case RunStatus.VERIFYING:
                run = await _verify(context, run)
            case RunStatus.UNDOING:
                run = await _undo_next(context, run)
            case _:
                return run
    return run


async def _start(context: Context, run: Run) -> Run:
    ruling = await _judge_start(context, run)
    if not ruling.allows:
        return await _end(context, run, RunStatus.REFUSED, f"before the start: {ruling}")
    run = await context.stored(context.journal.move, run.id, RunStatus.RUNNING, context.clock.now())
    context.emit("run.started", f"{run.title}: started", run, targets=[str(target) for target in run.targets])
    return run


async def _judge_start(context: Context, run: Run) -> Ruling:
    """Whether names and sizes are still as planned. A look that says nothing is repeated for a while."""
    limits = context.limits
    num_looks = math.ceil(limits.guard_wait_s / limits.poll_s) + 1
    for look in range(num_looks):
        fleet = await context.fleet()
        ruling = judge_names(run.existing, run.fresh_nodes, fleet)
        if ruling.answer is not GuardAnswer.UNKNOWN or look == num_looks - 1:
            break
        await context.clock.sleep(limits.poll_s)
    actions = [step.action for step in run.do_steps]
    if ruling.allows and not run.override:
        ruling = await context.restraint_on(run, fleet.after_all(action.change for action in actions))
    return judge_start(actions, fleet) if ruling.allows else ruling


async def _do_next(context: Context, run: Run) -> Run:
    """One step, or what follows from the steps so far: judged from the journal alone, so also after a crash."""
    if run.cancelled_by is not None:
        return await _cancelled(context, run)
    over = (StepStatus.FAILED, StepStatus.SKIPPED)
    stopped = next((s for s in run.do_steps if s.status in over and not s.is_passed_over), None)
    if stopped is not None:
        how = "failed" if stopped.status is StepStatus.FAILED else "refused"
        return await _give_up(context, run, f"step {stopped.index + 1} ({stopped.command}) {how}: {stopped.error}")
    step = run.next_step("do")
    if step is None:
        return await _after_steps(context, run)
    wave = [s for s in run.do_steps if s.wave == step.wave and not s.is_over] if step.wave is not None else [step]
    ends = await asyncio.gather(*(carry_step(context, run, "do", one.index) for one in wave), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return await context.stored(context.journal.get, run.id)


async def _after_steps(context: Context, run: Run) -> Run:
    if run.verify is None:
        return await _end(context, run, RunStatus.SUCCEEDED, f"{run.title}: done")
    verify = run.verify
    run = await context.stored(context.journal.move, run.id, RunStatus.VERIFYING, context.clock.now())
    context.emit("run.verifying", f"{run.title}: waiting up to {verify.within_s:g} s until {verify.words}", run)
    return run


async def _verify(context: Context, run: Run) -> Run:
    assert run.verify is not None

    async def is_cancelled() -> bool:
        return (await context.stored(context.journal.get, run.id)).cancelled_by is not None

    verification = await look_until_held(
        context.evaluate, context.clock, run.verify, is_cancelled, poll_s=context.limits.poll_s
    )
    if verification.held is None:
        return await _cancelled(context, await context.stored(context.journal.get, run.id), verification.text)
    if not verification.held:
        return await _give_up(context, run, "it did not help", verification.text)
    now = context.clock.now()
    run = await context.stored(context.journal.move, run.id, RunStatus.SUCCEEDED, now, verification=verification.text)
    context.emit("run.verified", f"{run.title}: {verification.text}", run)
    context.emit("run.succeeded", f"{run.title}: done and verified", run)
    return run


async def _give_up(context: Context, run: Run, reason: str, verification: str = "") -> Run:
    """Undo what was begun, where the page says how."""
    begun = _changed(run)
    if not begun:
        status = RunStatus.REFUSED if run.status is RunStatus.RUNNING else RunStatus.FAILED
        return await _end(context, run, status, reason, verification)
    items = [item for item in run.undo if item.number in begun]
    if not any(item.command for item in items):
        return await _end(context, run, RunStatus.FAILED, f"{reason}; nothing was undone", verification)
    steps = [
        StepRecord(
            i,
            "undo",
            item.title,
            item.command,
            item.number,
            StepStatus.PENDING if item.command else StepStatus.SKIPPED,
            error="" if item.command else "there is no command for this",
        )
        for i, item in enumerate(items)
    ]
    now = context.clock.now()
    run = await context.stored(context.journal.start_undo, run.id, steps, reason, verification, now)
    context.emit("run.undoing", f"{run.title}: {reason}; undoing", run, reason=reason)
    return run


async def _undo_next(context: Context, run: Run) -> Run:
    step = run.next_step("undo")
    if step is not None:
        # One that fails does not keep the others from being undone.
        return await carry_step(context, run, "undo", step.index)
    left = [step for step in run.undo_steps if step.status is not StepStatus.DONE]
    uncovered = _changed(run) - {s.number for s in run.undo_steps}
    if not left and not uncovered:
        return await _end(context, run, RunStatus.UNDONE, f"{run.error}; undone")
    what = [f"{step.title}: {step.error}" for step in left] + [f"step {n} has no undo" for n in sorted(uncovered)]
    return await _end(context, run, RunStatus.FAILED, f"{run.error}; not undone: {'; '.join(what)}")


def _changed(run: Run) -> set[int]:
    """Numbers of the steps that may have changed something: what asks, waits or looks has nothing to undo."""
    return {step.number for step in run.do_steps if step.has_begun and step.action.verb.mutates}


async def _cancelled(context: Context, run: Run, verification: str = "") -> Run:
    done = [step.command for step in run.do_steps if step.has_begun]
    numbers = {step.number for step in run.do_steps if step.has_begun}
    by_hand = [f"fleetctl {item.command}" for item in run.undo if item.command and item.number in numbers]
    text = f"cancelled by {run.cancelled_by}"
    text += f" after: {'; '.join(done)}" if done else " before anything was done"
    if by_hand:
        text += f"; to undo it: {'; '.join(by_hand)}"
    return await _end(context, run, RunStatus.CANCELLED, text, verification)


async def _end(context: Context, run: Run, status: RunStatus, text: str, verification: str = "") -> Run:
    error = "" if status is RunStatus.SUCCEEDED else text
    now = context.clock.now()
    run = await context.stored(context.journal.move, run.id, status, now, error=error, verification=verification)
    line = text if status is RunStatus.SUCCEEDED else f"{run.title}: {status.value}: {text}"
    context.emit(f"run.{status.value}", line, run, error=run.error)
    return run
