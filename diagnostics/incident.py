"""What an incident is, which alerts belong to it, and when it is over. Pure: `now` and alerts come in.

Scope rules, in this order:
1. An alert of a node that an open incident already covers joins it: one sick node is one incident.
2. The same alert on another node of the pool joins and widens the scope to the pool: it is not one node.
3. An alert that comes back within `REOPEN_WITHIN_S` of its incident's end, with the same scope, reopens it:
   flapping is one story, not many.
4. Anything else opens a new incident.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from diagnostics.walker import Diagnosis, where

REOPEN_WITHIN_S = 600.0
SCOPE_LABELS = ("node", "pool")
SEVERITY_ORDER = ("ticket", "warning", "page", "critical")  # rising; a word not listed counts as a ticket
MAX_ALERTS = 500  # of one incident; a storm keeps its first ones and the count


class IncidentStatus(StrEnum):
    OPEN = "open"  # alerts fire
    MITIGATING = "mitigating"  # a run is acting on it
    RESOLVED = "resolved"  # alerts are clear, and any run ended


TRANSITIONS: dict[IncidentStatus, frozenset[IncidentStatus]] = {
    IncidentStatus.OPEN: frozenset({IncidentStatus.MITIGATING, IncidentStatus.RESOLVED}),
    IncidentStatus.MITIGATING: frozenset({IncidentStatus.OPEN, IncidentStatus.RESOLVED}),
    IncidentStatus.RESOLVED: frozenset({IncidentStatus.OPEN}),  # flapping
}


class AlertLike(Protocol):
    """What the rule engine's active alerts have."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def annotations(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float | None: ...
    @property
    def active_at(self) -> float | None: ...
    @property
    def fired_at(self) -> float | None: ...
    @property
    def resolved_at(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """One alert as an incident keeps it; the fields of the wire's `Alert`."""

    fingerprint: str
    name: str
    severity: str
    state: str  # pending, firing, unknown, resolved
    labels: Mapping[str, str]
    summary: str = ""
    description: str = ""
    value: float | None = None
    active_at: float | None = None
    fired_at: float | None = None
    resolved_at: float | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """Its state without runs and timeline, which live in their own tables under `id`."""

    id: str
    title: str
    status: IncidentStatus
    severity: str
    scope: Mapping[str, str]  # {} is the whole fleet
    opened_at: float
    resolved_at: float | None = None
    alerts: tuple[FiredAlert, ...] = ()
    diagnosis: Diagnosis | None = None
    reopened: int = 0  # times it came back after it was resolved
    cleared_at: float | None = None  # since when no alert fires; None while one does or is unknown
    first_scope: Mapping[str, str] = field(default_factory=dict)  # before widening; what reopening compares


def fired_alert(active: AlertLike) -> FiredAlert:
    """An incident's copy of a rule engine's alert. Summary, description and severity come from its texts."""
    return FiredAlert(
        fingerprint=active.fingerprint,
        name=active.name,
        severity=active.labels.get("severity", "ticket"),
        state=str(active.state),
        labels=dict(active.labels),
        summary=active.annotations.get("summary", ""),
        description=active.annotations.get("description", ""),
        value=active.value,
        active_at=active.active_at,
        fired_at=active.fired_at,
        resolved_at=active.resolved_at,
    )


def scope_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that say where: node and pool, as far as the alert has them. Empty: the whole fleet."""
    return {name: labels[name] for name in SCOPE_LABELS if labels.get(name)}


def place(alert: FiredAlert, incidents: Sequence[Incident], now: float) -> Incident:
    """The incident that `alert` belongs to, already changed: joined, reopened or new.

    `incidents` are the open ones and those resolved within `REOPEN_WITHIN_S`; older ones are ignored.
    """
    opened = [incident for incident in incidents if incident.status is not IncidentStatus.RESOLVED]
    for related in (_has_alert, _covers_node, _same_alert_in_pool):
        for incident in opened:
            if related(incident, alert):
                return join(incident, alert, now)
    for incident in sorted(incidents, key=lambda one: one.resolved_at or 0.0, reverse=True):
        if _may_reopen(incident, alert, now):
            return join(reopen(incident), alert, now)
    return open_incident(alert, now)


def open_incident(alert: FiredAlert, now: float) -> Incident:
    """A new incident. Its id is a function of alert and time, so that opening it twice is opening it once."""
    scope = scope_of(alert.labels)
    began = alert.fired_at if alert.fired_at is not None else now
    stamp = datetime.fromtimestamp(began, UTC).strftime("%Y%m%d-%H%M%S")
    digest = hashlib.sha256(f"{alert.fingerprint}|{began:.3f}".encode()).hexdigest()[:4]
    return Incident(
        id=f"inc-{stamp}-{digest}",
        title=_title((alert,), scope),
        status=IncidentStatus.OPEN,
        severity=alert.severity,
        scope=scope,
        opened_at=now,
        alerts=(alert,),
        first_scope=scope,
    )


def join(incident: Incident, alert: FiredAlert, now: float) -> Incident:
    """`incident` with the alert added or brought up to date; its scope widens where the alert is elsewhere."""
    others = tuple(one for one in incident.alerts if one.fingerprint != alert.fingerprint)
    known = len(others) < len(incident.alerts)
    if not known and len(others) >= MAX_ALERTS:
        return incident
    alerts = (
        tuple(alert if one.fingerprint == alert.fingerprint else one for one in incident.alerts)
        if known
        else (*incident.alerts, alert)
    )
    scope = _common_scope(incident.scope, scope_of(alert.labels))
    return replace(
        incident,
        alerts=alerts,
        scope=scope,
        title=_title(alerts, scope),
        severity=max(incident.severity, alert.severity, key=_severity_rank),
        cleared_at=_cleared_at(alerts, incident.cleared_at, now),
    )


def observe(incident: Incident, alert: FiredAlert, now: float) -> Incident:
    """`incident` after a change of an alert that does not fire (any more): resolved, or its signal is unknown.

    Nothing changes when the alert is not one of its own.
    """
    if not _has_alert(incident, alert) or incident.status is IncidentStatus.RESOLVED:
        return incident
    return clear(incident, alert.fingerprint, now) if alert.state == "resolved" else join(incident, alert, now)


def clear(incident: Incident, fingerprint: str, now: float) -> Incident:
    """`incident` with one of its alerts resolved."""
    alerts = tuple(
        replace(one, state="resolved", resolved_at=now)
        if one.fingerprint == fingerprint and one.state != "resolved"
        else one
        for one in incident.alerts
    )
    return replace(incident, alerts=alerts, cleared_at=_cleared_at(alerts, incident.cleared_at, now))


def is_over(incident: Incident, now: float, *, has_active_run: bool = False, quiet_s: float = 0.0) -> bool:
    """Whether it may be resolved: all alerts are resolved (unknown is not) for `quiet_s`, and no run is on it."""
    if incident.status is IncidentStatus.RESOLVED or has_active_run or incident.cleared_at is None:
        return False
    return now - incident.cleared_at >= quiet_s


def resolve(incident: Incident, now: float) -> Incident:
    return replace(_moved(incident, IncidentStatus.RESOLVED), resolved_at=now)


def mitigate(incident: Incident) -> Incident:
    """A run acts on it now."""
    return _moved(incident, IncidentStatus.MITIGATING)


def unmitigate(incident: Incident) -> Incident:
    """The run ended and alerts still fire."""
    return _moved(incident, IncidentStatus.OPEN)


def reopen(incident: Incident) -> Incident:
    moved = _moved(incident, IncidentStatus.OPEN)
    return replace(moved, resolved_at=None, cleared_at=None, reopened=incident.reopened + 1)


def with_diagnosis(incident: Incident, diagnosis: Diagnosis) -> Incident:
    return replace(incident, diagnosis=diagnosis)


def nodes_of(incident: Incident) -> list[str]:
    """Every node that one of its alerts names, sorted."""
    return sorted({one.labels["node"] for one in incident.alerts if one.labels.get("node")})


def _moved(incident: Incident, status: IncidentStatus) -> Incident:
    if incident.status is status:
        return incident
    assert status in TRANSITIONS[incident.status], f"{incident.id}: {incident.status} -> {status}"
    return replace(incident, status=status)


def _has_alert(incident: Incident, alert: FiredAlert) -> bool:
    return any(one.fingerprint == alert.fingerprint for one in incident.alerts)


def _covers_node(incident: Incident, alert: FiredAlert) -> bool:
    node = alert.labels.get("node")
    return bool(node) and (incident.scope.get("node") == node or node in nodes_of(incident))


def _same_alert_in_pool(incident: Incident, alert: FiredAlert) -> bool:
    if incident.scope.get("pool") != alert.labels.get("pool"):
        return False
    return any(one.name == alert.name for one in incident.alerts)


def _may_reopen(incident: Incident, alert: FiredAlert, now: float) -> bool:
    if incident.status is not IncidentStatus.RESOLVED or incident.resolved_at is None:
        return False
    if now - incident.resolved_at > REOPEN_WITHIN_S:
        return False
    scope = scope_of(alert.labels)
    return scope in (dict(incident.scope), dict(incident.first_scope)) or _has_alert(incident, alert)


def _common_scope(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The same node: all that either knows. Else what both agree on: two nodes of a pool share the pool."""
    if one.get("node") and one.get("node") == other.get("node"):
        return {**other, **one}
    return {name: value for name, value in one.items() if other.get(name) == value}


def _cleared_at(alerts: Iterable[FiredAlert], before: float | None, now: float) -> float | None:
    if any(one.state != "resolved" for one in alerts):
        return None
    return before if before is not None else now


def _severity_rank(severity: str) -> int:
    return SEVERITY_ORDER.index(severity) if severity in SEVERITY_ORDER else 0


def _title(alerts: Sequence[FiredAlert], scope: Mapping[str, str]) -> str:
    """The gravest alert's summary while it is about one place; else its name, the place, and the rest."""
    gravest = max(alerts, key=lambda one: _severity_rank(one.severity))  # the first of equals
    same_place = scope_of(gravest.labels) == dict(scope)
    text = gravest.summary if same_place and gravest.summary else f"{gravest.name} on {where(scope)}"
    names = {one.name for one in alerts} - {gravest.name}
    return f"{text} (+{len(names)} more)" if names else text
