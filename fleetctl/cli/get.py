"""`get` lists things, `describe` shows one with all that is known of it."""

from __future__ import annotations

import datetime as dt
import time
from enum import StrEnum
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from fleetctl.cli import output as out
from fleetctl.cli.context import call
from fleetctl.cli.output import (
    Column,
    Output,
    OutputOption,
    number,
    print_data,
    print_fields,
    print_rows,
    ratio,
    seconds,
)
from fleetctl.wire import Evidence, Incident, Node, Run, RunbookInfo, Signal, TimelineEntry


class Kind(StrEnum):
    """What can be listed."""

    nodes = "nodes"
    alerts = "alerts"
    incidents = "incidents"
    runs = "runs"
    runbooks = "runbooks"
    events = "events"


class OneKind(StrEnum):
    """What can be described."""

    node = "node"
    incident = "incident"
    run = "run"
    runbook = "runbook"


STALE_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command("get")
    def get(
        kind: Annotated[Kind, typer.Argument(help="What to list.")],
        output: OutputOption = Output.table,
    ) -> None:
        """List nodes, alerts, incidents, runs, runbooks or events."""
        rows = call(lambda client: _fetch(client, kind))
        print_rows(rows, COLUMNS[kind], output, empty=EMPTY[kind])

    @app.command("describe")
    def describe(
        kind: Annotated[OneKind, typer.Argument(help="What kind of thing.")],
        name: Annotated[str, typer.Argument(help="Its name or id.")],
        output: OutputOption = Output.table,
    ) -> None:
        """Show one node, incident, run or runbook with all that is known of it."""
        thing = call(lambda client: _fetch_one(client, kind, name))
        if output in (Output.json, Output.yaml):
            print_data(thing.model_dump(mode="json"), output)
        else:
            describe_thing(thing)


async def _fetch(client: Any, kind: Kind) -> list[BaseModel]:
    match kind:
        case Kind.nodes:
            return list(await client.nodes())
        case Kind.alerts:
            return list(await client.alerts())
        case Kind.incidents:
            return list(await client.incidents())
        case Kind.runs:
            return list(await client.runs())
        case Kind.runbooks:
            return list(await client.runbooks())
        case Kind.events:
            return list(await client.events())


async def _fetch_one(client: Any, kind: OneKind, name: str) -> BaseModel:
    match kind:
        case OneKind.node:
            return _model(await client.node(name))
        case OneKind.incident:
            return _model(await client.incident(name))
        case OneKind.run:
            return _model(await client.get_run(name))
        case OneKind.runbook:
            return _model(await client.runbook(name))


def _model(thing: Any) -> BaseModel:
    assert isinstance(thing, BaseModel)
    return thing


def describe_thing(thing: BaseModel) -> None:
    """Print one object for a person."""
    match thing:
        case Node():
            _describe_node(thing)
        case Incident():
            describe_incident(thing)
        case Run():
            _describe_run(thing)
        case RunbookInfo():
            out.stdout().print(thing.page, markup=False)
        case _:
            raise AssertionError(type(thing))


def _describe_node(node: Node) -> None:
    print_fields(
        node.name,
        [
            ("phase", node.phase.value),
            ("reason", node.reason),
            ("url", node.url),
            ("pool, model", f"{node.pool}, {node.model}"),
            ("engine", node.engine),
            ("zone, revision", f"{node.zone}, {node.revision}"),
            ("instance", node.instance or ""),
            ("since", ago(node.since)),
            ("signal age", seconds(node.signal_age_s)),
            ("running", value(node.running, number)),
            ("waiting", value(node.waiting, number)),
            ("KV used", value(node.kv_ratio, ratio)),
            ("TTFT mean", value(node.ttft_s, seconds)),
            ("decode step", value(node.step_s, seconds)),
            ("requests/s", value(node.requests_per_s, number)),
            ("alerts", ", ".join(node.alerts)),
        ],
    )


def describe_incident(incident: Incident) -> None:
    """The whole story of an incident, as a person reads it."""
    diagnosis = incident.diagnosis
    print_fields(
        f"{incident.id}: {incident.title}",
        [
            ("status", incident.status.value),
            ("severity", incident.severity),
            ("scope", ", ".join(f"{k}={v}" for k, v in incident.scope.items()) or "fleet"),
            ("widened", f"{clock(incident.widened_at)}: {incident.widened_why}" if incident.widened_at else ""),
            ("part of", incident.part_of or ""),
            ("opened", clock(incident.opened_at)),
            ("resolved", clock(incident.resolved_at)),
            (
                "cause",
                f"{diagnosis.cause} ({diagnosis.confidence}): {diagnosis.title}"
                if diagnosis and diagnosis.cause
                else "",
            ),
            ("ruled out", ", ".join(diagnosis.ruled_out) if diagnosis else ""),
            ("not known", ", ".join(diagnosis.not_known) if diagnosis else ""),
            ("post-mortem", incident.postmortem or ""),
            ("black box", incident.blackbox or ""),
        ],
    )
    if incident.alerts:
        out.stdout().print("\nAlerts")
        print_rows(incident.alerts, COLUMNS[Kind.alerts], Output.table, empty="")
    if diagnosis and diagnosis.evidence:
        out.stdout().print("\nEvidence")
        print_rows(diagnosis.evidence, EVIDENCE_COLUMNS, Output.table, empty="")
    if incident.runs:
        out.stdout().print("\nRuns")
        print_rows(incident.runs, COLUMNS[Kind.runs], Output.table, empty="")
    if incident.timeline:
        out.stdout().print("\nTimeline")
        print_rows(incident.timeline, COLUMNS[Kind.events], Output.table, empty="")


def _describe_run(run: Run) -> None:
    print_fields(
        f"{run.id}: {run.title}",
        [
            ("status", run.status.value),
            ("runbook", run.runbook),
            ("inputs", ", ".join(f"{k}={v}" for k, v in run.inputs.items())),
            ("reason", run.reason),
            ("incident", run.incident_id or ""),
            ("asked for by", run.requested_by),
            ("decided by", run.decided_by or ""),
            ("verification", run.verification),
            ("error", run.error),
        ],
    )
    out.stdout().print("\nSteps")
    print_rows(run.steps, STEP_COLUMNS, Output.table, empty="no steps")
    for step in run.steps:
        if step.receipt:
            out.stdout().print(f"  {step.phase} {step.index}: {step.receipt}", markup=False)


def value(signal: Signal, show: Any) -> str:
    """A signal for people: "-" when not known, with its age when it is too old to trust."""
    if signal.value is None:
        return "-"
    text = str(show(signal.value))
    return text if signal.age_s is not None and signal.age_s <= STALE_S else f"{text}? ({seconds(signal.age_s)} old)"


def clock(at: float | None) -> str:
    """UTC time of day, as in the logs; empty when there is none."""
    return "" if at is None else dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(at: float | None) -> str:
    """How long ago, for people; "-" when not known."""
    return "-" if at is None else f"{seconds(max(0.0, time.time() - at))} ago"


def _scope(incident: Incident) -> str:
    """A node with its pool as `node-2,default`; what is wider says what it is: `zone=a`, `fleet`."""
    if incident.scope.get("node"):
        return ",".join(incident.scope.values())
    return ",".join(f"{name}={value}" for name, value in incident.scope.items()) or "fleet"


def _at(entry: TimelineEntry) -> str:
    return dt.datetime.fromtimestamp(entry.at, dt.UTC).strftime("%H:%M:%S")


EVIDENCE_COLUMNS: list[Column] = [
    Column("answer", lambda e: e.answer),
    Column("question", lambda e: e.title),
    Column("value", lambda e: _evidence_value(e), right=True),
    Column("threshold", lambda e: e.threshold),
    Column("age", lambda e: seconds(e.age_s), right=True),
]


def _evidence_value(evidence: Evidence) -> str:
    return evidence.why_unknown or "-" if evidence.value is None else number(evidence.value)


STEP_COLUMNS: list[Column] = [
    Column("phase", lambda s: s.phase),
    Column("step", lambda s: str(s.index), right=True),
    Column("status", lambda s: s.status),
    Column("tries", lambda s: str(s.attempts), right=True),
    Column("command", lambda s: f"fleetctl {s.command}"),
    Column("error", lambda s: s.error),
]

COLUMNS: dict[Kind, list[Column]] = {
    Kind.nodes: [
        Column("name", lambda n: n.name),
        Column("phase", lambda n: n.phase.value),
        Column("pool", lambda n: n.pool),
        Column("running", lambda n: value(n.running, number), right=True),
        Column("waiting", lambda n: value(n.waiting, number), right=True),
        Column("KV", lambda n: value(n.kv_ratio, ratio), right=True),
        Column("TTFT", lambda n: value(n.ttft_s, seconds), right=True),
        Column("step", lambda n: value(n.step_s, seconds), right=True),
        Column("age", lambda n: seconds(n.signal_age_s), right=True),
        Column("alerts", lambda n: ",".join(n.alerts)),
        Column("model", lambda n: n.model, wide=True),
        Column("engine", lambda n: n.engine, wide=True),
        Column("zone", lambda n: n.zone, wide=True),
        Column("revision", lambda n: n.revision, wide=True),
        Column("url", lambda n: n.url, wide=True),
        Column("reason", lambda n: n.reason, wide=True),
    ],
    Kind.alerts: [
        Column("alert", lambda a: a.name),
        Column("state", lambda a: a.state.value),
        Column("silenced", lambda a: a.silenced),
        Column("severity", lambda a: a.severity),
        Column("scope", lambda a: a.labels.get("node") or a.labels.get("pool") or "fleet"),
        Column("source", lambda a: a.source),
        Column("value", lambda a: number(a.value), right=True),
        Column("since", lambda a: ago(a.active_at), right=True),
        Column("summary", lambda a: a.summary, wide=True),
        Column("silences", lambda a: ",".join(a.silenced_by), wide=True),
        Column("source url", lambda a: a.source_url, wide=True),
    ],
    Kind.incidents: [
        Column("id", lambda i: i.id),
        Column("status", lambda i: i.status.value),
        Column("severity", lambda i: i.severity),
        Column("scope", _scope),
        Column("cause", lambda i: (i.diagnosis.cause if i.diagnosis else None) or "-"),
        Column("opened", lambda i: ago(i.opened_at), right=True),
        Column("title", lambda i: i.title, wide=True),
    ],
    Kind.runs: [
        Column("id", lambda r: r.id),
        Column("status", lambda r: r.status.value),
        Column("runbook", lambda r: r.runbook),
        Column("target", lambda r: ",".join(r.targets)),
        Column("started", lambda r: ago(r.created_at), right=True),
        Column("by", lambda r: r.decided_by or r.requested_by),
        Column("error", lambda r: r.error, wide=True),
    ],
    Kind.runbooks: [
        Column("name", lambda r: r.name),
        Column("risk", lambda r: r.risk),
        Column("for causes", lambda r: ",".join(r.causes)),
        Column("title", lambda r: r.title),
    ],
    Kind.events: [
        Column("time", _at),
        Column("event", lambda e: e.kind),
        Column("what", lambda e: e.text),
        Column("incident", lambda e: e.incident_id or "", wide=True),
        Column("run", lambda e: e.run_id or "", wide=True),
    ],
}

EMPTY = {
    Kind.nodes: "no nodes: start a fleet with fleetctl up",
    Kind.alerts: "no alerts",
    Kind.incidents: "no incidents",
    Kind.runs: "no runs",
    Kind.runbooks: "no runbooks",
    Kind.events: "no events",
}
