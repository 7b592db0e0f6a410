"""Columns of alerts, incidents, evidence, runs and events."""

from __future__ import annotations

import datetime as dt

from fleetctl.cli.moment import since_column
from fleetctl.cli.output import Column, number, ratio, seconds
from fleetctl.wire.diagnosis import NONE_ON_RECORD_S, Evidence
from fleetctl.wire.incident import Incident
from fleetctl.wire.run import Run, RunStatus


def run_status(run: Run) -> str:
    """A run's status. A dry run never succeeded at anything: it says what the guards would have said."""
    if not run.dry_run:
        return run.status.value
    return "dry-run" if run.status is RunStatus.SUCCEEDED else f"dry-run: {run.status.value}"


def what_run(run: Run) -> str:
    """The page that a run follows, or its one command."""
    return run.title if run.runbook == "action" else run.runbook


def scope_text(incident: Incident) -> str:
    """A node by its name; what is wider says what it is: `zone=a`, `fleet`."""
    if incident.scope.get("node"):
        return incident.scope["node"]
    return ",".join(f"{name}={value}" for name, value in incident.scope.items()) or "fleet"


EVIDENCE_COLUMNS: list[Column] = [
    Column("answer", lambda e: e.answer),
    Column("speaks", lambda e: e.speaks),
    Column("value", lambda e: _evidence_value(e), right=True),
    Column("threshold", lambda e: e.threshold),
    Column("age", lambda e: seconds(e.age_s), right=True),
    Column("question", lambda e: f"{e.title} ({why})" if (why := e.why_unknown or e.usual) else e.title),
]


def _evidence_value(evidence: Evidence) -> str:
    value = evidence.value
    if value is None:
        return "-"
    match evidence.unit:
        case "ratio":
            return ratio(value)
        case "points":
            return f"{value * 100:.0f} points"
        case "seconds":
            return seconds(value)
        case "before_onset":
            if value >= NONE_ON_RECORD_S:
                return "none on record"
            return f"{seconds(abs(value))} {'before' if value > 0 else 'after'} it began"
        case "times":
            return f"{value:.3g}×"
        case "per_second":
            return f"{value:.3g}/s"
    return number(value)


STEP_COLUMNS: list[Column] = [
    Column("phase", lambda s: s.phase),
    Column("step", lambda s: str(s.index + 1), right=True),
    Column("status", lambda s: s.status),
    Column("tries", lambda s: str(s.attempts), right=True),
    Column("command", lambda s: f"fleetctl {s.command}" + (f": {s.error}" if s.error else "")),
]


ALERT_COLUMNS = [
    Column("alert", lambda a: a.name),
    Column("state", lambda a: a.state.value),
    Column("silenced", lambda a: a.silenced),
    Column("severity", lambda a: a.severity),
    Column("value", lambda a: a.told_value or "-", right=True, sort_key=lambda a: a.value, is_volatile=True),
    since_column("for", lambda a: a.active_at),
    Column("source", lambda a: a.source, wide=True),
    Column("silences", lambda a: ",".join(a.silenced_by), wide=True),
    Column("source url", lambda a: a.source_url, wide=True),
    Column("scope", lambda a: a.labels.get("node") or a.labels.get("pool") or "fleet"),
    Column("summary", lambda a: a.summary, wide=True),
]


INCIDENT_COLUMNS = [
    Column("id", lambda i: i.id),
    Column("status", lambda i: i.status.value),
    Column("severity", lambda i: i.severity),
    since_column("age", lambda i: i.opened_at),
    Column("scope", scope_text),
    Column("cause", lambda i: (i.diagnosis.cause if i.diagnosis else None) or "-"),
    Column("who", lambda i: i.handling.words or "-", wide=True),
    Column("title", lambda i: i.title, wide=True),
]


RUN_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("status", run_status),
    since_column("age", lambda r: r.created_at),
    Column("by", lambda r: r.decided_by or r.requested_by),
    Column("target", lambda r: ",".join(r.targets)),
    Column("what", what_run),
    Column("error", lambda r: r.error, wide=True),
]


RUNBOOK_COLUMNS = [
    Column("name", lambda r: r.name),
    Column("risk", lambda r: r.risk),
    Column("title", lambda r: r.title),
    Column("for causes", lambda r: ", ".join(r.causes) or "-"),
]


EVENT_COLUMNS = [
    Column("time", lambda e: dt.datetime.fromtimestamp(e.at, dt.UTC).strftime("%H:%M:%S"), sort_key=lambda e: e.at),
    Column("event", lambda e: e.kind),
    Column("incident", lambda e: e.incident_id or "-", wide=True),
    Column("run", lambda e: e.run_id or "-", wide=True),
    Column("what", lambda e: e.text),
]
