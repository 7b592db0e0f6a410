"""Alerts as a list, and what is told of one: where it stands, its value, who silenced it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.cell import UNKNOWN, Cell, Tone, age, clock_time, span
from fleetctl.tui.listing import Column, Line, Order, matches, ordered
from fleetctl.tui.snapshot import Snapshot
from fleetctl.wire.alert import Alert, AlertExplanation, AlertState

STATES: dict[AlertState, tuple[str, Tone]] = {
    AlertState.FIRING: ("▲", Tone.BAD),
    AlertState.PENDING: ("◔", Tone.WARN),
    AlertState.UNKNOWN: ("?", Tone.WARN),
    AlertState.RESOLVED: ("●", Tone.GOOD),
    AlertState.INACTIVE: ("·", Tone.DIM),
}
_RANKS = {state: rank for rank, state in enumerate(STATES)}
HIDDEN_LABELS = frozenset({"severity", "alertname", "__name__"})


def _state(alert: Alert) -> Cell:
    glyph, tone = STATES[alert.state]
    if alert.silenced == "yes":
        return Cell(f"{glyph} silenced", Tone.DIM)
    return Cell(f"{glyph} {alert.state.value}", tone)


def alert_place(alert: Alert) -> str:
    """Where it is: its node, else what is narrowest."""
    named = (alert.labels.get(name, "") for name in ("node", "instance", "gateway", "tenant", "pool", "model", "zone"))
    return next(filter(None, named), "fleet")


def _value(alert: Alert) -> Cell:
    return Cell(alert.told_value or UNKNOWN, right=True)


def _since(alert: Alert) -> Cell:
    at = alert.fired_at or alert.active_at
    return Cell(UNKNOWN if at is None else clock_time(at), Tone.DIM)


ALERT_COLUMNS: tuple[Column[Alert], ...] = (
    Column("state", 10, _state, lambda alert: _RANKS[alert.state]),
    Column("severity", 8, lambda alert: Cell(alert.severity), lambda alert: alert.severity),
    Column("since", 8, _since, lambda alert: alert.fired_at or alert.active_at),
    Column("alert", 24, lambda alert: Cell(alert.name, Tone.STRONG), lambda alert: alert.name),
    Column("where", 12, lambda alert: Cell(alert_place(alert)), alert_place),
    Column("value", 8, _value, lambda alert: alert.value, right=True),
    Column("says", 10, lambda alert: Cell(alert.summary, Tone.DIM), grows=True, from_width=90),
)


def alert_key(alert: Alert) -> str:
    """What stays the same of it."""
    return f"{alert.source} {alert.fingerprint}"


def alert_labels(alert: Alert) -> dict[str, str]:
    """What a filter may name."""
    fixed = {"name": alert.name, "state": alert.state.value, "severity": alert.severity, "silenced": alert.silenced}
    return {**alert.labels, **fixed, "source": alert.source}


def alert_lines(snapshot: Snapshot, words: str = "", order: Order = Order()) -> tuple[Line[Alert], ...]:  # noqa: B008
    """Firing, pending, unknown; those that are silenced last."""
    shown = [alert for alert in snapshot.alerts if not words or matches(words, alert_labels(alert))]
    shown.sort(key=lambda alert: (alert.silenced == "yes", _RANKS[alert.state], alert.name, alert_place(alert)))
    return tuple(Line(alert_key(alert), alert) for alert in ordered(shown, ALERT_COLUMNS, order))


def alert_detail(alert: Alert, snapshot: Snapshot, now: float) -> Iterator[Cell]:
    """Everything about one."""
    glyph, tone = STATES[alert.state]
    yield Cell(f"{glyph} {alert.name} {alert.state.value}, {alert.severity}", tone)
    yield Cell(alert.summary)
    if alert.description and alert.description != alert.summary:
        yield Cell(alert.description, Tone.DIM)
    if alert.state is AlertState.UNKNOWN:
        yield Cell("Its signal is missing or stale: neither firing nor clear. Nothing automatic acts on it.", Tone.WARN)
    since = (("condition holds since", alert.active_at), ("fires since", alert.fired_at))
    told = [f"{what} {clock_time(at)}, {age(now - at)} ago" for what, at in since if at is not None]
    if told:
        yield Cell("; ".join(told), Tone.DIM)
    if snapshot.explained == alert.fingerprint and snapshot.explanation is not None:
        yield from explanation_lines(snapshot.explanation)
    labels = "  ".join(f"{name}={value}" for name, value in sorted(alert.labels.items()) if name not in HIDDEN_LABELS)
    yield Cell(labels, Tone.DIM)
    if alert.silenced == "yes":
        yield Cell(f"silenced by {', '.join(alert.silenced_by) or 'a silence'}", Tone.WARN)
    elif alert.silenced == "unknown":
        yield Cell("whether it is silenced is not known: Alertmanager's silences could not be read", Tone.WARN)
    incident = next((one for one in snapshot.incidents if _has(one.alerts, alert)), None)
    yield Cell(f"incident {incident.id}: {incident.title}" if incident is not None else "in no incident", Tone.DIM)


def explanation_lines(explanation: AlertExplanation) -> Iterator[Cell]:
    """The rule part by part, each with its value where the alert is."""
    held = f" for {span(explanation.for_s)}" if explanation.for_s else ""
    yield Cell(f"fires where this holds{held}:", Tone.DIM)
    for part in explanation.parts:
        joined = f"{part.joined} " if part.joined else "    "
        limit = ""
        if part.comparison:
            is_plain = part.limit_value is not None and part.limit == f"{part.limit_value:g}"
            limit_text = " ".join(part.limit.split())
            named = limit_text if is_plain else f"{_number(part.limit_value)} = {limit_text}"
            limit = f" {part.comparison} {named}"
        yield Cell(f"{joined:<7}{_number(part.value):>8}{limit}   {' '.join(part.expression.split())}")


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4g}"


def _has(alerts: list[Alert], alert: Alert) -> bool:
    return any(one.fingerprint == alert.fingerprint for one in alerts)
