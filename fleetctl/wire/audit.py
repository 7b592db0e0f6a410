"""Who changed what."""

from __future__ import annotations

from fleetctl.wire.base import Wire


class AuditRow(Wire):
    """One change: who made it by which credentials, when, what, why, and with which outcome."""

    seq: int
    at: float
    who: str
    via: str
    what: str
    target: str
    why: str
    outcome: str
    run_id: str
    hash: str  # holds this row and, by the hash before it, all earlier ones


class AuditCheck(Wire):
    """Whether the audit's rows are those that were written."""

    intact: bool
    rows: int
    first_seq: int
    head_seq: int
    head_hash: str
    broken_seq: int | None = None  # the first row that is not what was written, or is missing
    why: str = ""
    at: float = 0.0
