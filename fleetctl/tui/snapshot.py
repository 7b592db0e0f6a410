"""What the cockpit knows at one moment. When the controller can't be reached, the last good parts stay and the
snapshot says since when it is cut off. Nothing here knows Textual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleetctl.wire.alert import Alert, AlertExplanation
from fleetctl.wire.audit import AuditRow
from fleetctl.wire.autoscaler import AutoscalerPool
from fleetctl.wire.chart import IncidentCharts
from fleetctl.wire.group import GroupBy, NodeGroup
from fleetctl.wire.held import HeldRequests, KvBlocks
from fleetctl.wire.identity import CallerInfo, TokenRole
from fleetctl.wire.incident import Incident, IncidentStatus
from fleetctl.wire.node import Node
from fleetctl.wire.pool import Pool
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import RoutingTable
from fleetctl.wire.run import Run, RunStatus
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.status import Status
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry


class Part(StrEnum):
    """What is read by itself, and only while a screen shows it."""

    NODES = "nodes"
    POOLS = "pools"
    GROUPS = "groups"
    ALERTS = "alerts"
    EXPLANATION = "explanation"  # of the alert that is chosen
    INCIDENTS = "incidents"
    FOCUS = "focus"  # the incident that is shown, in full, with its page
    CHARTS = "charts"  # of the incident that is shown
    RUNS = "runs"
    PAGE = "page"  # a runbook's page that was asked for by name
    NODE = "node"  # the node that is shown, in full
    REQUESTS = "requests"  # what it holds, and what its KV cache is used for
    PAST = "past"  # TTFT and ITL now and an hour ago
    BUDGETS = "budgets"
    TRAFFIC = "traffic"
    AUTOSCALER = "autoscaler"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the screen that is shown needs, and about what."""

    parts: frozenset[Part] = frozenset()
    incident: str | None = None  # None: the gravest
    node: str | None = None
    page: str | None = None
    alert: str | None = None  # its fingerprint
    group: GroupBy | None = None  # what nodes are shown by, where their pools do not tell of it


@dataclass(frozen=True, slots=True)
class Tail:
    """A quantile of TTFT and ITL in seconds, now and an hour ago. None: not known."""

    ttft_s: float | None = None
    ttft_before_s: float | None = None
    itl_s: float | None = None
    itl_before_s: float | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How fast the error budget of a pool's objective burns: 1 uses it up within its period. None: not known, or less
    than half of the window is there."""

    pool: str
    slo: str
    objective: float | None = None  # the share of requests that has to be good
    burn_5m: float | None = None
    burn_1h: float | None = None
    burn_6h: float | None = None

    @property
    def worst(self) -> float | None:
        """Of the windows that tell what goes on now."""
        return max((one for one in (self.burn_5m, self.burn_1h) if one is not None), default=None)


@dataclass(frozen=True, slots=True)
class Trend:
    """What a node told in the last readings, oldest first; None where it did not."""

    ttft_s: tuple[float | None, ...] = ()
    tokens_per_s: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is shown, as it was when each part was last read."""

    status: Status | None = None  # None: the controller never answered
    caller: CallerInfo | None = None  # None: not known
    nodes: tuple[Node, ...] = ()
    node_told_at: Mapping[str, float] = field(default_factory=dict)  # Unix time; of those that were told one by one
    pools: tuple[Pool, ...] = ()
    groups: Mapping[GroupBy, tuple[NodeGroup, ...]] = field(default_factory=dict)
    alerts: tuple[Alert, ...] = ()
    explained: str | None = None  # fingerprint of the alert that `explanation` is of
    explanation: AlertExplanation | None = None  # None: no rule of ours judges it, or it was not asked yet
    incidents: tuple[Incident, ...] = ()  # gravest first: open ones, then by time; without timeline and evidence
    focus: Incident | None = None  # the shown incident in full
    charts: IncidentCharts | None = None  # of the focus
    charts_of: str | None = None  # id of the incident that they are of
    charts_unknown: str = ""  # why they are not known
    page: RunbookInfo | None = None  # the runbook of the focus' current run, or the one that was asked for
    runs: tuple[Run, ...] = ()  # the newest first
    node: Node | None = None  # the shown node in full
    requests: HeldRequests | None = None  # what it holds; None: nobody asked
    kv: KvBlocks | None = None  # what its KV cache is used for; None: nobody asked
    node_tails: Mapping[str, Tail] = field(default_factory=dict)  # p95 of each node
    pool_tails: Mapping[str, Tail] = field(default_factory=dict)  # p95 of each pool
    trends: Mapping[str, Trend] = field(default_factory=dict)  # by node
    budgets: tuple[Budget, ...] | None = None  # None: not known
    routing: RoutingTable | None = None
    tenants: tuple[TenantUse, ...] = ()
    tenants_unknown: str = ""  # why they are not known
    rollouts: tuple[Rollout, ...] = ()  # the newest first
    autoscaler: tuple[AutoscalerPool, ...] = ()
    audit: tuple[AuditRow, ...] = ()
    events: tuple[TimelineEntry, ...] = ()  # oldest first
    read_at: Mapping[Part, float] = field(default_factory=dict)  # Unix time at which each part was last read
    known_at: float | None = None  # Unix time of the last good answer; None: there was none
    took_s: float = 0.0  # how long the last turn took
    cut_off_since: float | None = None  # None: the controller answers
    reconnected_at: float | None = None  # when it last answered again, and for how long it had not
    was_away_s: float = 0.0
    error: str = ""  # why it does not answer

    def age_s(self, now: float) -> float:
        """Seconds since the controller answered."""
        return 0.0 if self.known_at is None else max(0.0, now - self.known_at)

    def drift_s(self, part: Part, now: float) -> float:
        """Seconds since this part was read: what to add to every age in it."""
        at = self.read_at.get(part)
        return 0.0 if at is None else max(0.0, now - at)

    def node_drift_s(self, name: str, now: float) -> float:
        """Seconds since this node was told, or read with the others: what to add to its ages."""
        at = self.node_told_at.get(name)
        return self.drift_s(Part.NODES, now) if at is None else max(0.0, now - at)

    def may(self, role: TokenRole) -> bool:
        """Whether the caller has the role; true while that is not known: the controller says no."""
        return self.caller is None or self.caller.role.includes(role)


def proposal(incident: Incident | None) -> Run | None:
    """The run that waits for a yes or no; None when none does."""
    if incident is None:
        return None
    return next((run for run in incident.runs if run.status is RunStatus.PROPOSED and not run.dry_run), None)


def asking(incident: Incident | None) -> Run | None:
    """The run that a person is to answer: a proposal, else one that acts and asks; None when none does."""
    waiting = proposal(incident)
    if waiting is not None or incident is None:
        return waiting
    return next((run for run in incident.runs if run.question and not run.status.is_terminal), None)


def current_run(incident: Incident) -> Run | None:
    """The run to look at: one that waits, else one that acts, else the newest. A dry run is none of them."""
    waiting = asking(incident)
    if waiting is not None:
        return waiting
    real = [run for run in incident.runs if not run.dry_run]
    acting = [run for run in real if not run.status.is_terminal]
    newest = sorted(acting or real, key=lambda run: run.created_at)
    return newest[-1] if newest else None


def rank(incident: Incident) -> tuple[bool, str, bool, float]:
    """The first is looked at first: the gravest of those that are open, what a wider one explains behind it, then the
    newest; of those that are over the newest."""
    is_over = is_closed(incident)
    level = "" if is_over else incident.sev or "SEV-9"
    return is_over, level, incident.part_of is not None and not is_over, -incident.opened_at


def is_closed(incident: Incident) -> bool:
    """Nothing more happens to it."""
    return incident.status is IncidentStatus.RESOLVED
