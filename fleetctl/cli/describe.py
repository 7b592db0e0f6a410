"""`describe` shows one thing with all that is known of it."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import BaseModel

from fleetctl.cli import output as out
from fleetctl.cli.completion import complete_name, complete_one_kind
from fleetctl.cli.context import call
from fleetctl.cli.diagnosis_words import confidence_words, verdict_fields
from fleetctl.cli.evidence_table import print_evidence
from fleetctl.cli.fleet_columns import ABILITY_COLUMNS, RECEIPT_LINE_COLUMNS, revision_counts
from fleetctl.cli.incident_columns import STEP_COLUMNS, run_status
from fleetctl.cli.kinds import VIEWS, Kind, kind_of
from fleetctl.cli.moment import age, ago, clock
from fleetctl.cli.output import (
    DATA,
    Output,
    OutputOption,
    count,
    number,
    print_data,
    print_fields,
    print_rows,
    ratio,
    seconds,
)
from fleetctl.cli.record_columns import NOTIFICATION_COLUMNS
from fleetctl.cli.rollout_words import show_rollout
from fleetctl.cli.signal_columns import GPU_COLUMNS, SLOW_STALE_S, load_columns, money, percent, rate, value
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.alert import AlertState
from fleetctl.wire.gateway import Gateway, GatewayWorkers
from fleetctl.wire.incident import Handling, Incident
from fleetctl.wire.node import DeepCheck, Node
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.run import Run
from fleetctl.wire.runbook import RunbookInfo

REMEDIES = {
    Kind.zones: "fleetctl top zones -o wide",
    Kind.models: "fleetctl top models -o wide",
    Kind.gpus: "fleetctl get gpus -o wide",
    Kind.failures: "fleetctl get failures -o wide",
    Kind.alerts: "fleetctl alerts explain NAME",
    Kind.events: "fleetctl get events -l incident=ID",
    Kind.traffic_rules: "fleetctl get traffic-rules -o wide",
    Kind.tenants: "fleetctl get tenants -o wide",
    Kind.freezes: "fleetctl get freezes -o wide",
    Kind.silences: "fleetctl get silences -o wide",
    Kind.tokens: "fleetctl get tokens -o wide",
    Kind.routes: "fleetctl get routes -o wide",
}


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("describe")
    def describe(
        kind: Annotated[
            str,
            typer.Argument(
                metavar="KIND",
                help="node, pool, revision, rollout, gateway, incident, run, receipt or runbook.",
                autocompletion=complete_one_kind,
            ),
        ],
        name: Annotated[str, typer.Argument(help="Its name or id.", autocompletion=complete_name)],
        output: OutputOption = Output.table,
    ) -> None:
        """Show one node, pool, revision, rollout, gateway, incident, run, receipt or runbook with all of it."""
        found = kind_of(kind)
        read_one = VIEWS[found].read_one
        if read_one is None:
            raise BadInputError(f"one of the {found} can't be described", remedy=REMEDIES[found])
        thing = call(lambda client: read_one(client, name))
        if isinstance(thing, DrainReceipt) and output in DATA:
            # As it was signed, also what this fleetctl does not know of: what is saved can be verified.
            print_data(call(lambda client: client.signed_receipt(name)), output)
        elif output in DATA:
            print_data(thing.model_dump(mode="json"), output)
        else:
            describe_thing(thing)


def describe_thing(thing: BaseModel) -> None:
    """Print one object for a person."""
    match thing:
        case Node():
            _describe_node(thing)
        case Pool():
            _describe_pool(thing)
        case Revision():
            _describe_revision(thing)
        case Gateway():
            _describe_gateway(thing)
        case Incident():
            describe_incident(thing)
        case Run():
            _describe_run(thing)
        case RunbookInfo():
            print_page(thing)
        case DrainReceipt():
            _describe_receipt(thing)
        case Rollout():
            show_rollout(thing)
        case _:
            raise AssertionError(type(thing))


def print_page(info: RunbookInfo) -> None:
    """A runbook's page: as it is written in a pipe; on a terminal its front matter as fields, then the page."""
    console = out.stdout()
    if not console.is_terminal:
        console.print(info.page, markup=False)
        return
    from rich.markdown import Markdown

    fields = [("risk", info.risk), ("for causes", ", ".join(info.causes))]
    fields += [(f"input {name}", meaning) for name, meaning in info.inputs.items()]
    print_fields(info.name, fields)
    console.print()
    console.print(Markdown(info.body))


def _describe_node(node: Node) -> None:
    print_fields(
        node.name,
        [
            ("phase", node.phase.value),
            ("reason", node.reason),
            ("url", node.url),
            ("pool, model", f"{node.pool or '-'}, {node.model or '-'}"),
            ("engine", " ".join(filter(None, (node.engine or "-", node.facts.get("version", ""))))),
            ("zone, revision", f"{node.zone or '-'}, {node.revision or '-'}"),
            ("run by", node.provider + (f", named by {node.facts['source']}" if "source" in node.facts else "")),
            ("host, GPUs", ", ".join(node.facts[key] for key in ("host", "gpu", "sku") if key in node.facts)),
            ("machine", _told(node.machine_problems)),
            ("its provider", _told(node.reasons)),
            ("instance", node.instance or ""),
            ("cost per hour", "" if node.cost_per_hour is None else money(node.cost_per_hour)),
            ("can be added", _more_words(node)),
            ("since", ago(node.since)),
            ("last probe", age(node.probe_age_s)),
            ("last scrape", age(node.signal_age_s)),
            ("scrape failed", node.signal_problem),
            ("running", value(node.running, number)),
            ("waiting", value(node.waiting, number)),
            ("KV used", value(node.kv_ratio, ratio)),
            ("TTFT mean", value(node.ttft_s, seconds)),
            ("TTFT p99", value(node.ttft_p99_s, seconds, SLOW_STALE_S)),
            ("ITL mean", value(node.itl_s, seconds)),
            ("decode step", value(node.step_s, seconds)),
            ("requests/s", value(node.requests_per_s, number)),
            ("tokens/s", f"{value(node.tokens_per_s, rate)} out, {value(node.prompt_tokens_per_s, rate)} in"),
            ("prefix hit", value(node.prefix_hit_ratio, ratio)),
            ("preemptions", _preemption_words(node)),
            ("deep check", deep_check_words(node.deep_check)),
            ("alerts", ", ".join(node.alerts)),
        ],
    )
    if node.gpus:
        out.stdout().print()
        print_rows(node.gpus, GPU_COLUMNS[1:], Output.table, empty="")
    if node.abilities:
        out.stdout().print()
        print_rows(node.abilities, ABILITY_COLUMNS, Output.table, empty="")


def _told(signs: list[str] | None) -> str:
    """Nothing where nobody tells, which is another thing than that nothing is wrong."""
    return "" if signs is None else "; ".join(signs) or "nothing is told against it"


def _more_words(row: Node | Pool) -> str:
    """How many more nodes like it can be started, and what decides it; nothing where neither is known."""
    return ": ".join(filter(None, ("" if row.more is None else str(row.more), row.more_why)))


def _preemption_words(node: Node) -> str:
    """For each request that ended, and each second: a node that ends none has no ratio."""
    return f"{value(node.preemption_ratio, percent)} of requests, {value(node.preemptions_per_s, rate)}/s"


def _load_fields(row: Pool | Revision) -> list[tuple[str, str]]:
    """What its nodes' signals come to; nothing where none told."""
    return [(one.title, text) for one in load_columns(wide=True) if (text := one.read(row)) != "-"]


def _describe_pool(pool: Pool) -> None:
    unknown = f", {pool.unknown} not looked at lately" if pool.unknown else ""
    backoff = f"{pool.start_failures} in a row" + (
        f", again at {clock(pool.next_start_at)}" if pool.next_start_at is not None else ", being tried again"
    )
    print_fields(
        pool.name,
        [
            ("state", f"{pool.state.value}: {pool.reason}" if pool.reason else pool.state.value),
            ("model", pool.model),
            ("nodes", f"{pool.wanted} wanted, {pool.nodes} there, {pool.ready} ready{unknown}"),
            ("can be added", _more_words(pool)),
            ("new nodes get", pool.revision),
            ("nodes have", revision_counts(pool)),
            ("failed starts", backoff if pool.start_failures else ""),
            ("last words", pool.start_error),
            ("owner", pool.owner),
            ("held by", pool.held_by or ""),
            ("autoscaler", pool.autoscaler),
            ("changed", f"{clock(pool.updated_at)} by {pool.updated_by}"),
            *_load_fields(pool),
        ],
    )


def _describe_revision(revision: Revision) -> None:
    print_fields(
        revision.id,
        [
            ("model", revision.model),
            ("engine", revision.engine),
            ("model dir", revision.model_dir),
            *((f"--{name.replace('_', '-')}", argument_text(value)) for name, value in revision.arguments.items()),
            ("adapters", ", ".join(revision.adapters) or "none"),
            ("prompt template", revision.prompt_template or "the model's own"),
            ("first seen", clock(revision.created_at)),
            ("nodes", ", ".join(revision.nodes) or "none"),
            ("new nodes of pools", ", ".join(revision.pools) or "none"),
            *_load_fields(revision),
        ],
    )


def argument_text(value: str | bool | list[str]) -> str:
    """The value of one argument, for people."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(value) if isinstance(value, list) else value


def _describe_gateway(gateway: Gateway) -> None:
    workers = gateway.workers
    left_out = [(f"leaves out {node}", why) for node, why in sorted(gateway.out.items())]
    print_fields(
        gateway.name,
        [
            ("phase", gateway.phase.value),
            ("reason", gateway.reason),
            ("url", gateway.url),
            ("since", ago(gateway.since)),
            ("last probe", age(gateway.probe_age_s)),
            ("started by", "this controller's machine" if gateway.is_local else "its own supervisor"),
            ("instance", gateway.instance or ""),
            ("workers", _worker_words(workers) if workers is not None else ""),
            ("reload failed", (workers.reload_error or "") if workers is not None else ""),
            ("deaths", str(gateway.deaths)),
            ("next start", clock(gateway.next_start_at) if gateway.next_start_at is not None else ""),
            ("routing table", count(gateway.table_version)),
            ("confirmed", age(gateway.table_age_s)),
            ("requests held", count(gateway.in_flight)),
            ("requests lost", count(gateway.lost)),
            ("fails open for", ", ".join(gateway.failing_open)),
            *left_out,
        ],
    )


def _worker_words(workers: GatewayWorkers) -> str:
    retiring = f", {workers.retiring} end what they have" if workers.retiring else ""
    return f"{workers.serving} of {workers.wanted} serve{retiring}; generation {workers.generation}"


def deep_check_words(check: DeepCheck) -> str:
    """The result, how old it is, and what is wrong."""
    age = f", {seconds(check.age_s)} ago" if check.age_s is not None else ""
    return f"{check.result}{age}" + (f": {check.detail}" if check.detail else "")


def describe_incident(incident: Incident, output: Output = Output.table) -> None:
    """The whole story of an incident, as a person reads it; with `wide`, also what nothing was read of."""
    diagnosis, imported = incident.diagnosis, bool(incident.imported_from)
    print_fields(
        f"{incident.id}: {incident.title}",
        [
            ("impact", incident.impact),
            ("no remedy", incident.no_remedy),
            ("fails often", incident.offence),
            ("imported", f"written by {incident.imported_from}: a record, nothing acts on it" if imported else ""),
            ("status", f"{incident.status.value}{_clear_words(incident)}"),
            ("severity", _severity_words(incident)),
            ("who has it", incident.handling.words or ("nobody" if incident.resolved_at is None else "")),
            ("silenced", _silenced_words(incident.handling)),
            ("scope", ", ".join(f"{k}={v}" for k, v in incident.scope.items()) or "fleet"),
            ("widened", f"{clock(incident.widened_at)}: {incident.widened_why}" if incident.widened_at else ""),
            ("part of", incident.part_of or ""),
            ("opened", clock(incident.opened_at)),
            ("came back", ", ".join(map(clock, incident.came_back))),
            ("resolved", clock(incident.resolved_at)),
            (
                "cause",
                f"{diagnosis.cause} ({confidence_words(diagnosis)}): {diagnosis.title}"
                if diagnosis and diagnosis.cause
                else "",
            ),
            ("advice", diagnosis.title if diagnosis and not diagnosis.cause else ""),
            *(verdict_fields(diagnosis, is_over=incident.resolved_at is not None) if diagnosis else ()),
            ("not known", ", ".join(diagnosis.not_known) if diagnosis else ""),
            ("post-mortem", incident.postmortem or ""),
            ("black box", incident.blackbox or ""),
            ("dashboard", incident.dashboard),
        ],
    )
    if incident.alerts:
        out.stdout().print("\nAlerts")
        print_rows(incident.alerts, VIEWS[Kind.alerts].columns, Output.table, empty="")
    if diagnosis and diagnosis.evidence:
        out.stdout().print("\nEvidence")
        print_evidence(diagnosis.evidence, output)
    if incident.notifications:
        out.stdout().print("\nTold")
        print_rows(incident.notifications, NOTIFICATION_COLUMNS, Output.table, empty="")
    if incident.runs:
        out.stdout().print("\nRuns")
        print_rows(incident.runs, VIEWS[Kind.runs].columns, Output.table, empty="")
    if incident.timeline:
        out.stdout().print("\nTimeline")
        print_rows(incident.timeline, VIEWS[Kind.events].columns, Output.table, empty="")


def _clear_words(incident: Incident) -> str:
    """Of one that is not over although no alert of it fires: since when, and what it waits for."""
    ended = [alert.resolved_at for alert in incident.alerts if alert.state is AlertState.RESOLVED and alert.resolved_at]
    if incident.resolved_at is not None or not ended or len(ended) < len(incident.alerts):
        return ""
    return f", no alert fires since {clock(max(ended))}: it closes by itself if that lasts and no run goes on"


def _severity_words(incident: Incident) -> str:
    """Its level with the clock that it started, and who set it."""
    by = f", set by {incident.handling.severity_by}" if incident.handling.severity_by else ""
    due = f", to be mitigated by {clock(incident.due_at)}" if incident.due_at and incident.resolved_at is None else ""
    return f"{incident.sev} ({incident.severity}){by}{due}" if incident.sev else incident.severity


def _silenced_words(handling: Handling) -> str:
    """Which silence a person made for it, and until when."""
    return f"{handling.silence_id}, until {clock(handling.silenced_until)}" if handling.silenced_until else ""


def _describe_receipt(receipt: DrainReceipt) -> None:
    print_fields(
        receipt.id,
        [
            ("node", receipt.node),
            ("state", receipt.state),
            ("began", clock(receipt.begun_at)),
            ("ended", clock(receipt.ended_at)),
            ("requests", receipt.summary),
            ("complete", "yes" if receipt.is_complete else "no: see the unknown lines and the notes"),
            *(("note", note) for note in receipt.notes),
            ("key", receipt.key_id or "none: it is not signed"),
        ],
    )
    out.stdout().print("\nRequests")
    print_rows(receipt.lines, RECEIPT_LINE_COLUMNS, Output.table, empty="it held none")


def _describe_run(run: Run) -> None:
    print_fields(
        f"{run.id}: {run.title}",
        [
            ("status", run_status(run)),
            ("runbook", run.runbook),
            ("inputs", ", ".join(f"{k}={v}" for k, v in run.inputs.items())),
            ("reason", run.reason),
            ("incident", run.incident_id or ""),
            ("asked for by", run.requested_by),
            ("decided by", run.decided_by or ""),
            ("cancelled by", "" if run.status.is_terminal else run.cancelled_by),
            ("approvals", run.approval),
            ("prediction", run.prediction),
            ("held", run.held),
            ("override", run.override),
            ("verification", run.verification),
            ("error", run.error),
        ],
    )
    out.stdout().print("\nSteps")
    print_rows(run.steps, STEP_COLUMNS, Output.table, empty="no steps")
    for step in run.steps:
        if step.receipt:
            out.stdout().print(f"  {step.phase} {step.index + 1}: {step.receipt}", markup=False)
