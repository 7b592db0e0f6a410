"""What was decided, begun and done, on disk before and after it happens. Nothing else remembers a run.

Each write is one transaction that starts by taking the lock on the epoch: that refuses a controller that was replaced,
and puts writers in a row on SQLite and PostgreSQL alike. A step is begun in one transaction, acted on, and ended in
another; a step that is begun and not ended is run again, which effects allow.

Methods are synchronous; the executor calls them on one worker thread.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from runbooks.approval import Approval, Approvals
from runbooks.epoch import hold_epoch, next_epoch
from runbooks.errors import BadCommandError, IllegalTransitionError, RunbookError, StaleEpochError
from runbooks.guard import Overlap, overlap_by_name
from runbooks.ports import Receipt
from runbooks.rows import claim_targets, get_run, move_run, same_or_conflict, select_runs, set_step, why_held
from runbooks.run import FIRST, ApprovalRefusedError, Phase, Run, RunStatus, StepRecord, StepStatus, taken_out
from runbooks.schema import (
    SCHEMA_VERSION,
    meta,
    metadata,
    plain_receipt,
    plain_text,
    prepare,
    run_audit,
    run_claims,
    run_orders,
    run_row,
    run_steps,
    runs,
    step_of,
    step_row,
    upgrade,
)
from runbooks.target import Target
from runbooks.verb import Action

FaultPoint = Callable[[str], None]
"""Called with `<write>.before_commit` and `<write>.after_commit`; tests raise or kill the process in it."""

EXECUTOR = "executor"


class StoredDisruption(NamedTuple):
    """A step of a run took a node out of service, or began to, at that time in Unix seconds."""

    run_id: str
    node: str
    at: float


class Decision(NamedTuple):
    """`accepted` is False when another answer, or the end of the run, stood first."""

    run: Run
    accepted: bool


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of who did what to a run."""

    run_id: str
    at: float
    by: str
    what: str
    comment: str


OnAudit = Callable[[sa.Connection, Run, AuditEntry], None]
"""Called with each entry in the transaction that stores it, on the journal's thread; what it raises undoes both."""


class Journal:
    """Owns the run tables. Raises StaleEpochError from every write once another controller claimed an epoch."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        at_fault_point: FaultPoint = lambda _: None,
        on_audit: OnAudit = lambda connection, run, entry: None,
    ) -> None:
        """Create the tables where they are missing. Raises RunbookError when a newer fleetctl wrote them."""
        self._engine = engine
        self._on_audit = on_audit
        self._at_fault_point = at_fault_point
        self._epoch: int | None = None
        prepare(engine)
        with engine.begin() as connection:
            metadata.create_all(connection)
            for index in runs.indexes:  # tables of before may lack one
                index.create(connection, checkfirst=True)
            row = connection.execute(sa.select(meta.c.schema_version)).first()
            if row is None:
                connection.execute(sa.insert(meta).values(id=1, schema_version=SCHEMA_VERSION, epoch=0))
            elif row.schema_version > SCHEMA_VERSION:
                raise RunbookError(
                    f"the journal has schema {row.schema_version}, this fleetctl knows {SCHEMA_VERSION}",
                    remedy="upgrade fleetctl",
                )
            elif row.schema_version < SCHEMA_VERSION:
                upgrade(connection, row.schema_version)

    @property
    def epoch(self) -> int | None:
        """The claimed epoch, or None before `claim_epoch`."""
        return self._epoch

    def claim_epoch(self) -> int:
        """Take over: from here on only this journal may write. Returns the new epoch."""
        with self._engine.begin() as connection:
            epoch = next_epoch(connection)
        self._epoch = epoch
        return epoch

    def lead(self, epoch: int) -> None:
        """Write under an epoch that was claimed in a transaction of the caller's."""
        self._epoch = epoch

    def get(self, run_id: str) -> Run:
        """Raises NotFoundError."""
        with self._engine.begin() as connection:
            return get_run(connection, run_id)

    def find(self, idempotency_key: str) -> Run | None:
        """The run that was asked for with this key."""
        with self._engine.begin() as connection:
            found = select_runs(connection, runs.c.idempotency_key == idempotency_key)
        return found[0] if found else None

    def list(
        self,
        statuses: Collection[RunStatus] | None = None,
        incident_id: str | None = None,
        limit: int = 1000,
        since: float | None = None,
        *,
        incident_ids: Collection[str] | None = None,
        before: tuple[Any, ...] | None = None,
    ) -> tuple[Run, ...]:
        """Runs with their steps, newest first; those asked for from `since` on (Unix seconds); `before`: those that
        come after the one with this `created_at` and id."""
        wanted: list[sa.ColumnElement[bool]] = []
        if statuses is not None:
            wanted.append(runs.c.status.in_([status.value for status in statuses]))
        if incident_id is not None:
            wanted.append(runs.c.incident_id == incident_id)
        if incident_ids is not None:
            wanted.append(runs.c.incident_id.in_(incident_ids))
        if since is not None:
            wanted.append(runs.c.created_at >= since)
        if before is not None:
            created_at, run_id = before
            same_time = (runs.c.created_at == created_at) & (runs.c.id < run_id)
            wanted.append((runs.c.created_at < created_at) | same_time)
        with self._engine.begin() as connection:
            return tuple(select_runs(connection, *wanted, limit=limit))

    def list_unended(self, run_ids: Collection[str] = ()) -> tuple[Run, ...]:
        """Runs that wait for an answer or go on, and those of these ids, newest first."""
        unended = [status.value for status in RunStatus if not status.is_terminal]
        wanted = sa.or_(runs.c.status.in_(unended), runs.c.id.in_(run_ids))
        with self._engine.begin() as connection:
            return tuple(select_runs(connection, wanted))

    def unasked(self, statuses: Collection[RunStatus], limit: int = 40) -> tuple[Run, ...]:
        """Runs for an incident in these statuses that started without a person's word, newest first."""
        with self._engine.begin() as connection:
            found = select_runs(
                connection,
                runs.c.status.in_([status.value for status in statuses]),
                runs.c.incident_id.is_not(None),
                runs.c.plan["unasked"].as_boolean(),
                runs.c.decided_by == runs.c.requested_by,
                limit=limit,
            )
        return tuple(found)

    def last_action(self, verb_name: str, target: Target) -> Action | None:
        """What was last begun with this verb on this target by a run that was not undone; None: nothing was."""
        command = shlex.join([*verb_name.split(), str(target)])
        query = sa.select(run_steps.c.run_id).where(
            run_steps.c.phase == "do",
            run_steps.c.attempts > 0,
            (run_steps.c.command == command) | run_steps.c.command.startswith(f"{command} ", autoescape=True),
        )
        with self._engine.begin() as connection:
            found = select_runs(connection, runs.c.id.in_(query), runs.c.status != RunStatus.UNDONE.value, limit=1)
        steps = [step for run in found for step in run.do_steps if step.has_begun and step.target == target]
        return next((step.action for step in reversed(steps) if step.action.verb.name == verb_name), None)

    def audit(self, run_id: str) -> tuple[AuditEntry, ...]:
        """Who asked for what and when, oldest first."""
        query = sa.select(run_audit).where(run_audit.c.run_id == run_id).order_by(run_audit.c.seq)
        with self._engine.begin() as connection:
            rows = connection.execute(query).all()
        return tuple(AuditEntry(row.run_id, row.at, row.by, row.what, row.comment) for row in rows)

    def running_steps(self, except_run_id: str) -> tuple[StepRecord, ...]:
        """Steps of other runs that are begun and not ended."""
        query = sa.select(run_steps.c.run_id).where(
            run_steps.c.status == StepStatus.RUNNING.value, run_steps.c.run_id != except_run_id
        )
        with self._engine.begin() as connection:
            found = select_runs(connection, runs.c.id.in_(query))
        return tuple(step for run in found for step in run.steps if step.status is StepStatus.RUNNING)

    def disruptions(self, since: float) -> tuple[StoredDisruption, ...]:
        """Nodes that steps took out of service, or began to, after `since`; also what is from the future."""
        query = sa.select(run_steps).where(
            run_steps.c.attempts > 0, run_steps.c.started_at > since, run_steps.c.command != ""
        )
        with self._engine.begin() as connection:
            rows = connection.execute(query).mappings().all()
        found: list[StoredDisruption] = []
        for row in rows:
            with contextlib.suppress(BadCommandError):  # of another version: what it took out is not known here
                nodes = taken_out([step_of(dict(row))])
                found += (StoredDisruption(row["run_id"], node, row["started_at"]) for node in sorted(nodes))
        return tuple(found)

    def why_held(self, run: Run, overlap: Overlap) -> str | None:
        """Why another active run keeps this one from a target, or None."""
        with self._engine.begin() as connection:
            return why_held(connection, run, overlap, with_proposals=False)

    def create(self, run: Run, overlap: Overlap = overlap_by_name, held: str = "") -> Run:
        """The run as stored: with a known idempotency key the one that has it, else this one.

        `held`: what its override is against.

        It becomes REFUSED instead when another run holds what overlaps with one of its targets. Raises
        IdempotencyConflictError when the key stands for a different request.
        """
        assert run.status in FIRST
        assert run.status is not RunStatus.SUCCEEDED or run.dry_run
        with self._write("run_created") as connection:
            if run.idempotency_key is not None:
                found = select_runs(connection, runs.c.idempotency_key == run.idempotency_key)
                if found:
                    return same_or_conflict(found[0], run)
            if not run.dry_run and not run.status.is_terminal:
                holder = why_held(connection, run, overlap, with_proposals=run.status is RunStatus.PROPOSED)
                if holder:
                    run = replace(run, status=RunStatus.REFUSED, error=holder, expires_at=None)
            if run.status.is_terminal and not run.dry_run:
                run = replace(run, steps=tuple(step.skipped() for step in run.steps))
            connection.execute(sa.insert(runs).values(run_row(run)))
            for step in run.steps:
                connection.execute(sa.insert(run_steps).values(step_row(run.id, step)))
            self._audit(connection, run, run.created_at, run.requested_by, "requested", run.reason)
            if run.status is RunStatus.APPROVED:
                claim_targets(connection, run)
                self._audit(connection, run, run.created_at, run.requested_by, "approved", "by the requester")
                if held:
                    self._audit_override(connection, run, run.created_at, run.requested_by, run.override, held)
            elif run.status is RunStatus.REFUSED:
                self._audit(connection, run, run.created_at, EXECUTOR, "refused", run.error)
            return get_run(connection, run.id)

    def decide(
        self,
        run_id: str,
        decision: Literal["approve", "deny"],
        by: str,
        comment: str,
        now: float,
        overlap: Overlap = overlap_by_name,
        override: str = "",
        held: str = "",
        needed: Approvals | None = None,
    ) -> Decision:
        """Answer a proposal. One that needs several approvals stays PROPOSED until it has them; else the first answer
        wins. An approval that finds a target held ends the run as REFUSED.

        `override`: why it is approved against `held`. `needed`: what the answer adds to what the run needs. Raises
        ApprovalRefusedError when this person's approval does not count.
        """
        with self._write("run_decided") as connection:
            run = get_run(connection, run_id)
            if run.status is not RunStatus.PROPOSED:
                return Decision(run, False)
            if run.expires_at is not None and now >= run.expires_at:
                return Decision(self._expire(connection, run, now), False)
            to = RunStatus.APPROVED if decision == "approve" else RunStatus.DENIED
            override = override or run.override
            if to is RunStatus.APPROVED:
                run = _approved_by(run, Approval(plain_text(by), now, plain_text(comment)), needed)
                kept = {"approvals": run.approvals.to_dict(), "override": plain_text(override)}
                connection.execute(sa.update(runs).where(runs.c.id == run_id).values(updated_at=now, **kept))
                if run.approvals.missing:
                    told = run.approvals.words + (f": {comment}" if comment else "")
                    self._audit(connection, run, now, by, "approval_given", told)
                    return Decision(get_run(connection, run_id), True)
            self._audit(connection, run, now, by, to.value, comment)
            holder = None
            if to is RunStatus.APPROVED:
                holder = why_held(connection, run, overlap, with_proposals=False)
            fields: dict[str, Any] = {"decided_by": plain_text(by), "decided_at": now, "override": plain_text(override)}
            if held and to is RunStatus.APPROVED:
                self._audit_override(connection, run, now, by, override, held)
            if holder:
                to, fields["error"] = RunStatus.REFUSED, holder
                self._audit(connection, run, now, EXECUTOR, "refused", holder)
            elif to is RunStatus.APPROVED:
                claim_targets(connection, run)
            elif comment:
                fields["error"] = f"denied by {by}: {comment}"
            return Decision(move_run(connection, run, to, now, **fields), True)

    def expire(self, run_id: str, now: float) -> Run:
        """End a proposal that nobody answered; a run that was answered meanwhile stays as it is."""
        with self._write("run_expired") as connection:
            run = get_run(connection, run_id)
            return self._expire(connection, run, now) if run.status is RunStatus.PROPOSED else run

    def move(self, run_id: str, to: RunStatus, now: float, *, error: str = "", verification: str = "") -> Run:
        """Carry a run from one status to the next. Raises IllegalTransitionError."""
        with self._write(f"run_{to.value}") as connection:
            run = get_run(connection, run_id)
            fields = {key: text for key, text in (("error", error), ("verification", verification)) if text}
            if to.is_active is False:
                self._audit(connection, run, now, EXECUTOR, to.value, error)
            return move_run(connection, run, to, now, **fields)

    def start_undo(self, run_id: str, steps: Collection[StepRecord], error: str, verification: str, now: float) -> Run:
        """Carry a run to UNDOING and write down what will be undone, in one transaction."""
        with self._write("run_undoing") as connection:
            run = get_run(connection, run_id)
            for step in steps:
                connection.execute(sa.insert(run_steps).values(step_row(run_id, step)))
            self._audit(connection, run, now, EXECUTOR, "undoing", error)
            fields = {"error": error, **({"verification": verification} if verification else {})}
            return move_run(connection, run, RunStatus.UNDOING, now, **fields)

    def request_cancel(self, run_id: str, by: str, now: float, why: str = "") -> Decision:
        """End a run that has not started, or ask a running one to stop before its next step: by who asked first."""
        with self._write("cancel_requested") as connection:
            run = get_run(connection, run_id)
            if run.status.is_terminal or run.status is RunStatus.UNDOING:
                return Decision(run, False)
            self._audit(connection, run, now, by, "cancel_requested", why)
            fields: dict[str, Any] = {"cancelled_by": run.cancelled_by or plain_text(by)}
            if run.status in (RunStatus.PROPOSED, RunStatus.APPROVED):
                error = f"cancelled by {by}" + (f": {why}" if why else "")
                self._audit(connection, run, now, EXECUTOR, "cancelled", error)
                return Decision(move_run(connection, run, RunStatus.CANCELLED, now, error=error, **fields), True)
            connection.execute(sa.update(runs).where(runs.c.id == run_id).values(updated_at=now, **fields))
            return Decision(get_run(connection, run_id), True)

    def order(self, run_id: str, what: str, by: str, now: float, comment: str = "") -> Decision:
        """Keep what a person told a run that goes on. `skip` is about the step that comes next, or that waits;
        `yes` and `no` are about the question that it asks. Not accepted when there is no such step, or nothing to
        resume."""
        with self._write(f"{what}_ordered") as connection:
            run = get_run(connection, run_id)
            if not run.status.is_active:
                return Decision(run, False)
            step = None
            match what:
                case "pause" | "resume":
                    if (what == "pause") == bool(run.paused_by):
                        return Decision(run, False)
                case "skip":
                    step = run.next_step("undo" if run.status is RunStatus.UNDOING else "do")
                case "yes" | "no":
                    step = run.asking
            if what not in ("pause", "resume") and step is None:
                return Decision(run, False)
            about = {"phase": step.phase if step else "", "step": step.index if step else -1}
            connection.execute(
                sa.insert(run_orders).values(
                    run_id=run_id, at=now, by=plain_text(by), what=what, comment=plain_text(comment), **about
                )
            )
            connection.execute(sa.update(runs).where(runs.c.id == run_id).values(updated_at=now))
            said = {"yes": "answered_yes", "no": "answered_no", "skip": "skip_requested"}.get(what, f"{what}d")
            step_text = f"step {step.index + 1} ({step.command})" if step else ""
            self._audit(connection, run, now, by, said, ": ".join(filter(None, [step_text, comment])))
            return Decision(get_run(connection, run_id), True)

    def begin_step(self, run_id: str, phase: Phase, index: int, now: float) -> Run:
        """Before the effect: the step is running, once more."""
        with self._write(f"step_begun.{phase}.{index}") as connection:
            run = get_run(connection, run_id)
            expected = RunStatus.RUNNING if phase == "do" else RunStatus.UNDOING
            if run.status is not expected:
                raise IllegalTransitionError(f"run {run_id} is {run.status.value}: no {phase} step may begin")
            step = run.step(phase, index)
            return set_step(
                connection,
                run,
                step,
                StepStatus.RUNNING,
                now,
                attempts=step.attempts + 1,
                started_at=now if step.started_at is None else step.started_at,
                receipt={},
                error="",
            )

    def note_failure(self, run_id: str, phase: Phase, index: int, error: str, now: float) -> Run:
        """A temporary error: the step stays running and will be tried again."""
        with self._write(f"step_retried.{phase}.{index}") as connection:
            run = get_run(connection, run_id)
            step = run.step(phase, index)
            return set_step(
                connection, run, step, StepStatus.RUNNING, now, failures=step.failures + 1, error=plain_text(error)
            )

    def end_step(
        self,
        run_id: str,
        phase: Phase,
        index: int,
        status: StepStatus,
        now: float,
        *,
        receipt: Receipt | None = None,
        error: str = "",
    ) -> Run:
        """After the effect: the step is done with its receipt, failed, or skipped because a guard said no."""
        with self._write(f"step_{status.value}.{phase}.{index}") as connection:
            run = get_run(connection, run_id)
            fields: dict[str, Any] = {"ended_at": now, "error": plain_text(error)}
            if receipt is not None:
                fields["receipt"] = plain_receipt(receipt)
            return set_step(connection, run, run.step(phase, index), status, now, **fields)

    def prune(
        self, before: float, *, keep_incidents: Collection[str] = (), max_runs: int | None = None, limit: int = 1000
    ) -> int:
        """Remove runs that ended and were last changed before that time, or are beyond the newest `max_runs` of them,
        with their steps and audit; how many, at most `limit`.

        Runs for one of `keep_incidents`, and runs that hold a target, stay.
        """
        ended = [status.value for status in RunStatus if status.is_terminal]
        with self._write("prune") as connection:
            if max_runs is not None:
                newest = sa.select(runs.c.updated_at).where(runs.c.status.in_(ended)).order_by(runs.c.updated_at.desc())
                last_kept = connection.execute(newest.offset(max_runs - 1).limit(1)).scalar()
                before = max(before, -math.inf if last_kept is None else last_kept)
            query = (
                sa.select(runs.c.id)
                .where(runs.c.status.in_(ended), runs.c.updated_at < before)
                .where(sa.or_(runs.c.incident_id.is_(None), runs.c.incident_id.not_in(list(keep_incidents))))
                .where(runs.c.id.not_in(sa.select(run_claims.c.run_id)))
                .order_by(runs.c.updated_at)
                .limit(limit)
            )
            gone = list(connection.execute(query).scalars())
            for table in (run_steps, run_audit, run_orders):
                connection.execute(sa.delete(table).where(table.c.run_id.in_(gone)))
            connection.execute(sa.delete(runs).where(runs.c.id.in_(gone)))
        return len(gone)

    @contextlib.contextmanager
    def _write(self, name: str) -> Iterator[sa.Connection]:
        with self._engine.begin() as connection:
            if not hold_epoch(connection, self._epoch):
                raise StaleEpochError(
                    f"epoch {self._epoch} may not write to the journal: another controller took over",
                    remedy="stop this one",
                )
            yield connection
            self._at_fault_point(f"{name}.before_commit")
        self._at_fault_point(f"{name}.after_commit")

    def _audit(self, connection: sa.Connection, run: Run, at: float, by: str, what: str, comment: str) -> None:
        entry = AuditEntry(run.id, at, plain_text(by), what, plain_text(comment))
        connection.execute(sa.insert(run_audit).values(**asdict(entry)))
        self._on_audit(connection, run, entry)

    def _audit_override(
        self, connection: sa.Connection, run: Run, at: float, by: str, override: str, held: str
    ) -> None:
        self._audit(connection, run, at, by, "override", f"{override} (against: {held})")

    def _expire(self, connection: sa.Connection, run: Run, now: float) -> Run:
        text = "nobody answered in time"
        self._audit(connection, run, now, EXECUTOR, "expired", text)
        return move_run(connection, run, RunStatus.EXPIRED, now, error=text)


def _approved_by(run: Run, approval: Approval, needed: Approvals | None) -> Run:
    """The run with one approval more. Raises ApprovalRefusedError."""
    approvals = run.approvals
    if needed is not None and needed.needed > approvals.needed:
        approvals = replace(needed, given=approvals.given)
    if why := approvals.why_not(approval.by, run.requested_by):
        raise ApprovalRefusedError(why, run, remedy=f"another approver: `fleetctl runbook approve {run.id}`")
    return replace(run, approvals=replace(approvals, given=(*approvals.given, approval)))
