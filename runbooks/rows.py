"""Runs in the database, inside a transaction that the journal holds: reading, moving, claiming."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from runbooks.errors import IllegalTransitionError, NotFoundError
from runbooks.guard import Overlap, held_text
from runbooks.run import (
    STEP_TRANSITIONS,
    TRANSITIONS,
    IdempotencyConflictError,
    Order,
    Run,
    RunStatus,
    StepRecord,
    StepStatus,
)
from runbooks.schema import plain_text, run_claims, run_of, run_orders, run_steps, runs
from runbooks.target import parse_target


def get_run(connection: sa.Connection, run_id: str) -> Run:
    """Raises NotFoundError."""
    found = select_runs(connection, runs.c.id == run_id)
    if not found:
        raise NotFoundError(f"there is no run {run_id}", remedy="`fleetctl get runs` lists them")
    return found[0]


def select_runs(connection: sa.Connection, *wanted: sa.ColumnElement[bool], limit: int = 1000) -> list[Run]:
    """Runs with their steps, newest first."""
    query = sa.select(runs).where(*wanted).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    rows = connection.execute(query).mappings().all()
    if not rows:
        return []
    steps: dict[str, list[Any]] = {row["id"]: [] for row in rows}
    step_query = (
        sa.select(run_steps)
        .where(run_steps.c.run_id.in_(list(steps)))
        .order_by(run_steps.c.phase, run_steps.c.index)  # "do" sorts before "undo"
    )
    for step in connection.execute(step_query).mappings():
        steps[step["run_id"]].append(step)
    active = [row["id"] for row in rows if RunStatus(row["status"]).is_active]
    orders = _orders(connection, active) if active else {}
    return [run_of(dict(row), steps[row["id"]], orders.get(row["id"], ())) for row in rows]


def _orders(connection: sa.Connection, run_ids: list[str]) -> dict[str, list[Order]]:
    """What people told these runs, oldest first. Of runs that have ended the audit tells it."""
    found: dict[str, list[Order]] = {}
    query = sa.select(run_orders).where(run_orders.c.run_id.in_(run_ids)).order_by(run_orders.c.seq)
    for row in connection.execute(query).mappings():
        found.setdefault(row["run_id"], []).append(Order(**{key: row[key] for key in Order._fields}))
    return found


def same_or_conflict(stored: Run, asked: Run) -> Run:
    """The stored run, if both ask for the same thing. Raises IdempotencyConflictError."""
    if not stored.same_request(asked):
        raise IdempotencyConflictError(
            f"idempotency key {asked.idempotency_key!r} was used for a different request, run {stored.id}",
            stored,
            remedy="use a new key",
        )
    return stored


def why_held(connection: sa.Connection, run: Run, overlap: Overlap, *, with_proposals: bool) -> str | None:
    """Why another run keeps this one from its targets, or None. A proposal keeps off other proposals only.

    What two targets have in common is `overlap`'s to say; None, which is unknown, keeps off.
    """
    for claim in connection.execute(sa.select(run_claims).order_by(run_claims.c.target)):
        claimed = parse_target(claim.target)
        for target in run.targets:
            if (shared := overlap(target, claimed)) is not False:
                return held_text(target, claimed, get_run(connection, claim.run_id), is_known=shared is True)
    if with_proposals:
        for other in select_runs(connection, runs.c.status == RunStatus.PROPOSED.value):
            for target in run.targets:
                for proposed in other.targets:
                    if (shared := overlap(target, proposed)) is not False:
                        return held_text(target, proposed, other, is_known=shared is True)
    return None


def claim_targets(connection: sa.Connection, run: Run) -> None:
    """Hold the run's targets until it ends."""
    for target in run.targets:
        connection.execute(sa.insert(run_claims).values(target=str(target), run_id=run.id))


def move_run(connection: sa.Connection, run: Run, to: RunStatus, now: float, **fields: Any) -> Run:
    """The run in its next status. An end frees its targets and skips what was not begun.

    Raises IllegalTransitionError.
    """
    if to not in TRANSITIONS[run.status]:
        raise IllegalTransitionError(f"run {run.id}: {run.status.value} can't become {to.value}")
    for key in fields.keys() & {"error", "verification"}:
        fields[key] = plain_text(fields[key])
    connection.execute(sa.update(runs).where(runs.c.id == run.id).values(status=to.value, updated_at=now, **fields))
    if to.is_terminal:
        connection.execute(sa.delete(run_claims).where(run_claims.c.run_id == run.id))
        connection.execute(
            sa.update(run_steps)
            .where(run_steps.c.run_id == run.id, run_steps.c.status == StepStatus.PENDING.value)
            .values(status=StepStatus.SKIPPED.value)
        )
    return get_run(connection, run.id)


def set_step(connection: sa.Connection, run: Run, step: StepRecord, to: StepStatus, now: float, **fields: Any) -> Run:
    """The run with one step in its next status. Raises IllegalTransitionError."""
    if to not in STEP_TRANSITIONS[step.status]:
        raise IllegalTransitionError(
            f"run {run.id}: step {step.phase}.{step.index} is {step.status.value} and can't become {to.value}"
        )
    connection.execute(
        sa.update(run_steps)
        .where(run_steps.c.run_id == run.id, run_steps.c.phase == step.phase, run_steps.c.index == step.index)
        .values(status=to.value, **fields)
    )
    connection.execute(sa.update(runs).where(runs.c.id == run.id).values(updated_at=now))
    return get_run(connection, run.id)
