"""The rules' tick: what changed in the alerts, and which incidents follow from the alerts as they are now.

Incidents follow from the state of the alerts and not from their changes: a crash between an alert and its incident is
made good by the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from alerts.alert import ActiveAlert, AlertChange
from alerts.evaluation import RuleEngine
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, clear, fired_alert, join, place
from fleetctl.controller.database import Database, get_meta, put_meta
from fleetctl.controller.fleet import Fleet
from fleetctl.controller.incident_book import IncidentBook
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.wire import NodePhase

log = structlog.get_logger()

SNAPSHOT_KEY = "alerts"
SNAPSHOT_EVERY_S = 10.0
SETTLE_AFTER_START_S = 60.0  # until then, an alert the engine does not know may be one it has not looked at yet
_WORTH_TELLING = {"firing": "fired", "resolved": "resolved", "unknown": "unknown"}


class Alerting:
    def __init__(
        self,
        engine: RuleEngine,
        database: Database,
        fleet: Fleet,
        book: IncidentBook,
        timeline: Timeline,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._engine = engine
        self._database = database
        self._fleet = fleet
        self._book = book
        self._timeline = timeline
        self._clock = clock
        self._metrics = metrics
        self._started_at = clock.now()
        self._snapshot_at = 0.0

    async def restore(self) -> None:
        """Take up the alerts' states where the last controller left them."""
        snapshot = await self._database.read(lambda c: get_meta(c, SNAPSHOT_KEY))
        if not isinstance(snapshot, dict):
            return
        try:
            self._engine.restore(snapshot, self._clock.now())
        except (ValueError, KeyError, TypeError) as error:
            log.error("alerts.snapshot_unreadable", error=str(error), remedy="alerts start anew from their signals")

    async def turn(self) -> None:
        now = self._clock.now()
        changes = self._engine.tick(now)
        await self._book.settle()
        active = [alert for alert in self.alerts() if not self.is_of_removed_node(alert.labels)]
        settled = now - self._started_at > SETTLE_AFTER_START_S
        recent = self._book.recent()
        changed = reconcile(recent, active, self.is_expected, now, forget_missing=settled)
        gone: list[FiredAlert] = []
        for incident in self._of_removed_nodes([changed.get(one.id, one) for one in recent], now, gone):
            changed[incident.id] = incident
        before = {incident.id: incident for incident in recent}
        for incident in changed.values():
            self._book.take(incident)
        # No await up to here: a diagnosis can't be told before the alert that it explains.
        for change in changes:
            self._tell_alert(change)
        for alert in gone:
            self._tell_gone(alert)
        for incident in changed.values():
            self._tell_incident(incident, before.get(incident.id))
        await self._book.settle()
        if changes or now - self._snapshot_at > SNAPSHOT_EVERY_S:
            snapshot = self._engine.snapshot()
            await self._database.write(lambda c: put_meta(c, SNAPSHOT_KEY, snapshot))
            self._snapshot_at = now
        self._book.drop_old()

    def alerts(self) -> list[ActiveAlert]:
        """As the last tick left them."""
        return self._engine.alerts()

    def is_expected(self, alert: FiredAlert) -> bool:
        """Whether the alert only says what we did ourselves: its node is cordoned, drained, restarted or starting."""
        state = self._fleet.nodes.get(alert.labels.get("node", ""))
        if state is None:
            return False
        row = state.row
        return not row.wanted or row.is_cordoned or row.is_restarting or state.phase is NodePhase.STARTING

    def is_of_removed_node(self, labels: Mapping[str, str]) -> bool:
        state = self._fleet.nodes.get(labels.get("node", ""))
        return state is not None and not state.row.wanted

    def _of_removed_nodes(
        self, incidents: Iterable[Incident], now: float, gone: list[FiredAlert]
    ) -> Iterable[Incident]:
        """Incidents whose alerts clear because their node was taken out; those alerts are added to `gone`."""
        for incident in incidents:
            cleared = incident
            for alert in incident.alerts if _is_open(incident) else ():
                if alert.state != "resolved" and self.is_of_removed_node(alert.labels):
                    cleared = clear(cleared, alert.fingerprint, now)
                    gone.append(alert)
            if cleared != incident:
                yield cleared

    def _tell_incident(self, incident: Incident, before: Incident | None) -> None:
        if before is not None and before.status is not IncidentStatus.RESOLVED:
            return
        if before is None:
            self._metrics.incidents.labels(severity=incident.severity).inc()
        log.info("incident.opened", incident_id=incident.id, title=incident.title, reopened=incident.reopened)
        self._timeline.append_soon(
            "incident.opened" if before is None else "incident.reopened", incident.title,
            incident_id=incident.id, node=incident.scope.get("node"),
            data={"severity": incident.severity, "scope": dict(incident.scope)},
        )  # fmt: skip

    def _tell_gone(self, alert: FiredAlert) -> None:
        incident = next((one for one in self._book.recent() if _holds(one, alert.fingerprint)), None)
        node = alert.labels.get("node")
        log.info("alert.resolved", alert=alert.name, node=node, why="node removed")
        self._timeline.append_soon(
            "alert.resolved", f"{alert.name} resolved on {node}: the node was taken out",
            incident_id=incident.id if incident else None, node=node,
            data={"alert": alert.name, "severity": alert.severity, "was": alert.state},
        )  # fmt: skip

    def _tell_alert(self, change: AlertChange) -> None:
        word = _WORTH_TELLING.get(str(change.alert.state))
        if word is None or (word in ("resolved", "unknown") and change.previous == "pending"):  # nobody was told of it
            return
        alert = fired_alert(change.alert)
        if word == "resolved" and self.is_of_removed_node(alert.labels):
            return  # told when its node was taken out
        incident = next((one for one in self._book.recent() if _holds(one, alert.fingerprint)), None)
        where = alert.labels.get("node") or alert.labels.get("pool") or "the fleet"
        summary = f": {alert.summary}" if alert.summary and word == "fired" else ""
        log.info(f"alert.{word}", alert=alert.name, node=alert.labels.get("node"), value=alert.value)
        self._timeline.append_soon(
            f"alert.{word}", f"{alert.name} {word} on {where}{summary}",
            incident_id=incident.id if incident else None, node=alert.labels.get("node"),
            data={"alert": alert.name, "severity": alert.severity, "value": alert.value, "was": change.previous},
        )  # fmt: skip


def reconcile(
    incidents: Sequence[Incident],
    alerts: Sequence[ActiveAlert],
    is_expected: Callable[[FiredAlert], bool],
    now: float,
    *,
    forget_missing: bool,
) -> dict[str, Incident]:
    """The incidents that differ from `incidents`, by id, given the alerts as they are.

    `forget_missing`: an alert of an incident that is not among `alerts` has cleared.
    """
    working = {incident.id: incident for incident in incidents}
    states = {alert.fingerprint: str(alert.state) for alert in alerts}
    for active in alerts:
        state = str(active.state)
        if state not in ("firing", "unknown"):
            continue
        alert = fired_alert(active)
        holder = next((one for one in working.values() if _is_open(one) and _holds(one, alert.fingerprint)), None)
        if holder is not None:
            if not _is_same(holder, alert):
                working[holder.id] = join(holder, alert, now)
        elif state == "firing" and not is_expected(alert):
            placed = place(alert, list(working.values()), now)
            working[placed.id] = placed
    for incident in list(working.values()):
        if not _is_open(incident):
            continue
        for held in incident.alerts:
            state = states.get(held.fingerprint, "missing")
            gone = state in ("resolved", "pending", "inactive") or (state == "missing" and forget_missing)
            if held.state != "resolved" and gone:
                working[incident.id] = clear(working[incident.id], held.fingerprint, now)
    before = {incident.id: incident for incident in incidents}
    return {key: incident for key, incident in working.items() if before.get(key) != incident}


def _is_open(incident: Incident) -> bool:
    return incident.status is not IncidentStatus.RESOLVED


def _holds(incident: Incident, fingerprint: str) -> bool:
    return any(one.fingerprint == fingerprint for one in incident.alerts)


def _is_same(incident: Incident, alert: FiredAlert) -> bool:
    """Whether the incident knows the alert in this state; its value changes each second and is not worth a write."""
    return any(
        one.fingerprint == alert.fingerprint and one.state == alert.state and one.fired_at == alert.fired_at
        for one in incident.alerts
    )
