"""What `get` lists and `describe` shows: each kind's names, columns, labels, and where it is read."""

from __future__ import annotations

import datetime as dt
import difflib
import shlex
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fleetctl.cli.failure_columns import FAILURE_COLUMNS, FAILURE_GROUP_COLUMNS, failure_labels
from fleetctl.cli.moment import ago, clock, whole_seconds
from fleetctl.cli.output import Column, count, number, ratio, seconds
from fleetctl.cli.record_columns import (
    NOTIFICATION_COLUMNS,
    ROLLOUT_COLUMNS,
    SILENCE_COLUMNS,
    TOKEN_COLUMNS,
    token_state,
)
from fleetctl.cli.signal_columns import (
    GPU_COLUMNS,
    HIT,
    NODE_GPU,
    PREEMPT,
    TOP_NODE_COLUMNS,
    load_columns,
    money,
    rate,
    signal_column,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.spec import words_from_options
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire import (
    NONE_ON_RECORD_S,
    Alert,
    DrainReceipt,
    Evidence,
    Failure,
    FailuresBy,
    Freeze,
    Gateway,
    Gpu,
    GroupBy,
    Incident,
    Node,
    NodeGroup,
    NodePhase,
    Notification,
    Pool,
    Revision,
    Rollout,
    Route,
    Run,
    RunbookInfo,
    RunStatus,
    Silence,
    TenantUse,
    TimelineEntry,
    TokenInfo,
)

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient


NEWEST = 1000  # rows of a kind that may have very many, where not all of them are asked for


class Kind(StrEnum):
    """What can be listed."""

    nodes = "nodes"
    pools = "pools"
    zones = "zones"
    models = "models"
    revisions = "revisions"
    gpus = "gpus"
    failures = "failures"
    gateways = "gateways"
    alerts = "alerts"
    incidents = "incidents"
    runs = "runs"
    runbooks = "runbooks"
    events = "events"
    traffic_rules = "traffic-rules"
    tenants = "tenants"
    freezes = "freezes"
    receipts = "receipts"
    rollouts = "rollouts"
    silences = "silences"
    tokens = "tokens"
    notifications = "notifications"
    routes = "routes"

    @property
    def singular(self) -> str:
        """One of them: "node"."""
        return self.value[:-1]


Labels = Mapping[str, str | Sequence[str]]
"""What a selector matches on; of several values any may match."""


@dataclass(frozen=True, slots=True)
class KindView:
    """One kind: how it is read, named, selected and shown."""

    columns: Sequence[Column]
    empty: str
    name: Callable[[Any], str]
    labels: Callable[[Any], Labels]
    read_all: Callable[[ControllerClient], Awaitable[Sequence[BaseModel]]]
    read_one: Callable[[ControllerClient, str], Awaitable[BaseModel]] | None = None
    has_open_labels: bool = False  # rows bring labels of their own: one that a row lacks is empty, not a mistake
    is_usual: Callable[[Any], bool] = field(default=lambda _: True)  # else it is shown with --all or by name only
    identity: Callable[[Any], object] | None = None  # tells rows of one name apart
    read_where: Callable[[ControllerClient, Mapping[str, str]], Awaitable[Sequence[BaseModel]]] | None = None
    """As `read_all`, of rows with these labels only: where there are more rows than one answer has."""
    read_newest: Callable[[ControllerClient], Awaitable[Sequence[BaseModel]]] | None = None
    """As `read_all`, of the newest rows only: what is read again and again where there may be very many."""
    follow: Callable[[ControllerClient], AsyncGenerator[Sequence[BaseModel], None]] | None = None
    """All rows, and again each time that one of them changed: where the controller tells so."""
    at: Callable[[Any], float | None] | None = None  # when a row happened, or last did: what `--since` looks at

    def key_of(self, row: BaseModel) -> object:
        """What stays the same of a row while it changes."""
        return (self.identity or self.name)(row)


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


def _of_limit(title: str, kind: str, *, wide: bool = False) -> Column:
    """What may come at once of a limit; "-" without that limit."""
    return Column(
        title,
        lambda t: "-" if t.left.get(kind) is None else str(t.left[kind]),
        right=True,
        sort_key=lambda t: t.left.get(kind),
        wide=wide,
        is_volatile=True,
    )


def _since(title: str, at: Callable[[Any], float | None]) -> Column:
    """How long ago; sorted by it, the newest first."""
    return Column(
        title,
        lambda row: ago(at(row)).removesuffix(" ago"),
        right=True,
        sort_key=lambda row: _negated(at(row)),
        is_volatile=True,
    )


def _negated(at: float | None) -> float | None:
    return None if at is None else -at


ABILITY_COLUMNS: list[Column] = [
    Column("what", lambda a: a.ability),
    Column("can", lambda a: "yes" if a.can else "no"),
    Column("how, or why not", lambda a: a.how),
]

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

NODE_COLUMNS = [
    Column("name", lambda n: n.name),
    Column("phase", lambda n: n.phase.value),
    Column("pool", lambda n: n.pool),
    signal_column("run", lambda n: n.running, number),
    signal_column("seats", lambda n: n.seats, number, wide=True),
    signal_column("wait", lambda n: n.waiting, number),
    signal_column("KV", lambda n: n.kv_ratio, ratio),
    signal_column("TTFT", lambda n: n.ttft_s, seconds),
    signal_column("step", lambda n: n.step_s, seconds),
    Column(
        "age", lambda n: whole_seconds(n.signal_age_s), right=True, sort_key=lambda n: n.signal_age_s, is_volatile=True
    ),
    Column(
        "probed",
        lambda n: whole_seconds(n.probe_age_s),
        wide=True,
        right=True,
        sort_key=lambda n: n.probe_age_s,
        is_volatile=True,
    ),
    signal_column("ITL", lambda n: n.itl_s, seconds, wide=True),
    signal_column("tok/s", lambda n: n.tokens_per_s, rate, wide=True),
    replace(HIT, wide=True),
    replace(PREEMPT, wide=True),
    replace(NODE_GPU, wide=True),
    Column("cost/h", lambda n: "-" if n.cost_per_hour is None else money(n.cost_per_hour), right=True, wide=True),
    Column("model", lambda n: n.model or "-", wide=True),
    Column("engine", lambda n: n.engine or "-", wide=True),
    Column("zone", lambda n: n.zone or "-", wide=True),
    Column("revision", lambda n: n.revision or "-", wide=True),
    Column("url", lambda n: n.url, wide=True),
    Column("reason", lambda n: n.reason, wide=True),
    Column("alerts", lambda n: ",".join(n.alerts)),
]
POOL_COLUMNS = [
    Column("name", lambda p: p.name),
    Column("wanted", lambda p: str(p.wanted), right=True, sort_key=lambda p: p.wanted),
    Column("nodes", lambda p: str(p.nodes), right=True, sort_key=lambda p: p.nodes),
    Column("ready", lambda p: _of_known(p.ready, p.unknown), right=True, sort_key=lambda p: p.ready),
    Column("revision", lambda p: p.revision),
    Column("owner", lambda p: p.owner),
    Column("state", lambda p: p.state.value),
    Column("can add", lambda p: count(p.more), right=True, wide=True),
    Column("held by", lambda p: p.held_by or "-", wide=True),
    Column("model", lambda p: p.model, wide=True),
    *load_columns(wide=True),
    Column("revisions", lambda p: revision_counts(p), wide=True),
    Column("changed", lambda p: clock(p.updated_at), wide=True),
    Column("by", lambda p: p.updated_by, wide=True),
    Column("reason", lambda p: p.reason, wide=True),
]
REVISION_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("model", lambda r: r.model),
    Column("nodes", lambda r: str(len(r.nodes)), right=True, sort_key=lambda r: len(r.nodes)),
    Column("pools", lambda r: ",".join(r.pools) or "-"),
    Column("made", lambda r: clock(r.created_at), sort_key=lambda r: r.created_at, wide=True),
    Column("engine", lambda r: r.engine, wide=True),
    Column("adapters", lambda r: ",".join(r.adapters) or "-", wide=True),
    Column("template", lambda r: r.prompt_template or "-", wide=True),
    *load_columns(wide=True),
    Column("model dir", lambda r: r.model_dir),
    Column("arguments", lambda r: arguments_text(r.arguments), wide=True),
]
GROUP_COLUMNS = [
    Column("name", lambda g: g.name or "-"),
    Column("ready", lambda g: _ready(g), right=True, sort_key=lambda g: g.ready),
    *load_columns(),
]


def _ready(group: NodeGroup) -> str:
    """Nodes that take requests, of those that are wanted, with how many nobody could look at."""
    return f"{group.ready}/{group.nodes}" + (f" (+{group.unknown}?)" if group.unknown else "")


def _workers(gateway: Gateway) -> str:
    """Those that serve, of those wanted, and those that a reload replaced."""
    workers = gateway.workers
    if workers is None:
        return "-"
    return f"{workers.serving}/{workers.wanted}" + (f"+{workers.retiring}" if workers.retiring else "")


GATEWAY_COLUMNS = [
    Column("name", lambda g: g.name),
    Column("phase", lambda g: g.phase.value),
    Column("held", lambda g: count(g.in_flight), right=True, sort_key=lambda g: g.in_flight, is_volatile=True),
    Column("lost", lambda g: count(g.lost), right=True, sort_key=lambda g: g.lost, is_volatile=True),
    Column("workers", _workers, right=True),
    Column("deaths", lambda g: str(g.deaths), right=True, sort_key=lambda g: g.deaths),
    Column("table", lambda g: count(g.table_version), right=True, sort_key=lambda g: g.table_version),
    Column("left out", lambda g: str(len(g.out)), right=True, sort_key=lambda g: len(g.out)),
    Column("url", lambda g: g.url, wide=True),
    Column("reason", lambda g: g.reason, wide=True),
    Column("why left out", lambda g: "; ".join(f"{n}: {why}" for n, why in sorted(g.out.items())), wide=True),
]
ALERT_COLUMNS = [
    Column("alert", lambda a: a.name),
    Column("state", lambda a: a.state.value),
    Column("silenced", lambda a: a.silenced),
    Column("severity", lambda a: a.severity),
    Column("value", lambda a: number(a.value), right=True, sort_key=lambda a: a.value, is_volatile=True),
    _since("for", lambda a: a.active_at),
    Column("source", lambda a: a.source, wide=True),
    Column("silences", lambda a: ",".join(a.silenced_by), wide=True),
    Column("source url", lambda a: a.source_url, wide=True),
    Column("scope", lambda a: a.labels.get("node") or a.labels.get("pool") or "fleet"),
    Column("summary", lambda a: a.summary, wide=True),
]
ROUTE_COLUMNS = [
    Column("node", lambda r: r.node),
    Column("route", lambda r: r.state.value),
    Column("seen", lambda r: r.phase.value if r.phase is not None else "-"),
    Column("pool", lambda r: r.pool),
    Column("model", lambda r: r.model),
    Column("revision", lambda r: r.revision or "-"),
    Column("engine", lambda r: r.engine, wide=True),
    Column("url", lambda r: r.url, wide=True),
]
INCIDENT_COLUMNS = [
    Column("id", lambda i: i.id),
    Column("status", lambda i: i.status.value),
    Column("severity", lambda i: i.severity),
    _since("age", lambda i: i.opened_at),
    Column("scope", scope_text),
    Column("cause", lambda i: (i.diagnosis.cause if i.diagnosis else None) or "-"),
    Column("who", lambda i: i.handling.words or "-", wide=True),
    Column("title", lambda i: i.title, wide=True),
]
RUN_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("status", run_status),
    _since("age", lambda r: r.created_at),
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
TRAFFIC_RULE_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("kind", lambda r: r.kind),
    Column("ends in", lambda r: _ends_in(r.expires_at), right=True, sort_key=lambda r: r.expires_at, is_volatile=True),
    Column("by", lambda r: r.made_by),
    Column("made", lambda r: clock(r.made_at), wide=True),
    Column("reason", lambda r: r.reason, wide=True),
    Column("orders", lambda r: r.spec.words),
]


TENANT_COLUMNS = [
    Column("tenant", lambda t: t.tenant),
    Column("class", lambda t: t.priority),
    Column("run", lambda t: str(t.running), right=True, sort_key=lambda t: t.running, is_volatile=True),
    _of_limit("tok in left", "input"),
    _of_limit("tok out left", "output"),
    Column("admitted", lambda t: str(t.admitted), right=True, sort_key=lambda t: t.admitted, is_volatile=True),
    Column(
        "refused",
        lambda t: str(sum(t.refused.values())),
        right=True,
        sort_key=lambda t: sum(t.refused.values()),
        is_volatile=True,
    ),
    _of_limit("req left", "requests", wide=True),
    Column(
        "refused by",
        lambda t: ", ".join(f"{why} {count}" for why, count in sorted(t.refused.items())) or "-",
        wide=True,
        is_volatile=True,
    ),
    Column("tokens in", lambda t: str(t.tokens.get("input", 0)), right=True, wide=True, is_volatile=True),
    Column("tokens out", lambda t: str(t.tokens.get("output", 0)), right=True, wide=True, is_volatile=True),
    Column("gateways", lambda t: str(t.gateways), right=True, wide=True),
]


def _of_known(number: int, unknown: int) -> str:
    """A count with how many could not be looked at."""
    return f"{number} (+{unknown}?)" if unknown else str(number)


def revision_counts(pool: Pool) -> str:
    """The revisions of a pool's nodes, the most frequent first: "rev-1 2, rev-2 1"."""
    ordered = sorted(pool.revisions.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{revision} {count}" for revision, count in ordered) or "-"


def arguments_text(arguments: Mapping[str, str | bool | list[str]]) -> str:
    """Arguments of an engine as on its command line."""
    return shlex.join(words_from_options(arguments))


FREEZE_COLUMNS = [
    Column("id", lambda f: f.id),
    Column("pool", lambda f: f.pool or "(the fleet)"),
    Column("ends in", lambda f: _ends_in(f.expires_at), right=True, sort_key=lambda f: f.expires_at, is_volatile=True),
    Column("by", lambda f: f.made_by),
    Column("made", lambda f: clock(f.made_at), wide=True),
    Column("reason", lambda f: f.reason),
]


RECEIPT_COLUMNS = [
    Column("id", lambda r: r.id),
    Column("node", lambda r: r.node),
    _since("age", lambda r: r.ended_at),
    Column("state", lambda r: r.state),
    Column("requests", lambda r: count(sum(r.sums.values())), right=True),
    Column("lost", lambda r: count(r.sums.get("lost")), right=True),
    Column("unknown", lambda r: count(r.sums.get("unknown")), right=True),
    Column("signed", lambda r: "yes" if r.signature else "no", wide=True),
    Column("what became of them", lambda r: r.summary, wide=True),
]

RECEIPT_LINE_COLUMNS = [
    Column("request", lambda line: line.request_id),
    Column("outcome", lambda line: line.outcome),
    Column("to", lambda line: line.moved_to or "-"),
    Column("in", lambda line: count(line.tokens_in), right=True),
    Column("before", lambda line: count(line.tokens_before), right=True),
    Column("after", lambda line: count(line.tokens_after), right=True),
    Column("why", lambda line: line.why),
]


def freeze_words(freeze: Freeze) -> str:
    """What is frozen, until when, by whom and why."""
    where = "the fleet" if freeze.pool is None else f"pool {freeze.pool}"
    until = "until it is ended" if freeze.expires_at is None else f"until {clock(freeze.expires_at)}"
    return f"{where} frozen {until} by {freeze.made_by}: {freeze.reason}"


def _ends_in(at: float | None) -> str:
    return "-" if at is None else seconds(max(0.0, at - time.time()))


def _grouped(by: GroupBy, *, kind: str) -> KindView:
    return KindView(
        GROUP_COLUMNS,
        f"no {kind}: start a fleet with fleetctl up",
        name=lambda g: g.name or "-",
        labels=lambda g: {"name": g.name},
        read_all=lambda client: client.groups(by),
    )


def event_filters(where: Mapping[str, str]) -> dict[str, Any]:
    """What the controller is asked for, of labels that a selector asks for."""
    return {
        "kind": where.get("event"),
        "node": where.get("node"),
        "incident_id": where.get("incident"),
        "run_id": where.get("run"),
    }


def failure_view(by: FailuresBy | None, since: float | None) -> KindView:
    """Failures since then, one by one or counted by something."""
    view = VIEWS[Kind.failures]
    if by is None:
        return replace(view, read_all=lambda client: client.failures(since))
    return KindView(
        FAILURE_GROUP_COLUMNS,
        view.empty,
        name=lambda g: g.name or "-",
        labels=lambda g: {"name": g.name, "standing": g.standing, "kind": [kind.value for kind in g.kinds]},
        read_all=lambda client: client.failure_groups(by, since),
    )


async def _nodes_at_work_first(client: ControllerClient) -> Sequence[BaseModel]:
    return sorted(await client.nodes(), key=_is_stopped)


async def _routes(client: ControllerClient) -> Sequence[BaseModel]:
    table = await client.routing()
    return table.routes if table is not None else []


async def _nodes_as_they_change(client: ControllerClient) -> AsyncGenerator[Sequence[BaseModel], None]:
    async with aclosing(client.follow_nodes()) as told:
        async for known in told:
            yield sorted((known.nodes[name] for name in sorted(known.nodes)), key=_is_stopped)


def _is_stopped(node: Any) -> bool:
    return bool(node.phase is NodePhase.STOPPED)


VIEWS: Mapping[Kind, KindView] = {
    Kind.nodes: KindView(
        NODE_COLUMNS,
        "no nodes: start a fleet with fleetctl up",
        name=lambda n: n.name,
        labels=lambda n: {
            "name": n.name,
            "phase": n.phase.value,
            "pool": n.pool,
            "model": n.model,
            "engine": n.engine,
            "zone": n.zone,
            "revision": n.revision,
            "alert": n.alerts,
        },
        read_all=_nodes_at_work_first,
        read_one=lambda client, name: client.node(name),
        follow=_nodes_as_they_change,
    ),
    Kind.pools: KindView(
        POOL_COLUMNS,
        "no pools: start a fleet with fleetctl up",
        name=lambda p: p.name,
        labels=lambda p: {
            "name": p.name,
            "model": p.model,
            "owner": p.owner,
            "state": p.state.value,
            "revision": list(p.revisions),
            "run": p.held_by or "",
        },
        read_all=lambda client: client.pools(),
        read_one=lambda client, name: client.pool(name),
    ),
    Kind.zones: _grouped(GroupBy.ZONE, kind="zones"),
    Kind.models: _grouped(GroupBy.MODEL, kind="models"),
    Kind.gpus: KindView(
        GPU_COLUMNS,
        "nobody tells of a GPU: our engine reads NVML itself, for others scrape dcgm-exporter with the node's label",
        name=lambda c: f"{c.node}/{c.gpu}",
        labels=lambda c: {
            "node": c.node,
            "pool": c.pool,
            "model": c.model,
            "zone": c.zone,
            "host": c.host,
            "sku": c.sku,
            "card": c.card,
            "fault": c.faults or [],
            "throttled": c.throttled or [],
            "xid": [str(code) for code in c.xids],
        },
        read_all=lambda client: client.gpus(),
    ),
    Kind.failures: KindView(
        FAILURE_COLUMNS,
        "no failures of nodes were seen in that time",
        name=lambda f: f.id,
        labels=failure_labels,
        read_all=lambda client: client.failures(),
    ),
    Kind.revisions: KindView(
        REVISION_COLUMNS,
        "no revisions are stored; of pods: fleetctl rollout status POOL",
        name=lambda r: r.id,
        labels=lambda r: {"id": r.id, "model": r.model, "engine": r.engine, "pool": r.pools, "node": r.nodes},
        read_all=lambda client: client.revisions(),
        read_one=lambda client, name: client.revision(name),
        at=lambda r: r.created_at,
    ),
    Kind.gateways: KindView(
        GATEWAY_COLUMNS,
        "no gateways: start one with fleetctl up, or name them in controller.gateways",
        name=lambda g: g.name,
        labels=lambda g: {"name": g.name, "phase": g.phase.value, "left-out": sorted(g.out)},
        read_all=lambda client: client.gateways(),
        read_one=lambda client, name: client.gateway(name),
    ),
    Kind.tenants: KindView(
        TENANT_COLUMNS,
        "no tenants",
        name=lambda t: t.tenant,
        labels=lambda t: {"name": t.tenant, "class": t.priority},
        read_all=lambda client: client.tenants(),
    ),
    Kind.alerts: KindView(
        ALERT_COLUMNS,
        "no alerts",
        name=lambda a: a.name,
        labels=lambda a: {
            **a.labels,
            "alertname": a.name,
            "severity": a.severity,
            "state": a.state.value,
            "silenced": a.silenced,
            "source": a.source,
        },
        read_all=lambda client: client.alerts(),
        has_open_labels=True,
        identity=lambda a: (a.source, a.name, *sorted(a.labels.items())),
        at=lambda a: a.active_at,
    ),
    Kind.incidents: KindView(
        INCIDENT_COLUMNS,
        "no incidents",
        name=lambda i: i.id,
        labels=lambda i: {
            **i.scope,
            "status": i.status.value,
            "severity": i.severity,
            "who": i.handling.assignee,
            "cause": (i.diagnosis.cause if i.diagnosis else None) or "",
            "alert": [alert.name for alert in i.alerts],
        },
        read_all=lambda client: client.incidents(),
        read_newest=lambda client: client.incidents(limit=NEWEST),
        read_one=lambda client, name: client.incident(name),
        has_open_labels=True,
        at=lambda i: max(i.opened_at, i.resolved_at or 0.0),
    ),
    Kind.runs: KindView(
        RUN_COLUMNS,
        "no runs; --all shows dry runs too",
        name=lambda r: r.id,
        labels=lambda r: {
            "status": r.status.value,
            "runbook": r.runbook,
            "target": r.targets,
            "incident": r.incident_id or "",
            "by": r.decided_by or r.requested_by,
            "dry_run": "yes" if r.dry_run else "no",
        },
        read_all=lambda client: client.runs(),
        read_newest=lambda client: client.runs(limit=NEWEST),
        read_one=lambda client, name: client.get_run(name),
        is_usual=lambda r: not r.dry_run,
        at=lambda r: r.created_at,
    ),
    Kind.runbooks: KindView(
        RUNBOOK_COLUMNS,
        "no runbooks",
        name=lambda r: r.name,
        labels=lambda r: {"name": r.name, "risk": r.risk, "cause": r.causes},
        read_all=lambda client: client.runbooks(),
        read_one=lambda client, name: client.runbook(name),
    ),
    Kind.events: KindView(
        EVENT_COLUMNS,
        "no events",
        name=lambda e: str(e.seq),
        labels=lambda e: {
            "event": e.kind,
            "node": e.node or "",
            "incident": e.incident_id or "",
            "run": e.run_id or "",
        },
        read_all=lambda client: client.newest_events(),
        read_where=lambda client, where: client.newest_events(**event_filters(where)),
        at=lambda e: e.at,
    ),
    Kind.traffic_rules: KindView(
        TRAFFIC_RULE_COLUMNS,
        "no traffic rules: requests go where the gateway's own choice sends them",
        name=lambda r: r.id,
        labels=lambda r: {"id": r.id, "kind": r.kind, "by": r.made_by},
        read_all=lambda client: client.traffic_rules(),
    ),
    Kind.receipts: KindView(
        RECEIPT_COLUMNS,
        "no receipts: no node was drained",
        name=lambda r: r.id,
        labels=lambda r: {
            "id": r.id,
            "node": r.node,
            "state": r.state,
            "complete": "yes" if r.is_complete else "no",
            "moved_to": list(r.moved_to),
        },
        read_all=lambda client: client.receipts(),
        read_one=lambda client, name: client.receipt(name),
        at=lambda r: r.ended_at or r.begun_at,
    ),
    Kind.rollouts: KindView(
        ROLLOUT_COLUMNS,
        "no rollout was ever started",
        name=lambda r: r.id,
        labels=lambda r: {
            "id": r.id,
            "pool": r.pool,
            "state": r.state,
            "from": r.from_revision,
            "to": r.to_revision,
            "by": r.started_by,
        },
        read_all=lambda client: client.rollouts(),
        read_one=lambda client, name: client.rollout(name),
        at=lambda r: max(r.started_at, r.updated_at),
    ),
    Kind.silences: KindView(
        SILENCE_COLUMNS,
        "no silences in force; --all shows expired ones too",
        name=lambda s: s.id,
        labels=lambda s: {
            **{one.name: one.value for one in s.matchers},
            "id": s.id,
            "state": s.state,
            "by": s.created_by,
        },
        read_all=lambda client: client.silences(),
        has_open_labels=True,
        is_usual=lambda s: s.state != "expired",
        at=lambda s: s.starts_at,
    ),
    Kind.tokens: KindView(
        TOKEN_COLUMNS,
        "no named tokens: whoever has controller.token may do everything",
        name=lambda t: t.name,
        labels=lambda t: {"name": t.name, "role": t.role.value, "state": token_state(t)},
        read_all=lambda client: client.tokens(),
        identity=lambda t: (t.name, t.id),
        at=lambda t: t.created_at,
    ),
    Kind.notifications: KindView(
        NOTIFICATION_COLUMNS,
        "nobody was told of anything: see notifications.receivers and fleetctl notify list",
        name=lambda n: n.id,
        labels=lambda n: {
            "id": n.id,
            "receiver": n.receiver,
            "incident": n.incident_id or "",
            "state": n.state.value,
            "kind": n.kind,
            "thread": n.thread,
        },
        read_all=lambda client: client.notifications(),
        read_one=lambda client, name: client.notification(name),
        read_where=lambda client, where: client.notifications(where.get("incident")),
        at=lambda n: n.ended_at or n.created_at,
    ),
    Kind.routes: KindView(
        ROUTE_COLUMNS,
        "nothing was routed yet: there is no routing table",
        name=lambda r: r.node,
        labels=lambda r: {
            "node": r.node,
            "route": r.state.value,
            "phase": r.phase.value if r.phase is not None else "",
            "pool": r.pool,
            "model": r.model,
            "revision": r.revision,
            "engine": r.engine,
        },
        read_all=_routes,
    ),
    Kind.freezes: KindView(
        FREEZE_COLUMNS,
        "nothing is frozen",
        name=lambda f: f.id,
        labels=lambda f: {"id": f.id, "pool": f.pool or "", "by": f.made_by},
        read_all=lambda client: client.freezes(),
        at=lambda f: f.made_at,
    ),
}

TOP_VIEWS: Mapping[Kind, KindView] = {
    Kind.nodes: replace(VIEWS[Kind.nodes], columns=TOP_NODE_COLUMNS),
    Kind.pools: _grouped(GroupBy.POOL, kind="pools"),
    Kind.zones: VIEWS[Kind.zones],
    Kind.models: VIEWS[Kind.models],
    Kind.revisions: _grouped(GroupBy.REVISION, kind="revisions"),
    Kind.gpus: VIEWS[Kind.gpus],
}
"""What `top` shows of each kind: its load, and nothing of what is wanted of it."""

MODELS: Mapping[Kind, type[BaseModel]] = {
    Kind.nodes: Node,
    Kind.pools: Pool,
    Kind.zones: NodeGroup,
    Kind.models: NodeGroup,
    Kind.revisions: Revision,
    Kind.gpus: Gpu,
    Kind.failures: Failure,
    Kind.gateways: Gateway,
    Kind.alerts: Alert,
    Kind.incidents: Incident,
    Kind.runs: Run,
    Kind.runbooks: RunbookInfo,
    Kind.events: TimelineEntry,
    Kind.traffic_rules: TrafficRule,
    Kind.tenants: TenantUse,
    Kind.freezes: Freeze,
    Kind.receipts: DrainReceipt,
    Kind.rollouts: Rollout,
    Kind.silences: Silence,
    Kind.tokens: TokenInfo,
    Kind.notifications: Notification,
    Kind.routes: Route,
}
"""What one of them is in JSON."""


NOT_LISTED: Mapping[str, str] = {
    "audit": "fleetctl audit",
    "autoscaler": "fleetctl autoscale status",
    "causes": "fleetctl content list",
    "content": "fleetctl content list",
    "faults": "fleetctl drill list",
    "hosts": "fleetctl hosts",
    "logs": "fleetctl logs NODE",
    "receivers": "fleetctl notify list",
    "routing": "fleetctl get routes",
    "rules": "fleetctl alerts list",
    "settings": "fleetctl config show",
    "signals": "fleetctl alerts coverage",
    "status": "fleetctl status",
    "targets": "fleetctl discover",
    "trees": "fleetctl tree list",
}
"""What a command of its own shows, to that command."""


def kind_of(text: str) -> Kind:
    """The kind, by its name in the plural or singular. Raises BadInputError."""
    for kind in Kind:
        if text in (kind.value, kind.singular):
            return kind
    if (command := NOT_LISTED.get(text) or NOT_LISTED.get(f"{text}s")) is not None:
        raise BadInputError(f"{text} are not listed by get", remedy=command)
    near = difflib.get_close_matches(text, list(Kind), n=1)
    remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(Kind)}"
    raise BadInputError(f"there is no kind {text[:50]!r}", remedy=remedy)
