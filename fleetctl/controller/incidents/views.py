"""From the controller's own types to those of its API, and to what post-mortem and black box take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType

from alerts.evaluation.alert import ActiveAlert
from diagnostics.diagnosis import ITSELF, SAYS_ITSELF, Diagnosis, what_to_do
from diagnostics.incident import FiredAlert, Incident, IncidentStatus, by_gravity, fired_alert
from diagnostics.record import IncidentRecord
from diagnostics.severity import clock_began_at, sev_level
from fleetctl.controller.alertmanager.silence import Silenced, Silencing
from fleetctl.controller.content.content import Content
from fleetctl.controller.incidents.by_hand import run_command
from fleetctl.controller.incidents.incident_store import StoredIncident
from fleetctl.controller.nodes.deep_checks import DeepCheck
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.gateways import GatewayState
from fleetctl.wire.alert import Alert
from fleetctl.wire.diagnosis import Diagnosis as WireDiagnosis
from fleetctl.wire.freeze import Freeze as WireFreeze
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.incident import Handling
from fleetctl.wire.incident import Incident as WireIncident
from fleetctl.wire.incident import IncidentStatus as WireIncidentStatus
from fleetctl.wire.node import DeepCheck as WireDeepCheck
from fleetctl.wire.node import Node, Signal
from fleetctl.wire.run import Run as WireRun
from fleetctl.wire.runbook import RunbookInfo
from fleetctl.wire.timeline import TimelineEntry
from runbooks.page import Page
from runbooks.ports import Freeze
from runbooks.run import Run, RunStatus

_SHOW = "fleetctl runbook show"
NO_VALUES: Mapping[str, float | None] = MappingProxyType({})
# Ended without effect, and by nobody's word: who denied or stopped one knows what stands instead.
_IN_VAIN = (RunStatus.FAILED, RunStatus.UNDONE, RunStatus.REFUSED, RunStatus.EXPIRED)


def deep_check_view(check: DeepCheck | None, now: float, max_age_s: float) -> WireDeepCheck:
    """The last deep check of a node; a result older than `max_age_s` is not known any more."""
    if check is None:
        return WireDeepCheck()
    is_right = check.known(now, max_age_s)
    return WireDeepCheck(
        result="unknown" if is_right is None else ("passed" if is_right else "failed"),
        age_s=None if check.checked_at is None else max(0.0, now - check.checked_at),
        detail=check.detail,
    )


def gateway_view(state: GatewayState, now: float) -> Gateway:
    """A gateway as seen last, with what it says of itself."""
    report = state.report
    return Gateway(
        name=state.name,
        url=state.url,
        phase=state.phase,
        reason=state.reason,
        since=state.since,
        probe_age_s=None if state.looked_at is None else max(0.0, now - state.looked_at),
        is_local=state.process_up is not None,
        instance=state.instance,
        deaths=state.deaths,
        next_start_at=state.next_start_at,
        table_version=report.table_version if report else None,
        table_age_s=report.table_age_s if report else None,
        in_flight=report.in_flight if report else None,
        lost=report.lost if report else None,
        out=report.out if report else {},
        failing_open=list(report.failing_open) if report else [],
        workers=report.workers if report else None,
    )


def node_view(
    state: NodeState,
    signals: Mapping[str, Signal],
    scraped_at: float | None,
    alerts: Sequence[str],
    deep_check: WireDeepCheck,
    seen_at: float,
    now: float,
    gpus: Sequence[Gpu] = (),
) -> Node:
    """A node as seen last, with its signals and their ages."""
    spec = state.row.spec
    return Node(
        name=state.name,
        url=state.url or state.row.url or "",
        phase=state.phase,
        reason=state.reason,
        pool=spec.pool,
        model=spec.model,
        engine=spec.engine,
        zone=spec.zone,
        revision=spec.revision,
        provider=spec.provider,
        facts=dict(spec.facts),
        machine_problems=None if state.machine_problems is None else [str(one) for one in state.machine_problems],
        reasons=None if state.reasons is None else [str(one) for one in state.reasons],
        since=state.since,
        instance=state.instance,
        signal_age_s=None if scraped_at is None else max(0.0, now - scraped_at),
        probe_age_s=max(0.0, now - seen_at) if math.isfinite(seen_at) else None,
        deep_check=deep_check,
        alerts=sorted(alerts),
        gpus=list(gpus),
        **signals,
    )


def alert_view(
    alert: ActiveAlert | FiredAlert, silencing_of: Callable[[FiredAlert], Silencing] = lambda _: Silencing(Silenced.NO)
) -> Alert:
    """An alert of either kind, with its silences."""
    plain = alert if isinstance(alert, FiredAlert) else fired_alert(alert)
    silencing = silencing_of(plain)
    return Alert.model_validate(
        {
            **asdict(plain),
            "labels": dict(plain.labels),
            "silenced": silencing.silenced.value,
            "silenced_by": list(silencing.by),
        }
    )


def diagnosis_view(diagnosis: Diagnosis) -> WireDiagnosis:
    """A diagnosis with its evidence."""
    return WireDiagnosis.model_validate(asdict(diagnosis))


def run_view(run: Run, *, held: str = "", prediction: str = "") -> WireRun:
    """A run with its steps. `held`: what keeps a proposal from acting now. `prediction`: what it will do to TTFT."""
    return WireRun.model_validate({**run.to_dict(), "held": held, "prediction": prediction})


def freeze_view(freeze: Freeze) -> WireFreeze:
    """A freeze, as its API tells it."""
    return WireFreeze.model_validate(asdict(freeze))


def incident_summary(stored: StoredIncident, runs: Sequence[WireRun] = (), no_remedy: str = "") -> WireIncident:
    """Without timeline and evidence: what a list shows."""
    incident: Incident = stored.incident
    level = sev_level(incident.severity)
    diagnosis = incident.diagnosis
    short = diagnosis_view(diagnosis).model_copy(update={"evidence": []}) if diagnosis else None
    return WireIncident(
        id=incident.id,
        title=incident.title,
        status=WireIncidentStatus(incident.status.value),
        severity=incident.severity,
        sev=level.name,
        due_at=None if level.within_s is None else clock_began_at(incident) + level.within_s,
        scope=dict(incident.scope),
        opened_at=incident.opened_at,
        onset_at=incident.onset_at,
        handling=Handling(**asdict(incident.handling), words=incident.handling.words),
        no_remedy=no_remedy,
        imported_from=stored.imported_from,
        resolved_at=incident.resolved_at,
        alerts=[alert_view(alert) for alert in incident.alerts],
        diagnosis=short,
        widened_at=incident.widened_at,
        widened_why=incident.widened_why,
        part_of=incident.part_of,
        runs=list(runs),
        postmortem=stored.postmortem,
        blackbox=stored.blackbox,
    )


def incident_view(
    stored: StoredIncident,
    runs: Sequence[WireRun],
    timeline: Sequence[TimelineEntry],
    silencing_of: Callable[[FiredAlert], Silencing],
    no_remedy: str = "",
    values: Mapping[str, float | None] = NO_VALUES,
) -> WireIncident:
    """An incident with all that is known of it. `values`: of alerts now, by fingerprint; it keeps those with which they
    fired."""
    diagnosis = stored.incident.diagnosis
    return incident_summary(stored, runs, no_remedy).model_copy(
        update={
            "diagnosis": diagnosis_view(diagnosis) if diagnosis else None,
            "timeline": list(timeline),
            "alerts": [alert_view(_valued(alert, values), silencing_of) for alert in stored.incident.alerts],
        }
    )


def _valued(alert: FiredAlert, values: Mapping[str, float | None]) -> FiredAlert:
    return replace(alert, value=values.get(alert.fingerprint, alert.value)) if alert.state == "firing" else alert


def imported_view(stored: StoredIncident, told_here: Sequence[TimelineEntry]) -> WireIncident:
    """One that was read from a file, with the file's runs and timeline, and what was told of it here since."""
    known = stored.imported or {}
    runs = [WireRun.model_validate({**run, "held": "", "prediction": ""}) for run in known.get("runs", ())]
    timeline = [TimelineEntry.model_validate(entry) for entry in known.get("timeline", ())]
    return incident_view(stored, runs, [*timeline, *told_here], lambda _: Silencing(Silenced.NO))


def no_remedy(incident: Incident, content: Content, runs: Sequence[Run], timeline: Sequence[TimelineEntry] = ()) -> str:
    """Why nothing can be proposed for an open incident, and what a person does; "" while a page treats it, and while
    its cause is looked for. `timeline`: where it is told why a page that there is was not proposed."""
    diagnosis = incident.diagnosis
    is_treated = any(not run.dry_run and not run.status.is_terminal for run in runs)
    if diagnosis is None or incident.status is IncidentStatus.RESOLVED or is_treated:
        return ""
    if diagnosis.cause is None and diagnosis.confidence == "confirmed":  # it is known that none is at work
        return f"nothing is proposed: {diagnosis.title}"
    if diagnosis.cause is None:
        alert = by_gravity(incident.alerts)[0]
        if (reason := content.no_tree.get(alert.name)) is None:
            if incident.handling.correction is not None:
                return f"nothing is proposed: {diagnosis.title}"
            return "nothing is proposed: no cause is named, and it is asked again while this is open"
        said = f"{alert.name} {SAYS_ITSELF}" if reason.startswith(ITSELF) else "no cause is named"
        return f"{said}. By hand: {what_to_do(reason, alert.labels)}"
    if diagnosis.awaits:
        return f"nothing is proposed yet: {diagnosis.awaits}"
    page = content.page_for_cause(diagnosis.cause)
    if page is not None and page.is_by_hand:
        return f"no command mends {diagnosis.cause}. By hand: {_SHOW} {page.name}"
    if page is not None:
        since = min(diagnosis.said_since, _named_since(diagnosis.cause, timeline))
        helped_at = [run.updated_at for run in runs if run.status is RunStatus.SUCCEEDED and not run.dry_run]
        since = max([since, *helped_at])
        told = [one for one in timeline if one.kind == "remediation.not_proposed" and one.at >= since]
        if helped_at and not told:
            return ""
        in_vain = [run for run in runs if run.runbook == page.name and run.status in _IN_VAIN and not run.dry_run]
        if last := max(in_vain, key=lambda run: run.updated_at, default=None):
            why = f" ({last.error})" if last.error else ""
            if last.status is RunStatus.EXPIRED:  # nobody said that it is wrong: it can be had
                command = run_command(page.name, last.inputs, incident_id=incident.id)
                return f"{page.name} expired{why}. By hand: {command}"
            return f"{page.name} {last.status.value}{why}, and is not proposed again. By hand: {_SHOW} {page.name}"
        return f"nothing is proposed: {told[-1].text}" if told else ""
    known = content.causes.get(diagnosis.cause)
    return f"no runbook treats {diagnosis.cause}" + (f". By hand: {known.no_page}" if known and known.no_page else "")


def _named_since(cause: str, timeline: Sequence[TimelineEntry]) -> float:
    """Since when verdicts name this cause without another one between, however sure they are; for ever later where the
    timeline has none: what was not proposed then is not said again when the same cause is confirmed."""
    since = math.inf
    for entry in reversed(timeline):
        if entry.kind.startswith("diagnosis.") and "cause" in entry.data:
            if entry.data["cause"] != cause:
                break
            since = entry.at
    return since


def runbook_view(page: Page, *, with_page: bool) -> RunbookInfo:
    """A runbook, with or without its page."""
    return RunbookInfo(
        name=page.name,
        title=page.title,
        risk=page.risk,
        causes=list(page.causes),
        inputs={name: spec.description for name, spec in page.inputs.items()},
        page=page.markdown if with_page else "",
    )


def record_of(incident: Incident, runs: Sequence[Run], timeline: Sequence[TimelineEntry]) -> IncidentRecord:
    """The incident with its runs and timeline, as the post-mortem and the black box take it."""
    return IncidentRecord.model_validate(
        {
            **asdict(incident),
            "scope": dict(incident.scope),
            "status": incident.status.value,
            "runs": [run_view(run).model_dump(mode="json") for run in runs],
            "timeline": [entry.model_dump(mode="json") for entry in timeline],
        }
    )
