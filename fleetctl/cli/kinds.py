"""What `get` lists and `describe` shows: each kind's names, labels, and where it is read.

One table, as long as there are kinds: a kind is looked up here, added here, and compared here with its neighbours. Its
columns are in `fleet_columns.py`, `incident_columns.py` and their like.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fleetctl.cli.failure_columns import FAILURE_COLUMNS, FAILURE_GROUP_COLUMNS, failure_labels
from fleetctl.cli.fleet_columns import (
    FREEZE_COLUMNS,
    GATEWAY_COLUMNS,
    GROUP_COLUMNS,
    NODE_COLUMNS,
    POOL_COLUMNS,
    RECEIPT_COLUMNS,
    REVISION_COLUMNS,
    ROUTE_COLUMNS,
    TENANT_COLUMNS,
    TRAFFIC_RULE_COLUMNS,
)
from fleetctl.cli.incident_columns import ALERT_COLUMNS, EVENT_COLUMNS, INCIDENT_COLUMNS, RUN_COLUMNS, RUNBOOK_COLUMNS
from fleetctl.cli.output import Column
from fleetctl.cli.record_columns import (
    NOTIFICATION_COLUMNS,
    ROLLOUT_COLUMNS,
    SILENCE_COLUMNS,
    TOKEN_COLUMNS,
    token_state,
)
from fleetctl.cli.signal_columns import (
    GPU_COLUMNS,
    TOP_NODE_COLUMNS,
)
from fleetctl.kit.errors import BadInputError
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire.alert import Alert
from fleetctl.wire.failure import Failure, FailuresBy
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupBy, NodeGroup
from fleetctl.wire.identity import TokenInfo
from fleetctl.wire.incident import Incident
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.notification import Notification
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import Route
from fleetctl.wire.run import Run
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.silence import Silence
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry

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
