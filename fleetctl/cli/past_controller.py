"""A recorded incident asked as a controller is: what the cockpit shows of it at any moment of its recording.

What the file does not say is unknown here, and nothing can be changed: whoever looks is a viewer.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fleetctl.cli.past_impact import UNRECORDED, PastImpact
from fleetctl.kit.errors import BadInputError, RefusedError
from fleetctl.wire.alert import Alert, AlertExplanation, AlertState
from fleetctl.wire.audit import AuditRow
from fleetctl.wire.autoscaler import AutoscalerPool
from fleetctl.wire.chart import IncidentCharts
from fleetctl.wire.group import GroupBy, GroupLoad, GroupSignal, NodeGroup
from fleetctl.wire.held import HeldRequests, KvBlocks
from fleetctl.wire.identity import CallerInfo, TokenRole
from fleetctl.wire.incident import Incident, IncidentStatus
from fleetctl.wire.node import Node, NodePhase
from fleetctl.wire.pool import Pool
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import RoutingTable
from fleetctl.wire.run import Run, RunStatus
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.status import Status
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry

if TYPE_CHECKING:
    from diagnostics.blackbox import BlackBox
    from fleetctl.told_node import KnownNodes

STALE_AFTER_S = 15.0
PHASE = "fleet_node_phase"
VERDICTS = frozenset({"diagnosis.named", "diagnosis.open", "diagnosis.replaced"})
UNKNOWN = "-"


class PastController:
    """Answers as of `now()`."""

    def __init__(self, path: Path, now: Callable[[], float] | None = None) -> None:
        """Raises BadInputError when the file can't be read. `now`: its end, until another is given."""
        from alerts.history.recording import recording_store
        from alerts.labels import LabelSet
        from alerts.sample import STALE_NAN
        from diagnostics import blackbox

        try:
            self._box: BlackBox = blackbox.read(path)
        except blackbox.BadBlackBoxError as error:
            raise BadInputError(str(error)) from error
        self.now: Callable[[], float] = now or (lambda: self._box.until)
        self._store = recording_store()
        for one in self._box.series:
            values = array("d", (STALE_NAN if value is None else value for _, value in one.points))
            times = array("q", (round(at * 1000) for at, _ in one.points))
            self._store.append_points(LabelSet.of(one.labels), times, values)
        self._impact = PastImpact(self._box, self._store)

    @property
    def since(self) -> float:
        """When its series begin."""
        return self._box.since

    @property
    def until(self) -> float:
        """When they end."""
        return self._box.until

    @property
    def name(self) -> str:
        """Which incident it is."""
        return self._box.incident.id

    @property
    def opened_at(self) -> float:
        """When the incident opened."""
        return self._box.incident.opened_at

    # -- what is told -------------------------------------------------------------------------------------------

    async def status(self) -> Status:
        """As far as the recording shows it."""
        now, nodes = self.now(), self._nodes()
        alerts = self._alerts()
        return Status(
            version=self._box.software,
            started_at=self.since,
            epoch=0,
            policy=UNKNOWN,
            now=now,
            nodes_ready=sum(node.phase is NodePhase.READY for node in nodes),
            nodes_total=sum(node.phase is not NodePhase.STOPPED for node in nodes),
            firing=sum(alert.state is AlertState.FIRING for alert in alerts),
            open_incidents=sum(one.status is not IncidentStatus.RESOLVED for one in self._incidents()),
            loops={},
        )

    async def caller(self) -> CallerInfo:
        """Nobody changes the past."""
        return CallerInfo(name="replay", role=TokenRole.VIEWER, via="replay")

    async def nodes(self) -> list[Node]:
        """Those that were seen by then."""
        return self._nodes()

    async def node(self, name: str) -> Node:
        """Raises BadInputError when there was none."""
        found = next((node for node in self._nodes() if node.name == name), None)
        if found is None:
            raise BadInputError(f"no node {name} by then")
        return found

    async def node_requests(self, name: str) -> HeldRequests:
        """Not recorded."""
        return HeldRequests(unknown=f"{UNRECORDED} what {name} held")

    async def node_kv(self, name: str) -> KvBlocks:
        """Not recorded."""
        return KvBlocks(unknown=f"{UNRECORDED} what the KV cache of {name} was used for")

    async def pools(self) -> list[Pool]:
        """Pools of those nodes; what was wanted of them is not recorded."""
        nodes = [node for node in self._nodes() if node.phase is not NodePhase.STOPPED]
        pools: dict[str, list[Node]] = {}
        for node in nodes:
            pools.setdefault(node.pool, []).append(node)
        return [self._pool(name, members) for name, members in sorted(pools.items())]

    async def groups(self, _: GroupBy) -> list[NodeGroup]:
        """Not made anew."""
        return []

    async def alerts(self) -> list[Alert]:
        """The incident's own, as they stood."""
        return self._alerts()

    async def explain_alert(self, fingerprint: str) -> AlertExplanation:
        """Rules of then are not recorded."""
        raise BadInputError(f"{UNRECORDED} by which rule {fingerprint} was judged")

    async def incidents(self, status: str | None = None, limit: int | None = None) -> list[Incident]:
        """The one of the file, once it had opened."""
        return [one.model_copy(update={"timeline": [], "diagnosis": None}) for one in self._incidents()]

    async def incident(self, incident_id: str) -> Incident:
        """Raises BadInputError while it had not opened."""
        found = next((one for one in self._incidents() if one.id == incident_id), None)
        if found is None:
            raise BadInputError(f"no incident {incident_id} by then")
        return found.model_copy(update={"impact": await self._impact.words(self.now())})

    async def incident_charts(self, incident_id: str, columns: int = 120) -> IncidentCharts:
        """As its page draws them, up to now."""
        from diagnostics.record import Impact
        from fleetctl.controller.incidents.incident_charts import charts_view
        from fleetctl.controller.incidents.incident_report import IncidentReport

        await self.incident(incident_id)
        now = self.now()
        series = tuple(
            (dict(one.labels), tuple(point for point in one.points if point[0] <= now)) for one in self._box.series
        )
        record = self._box.incident
        open_now = record.resolved_at is None or record.resolved_at > now
        record = record.model_copy(update={"resolved_at": None}) if open_now else record
        return charts_view(IncidentReport(record, self._box.impact or Impact(), series, self.since, now), columns)

    async def runbook(self, name: str) -> RunbookInfo:
        """Pages of then are not recorded."""
        raise BadInputError(f"{UNRECORDED} what the page {name} said then")

    async def runs(self, incident_id: str | None = None, limit: int | None = None) -> list[Run]:
        """Those of the incident and its place, as they stood."""
        return list(self._runs())

    async def routing(self, after: int | None = None, wait_s: float = 0.0) -> RoutingTable | None:
        """Not recorded."""
        return None

    async def tenants(self) -> list[TenantUse]:
        """Not recorded."""
        return []

    async def rollouts(self, pool: str | None = None) -> list[Rollout]:
        """Not recorded but as events."""
        return []

    async def autoscaler(self) -> list[AutoscalerPool]:
        """Not recorded."""
        return []

    async def audit(self, *, limit: int = 200) -> list[AuditRow]:
        """Not recorded."""
        return []

    async def query(self, expr: str) -> dict[str, Any]:
        """A PromQL expression at that moment."""
        from alerts.promql import evaluate

        now = self.now()
        samples = evaluate(expr, self._store, now)
        return {"at": now, "samples": [{"labels": one.labels, "value": one.value} for one in samples]}

    async def newest_events(self, limit: int = 1000) -> list[TimelineEntry]:
        """Up to that moment, of the incident and around it."""
        return self._events()[-limit:]

    async def follow_nodes(self, known: KnownNodes | None = None) -> AsyncGenerator[KnownNodes, None]:
        """They are read: of a recording each moment is another. Raises BadInputError."""
        nothing: tuple[KnownNodes, ...] = ()
        for one in nothing:
            yield one
        raise BadInputError("a recording does not tell what changes")

    async def follow_events(self, after: int | None = None) -> AsyncIterator[TimelineEntry]:
        """None by themselves: the slider has everything read anew."""
        nothing: tuple[TimelineEntry, ...] = ()
        for entry in nothing:
            yield entry

    async def follow_node_logs(self, name: str, lines: int) -> AsyncIterator[str]:
        """Not recorded."""
        yield f"{UNRECORDED} what {name} wrote"

    async def close(self) -> None:
        """Nothing is open."""

    # -- what can't be done -------------------------------------------------------------------------------------

    async def act(self, *_: object) -> NoReturn:
        """Raises RefusedError, as do the others."""
        raise RefusedError("this is a recording: nothing can be changed")

    start_run = decide = cancel = order_run = acknowledge_incident = assign_incident = act

    # -- as it stood --------------------------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        from alerts.promql import evaluate
        from fleetctl.controller.signals.node_signals import signals_by_node

        now = self.now()
        signals = signals_by_node(self._store, now)
        firing = self._firing_by_node()
        found = {}
        for one in evaluate(f"{PHASE} == 1", self._store, now):
            name = one.labels.get("node", "")
            labels = {
                key: one.labels[key] for key in ("pool", "model", "engine", "zone", "revision") if key in one.labels
            }
            found[name] = Node(
                name=name,
                url="",
                phase=NodePhase(one.labels["phase"]),
                alerts=firing.get(name, []),
                signal_age_s=min(
                    (s.age_s for s in signals.get(name, {}).values() if s.age_s is not None), default=None
                ),
                **labels,
                **signals.get(name, {}),
            )
        return sorted(found.values(), key=lambda node: node.name)

    def _firing_by_node(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for alert in self._alerts():
            if alert.state is AlertState.FIRING:
                found.setdefault(alert.labels.get("node", ""), []).append(alert.name)
        return found

    def _pool(self, name: str, members: list[Node]) -> Pool:
        def told(values: list[float | None], fold: Callable[[list[float]], float]) -> GroupSignal:
            known = [value for value in values if value is not None and math.isfinite(value)]
            return GroupSignal(value=fold(known) if known else None, known=len(known), of=len(values))

        load = GroupLoad(
            running=told([node.running.value for node in members], math.fsum),
            waiting=told([node.waiting.value for node in members], math.fsum),
            kv_ratio=told([node.kv_ratio.value for node in members], lambda known: math.fsum(known) / len(known)),
            tokens_per_s=told([node.tokens_per_s.value for node in members], math.fsum),
        )
        ready = sum(node.phase is NodePhase.READY for node in members)
        return Pool(
            name=name,
            model=members[0].model,
            wanted=len(members),
            nodes=len(members),
            ready=ready,
            reason="what was wanted is not recorded",
            load=load,
        )

    def _alerts(self) -> list[Alert]:
        """Those that were at least pending by then and had not cleared."""
        now = self.now()
        found = []
        for one in self._box.incident.alerts:
            begun = [at for at in (one.active_at, one.fired_at) if at is not None]
            if not begun or min(begun) > now or (one.resolved_at is not None and one.resolved_at <= now):
                continue
            fires = one.fired_at is not None and one.fired_at <= now
            state = AlertState.FIRING if fires else AlertState.PENDING
            values = one.model_dump() | {"state": state, "resolved_at": None}
            found.append(Alert.model_validate(values))
        return found

    def _incidents(self) -> Iterator[Incident]:
        now, record = self.now(), self._box.incident
        if record.opened_at > now:
            return
        over = record.resolved_at is not None and record.resolved_at <= now
        runs = [run for run in self._runs() if run.incident_id == record.id]
        acts = any(not run.status.is_terminal and run.status is not RunStatus.PROPOSED for run in runs)
        status = IncidentStatus.RESOLVED if over else IncidentStatus.OPEN
        values = record.model_dump(exclude={"handling", "around", "runs", "timeline", "diagnosis", "alerts"}) | {
            "status": IncidentStatus.MITIGATING if acts and not over else status,
            "resolved_at": record.resolved_at if over else None,
            "imported_from": self._box.software,
            "diagnosis": self._diagnosis(now),
            "alerts": [alert.model_dump() for alert in self._alerts()],
            "runs": [run.model_dump() for run in runs],
            "timeline": [entry.model_dump() for entry in self._events() if entry.incident_id == record.id],
        }
        yield Incident.model_validate(values)

    def _diagnosis(self, now: float) -> dict[str, Any] | None:
        """The verdict as it stood: the timeline has each one in full, and the record the last with what was read again
        later."""
        record = self._box.incident
        said = [one for one in record.timeline if one.kind in VERDICTS and one.at <= now and "cause" in one.data]
        if said:
            last = max(said, key=lambda one: (one.at, one.seq))
            return {"tree": "", **last.data, "at": last.at}
        final = record.diagnosis
        return final.model_dump() if final is not None and _said_at(final) <= now else None

    def _runs(self) -> Iterator[Run]:
        """As they stood: the steps that had begun, and the status that follows from them."""
        now = self.now()
        for run in self._box.incident.runs:
            if run.created_at > now:
                continue
            values = {**run.model_dump(), "held": "", "prediction": "", "targets": []}
            values["incident_id"] = run.incident_id if run.is_apart else self._box.incident.id
            if run.updated_at > now:
                values |= {"verification": "", "error": "", "updated_at": now}
                values["steps"] = [_step_at(step, now) for step in values["steps"]]
                begun = run.decided_at is not None and run.decided_at <= now
                values["status"] = RunStatus.RUNNING if begun else RunStatus.PROPOSED
                values["decided_by"] = run.decided_by if begun else None
            yield Run.model_validate(values)

    def _events(self) -> list[TimelineEntry]:
        now, record = self.now(), self._box.incident
        told = [(entry, record.id) for entry in record.timeline] + [(entry, None) for entry in record.around]
        entries = [
            TimelineEntry.model_validate({**entry.model_dump(), "incident_id": of})
            for entry, of in told
            if entry.at <= now
        ]
        return sorted(entries, key=lambda entry: (entry.at, entry.seq))


def _said_at(diagnosis: Any) -> float:
    return float(diagnosis.since if diagnosis.since is not None else diagnosis.at)


def _step_at(step: dict[str, Any], now: float) -> dict[str, Any]:
    """A step as it stood."""
    started, ended = step["started_at"], step["ended_at"]
    if started is None or started > now:
        return step | {"status": "pending", "started_at": None, "ended_at": None, "receipt": {}, "error": ""}
    if ended is None or ended > now:
        return step | {"status": "running", "ended_at": None, "receipt": {}, "error": ""}
    return step
