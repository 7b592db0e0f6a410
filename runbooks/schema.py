"""The journal's tables and how runs become rows: the only module that knows both.

Rows are plain columns and JSON. The tables may live in a database that others use too: names start with `run`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import sqlalchemy as sa

from runbooks.approval import Approvals
from runbooks.ports import Receipt
from runbooks.run import Condition, Order, Run, RunStatus, StepRecord, StepStatus, UndoItem
from runbooks.target import parse_target
from runbooks.verb import Verify

SCHEMA_VERSION = 4  # 2: runs.override; 3: runs.approvals; 4: run_orders
BUSY_TIMEOUT_MS = 60_000  # a fleet of thousands that changes at once keeps one writer busy; others must not give up
MAX_RECEIPT_ITEMS = 200
MAX_RECEIPT_DEPTH = 6
MAX_TEXT_CHARS = 4000

metadata = sa.MetaData()

meta = sa.Table(
    "run_meta",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # one row, id 1
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # of the controller that may write
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("runbook", sa.Text, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, index=True),
    sa.Column("inputs", sa.JSON, nullable=False),
    sa.Column("incident_id", sa.Text, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sa.Column("updated_at", sa.Double, nullable=False, index=True),
    sa.Column("dry_run", sa.Boolean, nullable=False),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("decided_by", sa.Text),
    sa.Column("decided_at", sa.Double),
    sa.Column("expires_at", sa.Double),
    sa.Column("cancelled_by", sa.Text),
    sa.Column("verification", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("plan", sa.JSON, nullable=False),  # what never changes: see `run_row`
    sa.Column("idempotency_key", sa.Text, unique=True),
    sa.Column("override", sa.Text, nullable=False, server_default=""),
    sa.Column("approvals", sa.JSON),  # what it needs and has of them; NULL: one person's answer settles it
)

run_steps = sa.Table(
    "run_steps",
    metadata,
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("phase", sa.Text, primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, index=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("receipt", sa.JSON, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
)

run_claims = sa.Table(
    "run_claims",
    metadata,
    # The key is the rule: one active run a target, in its written form. A bare name is a node, hence the column's name.
    sa.Column("node", sa.Text, key="target", primary_key=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id"), nullable=False),
)

run_audit = sa.Table(
    "run_audit",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),  # a person or a part of the controller
    sa.Column("what", sa.Text, nullable=False),  # requested, approved, denied, cancel_requested or a status
    sa.Column("comment", sa.Text, nullable=False),
)


run_orders = sa.Table(
    "run_orders",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),  # pause, resume, skip, yes or no
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
)


def upgrade(connection: sa.Connection, version: int) -> None:
    """Bring tables of an older schema `version` up to this one."""
    if version < 2:
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN override TEXT NOT NULL DEFAULT ''")
    if version < 3:
        kind = runs.c.approvals.type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE runs ADD COLUMN approvals {kind}")
    connection.execute(sa.update(meta).values(schema_version=SCHEMA_VERSION))


def open_engine(url: str) -> sa.Engine:
    """An engine fit for a journal. SQLite gets WAL, synchronous=FULL and a busy timeout on each connection."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "postgresql":
        engine.update_execution_options(isolation_level="READ COMMITTED")  # see `runbooks.epoch`
    prepare(engine)
    return engine


def prepare(engine: sa.Engine) -> None:
    """See `open_engine`; for an engine made elsewhere. Connections that are open already stay as they are."""
    if engine.dialect.name == "sqlite" and not sa.event.contains(engine, "connect", _set_pragmas):
        sa.event.listen(engine, "connect", _set_pragmas)


def _set_pragmas(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=FULL",  # in WAL the default would lose the last commits with the power
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def run_row(run: Run) -> dict[str, Any]:
    """The columns of table `runs`; `plan` holds what never changes."""
    return {
        "id": run.id,
        "runbook": run.runbook,
        "title": run.title,
        "status": run.status.value,
        "inputs": dict(run.inputs),
        "incident_id": run.incident_id,
        "reason": plain_text(run.reason),
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "dry_run": run.dry_run,
        "requested_by": plain_text(run.requested_by),
        "decided_by": run.decided_by,
        "decided_at": run.decided_at,
        "expires_at": run.expires_at,
        "cancelled_by": run.cancelled_by,
        "verification": run.verification,
        "error": plain_text(run.error),
        "idempotency_key": run.idempotency_key,
        "override": plain_text(run.override),
        "approvals": run.approvals.to_dict(),
        "plan": {
            "risk": run.risk,
            "verify": asdict(run.verify) if run.verify else None,
            "undo": [asdict(item) for item in run.undo],
            "targets": [str(target) for target in run.targets],
            "fresh_nodes": list(run.fresh_nodes),
            "existing_nodes": [str(target) for target in run.existing],
            "unasked": run.unasked,
            "terms": [{"when": [list(one) for one in step.when], "wave": step.wave} for step in run.do_steps],
        },
    }


def step_row(run_id: str, step: StepRecord) -> dict[str, Any]:
    """The columns of table `run_steps`."""
    return {
        "run_id": run_id,
        "phase": step.phase,
        "index": step.index,
        "number": step.number,
        "title": step.title,
        "command": step.command,
        "status": step.status.value,
        "attempts": step.attempts,
        "failures": step.failures,
        "started_at": step.started_at,
        "ended_at": step.ended_at,
        "receipt": plain_receipt(step.receipt),
        "error": plain_text(step.error),
    }


def run_of(row: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], orders: Sequence[Order] = ()) -> Run:
    """The run that these rows hold; those written before targets had kinds name nodes only."""
    plan = row["plan"]
    return Run(
        **{key: row[key] for key in _RUN_COLUMNS},
        status=RunStatus(row["status"]),
        approvals=Approvals.from_dict(row["approvals"] or {}),
        steps=tuple(_with_terms(step_of(step), plan.get("terms", ())) for step in steps),
        orders=tuple(orders),
        risk=plan["risk"],
        verify=Verify(**plan["verify"]) if plan["verify"] else None,
        undo=tuple(UndoItem(**item) for item in plan["undo"]),
        targets=tuple(parse_target(text) for text in plan["targets"]),
        fresh_nodes=tuple(plan["fresh_nodes"]),
        existing=tuple(parse_target(text) for text in plan["existing_nodes"]),
        unasked=plan.get("unasked", False),
    )


def _with_terms(step: StepRecord, terms: Sequence[Mapping[str, Any]]) -> StepRecord:
    """The step with what never changes of it and is kept with the run: its conditions, and what it is done beside."""
    if step.phase == "undo" or step.index >= len(terms):
        return step
    own = terms[step.index]
    return replace(step, when=tuple(Condition(group, text) for group, text in own["when"]), wave=own["wave"])


_RUN_COLUMNS = tuple(column.name for column in runs.columns if column.name not in ("status", "plan", "approvals"))
_STEP_COLUMNS = tuple(column.name for column in run_steps.columns if column.name not in ("status", "run_id"))


def step_of(row: Mapping[str, Any]) -> StepRecord:
    """The step that a row of `run_steps` holds."""
    return StepRecord(**{key: row[key] for key in _STEP_COLUMNS}, status=StepStatus(row["status"]))


def plain_text(text: str) -> str:
    """Text that every database takes: no NUL, and not endless."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def plain_receipt(receipt: Receipt) -> Receipt:
    """A receipt as JSON that every database takes. What was done must be stored, whatever it looks like."""
    plain = _plain(receipt, MAX_RECEIPT_DEPTH)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        items = list(value.items())[:MAX_RECEIPT_ITEMS]
        return {plain_text(str(key)): _plain(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in list(value)[:MAX_RECEIPT_ITEMS]]
    return plain_text(str(value))
