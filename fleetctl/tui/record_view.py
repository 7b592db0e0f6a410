"""Lists of what happened: the timeline's events, and the audit's changes. Pure."""

from __future__ import annotations

from fleetctl.tui.cell import UNKNOWN, Cell, Tone, clock_time, day
from fleetctl.tui.listing import Column, Line, Order, matches, ordered
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.audit import AuditRow
from fleetctl.wire.timeline import TimelineEntry

_BAD = ("failed", "refused", "lost", "error", "denied", "firing", "unreachable")


def _kind_tone(kind: str) -> Tone:
    return Tone.WARN if kind.rpartition(".")[2] in _BAD else Tone.DIM


EVENT_COLUMNS: tuple[Column[TimelineEntry], ...] = (
    Column("time", 8, lambda one: Cell(clock_time(one.at), Tone.DIM), lambda one: one.seq),
    Column("event", 24, lambda one: Cell(one.kind, _kind_tone(one.kind)), lambda one: one.kind, from_width=100),
    Column("node", 14, lambda one: Cell(one.node or ""), lambda one: one.node, from_width=130),
    Column("what", 20, lambda one: Cell(one.text), grows=True),
)

AUDIT_COLUMNS: tuple[Column[AuditRow], ...] = (
    Column("day", 6, lambda row: Cell(day(row.at), Tone.DIM), lambda row: row.seq),
    Column("time", 8, lambda row: Cell(clock_time(row.at), Tone.DIM), lambda row: row.seq),
    Column("who", 14, lambda row: Cell(row.who, Tone.STRONG), lambda row: row.who),
    Column("what", 22, lambda row: Cell(row.what), lambda row: row.what),
    Column("target", 14, lambda row: Cell(row.target), lambda row: row.target),
    Column("outcome", 10, lambda row: _outcome(row), lambda row: row.outcome, from_width=100),
    Column("why", 10, lambda row: Cell(row.why, Tone.DIM), grows=True, from_width=110),
)


def _outcome(row: AuditRow) -> Cell:
    is_good = row.outcome in ("", "ok", "done", "accepted", "succeeded")
    return Cell(row.outcome or UNKNOWN, Tone.PLAIN if is_good else Tone.WARN)


def event_lines(snapshot: Snapshot, words: str = "", order: Order = Order()) -> tuple[Line[TimelineEntry], ...]:  # noqa: B008
    """The newest first."""
    shown = [one for one in reversed(snapshot.events) if not words or matches(words, _event_labels(one))]
    return tuple(Line(str(one.seq), one) for one in ordered(shown, EVENT_COLUMNS, order))


def _event_labels(one: TimelineEntry) -> dict[str, str]:
    about = {"incident": one.incident_id or "", "run": one.run_id or "", "node": one.node or ""}
    return {"event": one.kind, "text": one.text, **about}


def event_detail(one: TimelineEntry) -> list[Cell]:
    """Everything that is kept of an event."""
    about = ((name, value) for name, value in (("incident", one.incident_id), ("run", one.run_id), ("node", one.node)))
    data = "  ".join(f"{name}={value}" for name, value in one.data.items())
    return [
        Cell(f"{day(one.at)} {clock_time(one.at)}  {one.kind}", Tone.STRONG),
        Cell(one.text),
        Cell("  ".join(f"{name} {value}" for name, value in about if value), Tone.DIM),
        Cell(data, Tone.DIM),
    ]


def audit_lines(snapshot: Snapshot, words: str = "", order: Order = Order()) -> tuple[Line[AuditRow], ...]:  # noqa: B008
    """The newest first."""
    shown = [row for row in reversed(snapshot.audit) if not words or matches(words, _audit_labels(row))]
    return tuple(Line(str(row.seq), row) for row in ordered(shown, AUDIT_COLUMNS, order))


def _audit_labels(row: AuditRow) -> dict[str, str]:
    return {"who": row.who, "what": row.what, "target": row.target, "why": row.why, "outcome": row.outcome}


def audit_detail(row: AuditRow) -> list[Cell]:
    """Everything that is kept of a change."""
    return [
        Cell(f"{day(row.at)} {clock_time(row.at)}  {row.what} {row.target}", Tone.STRONG),
        Cell(f"by {row.who} over {row.via}: {row.outcome}" + (f", run {row.run_id}" if row.run_id else "")),
        Cell(row.why or "no reason was given", Tone.DIM),
        Cell(f"row {row.seq}, hash {row.hash}", Tone.DIM),
    ]
