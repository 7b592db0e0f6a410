"""The door to runbooks: propose, act, decide, cancel; and the loop that carries approved runs to their end.

Every answer is in the journal before it is given. Killing the process at any point loses nothing: the next one claims
the epoch, calls `resume` and `run_forever`, and each run goes on from its journal.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import structlog

from runbooks.approval import NO_NEED, Approval, ApprovalNeed, Approvals
from runbooks.breaker import Breaker
from runbooks.context import USUAL_LIMITS, Context, Limits, OnEvent
from runbooks.driver import carry_run
from runbooks.errors import BadInputError, NotFoundError, StaleEpochError
from runbooks.fleet_view import FleetView
from runbooks.guard import (
    GuardAnswer,
    Ruling,
    judge_names,
    judge_near_floor,
    judge_plan,
    judge_repeat,
    judge_start,
    why_never,
)
from runbooks.journal import Journal
from runbooks.page import Page
from runbooks.plan import Plan, VerbOnTarget, command_title, plan_command, plan_page, resolve_plan
from runbooks.ports import Clock, Effects, Lookup, TemporaryError
from runbooks.restraint import OVERRIDE_REMEDY
from runbooks.room import room_words
from runbooks.run import ACTION, ACTIVE, AlreadyDecidedError, ConflictError, HeldError, Run, RunStatus
from runbooks.value import did_you_mean
from runbooks.verb import Action

log = structlog.get_logger()

JudgeNeed = Callable[[Run, bool], ApprovalNeed]
"""Of a run, and whether it leaves its pools near their floors."""
OrderKind = Literal["pause", "resume", "skip", "yes", "no"]
_ORDER_EVENTS = {"pause": "paused", "resume": "resumed", "skip": "step_skipped", "yes": "answered", "no": "answered"}

TURN_S = 1.0
MAX_BACK_OFF_S = 30.0
MAX_STORAGE_BACK_OFF_S = 3.0  # a full disk that has room again: nothing is wrong with the run


class Executor:
    """One per controller process, all on one event loop.

    Raises StaleEpochError from everything that writes once another controller took over: the process must end then.
    """

    def __init__(
        self,
        journal: Journal,
        library: Mapping[str, Page],
        effects: Effects,
        lookup: Lookup,
        *,
        clock: Clock,
        on_event: OnEvent = lambda kind, text, run, data: None,
        limits: Limits = USUAL_LIMITS,
        thread: ThreadPoolExecutor | None = None,
        judge_need: JudgeNeed = lambda run, near_floor: NO_NEED,
    ) -> None:
        """`judge_need`: how many persons a run needs.

        `thread` is where the journal writes, shared with whoever else writes to its database; without it the executor
        has one of its own.
        """
        self._journal = journal
        self._library = library
        self._owns_thread = thread is None
        thread = thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._context = Context(journal, effects, lookup, clock, on_event, limits, thread)
        self._clock = clock
        self._limits = limits
        self._judge_need = judge_need
        self._carried: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}  # runs whose carrying broke off, in a row
        self._not_before: dict[str, float] = {}
        self._failed_turns = 0  # in a row
        self._wake = asyncio.Event()
        self._is_stopping = False

    async def propose(
        self,
        runbook: str,
        inputs: Mapping[str, str],
        *,
        reason: str,
        incident_id: str | None = None,
        requested_by: str,
        idempotency_key: str | None = None,
        approve: bool = False,
        unasked: bool = False,
        override: str = "",
        dry_run: bool = False,
    ) -> Run:
        """A run of a page: PROPOSED, APPROVED with `approve`, REFUSED by a guard, or SUCCEEDED as a dry run.

        `unasked`: automation asks and approves; what a restraint keeps from acting is PROPOSED then, until `release`.
        `override`: why a person acts against restraints.
        With an idempotency key that is known, the run that has it. Raises NotFoundError, BadInputError (also for a
        node that does not exist) and IdempotencyConflictError.
        """
        page = self._library.get(runbook)
        if page is None:
            raise NotFoundError(f"there is no runbook {runbook!r}", remedy=did_you_mean(runbook, self._library))
        fleet = await self._context.fleet()
        return await self._create(
            plan_page(page, inputs, fleet.nodes, self._library),
            fleet,
            approve=approve or unasked,
            dry_run=dry_run,
            reason=reason,
            incident_id=incident_id,
            requested_by=requested_by,
            idempotency_key=idempotency_key,
            unasked=unasked,
            override=override,
        )

    async def why_never(self, runbook: str, inputs: Mapping[str, str]) -> str:
        """Why the page can never be done to these nodes, whatever else is known; empty when it can.

        Raises BadInputError, as `propose`.
        """
        fleet = await self._context.fleet()
        return why_never(plan_page(self._library[runbook], inputs, fleet.nodes, self._library).actions, fleet)

    async def rules_of(self, runbook: str, inputs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """What the traffic rules order that the page would make, by their ids. Raises BadInputError, as `propose`."""
        fleet = await self._context.fleet()
        actions = plan_page(self._library[runbook], inputs, fleet.nodes, self._library).actions
        return {one.target.name: one.verb.orders(one) for one in actions if one.verb.orders is not None}

    async def act(
        self,
        command: str,
        *,
        reason: str,
        requested_by: str,
        idempotency_key: str | None = None,
        unasked: bool = False,
        override: str = "",
        dry_run: bool = False,
    ) -> Run:
        """A run of one command, approved by the one who asked. `unasked`: that is automation, which asks again when a
        restraint refuses it. `override`: why a person acts against restraints.

        Raises BadCommandError, BadInputError and IdempotencyConflictError.
        """
        fleet = await self._context.fleet()
        try:
            plan = plan_command(command, fleet.nodes)
        except BadInputError:
            # What the selector meant then is in the journal, whatever it means now.
            known = await self._context.stored(self._journal.find, idempotency_key) if idempotency_key else None
            if known is None or (known.runbook, known.title, known.dry_run) != (
                ACTION,
                command_title(command),
                dry_run,
            ):
                raise
            return known
        return await self._create(
            plan,
            fleet,
            approve=True,
            dry_run=dry_run,
            reason=reason,
            requested_by=requested_by,
            idempotency_key=idempotency_key,
            unasked=unasked,
            override=override,
        )

    async def decide(
        self, run_id: str, decision: Literal["approve", "deny"], by: str, comment: str = "", override: str = ""
    ) -> Run:
        """Answer a proposal; it stays PROPOSED while it needs more approvals.

        Raises AlreadyDecidedError, holding the run, when it was answered or has ended, ApprovalRefusedError when this
        person's yes does not count, and HeldError for an approval against a restraint without `override`, a person's
        reason.
        """
        if decision not in ("approve", "deny"):
            raise BadInputError(f"decision {decision!r}", remedy="answer approve or deny")
        now = self._clock.now()
        standing = await self._context.stored(self._journal.get, run_id)
        if standing.asking is not None:
            return await self.order(run_id, "yes" if decision == "approve" else "no", by, comment)
        fleet = (await self._context.fleet()).after_all(step.action.change for step in standing.do_steps)
        held = ""
        if decision == "approve" and standing.status is RunStatus.PROPOSED:
            held = _why_held(await self._context.restraint_on(standing, fleet))
        if held and not (override or standing.override):
            remedy = f"to approve it all the same: `fleetctl runbook approve {run_id} --override REASON`"
            raise HeldError(f"run {run_id} waits: {held}", standing, remedy=remedy)
        needed = None
        if override and standing.status is RunStatus.PROPOSED and not standing.unasked:
            needed = _approvals(self._judge_need(replace(standing, override=override), False))
        run, accepted = await self._context.stored(
            self._journal.decide, run_id, decision, by, comment, now, fleet.overlap, override, held, needed
        )
        if not accepted:
            if run.status is RunStatus.EXPIRED and run.updated_at == now:
                self._context.emit("run.expired", f"{run.title}: {run.error}", run)
            raise AlreadyDecidedError(_standing(run), run, remedy=f"`fleetctl describe run {run_id}`")
        said = (f": {comment}" if comment else "") + (f"; override: {override} (against: {held})" if held else "")
        if run.status is RunStatus.PROPOSED:
            text = f"{run.title}: approval {run.approvals.words}{said}"
            self._context.emit("run.approval_given", text, run, by=by)
            return run
        if decision == "approve":
            self._context.emit("run.approved", f"{run.title}: approved by {by}{said}", run, by=by)
        if run.status is not RunStatus.APPROVED:
            text = f"denied by {by}{said}" if run.status is RunStatus.DENIED else f"refused: {run.error}"
            self._context.emit(f"run.{run.status.value}", f"{run.title}: {text}", run, by=by)
        self._wake.set()
        return run

    async def cancel(self, run_id: str, by: str, why: str = "") -> Run:
        """Stop a run before its next step. The run comes back as it is: still running while its step goes on.

        Raises ConflictError when it has ended or is being undone.
        """
        run, accepted = await self._context.stored(self._journal.request_cancel, run_id, by, self._clock.now(), why)
        if not accepted:
            what = "is being undone" if run.status is RunStatus.UNDOING else f"has ended: {run.status.value}"
            raise ConflictError(f"run {run_id} {what}", run)
        if run.status is RunStatus.CANCELLED:
            self._context.emit("run.cancelled", f"{run.title}: {run.error}", run, by=by)
        self._wake.set()
        return run

    async def order(self, run_id: str, what: OrderKind, by: str, comment: str = "") -> Run:
        """Tell a run that goes on to pause before its next step, to resume, or to skip the step that comes next or that
        waits; or answer its question. Raises ConflictError when there is nothing to say that to."""
        run, accepted = await self._context.stored(self._journal.order, run_id, what, by, self._clock.now(), comment)
        if not accepted:
            raise ConflictError(f"run {run_id} {_why_not(run, what)}", run, remedy=f"`fleetctl describe run {run_id}`")
        said = {"yes": "answered yes", "no": "answered no", "skip": "step skipped"}.get(what, f"{what}d")
        text = f"{run.title}: {said} by {by}" + (f": {comment}" if comment else "")
        self._context.emit(f"run.{_ORDER_EVENTS[what]}", text, run, by=by)
        self._wake.set()
        return run

    async def why_held(self, run: Run) -> str:
        """What keeps the run from acting now, unless a person overrides it; empty when nothing does."""
        fleet = (await self._context.fleet()).after_all(step.action.change for step in run.do_steps)
        return _why_held(await self._context.restraint_on(run, fleet))

    async def breaker(self) -> Breaker:
        """Whether automation may start something, by what became of its last runs."""
        return await self._context.breaker()

    async def release(self, run_id: str) -> Run | None:
        """Let a run start that automation asked for and that nothing holds any more; None: something does.

        Raises AlreadyDecidedError when it does not wait any more.
        """
        run = await self._context.stored(self._journal.get, run_id)
        if run.status is RunStatus.PROPOSED and (not run.unasked or await self.why_held(run)):
            return None
        return await self.decide(run_id, "approve", run.requested_by)

    async def resume(self) -> int:
        """Expire what nobody answered; returns how many runs `run_forever` will go on with."""
        await self._expire()
        active = await self._context.stored(self._journal.list, ACTIVE)
        for run in active:
            log.info("run.resumed", run_id=run.id, status=run.status.value, runbook=run.runbook)
        self._wake.set()
        return len(active)

    async def drive(self, run_id: str) -> Run:
        """Carry one run to its end here and now. Not for a run that `run_forever` carries."""
        assert run_id not in self._carried
        return await carry_run(self._context, run_id)

    async def run_forever(self) -> None:
        """Carry every approved run and expire proposals until `stop`. Raises StaleEpochError."""
        self._is_stopping = False
        try:
            async with asyncio.TaskGroup() as group:
                while not self._is_stopping:
                    self._wake.clear()
                    await self._take_turn(group)
                    await self._wait()
                for task in self._carried.values():
                    task.cancel()  # a cut-off step is begun in the journal and goes on after the next start
        except* StaleEpochError as errors:
            raise _first(errors) from None

    def stop(self) -> None:
        """Make `run_forever` return; runs in progress stay in the journal as they are."""
        self._is_stopping = True
        self._wake.set()

    def close(self) -> None:
        """Let go of the journal's thread. The executor can't be used afterwards."""
        if self._owns_thread:
            self._context.close()

    async def _create(
        self,
        plan: Plan,
        fleet: FleetView,
        *,
        approve: bool,
        dry_run: bool,
        reason: str,
        requested_by: str,
        idempotency_key: str | None,
        incident_id: str | None = None,
        unasked: bool = False,
        override: str = "",
    ) -> Run:
        now = self._clock.now()
        known = await self._context.stored(self._journal.find, idempotency_key) if idempotency_key else None
        if known is None:
            plan = await self._checked(plan, fleet)
        run = Run(
            f"run-{secrets.token_hex(5)}",
            plan.runbook,
            plan.title,
            RunStatus.APPROVED if approve else RunStatus.PROPOSED,
            plan.inputs,
            now,
            now,
            incident_id,
            reason,
            dry_run,
            requested_by,
            steps=plan.steps,
            risk=plan.risk,
            verify=plan.verify,
            undo=plan.undo,
            targets=plan.targets,
            fresh_nodes=plan.fresh,
            existing=plan.existing,
            idempotency_key=idempotency_key,
            unasked=unasked,
            override=override,
        )
        held = ""
        if known is None:
            held = _why_held(await self._context.restraint_on(run, fleet.after_all(plan.changes)))
            run = self._with_approvals(run, plan, fleet)
            run = await self._judged(plan, run, fleet, held)
        overlap = fleet.after_all(plan.changes).overlap
        stored = await self._context.stored(self._journal.create, run, overlap, held)
        if stored.id == run.id and not dry_run:
            self._emit_created(stored, held)
        self._wake.set()
        return stored

    async def _checked(self, plan: Plan, fleet: FleetView) -> Plan:
        """The plan in full, once its names fit. Raises BadInputError when they do not."""
        _refuse_bad_names(plan, fleet)
        earlier: dict[VerbOnTarget, Action | None] = {}
        for action in plan.actions:
            if action.verb.resolve is not None:
                key = (action.verb.name, action.target)
                earlier[key] = await self._context.stored(self._journal.last_action, *key)
        plan = resolve_plan(plan, fleet, earlier)
        _refuse_bad_names(plan, fleet)
        return plan

    def _with_approvals(self, run: Run, plan: Plan, fleet: FleetView) -> Run:
        """The run with what it needs of persons: what may not start by its asker's word alone is PROPOSED."""
        near = judge_near_floor(plan.actions, fleet, fresh=plan.fresh, floor_ratio=self._limits.capacity_floor_ratio)
        need = self._judge_need(run, near)
        approvals = _approvals(need)
        if approvals is None:
            return run
        is_asked_for = run.status is RunStatus.APPROVED
        if is_asked_for and need.asker_counts and not run.unasked:
            approvals = replace(approvals, given=(Approval(run.requested_by, run.created_at, "asked for it"),))
        if is_asked_for and not approvals.missing:
            return replace(run, approvals=approvals)
        ttl_s = self._limits.approval_ttl_s if need.expires_s is None else need.expires_s
        expires_at = run.created_at + ttl_s
        return replace(run, approvals=approvals, status=RunStatus.PROPOSED, unasked=False, expires_at=expires_at)

    async def _judged(self, plan: Plan, run: Run, fleet: FleetView, held: str) -> Run:
        """The run with the guards' rulings written to its steps, and the status they leave it in.

        `held`: what a person may override. It refuses a person's command, and makes a proposal of automation's.
        """
        actions = plan.actions
        begin = (judge_names(plan.existing, plan.fresh, fleet), judge_start(actions, fleet))
        rulings = judge_plan(actions, fleet, fresh=plan.fresh, floor_ratio=self._limits.capacity_floor_ratio)
        rooms = await self._room_of_steps(actions, fleet)
        steps = tuple(
            replace(step, receipt={"predicted": action.predicted, **room, "guard": str(ruling)})
            for step, action, room, ruling in zip(run.steps, actions, rooms, rulings, strict=True)
        )
        run = replace(run, steps=steps)
        refusal = await self._refusal(plan, run, (*begin, *rulings), fleet.after_all(plan.changes))
        held = "" if run.override else held
        is_final = not run.unasked or run.runbook == ACTION
        if refusal is None and held and is_final and run.status is RunStatus.APPROVED:
            refusal = f"{held}; {OVERRIDE_REMEDY}"
        if run.dry_run:
            run = replace(
                run,
                status=RunStatus.SUCCEEDED,
                error=f"would be refused: {refusal}" if refusal else "",
                verification=f"would wait until {plan.verify.words}" if plan.verify else "",
                steps=tuple(step.skipped() for step in run.steps),
            )
        elif refusal:
            run = replace(run, status=RunStatus.REFUSED, error=refusal)
        elif held and run.unasked:
            run = replace(run, status=RunStatus.PROPOSED)  # for as long as its incident stands
        elif run.status is RunStatus.APPROVED:
            run = replace(run, decided_by=run.requested_by, decided_at=run.created_at)
        elif run.expires_at is None:
            run = replace(run, expires_at=run.created_at + self._limits.approval_ttl_s)
        return run

    async def _room_of_steps(self, actions: Sequence[Action], fleet: FleetView) -> list[dict[str, str]]:
        """For each step that moves requests, whether the nodes that stay have room for them."""
        leaving = [_moved_from(action) for action in actions]
        rooms = await self._context.rooms() if any(leaving) else None
        told = []
        for action, nodes in zip(actions, leaving, strict=True):
            words = room_words(nodes, fleet, rooms) if nodes else ""
            told.append({"room": words} if words else {})
            fleet = fleet.after(action.change)
        return told

    async def _refusal(self, plan: Plan, run: Run, rulings: tuple[Ruling, ...], fleet: FleetView) -> str | None:
        if run.incident_id is not None:
            earlier = await self._context.stored(self._journal.list, None, run.incident_id)
            rulings = (*rulings, judge_repeat(plan.runbook, plan.targets, earlier))
        if held := await self._context.stored(self._journal.why_held, run, fleet.overlap):
            rulings = (*rulings, Ruling(GuardAnswer.NO, held))
        return next((ruling.reason for ruling in rulings if not ruling.allows), None)

    def _emit_created(self, run: Run, held: str) -> None:
        match run.status:
            case RunStatus.REFUSED:
                kind, text = "run.refused", f"refused: {run.error}"
            case RunStatus.APPROVED:
                against = f"; override: {run.override} (against: {held})" if held else ""
                kind, text = "run.approved", f"asked for and approved by {run.requested_by}{against}"
            case _ if run.unasked:
                kind, text = "run.proposed", f"{run.requested_by} would run it, but {held}"
            case _:
                but = f"; {held}" if held else ""
                waits = f"waits: {run.approvals.words}" if run.approvals.words else "waits for an approval"
                kind, text = "run.proposed", f"proposed by {run.requested_by}, {waits}{but}"
        guards = [step.receipt.get("guard") for step in run.steps]
        self._context.emit(kind, f"{run.title}: {text}", run, inputs=dict(run.inputs), guards=guards)

    async def _take_turn(self, group: asyncio.TaskGroup) -> None:
        """A journal that can't be read or written now (a full disk, a lock) holds runs up; it ends nobody."""
        try:
            await self._start_due_runs(group)
            self._failed_turns = 0
        except StaleEpochError:
            raise
        except Exception as error:
            self._failed_turns += 1
            log.error("runs.turn_failed", error=str(error), in_row=self._failed_turns, exc_info=self._failed_turns == 1)

    async def _start_due_runs(self, group: asyncio.TaskGroup) -> None:
        await self._expire()
        now = self._clock.now()
        for run in await self._context.stored(self._journal.list, ACTIVE):
            if run.id not in self._carried and self._not_before.get(run.id, now) <= now:
                self._carried[run.id] = group.create_task(self._carry(run.id), name=f"run-{run.id}")

    async def _carry(self, run_id: str) -> None:
        try:
            await carry_run(self._context, run_id)
            self._failures.pop(run_id, None)
            self._not_before.pop(run_id, None)
        except StaleEpochError:
            raise
        except Exception as error:
            failures = self._failures[run_id] = self._failures.get(run_id, 0) + 1
            limit_s = MAX_STORAGE_BACK_OFF_S if isinstance(error, TemporaryError) else MAX_BACK_OFF_S
            self._not_before[run_id] = self._clock.now() + min(2.0**failures, limit_s)
            # On a full disk it is tried every few seconds, and the log may lie on that disk: the place tells nothing.
            is_new = failures == 1 and not isinstance(error, TemporaryError)
            log.error("run.carry_failed", run_id=run_id, error=str(error), in_row=failures, exc_info=is_new)
        finally:
            del self._carried[run_id]

    async def _expire(self) -> None:
        now = self._clock.now()
        for run in await self._context.stored(self._journal.list, {RunStatus.PROPOSED}):
            if run.expires_at is not None and now >= run.expires_at:
                ended = await self._context.stored(self._journal.expire, run.id, now)
                if ended.status is RunStatus.EXPIRED:
                    self._context.emit("run.expired", f"{ended.title}: {ended.error}", ended)

    async def _wait(self) -> None:
        """Until something was asked for, or the next turn is due."""
        pause = asyncio.ensure_future(self._clock.sleep(TURN_S))
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({pause, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            woken.cancel()


def _approvals(need: ApprovalNeed) -> Approvals | None:
    return Approvals(need.approvers, need.asker_counts, need.why) if need.approvers else None


def _why_not(run: Run, what: OrderKind) -> str:
    if not run.status.is_active:
        return f"does not go on: it is {run.status.value}"
    return {
        "pause": f"is paused already, by {run.paused_by}",
        "resume": "is not paused",
        "skip": "has no step left to skip",
    }.get(what, "asks nothing, or was answered already")


def _moved_from(action: Action) -> frozenset[str]:
    """Nodes whose requests the action moves."""
    if not action.verb.moves_requests or action.change is None:
        return frozenset()
    return action.change.taken_out


def _why_held(restraint: Ruling) -> str:
    return "" if restraint.allows else restraint.reason


def _refuse_bad_names(plan: Plan, fleet: FleetView) -> None:
    names = judge_names(plan.existing, plan.fresh, fleet)
    if names.answer is GuardAnswer.NO:
        raise BadInputError(names.reason, remedy="`fleetctl get nodes` lists them")


def _standing(run: Run) -> str:
    if run.decided_by is not None:
        return f"run {run.id} was decided by {run.decided_by} already; it is {run.status.value}"
    return f"run {run.id} does not wait for an answer; it is {run.status.value}"


def _first(group: BaseExceptionGroup[StaleEpochError]) -> StaleEpochError:
    inner = group.exceptions[0]
    return inner if isinstance(inner, StaleEpochError) else _first(inner)
