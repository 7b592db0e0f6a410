"""What an incident is, how it changes, and when it is over. Pure: `now` and alerts come in.

Which incident an alert belongs to is judged in `diagnostics.grouping`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from alerts.duration import BadDurationError, parse_duration_s
from diagnostics.diagnosis import Diagnosis
from diagnostics.handling import Handling
from diagnostics.scope import is_wide, scope_contains, scope_of, scope_text
from diagnostics.severity import severity_rank

REOPEN_WITHIN_S = 600.0
MAX_TITLE_NAMES = 3  # of alerts beside the gravest, in a title
HARMS_MOST = (
    "LLMWrongOutput",  # users believe what is wrong
    "LLMGatewayDown",  # nobody is served
    "LLMGatewayAnswersByTurns",
    "LLMRequestsLostNow",
    "LLMNodeDown",
    "LLMCoreStuck",
    "LLMCoreRestarts",
    "LLMCoreDown",
    "LLMOutOfMemory",
    "LLMErrorRate",
    "LLMOverload",
    "LLMQueueGrowing",
)
"""Of alerts of one severity, what users suffer from most, the worst first; those not named come after them."""
LOOKS_BACK = "looks_back"  # the annotation of a rule whose expression waits by itself
SAY_AGAIN_AFTER_S = 30.0  # what an incident's alerts say is of so long ago at most; each change is a write
MAX_ALERTS = 500  # of one incident; a storm keeps its first ones and the count


class IncidentStatus(StrEnum):
    """Where an incident stands; `TRANSITIONS` has the moves that are allowed."""

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
    source: str = "rules"  # who judged it: our rules, or alertmanager
    source_url: str = ""  # where its expression can be seen, as far as the source says
    looks_back_s: float = 0.0  # as its expression says: so long before `active_at` began what it tells
    said_at: float | None = None  # when `summary` and `value` were so; None: as it fired
    worst: str = ""  # its summary when it was worst, its value and when; "": it said nothing else since it fired
    worst_value: float | None = None
    worst_at: float | None = None


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
    onset_at: float | None = (
        None  # when it began by its alerts' own word (the earliest `active_at`); after a reopening anew
    )
    alerts: tuple[FiredAlert, ...] = ()
    diagnosis: Diagnosis | None = None
    reopened: int = 0  # times it came back after it was resolved
    clock_at: float | None = None  # since when its level's clock runs; None: since it was opened
    cleared_at: float | None = None  # since when no alert fires; None while one does or is unknown
    first_scope: Mapping[str, str] = field(default_factory=dict)  # before widening; what reopening compares
    widened_at: float | None = None  # when the scope last became more than it was
    widened_why: str = ""
    part_of: str | None = None  # the wider incident that explains this one; it keeps its own alerts and runs
    handling: Handling = field(default_factory=Handling)


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
        looks_back_s=looks_back_s(active.annotations.get(LOOKS_BACK, "")),
    )


def looks_back_s(told: str) -> float:
    """How far an alert's expression looks back, as its annotation `looks_back` tells: that a node was silent for a
    minute is true a minute after its last word. 0 where it says nothing, or nothing that is a duration."""
    try:
        return parse_duration_s(told)
    except BadDurationError:
        return 0.0


def open_incident(alert: FiredAlert, now: float, *, digest_chars: int = 4) -> Incident:
    """A new incident. Its id is a function of alert and time, so that opening it twice is opening it once.

    `digest_chars`: more of them where the short id is another incident's.
    """
    scope = scope_of(alert.labels)
    began = alert.fired_at if alert.fired_at is not None else now
    stamp = datetime.fromtimestamp(began, UTC).strftime("%Y%m%d-%H%M%S")
    digest = hashlib.sha256(f"{alert.fingerprint}|{began:.3f}".encode()).hexdigest()[:digest_chars]
    return Incident(
        id=f"inc-{stamp}-{digest}",
        title=_title((alert,), scope),
        status=IncidentStatus.OPEN,
        severity=alert.severity,
        scope=scope,
        opened_at=now,
        onset_at=onset_of(alert),
        alerts=(alert,),
        first_scope=scope,
    )


def join(incident: Incident, alert: FiredAlert, now: float) -> Incident:
    """`incident` with the alert added or brought up to date; its scope stays, see `widen`."""
    held = next((one for one in incident.alerts if one.fingerprint == alert.fingerprint), None)
    known = held is not None
    if held is not None and held.fired_at == alert.fired_at and not alert.worst:
        said_at = now if alert.state == "firing" else held.said_at
        alert = replace(alert, said_at=said_at, worst=held.worst, worst_value=held.worst_value, worst_at=held.worst_at)
    others = tuple(one for one in incident.alerts if one is not held)
    if not known and len(others) >= MAX_ALERTS:
        return incident
    alerts = (
        tuple(alert if one.fingerprint == alert.fingerprint else one for one in incident.alerts)
        if known
        else (*incident.alerts, alert)
    )
    scope = _completed(incident.scope, scope_of(alert.labels))
    return replace(
        incident,
        alerts=alerts,
        onset_at=incident.onset_at if known else _earlier(incident.onset_at, onset_of(alert)),
        scope=scope,
        title=_title(alerts, scope),
        severity=_severity_with(incident, alert),
        cleared_at=_cleared_at(alerts, incident.cleared_at, now),
    )


def is_to_say_again(incident: Incident, now: float) -> bool:
    """Whether what its alerts say is old: a title told the number of its first second for an hour."""
    told = (one.said_at for one in incident.alerts if one.said_at is not None)
    return now - max(told, default=incident.opened_at) >= SAY_AGAIN_AFTER_S


def say_again(incident: Incident, alert: FiredAlert, now: float, worsens: int) -> Incident:
    """`incident` with what its alert says now, which it has in this state; what it said at its worst is kept.

    `worsens`: 1 where a greater value is worse, -1 where a smaller one, 0 where nobody knows: what it said first stays.
    """
    held = next((one for one in incident.alerts if one.fingerprint == alert.fingerprint), None)
    if held is None or held.summary == alert.summary:
        return incident
    worst, value, at = held.worst or held.summary, held.worst_value, held.worst_at
    if not held.worst:
        value, at = held.value, held.said_at or held.fired_at
    if alert.value is not None and value is not None and (alert.value - value) * worsens > 0:
        worst, value, at = alert.summary, alert.value, now
    return join(incident, replace(alert, said_at=now, worst=worst, worst_value=value, worst_at=at), now)


def widen(incident: Incident, scope: Mapping[str, str], why: str, now: float) -> Incident:
    """`incident` about the place `scope`, which holds what it was about before. Nothing changes when it is there."""
    if dict(incident.scope) == dict(scope):
        return incident
    return replace(incident, scope=dict(scope), title=_title(incident.alerts, scope), widened_at=now, widened_why=why)


def observe(incident: Incident, alert: FiredAlert, now: float) -> Incident:
    """`incident` after a change of an alert that does not fire (any more): resolved, or its signal is unknown.

    Nothing changes when the alert is not one of its own.
    """
    if not has_alert(incident, alert) or incident.status is IncidentStatus.RESOLVED:
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
    # The title follows what stands; of what is all over it says what hurt most, for the post-mortem.
    return replace(
        incident,
        alerts=alerts,
        title=_title(alerts, incident.scope),
        cleared_at=_cleared_at(alerts, incident.cleared_at, now),
    )


def without_alerts(incident: Incident, fingerprints: frozenset[str]) -> Incident:
    """`incident` without some of its alerts, which are another one's now; at least one that stands has to be left."""
    alerts = tuple(one for one in incident.alerts if one.fingerprint not in fingerprints)
    gravest = max((one.severity for one in alerts), key=severity_rank)
    return replace(
        incident,
        alerts=alerts,
        onset_at=min((at for one in alerts if (at := onset_of(one)) is not None), default=incident.onset_at),
        title=_title(alerts, incident.scope),
        severity=incident.severity if incident.handling.severity_by else gravest,
    )


def is_over(incident: Incident, now: float, *, has_active_run: bool = False, quiet_s: float = 0.0) -> bool:
    """Whether it may be resolved: all alerts are resolved (unknown is not) for `quiet_s`, and no run is on it."""
    if incident.status is IncidentStatus.RESOLVED or has_active_run or incident.cleared_at is None:
        return False
    return now - incident.cleared_at >= quiet_s


def resolve(incident: Incident, now: float) -> Incident:
    """It is over."""
    return replace(_moved(incident, IncidentStatus.RESOLVED), resolved_at=now)


def mitigate(incident: Incident) -> Incident:
    """A run acts on it now."""
    return _moved(incident, IncidentStatus.MITIGATING)


def unmitigate(incident: Incident) -> Incident:
    """The run ended and alerts still fire."""
    return _moved(incident, IncidentStatus.OPEN)


def reopen(incident: Incident, alert: FiredAlert, now: float, *, goes_on: bool = False) -> Incident:
    """It came back with `alert`: open again, counted, and no longer part of a wider one.

    Its cause is asked anew: what explained it the last time need not explain it now, and it is as grave as what came
    back, unless a person has said so; its level's clock begins anew. `goes_on`: the alert began before it was over, and
    that cause explains it: what it told stands.
    """
    return replace(
        _moved(incident, IncidentStatus.OPEN),
        resolved_at=None,
        cleared_at=None,
        reopened=incident.reopened + 1,
        clock_at=incident.clock_at if goes_on else now,
        severity=incident.severity if goes_on or incident.handling.severity_by else alert.severity,
        part_of=None,
        onset_at=_earlier(incident.onset_at, onset_of(alert)) if goes_on else onset_of(alert),
        diagnosis=incident.diagnosis if goes_on else None,
        handling=incident.handling.after_reopening(),
    )


def has_alert(incident: Incident, alert: FiredAlert) -> bool:
    """Whether the alert, by its fingerprint, is one of the incident's."""
    return any(one.fingerprint == alert.fingerprint for one in incident.alerts)


def is_lately_resolved(incident: Incident, now: float) -> bool:
    """Whether it was resolved within `REOPEN_WITHIN_S`."""
    if incident.status is not IncidentStatus.RESOLVED or incident.resolved_at is None:
        return False
    return now - incident.resolved_at <= REOPEN_WITHIN_S


def may_reopen(incident: Incident, alert: FiredAlert, now: float) -> bool:
    """Whether the alert continues an incident that was resolved lately, by its place."""
    if not is_lately_resolved(incident, now):
        return False
    scope = scope_of(alert.labels)
    is_its_node = "node" in scope and scope["node"] == incident.scope.get(
        "node"
    )  # a gateway's alert names no pool of it
    return is_its_node or scope in (dict(incident.scope), dict(incident.first_scope)) or has_alert(incident, alert)


def onset_of(alert: FiredAlert) -> float | None:
    """When what the alert tells began: as its condition became true, not when it had waited for its `for`; and as far
    before that as its expression looks back."""
    at = alert.active_at if alert.active_at is not None else alert.fired_at
    return None if at is None else at - alert.looks_back_s


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((at for at in (one, other) if at is not None), default=None)


def by_gravity(alerts: Sequence[FiredAlert]) -> list[FiredAlert]:
    """Those with the highest severity first; of equals, in the order given."""
    return sorted(alerts, key=lambda one: -severity_rank(one.severity))


def with_diagnosis(incident: Incident, diagnosis: Diagnosis) -> Incident:
    """The incident with another diagnosis in place of its own."""
    return replace(incident, diagnosis=diagnosis)


def told_elsewhere(incident: Incident, others: Iterable[Incident]) -> frozenset[str]:
    """Causes that another open incident around or inside of this one was given, before this one was.

    Two faults at once are two incidents: what the other one is about is at work here too, and is not what is told here.
    """
    mine = incident.diagnosis
    found = set()
    for other in others:
        theirs = other.diagnosis
        if other.id == incident.id or other.status is IncidentStatus.RESOLVED or theirs is None or not theirs.cause:
            continue
        if not (scope_contains(other.scope, incident.scope) or scope_contains(incident.scope, other.scope)):
            continue
        if mine is None or mine.cause != theirs.cause or theirs.said_since < mine.said_since:
            found.add(theirs.cause)
    return frozenset(found)


def nodes_of(incident: Incident) -> list[str]:
    """Every node that one of its alerts names, sorted."""
    return sorted({one.labels["node"] for one in incident.alerts if one.labels.get("node")})


def _moved(incident: Incident, status: IncidentStatus) -> Incident:
    if incident.status is status:
        return incident
    assert status in TRANSITIONS[incident.status], f"{incident.id}: {incident.status} -> {status}"
    return replace(incident, status=status)


def _completed(scope: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """A node's scope with what another alert knows of the same node."""
    same_node = not is_wide(scope) and scope["node"] == other.get("node")
    return {**other, **scope} if same_node else dict(scope)


def _cleared_at(alerts: Iterable[FiredAlert], before: float | None, now: float) -> float | None:
    if any(one.state != "resolved" for one in alerts):
        return None
    return before if before is not None else now


def _harm_rank(alert: FiredAlert) -> int:
    return HARMS_MOST.index(alert.name) if alert.name in HARMS_MOST else len(HARMS_MOST)


def _severity_with(incident: Incident, alert: FiredAlert) -> str:
    """The gravest, unless a person has said how grave it is."""
    if incident.handling.severity_by:
        return incident.severity
    return max(incident.severity, alert.severity, key=severity_rank)


def _title(alerts: Sequence[FiredAlert], scope: Mapping[str, str]) -> str:
    """What hurts users most now: the summary of that alert while it is about one place, else its name and the place;
    and the others by name. What is over is named only where nothing stands any more."""
    standing = [one for one in alerts if one.state != "resolved"] or alerts
    ranked = sorted(by_gravity(standing), key=lambda one: (-severity_rank(one.severity), _harm_rank(one)))
    worst = ranked[0]
    own = scope_of(worst.labels)
    same_place = own == dict(scope) or own.get("node", "") == scope.get("node")  # a gateway names no pool of a node
    # Of a wider place, the one node that has it is told by its summary; of several, none is named for all.
    is_of_one = {one.labels.get("node") for one in alerts if one.name == worst.name} - {None} == {own.get("node")}
    summary = worst.summary if worst.state != "resolved" else _at_its_worst(worst)
    text = summary if (same_place or is_of_one) and summary else f"{worst.name} on {scope_text(scope)}"
    others = [name for name in dict.fromkeys(one.name for one in ranked) if name != worst.name]
    if not others:
        return text
    more = f" and {len(others) - MAX_TITLE_NAMES} more" if len(others) > MAX_TITLE_NAMES else ""
    return f"{text} (also {', '.join(others[:MAX_TITLE_NAMES])}{more})"


def _at_its_worst(alert: FiredAlert) -> str:
    """What it said then, with when: what it said last is of a moment at which it was nearly over."""
    if not alert.worst or alert.worst_at is None or alert.worst_at == alert.fired_at:
        return alert.worst or alert.summary
    return f"{alert.worst}, at {datetime.fromtimestamp(alert.worst_at, UTC):%H:%M:%S} UTC"
