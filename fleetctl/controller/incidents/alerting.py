"""The rules' tick: what changed in the alerts, and which incidents follow from the alerts as they are now.

Incidents follow from the state of the alerts and not from their changes: a crash between an alert and its incident is
made good by the next tick.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from alerts.evaluation.alert import ActiveAlert, AlertChange
from alerts.evaluation.engine import RuleEngine
from diagnostics.grouping import Explains, Kinds, group_alerts
from diagnostics.incident import (
    FiredAlert,
    Incident,
    IncidentStatus,
    clear,
    fired_alert,
    is_to_say_again,
    join,
    say_again,
)
from diagnostics.scope import Nodes, scope_text
from diagnostics.tree import alert_kinds
from diagnostics.value_format import format_seconds
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.alertmanager.external_alerts import ExternalAlerts
from fleetctl.controller.alertmanager.external_scope import places_of
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.database import StorageLostError, get_meta, put_meta
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.records import Records
from fleetctl.controller.signals.scrape import Signals
from fleetctl.wire.node import NodePhase

log = structlog.get_logger()

NODE_DOWN = "LLMNodeDown"
SNAPSHOT_KEY = "alerts"
SNAPSHOT_EVERY_S = 10.0
TOLD_BLIND_S = 20.0  # a window of the rules: what is shorter hides nothing from who reads the timeline
SETTLE_AFTER_START_S = 60.0  # until then, an alert the engine does not know may be one it has not looked at yet
_ABOUT_A_DRAIN = frozenset({"LLMDrainStuck"})  # its node is drained by our will, and that is what goes wrong
_WORTH_TELLING = {"firing": "fired", "resolved": "resolved", "unknown": "unknown"}


class Alerting:
    """Owner of the rules' tick. Incidents themselves belong to the incident book."""

    def __init__(
        self,
        engine: RuleEngine,
        signals: Signals,
        fleet: Fleet,
        book: IncidentBook,
        external: ExternalAlerts,
        automation: Automation,
        content: ContentStore,
        records: Records,
    ) -> None:
        self._engine = engine
        self._content = content
        self._signals = signals
        self._fleet = fleet
        self._book = book
        self._external = external
        self._automation = automation
        self._database = records.database
        self._timeline = records.timeline
        self._metrics = records.metrics
        self._clock = records.clock
        self._stalls = records.stalls
        self._stalled_s = 0.0  # long stalls that the rules know of
        self._started_at = records.clock.now()
        self._snapshot_at = 0.0
        self._unstored: tuple[float, str] | None = None  # since when nothing can be stored, and why

    async def restore(self) -> float | None:
        """Take up the alerts' states where the last controller left them. Returns for how long nobody judged since, up
        to `SNAPSHOT_EVERY_S` too much; None: nobody did before, or it is not known."""
        snapshot = await self._database.read(lambda c: get_meta(c, SNAPSHOT_KEY))
        if not isinstance(snapshot, dict):
            return None
        now = self._clock.now()
        try:
            self._engine.restore(snapshot, now)
        except (ValueError, KeyError, TypeError) as error:
            log.error("alerts.snapshot_unreadable", error=str(error), remedy="alerts start anew from their signals")
            return None
        judged_at = snapshot.get("taken_at")
        return max(0.0, now - judged_at) if isinstance(judged_at, int | float) else None

    async def evaluate_rules(self) -> None:
        """One tick: the rules, the incidents that follow, and what the timeline tells of both."""
        now = self._clock.now()
        blind_s, self._stalled_s = self._stalls.long_s - self._stalled_s, self._stalls.long_s
        if blind_s > 0:
            self._engine.discount_stall(blind_s, now)
            if blind_s >= TOLD_BLIND_S:
                self._timeline.append_soon(
                    "controller.stood_still",
                    f"the controller stood still for {format_seconds(blind_s)} (stopped, without CPU, or its machine "
                    "slept): nothing was looked at, judged or started meanwhile",
                    data={"seconds": round(blind_s, 1)},
                )
        self._tell_unstored(now)
        at = self._signals.known_until(now)
        changes = self._engine.mark_all_unknown(now) if at is None else self._engine.tick(at)
        await self._settle()
        active = [alert for alert in self.alerts() if not self.is_of_removed_node(alert.labels)]
        settled = now - self._started_at > SETTLE_AFTER_START_S
        recent = self._book.recent()
        changed = reconcile(
            recent,
            active,
            self._opens_nothing,
            now,
            forget_missing=settled,
            known=self.known_nodes(),
            kinds=alert_kinds(self._content.current.trees),
            explains=self._content.current.knowledge.explains,
            worsens=self._engine.worsens,
        )
        gone: list[FiredAlert] = []
        for incident in self._of_removed_nodes([changed.get(one.id, one) for one in recent], now, gone):
            changed[incident.id] = incident
        before = {incident.id: incident for incident in recent}
        for incident in changed.values():
            self._book.hold_incident(incident)
        # No await up to here: a diagnosis can't be told before the alert that it explains.
        for change in changes:
            self._tell_alert(fired_alert(change.alert), change.previous)
        for alert, previous in self._external.take_changes():
            self._tell_alert(alert, previous)
        for alert in gone:
            self._tell_gone(alert)
        for incident in changed.values():
            self._tell_incident(incident, before.get(incident.id))
        await self._settle()
        if any(map(_is_about_a_page, changes)) or now - self._snapshot_at > SNAPSHOT_EVERY_S:
            snapshot = self._engine.snapshot()
            with contextlib.suppress(StorageLostError):  # told by the database
                await self._database.write(lambda c: put_meta(c, SNAPSHOT_KEY, snapshot))
            self._snapshot_at = now
        self._book.drop_old()

    def _tell_unstored(self, now: float) -> None:
        """Once there is room again: entries of meanwhile are lost, among them that the disk was full."""
        if why := self._database.storage_error:
            self._unstored = self._unstored or (now, why.removesuffix(": nothing can be stored"))
        elif self._unstored is not None:
            since, why = self._unstored
            self._unstored = None
            self._timeline.append_soon(
                "storage.recovered",
                f"nothing could be stored for {format_seconds(now - since)} ({why}): what happened meanwhile was "
                "judged and told, and most of it is not on this timeline",
                data={"seconds": round(now - since, 1)},
            )

    async def _settle(self) -> None:
        """As the book's. A full disk keeps nobody from judging: incidents are held, shown and told of from memory."""
        with contextlib.suppress(StorageLostError):
            await self._book.settle()

    def alerts(self) -> list[ActiveAlert | FiredAlert]:
        """Our own as the last tick left them, then those from outside."""
        return [*self._engine.alerts(), *self._external.alerts()]

    def own_alerts(self) -> list[ActiveAlert]:
        """Those of our own rules."""
        return self._engine.alerts()

    def is_held_back(self, alert: ActiveAlert) -> bool:
        """Whether nobody is to be called for it: it only says what we do ourselves, and no open incident has it."""
        held = any(_is_open(one) and _holds(one, alert.fingerprint) for one in self._book.recent())
        return not held and self.is_expected(fired_alert(alert))

    def is_expected(self, alert: FiredAlert) -> bool:
        """Whether the alert only says what we did ourselves: its node is cordoned, drained, restarted or starting."""
        state = self._fleet.nodes.get(alert.labels.get("node", ""))
        if state is None or alert.name in _ABOUT_A_DRAIN:
            return False
        row = state.row
        # A core that died and loads again is no start of ours: its node was ready, and says itself that it is starting.
        is_first_start = state.phase is NodePhase.STARTING and not state.was_ready
        return not row.wanted or row.is_cordoned or row.is_restarting or is_first_start

    def _opens_nothing(self, alert: FiredAlert) -> bool:
        return self.is_expected(alert) or not self._automation.may_open(alert)

    def is_of_removed_node(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels name a node that was taken out."""
        state = self._fleet.nodes.get(labels.get("node", ""))
        return state is not None and not state.row.wanted

    def known_nodes(self) -> Nodes:
        """The nodes that are wanted, and where they are: what part of a place fires can be told from them only."""
        return {state.name: places_of(state) for state in self._fleet.nodes.values() if state.row.wanted}

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
        if before is None or before.status is IncidentStatus.RESOLVED:
            self._tell_opened(incident, before)
        if incident.widened_at is not None and (before is None or incident.widened_at != before.widened_at):
            was = incident.first_scope if before is None else before.scope
            self._timeline.append_soon(
                "incident.widened",
                f"from {scope_text(was)} to {scope_text(incident.scope)}: {incident.widened_why}",
                incident_id=incident.id,
                data={"scope": dict(incident.scope), "was": dict(was)},
            )
        if incident.part_of is not None and (before is None or incident.part_of != before.part_of):
            self._tell_linked(incident, incident.part_of)

    def _tell_linked(self, incident: Incident, wider_id: str) -> None:
        wider = self._book.get(wider_id)
        around = scope_text(wider.scope) if wider is not None else "a wider place"
        node, data = incident.scope.get("node"), {"incident": incident.id, "part_of": wider_id}
        self._timeline.append_soon(
            "incident.linked",
            f"part of {wider_id} about {around}; what runs here goes on",
            incident_id=incident.id,
            node=node,
            data=data,
        )
        self._timeline.append_soon(
            "incident.linked",
            f"{incident.id} about {scope_text(incident.scope)} is part of this",
            incident_id=wider_id,
            node=node,
            data=data,
        )

    def _tell_opened(self, incident: Incident, before: Incident | None) -> None:
        if before is None:
            self._metrics.incidents.labels(severity=incident.severity).inc()
        log.info("incident.opened", incident_id=incident.id, title=incident.title, reopened=incident.reopened)
        self._timeline.append_soon(
            "incident.opened" if before is None else "incident.reopened",
            incident.title,
            incident_id=incident.id,
            node=incident.scope.get("node"),
            data={"severity": incident.severity, "scope": dict(incident.scope)},
        )

    def _tell_gone(self, alert: FiredAlert) -> None:
        incident = next((one for one in self._book.recent() if _holds(one, alert.fingerprint)), None)
        node = alert.labels.get("node")
        log.info("alert.resolved", alert=alert.name, node=node, why="node removed")
        self._timeline.append_soon(
            "alert.resolved",
            f"{alert.name} resolved on {node}: the node was taken out",
            incident_id=incident.id if incident else None,
            node=node,
            data={"alert": alert.name, "severity": alert.severity, "was": alert.state},
        )

    def _tell_alert(self, alert: FiredAlert, previous: str) -> None:
        word = _WORTH_TELLING.get(alert.state)
        if word is None or (word in ("resolved", "unknown") and previous == "pending"):  # nobody was told of it
            return
        if self.is_of_removed_node(alert.labels):
            return  # it ended when its node was taken out, and that is told; what the rules still see are last numbers
        incident = next((one for one in self._book.recent() if _holds(one, alert.fingerprint)), None)
        summary = f": {alert.summary}" if alert.summary and word == "fired" else ""
        told_by = "" if alert.source == "rules" else f" (told by {alert.source})"
        log.info(
            f"alert.{word}", alert=alert.name, node=alert.labels.get("node"), value=alert.value, source=alert.source
        )
        self._timeline.append_soon(
            f"alert.{word}",
            f"{alert.name} {word} on {scope_text(alert.labels)}{told_by}{summary}",
            incident_id=incident.id if incident else None,
            node=alert.labels.get("node"),
            data={
                "alert": alert.name,
                "severity": alert.severity,
                "value": alert.value,
                "was": previous,
                "source": alert.source,
            },
        )


def reconcile(
    incidents: Sequence[Incident],
    alerts: Sequence[ActiveAlert | FiredAlert],
    is_expected: Callable[[FiredAlert], bool],
    now: float,
    *,
    forget_missing: bool,
    known: Nodes | None = None,
    kinds: Kinds | None = None,
    explains: Explains | None = None,
    worsens: Callable[[str], int] = lambda _: 0,
) -> dict[str, Incident]:
    """The incidents that differ from `incidents`, by id, given the alerts as they are.

    `forget_missing`: an alert of an incident that is not among `alerts` has cleared. `known`, `kinds`, `explains`: see
    `group_alerts`. `worsens`: which way an alert's value gets worse, see `say_again`. An alert that is unknown because
    its node is down is over: what was true of that node is not any more, and that it is down is what there is to say.
    """
    working = {incident.id: incident for incident in incidents}
    down = {
        alert.labels.get("node", "") for alert in alerts if alert.name == NODE_DOWN and str(alert.state) == "firing"
    }
    states = {alert.fingerprint: _state_beside(alert, down) for alert in alerts}
    holders = {
        one.fingerprint: key for key, incident in working.items() if _is_open(incident) for one in incident.alerts
    }
    old = {key for key, incident in working.items() if _is_open(incident) and is_to_say_again(incident, now)}
    arrivals: list[FiredAlert] = []
    for active in alerts:
        state = states[active.fingerprint]
        if state not in ("firing", "unknown"):
            continue
        alert = active if isinstance(active, FiredAlert) else fired_alert(active)
        if (key := holders.get(alert.fingerprint)) is not None:
            holder = working[key]
            if not _is_same(holder, alert):
                working[holder.id] = join(holder, alert, now)
            elif key in old and state == "firing":
                working[holder.id] = say_again(holder, alert, now, worsens(alert.name))
        elif state == "firing" and not is_expected(alert):
            arrivals.append(alert)
    for incident in list(working.values()):
        if not _is_open(incident):
            continue
        for held in incident.alerts:
            state = states.get(held.fingerprint, "missing")
            gone = state in ("resolved", "pending", "inactive") or (state == "missing" and forget_missing)
            if held.state != "resolved" and gone:
                working[incident.id] = clear(working[incident.id], held.fingerprint, now)
    if arrivals:
        working |= group_alerts(arrivals, working.values(), now, known, kinds, explains)
    before = {incident.id: incident for incident in incidents}
    return {key: incident for key, incident in working.items() if before.get(key) != incident}


def _state_beside(alert: ActiveAlert | FiredAlert, down: set[str]) -> str:
    """The alert's state for its incident, `down` being the nodes that are known to be."""
    state = str(alert.state)
    is_silenced = state == "unknown" and alert.name != NODE_DOWN and alert.labels.get("node", "") in down - {""}
    return "resolved" if is_silenced else state


def _is_about_a_page(change: AlertChange) -> bool:
    """Whether a crash right after it would lose more than some seconds of a `for`: somebody was called, or is no more.

    What is pending comes and goes by the thousand in a large fleet, and waits for the next snapshot.
    """
    return change.alert.fired_at is not None


def _is_open(incident: Incident) -> bool:
    return incident.status is not IncidentStatus.RESOLVED


def _holds(incident: Incident, fingerprint: str) -> bool:
    return any(one.fingerprint == fingerprint for one in incident.alerts)


def _is_same(incident: Incident, alert: FiredAlert) -> bool:
    """Whether the incident knows the alert in this state; what it says changes each second and waits for its turn."""
    return any(
        one.fingerprint == alert.fingerprint and one.state == alert.state and one.fired_at == alert.fired_at
        for one in incident.alerts
    )
