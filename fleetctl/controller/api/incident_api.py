"""Alerts and incidents over HTTP: lists, one in full, what people say about it, and its files."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fleetctl.controller.api.answer import answer, claim_of
from fleetctl.controller.api.node_api import LOOK_BACK_S
from fleetctl.controller.api.told_now import alerts_now, incident_stored, run_told
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import int_param, note, read_body, receive_file
from fleetctl.controller.http_pages import PageAsked, listed
from fleetctl.controller.incidents.incident_charts import charts_view
from fleetctl.controller.incidents.incident_report import PageForm
from fleetctl.controller.incidents.incident_store import MAX_LIST as MAX_INCIDENTS
from fleetctl.controller.incidents.incident_store import StoredIncident, list_incidents, unknown_of
from fleetctl.controller.incidents.views import (
    alert_view,
    diagnosis_view,
    imported_view,
    incident_summary,
    incident_view,
    no_remedy,
    run_view,
)
from fleetctl.controller.signals.explanation import explain_alert, find_rule
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.diagnosis import DiagnoseRequest
from fleetctl.wire.incident import (
    AssignRequest,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    IncidentStatus,
    SeverityRequest,
    VerdictRequest,
)
from fleetctl.wire.run import Run

MAX_RUNS_SHOWN = 5000  # with a page of incidents
DEFAULT_CHART_COLUMNS = 120


class IncidentApi:
    """Routes of alerts, incidents and diagnoses."""

    def __init__(self, controller: Controller) -> None:
        self._c = controller

    async def alerts(self, request: Request) -> Response:
        silencing = self._c.alertmanager.automation.silencing_of
        return listed(request, [alert_view(alert, silencing) for alert in alerts_now(self._c)])

    async def explain_alert(self, request: Request) -> Response:
        fingerprint = request.path_params["fingerprint"]
        found = next((one for one in map(alert_view, alerts_now(self._c)) if one.fingerprint == fingerprint), None)
        rule = (
            find_rule(self._c.content.current.groups, found.name)
            if found is not None and found.source == "rules"
            else None
        )
        if found is None or rule is None:
            raise HTTPException(404, f"no rule in force judges an alert {fingerprint[:100]}")
        return answer(explain_alert(rule, found.labels, self._c.store, self._c.clock.now()))

    async def diagnose(self, request: Request) -> Response:
        body = await read_body(request, DiagnoseRequest)
        return answer(diagnosis_view(self._c.inquiry.diagnose(body.tree, body.scope)))

    async def incidents(self, request: Request) -> Response:
        status = request.query_params.get("status")
        if status is not None and status not in list(IncidentStatus):
            raise BadInputError(f"status: expected one of {', '.join(IncidentStatus)}, not {status[:40]!r}")
        asked = PageAsked.of(request, (float, str), default=MAX_INCIDENTS)
        stored = await self._c.database.read(
            lambda c: list_incidents(c, status, limit=asked.limit + 1, before=asked.after)
        )
        if asked.after is None:  # what a full disk did not take is shown all the same
            recent = [one for one in self._c.book.recent() if status in (None, one.status)]
            unstored = await self._c.database.read(lambda c: unknown_of(c, [one.id for one in recent]))
            stored = [*(StoredIncident(one) for one in recent if one.id in unstored), *stored]
        ids = [one.incident.id for one in stored]
        runs: dict[str | None, list[Run]] = {}
        for run in await self._c.database.call(lambda: self._c.journal.list(incident_ids=ids, limit=MAX_RUNS_SHOWN)):
            runs.setdefault(run.incident_id, []).append(run_view(run))
        rows = [incident_summary(one, runs.get(one.incident.id, [])) for one in stored]
        return asked.page(rows, lambda row: (row.opened_at, row.id))

    async def incident(self, request: Request) -> Response:
        return answer(await self._incident(request.path_params["id"]))

    async def acknowledge_incident(self, request: Request) -> Response:
        body = await read_body(request, IncidentNote)
        who = _note_incident(request, body)
        return await self._handled(request, self._c.handling.acknowledge(request.path_params["id"], body, who))

    async def assign_incident(self, request: Request) -> Response:
        body = await read_body(request, AssignRequest)
        who = _note_incident(request, body, f"to {body.to or 'nobody'}")
        return await self._handled(request, self._c.handling.assign(request.path_params["id"], body, who))

    async def comment_incident(self, request: Request) -> Response:
        body = await read_body(request, IncidentNote)
        who = _note_incident(request, body)
        return await self._handled(request, self._c.handling.comment(request.path_params["id"], body, who))

    async def set_incident_severity(self, request: Request) -> Response:
        body = await read_body(request, SeverityRequest)
        who = _note_incident(request, body, body.severity)
        work = self._c.handling.set_severity(request.path_params["id"], body.severity, body, who)
        return await self._handled(request, work)

    async def silence_incident(self, request: Request) -> Response:
        body = await read_body(request, IncidentSilenceRequest)
        who = _note_incident(request, body, f"for {body.for_s:.0f} s")
        return await self._handled(request, self._c.handling.silence(request.path_params["id"], body, who))

    async def correct_verdict(self, request: Request) -> Response:
        body = await read_body(request, VerdictRequest)
        who = _note_incident(request, body, f"it was {body.cause}")
        return await self._handled(request, self._c.handling.correct_verdict(request.path_params["id"], body, who))

    async def postmortem(self, request: Request) -> Response:
        """The page as it is now: what people said since the end is in it; of one that is open, what is known so far."""
        form = request.query_params.get("format", "md")
        if form not in ("md", "html"):
            raise BadInputError(f"format: expected md or html, not {form[:40]!r}")
        stored = await incident_stored(self._c, request.path_params["id"])
        report = await self._c.reports.report_of(stored)
        text = await asyncio.to_thread(report.page, cast(PageForm, form))
        return Response(text, media_type=f"text/{'html' if form == 'html' else 'markdown'}; charset=utf-8")

    async def blackbox(self, request: Request) -> Response:
        """The incident's file."""
        stored = await incident_stored(self._c, request.path_params["id"])
        with tempfile.TemporaryDirectory(prefix="fleetctl-export-") as folder:
            path = Path(folder) / "incident.gz"
            await self._c.reports.export(stored, path)
            packed = await asyncio.to_thread(path.read_bytes)
        return Response(packed, media_type="application/gzip")

    async def incident_charts(self, request: Request) -> Response:
        """Its key series in `columns` columns, with onset, alerts, runs and rollouts beside them."""
        columns = int_param(request, "columns", DEFAULT_CHART_COLUMNS)
        stored = await incident_stored(self._c, request.path_params["id"])
        report = await self._c.reports.report_of(stored)
        return answer(await asyncio.to_thread(charts_view, report, columns))

    async def import_incident(self, request: Request) -> Response:
        by = note(request, claim=claim_of(request))
        with tempfile.TemporaryDirectory(prefix="fleetctl-import-") as folder:
            path = Path(folder) / "incident.gz"
            await receive_file(request, path)
            stored = await self._c.imports.take(path, by)
        note(request, claim=claim_of(request), target=stored.incident.id, why=f"written by {stored.imported_from}")
        return answer(await self._incident(stored.incident.id), 201)

    async def _handled(self, request: Request, work: Coroutine[Any, Any, object]) -> Response:
        await work
        return answer(await self._incident(request.path_params["id"]))

    async def _incident(self, incident_id: str) -> Incident:
        stored = await incident_stored(self._c, incident_id)
        timeline = await self._c.timeline.read_all(incident_id)
        if stored.imported is not None:
            return imported_view(stored, timeline)
        silencing = self._c.alertmanager.automation.silencing_of
        known_runs = await self._c.database.call(lambda: self._c.journal.list(incident_id=incident_id))
        runs = [await run_told(self._c, run) for run in known_runs]
        by_hand = no_remedy(stored.incident, self._c.content.current, known_runs, timeline)
        node = stored.incident.scope.get("node", "")
        offence = await self._c.failures.offence(node, self._c.clock.now() - LOOK_BACK_S) if node else ""
        values = {alert.fingerprint: alert.value for alert in self._c.alerting.alerts()}
        view = incident_view(stored, runs, timeline, silencing, by_hand, values)
        told = await self._c.notifications.listing(incident_id)
        dashboard = self._c.notifications.dashboard_of(stored.incident)
        impact = await self._c.notifications.impact_of(stored.incident)
        more = {"offence": offence, "notifications": told, "dashboard": dashboard, "impact": impact}
        return view.model_copy(update=more)


def _note_incident(request: Request, body: IncidentNote, what: str = "") -> str:
    """Tell the audit about a word on an incident; who says it."""
    why = ": ".join(part for part in (what, body.comment.strip()) if part)
    return note(request, claim=body.by, target=request.path_params["id"], why=why)
