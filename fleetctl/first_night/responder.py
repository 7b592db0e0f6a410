"""The person on call: reads alerts and incidents as they come, approves what is proposed, and notes when."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fleetctl.client import ControllerClient
from fleetctl.first_night.fault import Expectation
from fleetctl.first_night.outcome import FiredAlert, Said, SeenIncident, SeenRun
from fleetctl.first_night.postmortem_check import Known, Stated, false_statements, read_postmortem
from fleetctl.first_night.target_fleet import OPERATOR
from fleetctl.first_night.traffic import DrillTraffic
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.load.request_fate import RequestFate
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.diagnosis import DiagnoseRequest
from fleetctl.wire.incident import Incident, IncidentStatus
from fleetctl.wire.run import ApprovalRequest, Run, RunStatus

APPROVAL_DELAY_S = 3.0  # a person, before they approve
EDGE_S = 5.0  # around an incident's end: the gateway's counters are read once a second, and clients end later


class Responder:
    """What was seen from the injection on. Times are Unix seconds."""

    def __init__(
        self,
        client: ControllerClient,
        injected_at: float,
        expected: Collection[str],
        reading_s: float = APPROVAL_DELAY_S,
        rests_s: float = 0.0,
    ) -> None:
        """`expected`: names of alerts; one that is pending is waited for. `reading_s`: from proposal to approval.

        `rests_s`: from the injection on; until then nothing is approved.
        """
        self._rests_s = rests_s
        self._reading_s = reading_s
        self._expected = expected
        self._client = client
        self.injected_at = injected_at
        self.alerts: dict[tuple[str, str], FiredAlert] = {}
        self.incidents: list[Incident] = []
        self.runs: list[Run] = []
        self._standing: Sequence[Alert] = ()
        self.answered = False  # whether the controller answered the last look

    async def look(self) -> None:
        """One look at everything; approves what has been proposed for a while."""
        try:
            self._standing = await self._client.alerts()
            listed = [i for i in await self._client.incidents() if i.opened_at >= self.injected_at]
            self.incidents = sorted(listed, key=lambda incident: incident.opened_at)
            ids = {incident.id for incident in self.incidents}
            self.runs = [run for run in await self._client.runs() if run.incident_id in ids]
            self.answered = True
        except UnreachableError:
            self.answered = False
            return
        now = time.time()
        for alert in self._standing:
            fired = alert.fired_at
            if fired is not None and fired >= self.injected_at and alert.state is not AlertState.PENDING:
                where = alert.labels.get("node") or alert.labels.get("pool") or "fleet"
                self.alerts.setdefault(
                    (alert.name, where), FiredAlert(alert.name, where, alert.severity, fired - self.injected_at)
                )
        for run in self.runs:
            is_read = now - (run.updated_at if run.question else run.created_at) >= self._reading_s
            is_read = is_read and now - self.injected_at >= self._rests_s
            if is_read and (run.status is RunStatus.PROPOSED or run.question):  # yes to what a page asks, too
                await self._approve(run)

    async def ask(self, scope: Mapping[str, str], age_s: float) -> Said | None:
        """What a person is told now: the verdict of the open incident, else what `fleetctl diagnose` says.

        None while the controller does not answer.
        """
        open_now = [one for one in self.incidents if one.status is not IncidentStatus.RESOLVED]
        named = sorted(
            (one for one in open_now if one.diagnosis is not None),
            key=lambda one: (one.diagnosis is None or one.diagnosis.cause is None, one.opened_at),
        )
        try:
            found = named[0].diagnosis if named else await self._client.diagnose(DiagnoseRequest(scope=dict(scope)))
        except FleetctlError:
            return None
        if found is None:
            return None
        return Said(
            age_s=age_s,
            cause=found.cause,
            also=found.also,
            runner_up=found.runner_up,
            confidence=found.confidence,
            verdict=found.title,
            by="incident" if named else "asked",
        )

    async def _approve(self, run: Run) -> None:
        try:
            await self._client.decide(run.id, ApprovalRequest(decision="approve", by=OPERATOR))
        except FleetctlError:
            return  # withdrawn in this very moment, or the controller is away: the next look tells

    @property
    def first_fired_at(self) -> float | None:
        """When the first alert fired."""
        return min((self.injected_at + alert.after_s for alert in self.alerts.values()), default=None)

    @property
    def is_firing(self) -> bool:
        """Whether any alert fires now, or is about to of those that are expected."""
        is_near = any(alert.name in self._expected for alert in self._standing if alert.state is AlertState.PENDING)
        return is_near or bool(self.standing)

    @property
    def standing(self) -> tuple[str, ...]:
        """Names of the alerts that fire now."""
        return tuple(dict.fromkeys(alert.name for alert in self._standing if alert.state is AlertState.FIRING))

    @property
    def has_active_run(self) -> bool:
        """Whether a run is under way, or waits for the person."""
        return any(not run.status.is_terminal for run in self.runs)

    @property
    def has_open_incident(self) -> bool:
        """Whether an incident is not over, or has no post-mortem yet."""
        return any(i.status is not IncidentStatus.RESOLVED for i in self.incidents)

    @property
    def is_open(self) -> bool:
        """Whether an incident or a run is not over."""
        return self.has_open_incident or self.has_active_run

    @property
    def is_quiet(self) -> bool:
        """Whether nothing fires and nothing is open, by a controller that answers."""
        return self.answered and not self.is_firing and not self.is_open

    def last_run_ended_at(self) -> float | None:
        """When the last run ended; None without one."""
        return max((run.updated_at for run in self.runs if run.status.is_terminal), default=None)

    async def seen_incidents(
        self, traffic: DrillTraffic, expects: Expectation, ended_at: float | None = None
    ) -> tuple[SeenIncident, ...]:
        """Every incident, the post-mortems of those about the fault judged. Call it when all requests have ended.

        `ended_at`: when a person ended the fault; what opens later is about what they did.
        """
        until = math.inf if ended_at is None else ended_at
        return tuple([await self._seen(incident.id, traffic, expects, until) for incident in self.incidents])

    async def _seen(self, incident_id: str, traffic: DrillTraffic, expects: Expectation, until: float) -> SeenIncident:
        incident = await self._client.incident(incident_id)
        diagnosis = incident.diagnosis
        stated = _stated_in(incident)
        is_about_fault = not expects.alerts or any(alert.name in expects.alerts for alert in incident.alerts)
        is_about_fault = is_about_fault and incident.opened_at <= until
        return SeenIncident(
            id=incident.id,
            title=incident.title,
            severity=incident.severity,
            scope=incident.scope,
            alerts=tuple(alert.name for alert in incident.alerts),
            opened_after_s=incident.opened_at - self.injected_at,
            cause=diagnosis.cause if diagnosis else None,
            confidence=diagnosis.confidence if diagnosis else "unknown",
            verdict=diagnosis.title if diagnosis else "",
            runs=tuple(self._seen_run(run) for run in incident.runs),
            not_proposed=tuple(e.text for e in incident.timeline if e.kind == "remediation.not_proposed"),
            postmortem=incident.postmortem,
            says_lost=stated is None or stated.lost is not None,
            false=self._false_in(incident, stated, traffic, expects) if is_about_fault else (),
        )

    def _seen_run(self, run: Run) -> SeenRun:
        ended = run.updated_at - self.injected_at if run.status.is_terminal else None
        return SeenRun(run.runbook, run.title, run.status.value, ended, run.error[:500])

    def _false_in(
        self, incident: Incident, stated: Stated | None, traffic: DrillTraffic, expects: Expectation
    ) -> tuple[str, ...]:
        if stated is None:
            return ("there is none",) if incident.status is IncidentStatus.RESOLVED else ()
        resolved_at = incident.resolved_at or time.time()
        known = Known(
            injected_at=self.injected_at,
            lost=traffic.lost_between(self.injected_at, resolved_at - EDGE_S),
            lost_late=traffic.lost_between(resolved_at - EDGE_S, resolved_at + EDGE_S),
            causes=expects.causes,
            onset_within_s=expects.onset_within_s,
            runs=[run.status.value for run in incident.runs],
            ended_at=[one.ended_at for one in traffic.seen if one.fate is not RequestFate.REFUSED],
            over_at=resolved_at,
        )
        return false_statements(stated, known)


def _stated_in(incident: Incident) -> Stated | None:
    return read_postmortem(Path(incident.postmortem).read_text(encoding="utf-8")) if incident.postmortem else None
