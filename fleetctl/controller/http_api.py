"""The controller's HTTP API: one function per route, each a short way from the request to a part and back."""

from __future__ import annotations

import asyncio
import math
import socket
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from alerts.promql import evaluate
from fleetctl import wire
from fleetctl.controller.access.gate import TokenGate, identity_of
from fleetctl.controller.access.rate_limits import RateLimits
from fleetctl.controller.alertmanager.webhook import WEBHOOK_PATH
from fleetctl.controller.controller import Controller
from fleetctl.controller.event_feed import MEDIA_TYPE, feed
from fleetctl.controller.http_edge import (
    ApiRoute,
    ChangeRoutes,
    HostGate,
    RunRefusedError,
    bool_param,
    float_param,
    guarded,
    http_exception_handler,
    int_param,
    note,
    read_body,
    read_route,
    receive_file,
    wait_param,
    whole_number,
)
from fleetctl.controller.http_pages import MAX_PAGE, PageAsked, listed, page_of
from fleetctl.controller.incidents.incident_charts import charts_view
from fleetctl.controller.incidents.incident_report import PageForm
from fleetctl.controller.incidents.incident_store import MAX_LIST as MAX_INCIDENTS
from fleetctl.controller.incidents.incident_store import StoredIncident, get_incident, list_incidents, unknown_of
from fleetctl.controller.incidents.remediation import given_names, new_nodes, with_new_nodes
from fleetctl.controller.incidents.views import (
    alert_view,
    deep_check_view,
    diagnosis_view,
    freeze_view,
    gateway_view,
    imported_view,
    incident_summary,
    incident_view,
    no_remedy,
    node_view,
    run_view,
    runbook_view,
)
from fleetctl.controller.nodes.abilities import abilities_of
from fleetctl.controller.nodes.node_feed import NodeFeed
from fleetctl.controller.nodes.node_logs import NodeLogs
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.controller.openapi import document
from fleetctl.controller.receipts.receipts import MAX_RECEIPTS
from fleetctl.controller.rollouts.views import rollout_view
from fleetctl.controller.signals.explanation import explain_alert, find_rule
from fleetctl.controller.signals.route_signals import route_signals
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.version import software_version
from fleetctl.providers.provider import capacity_of
from fleetctl.settings.controller import ControllerSettings
from fleetctl.traffic_rule import TrafficRuleRequest
from fleetctl.wire import (
    NO_CLAIM,
    ActionRequest,
    ApprovalRequest,
    AssignRequest,
    AutoscalerRequest,
    CallerInfo,
    CancelRequest,
    DiagnoseRequest,
    FailuresBy,
    FreezeRequest,
    Gateway,
    GatewayPhase,
    GroupBy,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    IncidentStatus,
    Node,
    NodePhase,
    RunOrder,
    RunRequest,
    SeverityRequest,
    SilenceRequest,
    Status,
    TimelineEntry,
    TokenRequest,
    TokenRole,
    VerbInfo,
    VerdictRequest,
)
from runbooks.executor import OrderKind
from runbooks.run import Run, RunStatus
from runbooks.verbs import VERBS

MAX_EXPRESSION_CHARS = 4000
MAX_SAMPLES = 10_000
DEFAULT_LOG_LINES = 50
MAX_RUNS_SHOWN = 5000  # with a page of incidents
LOOK_BACK_S = 30 * 86_400.0  # at failures, when nobody says how far
MAX_AUDIT_ROWS = 5000  # in one answer
MAX_LOG_LINES = 10_000
LOG_POLL_S = 0.5
DEFAULT_CHART_COLUMNS = 120
WEBHOOK_PATHS = (WEBHOOK_PATH, f"{WEBHOOK_PATH}/")  # a redirect would not be followed with its body
T = TypeVar("T")


def create_app(controller: Controller, stopping: asyncio.Event) -> Starlette:
    """The ASGI application. Long polls end early once `stopping` is set."""
    settings, tokens, records = controller.config.settings.controller, controller.tokens, controller.records
    routes = api_routes(controller, stopping)
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(HostGate, tokens=tokens, names=host_names(settings), pages=settings.allowed_hosts),
            Middleware(
                TokenGate,
                tokens=tokens,
                records=records,
                limits=RateLimits(settings.rate_limits, records),
                own_gates=dict.fromkeys(WEBHOOK_PATHS, controller.alertmanager.auth.refusal),
            ),
        ],
        exception_handlers={HTTPException: http_exception_handler(routes)},
    )
    app.router.redirect_slashes = False  # a redirect loses a change's body, and tells nobody what was wrong
    return app


def api_routes(controller: Controller, stopping: asyncio.Event) -> list[Route]:
    """Every route: reads for viewers; changes with the role they need and what the audit calls them."""
    api, tokens = _Api(controller, stopping), controller.tokens
    change = ChangeRoutes(controller.audit, tokens).route
    reads = {
        "/health/live": api.live,
        "/health/leader": api.leader,
        "/metrics": api.metrics,
        "/v1/status": api.status,
        "/v1/identity": api.identity,
        "/v1/tokens": api.tokens,
        "/v1/nodes": api.nodes,
        "/v1/nodes/{name}": api.node,
        "/v1/nodes/{name}/logs": api.node_logs,
        "/v1/nodes/{name}/requests": api.node_requests,
        "/v1/nodes/{name}/kv": api.node_kv,
        "/v1/groups": api.groups,
        "/v1/gpus": api.gpus,
        "/v1/failures": api.failures,
        "/v1/failures/groups": api.failure_groups,
        "/v1/pools": api.pools,
        "/v1/pools/{name:path}": api.pool,
        "/v1/autoscaler": api.autoscaler,
        "/v1/revisions": api.revisions,
        "/v1/revisions/{id}": api.revision,
        "/v1/rollouts": api.rollouts,
        "/v1/rollouts/{id}": api.rollout,
        "/v1/gateways": api.gateways,
        "/v1/tenants": api.tenants,
        "/v1/gateways/{name}": api.gateway,
        "/v1/alerts": api.alerts,
        "/v1/alerts/{fingerprint}/explanation": api.explain_alert,
        "/v1/incidents": api.incidents,
        "/v1/incidents/{id}": api.incident,
        "/v1/incidents/{id}/postmortem": api.postmortem,
        "/v1/incidents/{id}/blackbox": api.blackbox,
        "/v1/incidents/{id}/charts": api.incident_charts,
        "/v1/events": api.events,
        "/v1/events/stream": api.event_stream,
        "/v1/events/nodes": api.node_stream,
        "/v1/runbooks": api.runbooks,
        "/v1/runbooks/{name}": api.runbook,
        "/v1/runs": api.runs,
        "/v1/runs/{id}": api.run,
        "/v1/verbs": api.verbs,
        "/v1/routing": api.routing,
        "/v1/routing/signals": api.routing_signals,
        "/v1/traffic-rules": api.traffic_rules,
        "/v1/freezes": api.freezes,
        "/v1/audit": api.audit,
        "/v1/audit/verification": api.verify_audit,
        "/v1/receipts": api.receipts,
        "/v1/receipts/key": api.receipt_key,
        "/v1/receipts/{id}": api.receipt,
        "/v1/query": api.query,
        "/v1/content": api.content,
        "/v1/silences": api.silences,
        "/v1/notifications": api.notifications,
        "/v1/notifications/{id}": api.notification,
        "/v1/receivers": api.receivers,
    }
    routes: list[Route] = [
        *(read_route(path, handler, tokens) for path, handler in reads.items()),
        read_route("/v1/diagnose", api.diagnose, tokens, method="POST"),
        change("POST", "/v1/runs", "run.requested", api.start_run, by_journal=True),
        change("POST", "/v1/runs/{id}/approval", "run.answered", api.decide, role=TokenRole.APPROVER, by_journal=True),
        change("POST", "/v1/runs/{id}/cancel", "run.cancel_requested", api.cancel, by_journal=True),
        change("POST", "/v1/runs/{id}/pause", "run.paused", api.order_run, by_journal=True),
        change("POST", "/v1/runs/{id}/resume", "run.resumed", api.order_run, by_journal=True),
        change("POST", "/v1/runs/{id}/skip", "run.skip_requested", api.order_run, by_journal=True),
        change("POST", "/v1/actions", "run.requested", api.act, by_journal=True),
        change("POST", "/v1/traffic-rules", "traffic_rule.made", api.make_traffic_rule),
        change("DELETE", "/v1/traffic-rules/{id:path}", "traffic_rule.removed", api.remove_traffic_rule),
        change("POST", "/v1/incidents", "incident.imported", api.import_incident),
        change("POST", "/v1/incidents/{id}/acknowledgement", "incident.acknowledged", api.acknowledge_incident),
        change("POST", "/v1/incidents/{id}/assignment", "incident.assigned", api.assign_incident),
        change("POST", "/v1/incidents/{id}/comments", "incident.commented", api.comment_incident),
        change("POST", "/v1/incidents/{id}/severity", "incident.severity_set", api.set_incident_severity),
        change("POST", "/v1/incidents/{id}/silence", "incident.silenced", api.silence_incident),
        change("POST", "/v1/incidents/{id}/verdict", "diagnosis.corrected", api.correct_verdict),
        change("POST", "/v1/freezes", "freeze.made", api.make_freeze),
        change("DELETE", "/v1/freezes", "freeze.ended", api.end_freezes),
        change("DELETE", "/v1/freezes/{id}", "freeze.ended", api.end_freezes),
        change("POST", "/v1/autoscaler/{pool:path}", "autoscaler.set", api.configure_autoscaler),
        change("POST", "/v1/content/reload", "content.reloaded", api.reload_content),
        change("POST", "/v1/silences", "silence.added", api.add_silence),
        change("DELETE", "/v1/silences/{id}", "silence.expired", api.expire_silence),
        change("POST", "/v1/receivers/{name}/test", "receiver.tested", api.test_receiver),
        change("POST", "/v1/tokens", "token.created", api.create_token, role=TokenRole.ADMIN),
        change("DELETE", "/v1/tokens/{name}", "token.revoked", api.revoke_token, role=TokenRole.ADMIN),
        *(Route(path, guarded(api.webhook), methods=["POST"]) for path in WEBHOOK_PATHS),  # its own way in and audit
    ]

    async def show_document(_: Request) -> Response:
        return JSONResponse(document(route for route in routes if isinstance(route, ApiRoute)))

    routes.append(read_route("/openapi.json", show_document, tokens))
    return routes


def host_names(settings: ControllerSettings) -> set[str]:
    """The names under which clients may know this controller."""
    given = {settings.host, urlsplit(settings.base_url).hostname or "", socket.gethostname(), *settings.allowed_hosts}
    return {name for name in given if name}


class _Api:
    def __init__(self, controller: Controller, stopping: asyncio.Event) -> None:
        self._c = controller
        self._stopping = stopping
        self._node_feed = NodeFeed(self._nodes, controller.clock)
        controller.timeline.listen(self._hear)

    def _hear(self, _kind: str, _at: float, node: str | None, _data: Mapping[str, Any]) -> None:
        if node is not None:
            self._node_feed.hurry()

    async def live(self, _: Request) -> Response:
        return JSONResponse({"live": True})

    async def leader(self, _: Request) -> Response:
        self._c.lease.require()
        return JSONResponse({"leader": True, "epoch": self._c.database.epoch})

    async def metrics(self, _: Request) -> Response:
        return Response(self._c.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def status(self, _: Request) -> Response:
        now = self._c.clock.now()
        link, sender = self._c.alertmanager, self._c.alert_sender
        wanted = [state for state in self._c.fleet.nodes.values() if state.row.wanted]
        gateways = self._gateways()
        return _json(
            Status(
                version=software_version(),
                started_at=self._c.started_at,
                epoch=self._c.database.epoch,
                policy=self._c.config.settings.controller.policy,
                now=now,
                nodes_ready=sum(state.phase is NodePhase.READY for state in wanted),
                nodes_total=len(wanted),
                firing=sum(str(alert.state) == "firing" for alert in self._alerts()),
                open_incidents=len(self._c.book.open_incidents()),
                gateways_ready=sum(gateway.phase is GatewayPhase.READY for gateway in gateways),
                gateways_total=len(gateways),
                gateways_down=[
                    f"{gateway.name}: {gateway.phase.value}" + (f", {gateway.reason}" if gateway.reason else "")
                    for gateway in gateways
                    if gateway.phase not in (GatewayPhase.READY, GatewayPhase.STARTING)
                ],
                gateways_impaired=[
                    f"{gateway.name}: {gateway.workers.problem}"
                    for gateway in gateways
                    if gateway.workers is not None and gateway.workers.problem
                ],
                loops=self._c.loops.ages(now),
                late_loops=sorted(self._c.loops.late(now)),
                storage_error=self._c.database.storage_error,
                leadership=self._c.leadership.state(),
                alertmanagers=sender.states() if sender is not None else [],
                silences=link.silences.state(),
                webhook=link.webhook.state,
                content=self._c.content.state(),
                traffic_rules=[rule for rule in self._c.routing.table.rules if rule.is_in_force(now)],
                discovery=self._c.found_fleet.state(),
                audit_error=check.why if (check := self._c.audit.last_check) is not None else "",
                breaker=self._c.remediation.breaker.words,
                freezes=[freeze_view(freeze) for freeze in self._c.freezes.in_force],
            )
        )

    async def nodes(self, request: Request) -> Response:
        return listed(request, self._nodes())

    async def node(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        (found,) = self._nodes([name])
        told = abilities_of(self._c.fleet.nodes[name].row.spec, self._c.provider)
        abilities = [wire.NodeAbility(ability=one.ability.value, can=one.can, how=one.how) for one in told]
        room = capacity_of(self._c.provider, self._c.fleet.nodes[name].row.spec)
        return _json(found.model_copy(update={"abilities": abilities, "more": room.more, "more_why": room.why}))

    async def node_requests(self, request: Request) -> Response:
        """What the node holds; why that is not known where it is not."""
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        return _json(await self._c.effects.engine.requests_view(name))

    async def node_kv(self, request: Request) -> Response:
        """What its KV cache is used for; why that is not known where it is not."""
        name = request.path_params["name"]
        if name not in self._c.fleet.nodes:
            raise self._no_such_node(name)
        return _json(await self._c.effects.engine.kv_blocks(name))

    async def groups(self, request: Request) -> Response:
        by = request.query_params.get("by", GroupBy.POOL)
        if by not in list(GroupBy):
            raise BadInputError(f"by: expected one of {', '.join(GroupBy)}, not {by[:40]!r}")
        return listed(request, self._c.groups.groups(GroupBy(by)))

    async def gpus(self, request: Request) -> Response:
        return listed(request, self._c.groups.gpus())

    async def failures(self, request: Request) -> Response:
        return listed(request, await self._c.failures.failures(self._failures_since(request)))

    async def failure_groups(self, request: Request) -> Response:
        by = request.query_params.get("by", FailuresBy.HOST)
        if by not in list(FailuresBy):
            raise BadInputError(f"by: expected one of {', '.join(FailuresBy)}, not {by[:40]!r}")
        return listed(request, await self._c.failures.groups(FailuresBy(by), self._failures_since(request)))

    def _failures_since(self, request: Request) -> float:
        since = float_param(request, "since")
        return self._c.clock.now() - LOOK_BACK_S if since is None else since

    async def pools(self, request: Request) -> Response:
        return listed(request, await self._pools())

    async def _pools(self) -> list[wire.Pool]:
        views = await self._c.pools.views()
        loads = self._loads(GroupBy.POOL)
        return [
            one.model_copy(
                update={
                    "autoscaler": self._c.autoscaling.words_of(one.name),
                    **self._room_of(one.name),
                    **_load_of(one.name, loads),
                }
            )
            for one in views
        ]

    def _room_of(self, pool: str) -> dict[str, object]:
        """How many more nodes the pool can get, as its newest node's provider knows."""
        rows = [state.row for state in self._c.fleet.nodes.values() if state.row.spec.pool == pool]
        if not rows:
            return {}
        room = capacity_of(self._c.provider, max(rows, key=lambda row: row.created_at).spec)
        return {"more": room.more, "more_why": room.why}

    def _loads(self, by: GroupBy) -> dict[str, wire.GroupLoad]:
        return {group.name: group.load for group in self._c.groups.groups(by)}

    async def _revisions(self) -> list[wire.Revision]:
        loads = self._loads(GroupBy.REVISION)
        views = await self._c.pools.revision_views()
        return [one.model_copy(update=_load_of(one.id, loads)) for one in views]

    async def pool(self, request: Request) -> Response:
        name = request.path_params["name"]
        views = await self._pools()
        found = next((pool for pool in views if pool.name == name), None)
        if found is None:
            known = ", ".join(pool.name for pool in views) or "none"
            raise HTTPException(404, f"there is no pool named {name[:100]}; pools: {known}")
        return _json(found)

    async def autoscaler(self, request: Request) -> Response:
        return listed(request, await self._c.autoscaling.views())

    async def configure_autoscaler(self, request: Request) -> Response:
        body = await read_body(request, AutoscalerRequest)
        pool = request.path_params["pool"]
        said = body.model_dump(exclude={"by"}, exclude_none=True)
        words = " ".join(f"{key}={value}" for key, value in said.items())
        who = note(request, claim=body.by, target=f"pool/{pool}", why=words)
        return _json(await self._c.autoscaling.configure(pool, body.model_copy(update={"by": who})))

    async def revisions(self, request: Request) -> Response:
        return listed(request, await self._revisions())

    async def revision(self, request: Request) -> Response:
        views = await self._revisions()
        found = next((revision for revision in views if revision.id == request.path_params["id"]), None)
        if found is None:
            raise HTTPException(404, f"there is no revision {request.path_params['id'][:100]}")
        return _json(found)

    async def rollouts(self, request: Request) -> Response:
        return listed(request, await self._rollouts(request.query_params.get("pool")))

    async def rollout(self, request: Request) -> Response:
        found = next((one for one in await self._rollouts(None) if one.id == request.path_params["id"]), None)
        if found is None:
            raise HTTPException(404, f"there is no rollout {request.path_params['id'][:100]}")
        return _json(found)

    async def _rollouts(self, pool: str | None) -> list[wire.Rollout]:
        """The newest first; those under way with what is seen of their pools."""
        statuses = {one.rollout.id: one for one in await self._c.rollouts.statuses()}
        known = await self._c.rollouts.history(pool)
        of_pods = await self._c.pod_rollouts.views(pool)
        held = {one.name: one.reason for one in await self._c.pools.views() if one.state is wire.PoolState.HELD}
        own = [rollout_view(one, statuses.get(one.id), held.get(one.pool, "")) for one in known]
        return [*of_pods, *own]

    async def gateways(self, request: Request) -> Response:
        return listed(request, self._gateways())

    async def gateway(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = next((gateway for gateway in self._gateways() if gateway.name == name), None)
        if found is None:
            known = ", ".join(gateway.name for gateway in self._gateways()) or "none"
            raise HTTPException(404, f"there is no gateway named {name[:100]}; gateways: {known}")
        return _json(found)

    async def tenants(self, request: Request) -> Response:
        """Use summed over the gateways that answer; none of them answering is no empty list."""
        return listed(request, await self._c.gateways.tenants())

    def _gateways(self) -> list[Gateway]:
        now = self._c.clock.now()
        return [gateway_view(state, now) for state in self._c.gateways.states.values()]

    def _no_such_node(self, name: str) -> HTTPException:
        known = ", ".join(sorted(self._c.fleet.nodes)) or "none"
        return HTTPException(404, f"there is no node named {name[:100]}; nodes: {known}")

    async def node_logs(self, request: Request) -> Response:
        """Lines as plain text; with `follow`, those to come too, until the client or the controller ends it."""
        name = request.path_params["name"]
        if await self._c.database.read(lambda c: get_node(c, name)) is None:
            raise self._no_such_node(name)
        lines = min(int_param(request, "lines", DEFAULT_LOG_LINES), MAX_LOG_LINES)
        logs = NodeLogs(self._c.provider, name)
        found = await logs.last_lines(lines)
        if not bool_param(request, "follow"):
            return PlainTextResponse(found)
        return StreamingResponse(self._followed(logs, found), media_type="text/plain")

    async def _followed(self, logs: NodeLogs, found: str) -> AsyncIterator[str]:
        yield found
        while not self._stopping.is_set():
            more = await logs.next_lines()
            if more:
                yield more
            else:
                await self._until_stopping(self._c.clock.sleep(LOG_POLL_S))

    async def alerts(self, request: Request) -> Response:
        silencing = self._c.alertmanager.automation.silencing_of
        return listed(request, [alert_view(alert, silencing) for alert in self._alerts()])

    async def explain_alert(self, request: Request) -> Response:
        fingerprint = request.path_params["fingerprint"]
        found = next((one for one in map(alert_view, self._alerts()) if one.fingerprint == fingerprint), None)
        rule = (
            find_rule(self._c.content.current.groups, found.name)
            if found is not None and found.source == "rules"
            else None
        )
        if found is None or rule is None:
            raise HTTPException(404, f"no rule in force judges an alert {fingerprint[:100]}")
        return _json(explain_alert(rule, found.labels, self._c.store, self._c.clock.now()))

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
        runs: dict[str | None, list[wire.Run]] = {}
        for run in await self._c.database.call(lambda: self._c.journal.list(incident_ids=ids, limit=MAX_RUNS_SHOWN)):
            runs.setdefault(run.incident_id, []).append(run_view(run))
        rows = [incident_summary(one, runs.get(one.incident.id, [])) for one in stored]
        return asked.page(rows, lambda row: (row.opened_at, row.id))

    async def incident(self, request: Request) -> Response:
        return _json(await self._incident(request.path_params["id"]))

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
        stored = await self._stored_incident(request.path_params["id"])
        report = await self._c.reports.report_of(stored)
        text = await asyncio.to_thread(report.page, cast(PageForm, form))
        return Response(text, media_type=f"text/{'html' if form == 'html' else 'markdown'}; charset=utf-8")

    async def blackbox(self, request: Request) -> Response:
        """The incident's file."""
        stored = await self._stored_incident(request.path_params["id"])
        with tempfile.TemporaryDirectory(prefix="fleetctl-export-") as folder:
            path = Path(folder) / "incident.gz"
            await self._c.reports.export(stored, path)
            packed = await asyncio.to_thread(path.read_bytes)
        return Response(packed, media_type="application/gzip")

    async def incident_charts(self, request: Request) -> Response:
        """Its key series in `columns` columns, with onset, alerts, runs and rollouts beside them."""
        columns = int_param(request, "columns", DEFAULT_CHART_COLUMNS)
        stored = await self._stored_incident(request.path_params["id"])
        report = await self._c.reports.report_of(stored)
        return _json(await asyncio.to_thread(charts_view, report, columns))

    async def import_incident(self, request: Request) -> Response:
        by = note(request, claim=_claim(request))
        with tempfile.TemporaryDirectory(prefix="fleetctl-import-") as folder:
            path = Path(folder) / "incident.gz"
            await receive_file(request, path)
            stored = await self._c.imports.take(path, by)
        note(request, claim=_claim(request), target=stored.incident.id, why=f"written by {stored.imported_from}")
        return _json(await self._incident(stored.incident.id), 201)

    async def _handled(self, request: Request, work: Coroutine[Any, Any, object]) -> Response:
        await work
        return _json(await self._incident(request.path_params["id"]))

    async def events(self, request: Request) -> Response:
        after, newest = int_param(request, "after"), int_param(request, "newest")
        incident_id = request.query_params.get("incident_id")
        if newest:
            wanted = {name: request.query_params.get(name) for name in ("kind", "node", "run_id")}
            asked = PageAsked.of(request, (int,), default=MAX_PAGE, size="newest")
            rows = await self._c.timeline.read_newest(
                asked.limit + 1,
                incident_id=incident_id,
                since=float_param(request, "since"),
                before=asked.after,
                **wanted,
            )
            return asked.page(rows, lambda row: (row.seq,), oldest_first=True)
        asked = PageAsked.of(request, (int,), default=MAX_PAGE)
        after = after if asked.after is None else int(asked.after[0])
        waiting = self._c.timeline.wait(after, wait_param(request), incident_id, asked.limit + 1)
        return asked.page(await self._until_stopping(waiting) or [], lambda row: (row.seq,))

    async def event_stream(self, request: Request) -> Response:
        """Entries as they come: those after `Last-Event-ID` or `after` first; without either, new ones only."""
        last = request.headers.get("Last-Event-ID")
        if last is not None or "after" in request.query_params:
            after = int_param(request, "after") if last is None else whole_number("Last-Event-ID", last)
        else:
            newest = await self._c.timeline.read_newest(1)
            after = newest[-1].seq if newest else 0

        async def wait(seen: int, wait_s: float) -> list[TimelineEntry] | None:
            return await self._until_stopping(self._c.timeline.wait(seen, wait_s))

        return StreamingResponse(feed(wait, after), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    async def node_stream(self, request: Request) -> Response:
        """Every node, then what changes; what changed since, where `Last-Event-ID` or `after` has an id of ours."""
        last = request.headers.get("Last-Event-ID", request.query_params.get("after", ""))
        told = self._node_feed.events(self._node_feed.version_of(last), self._until_stopping)
        return StreamingResponse(told, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"})

    async def runbooks(self, request: Request) -> Response:
        return listed(request, [runbook_view(page, with_page=False) for page in self._c.content.pages.values()])

    async def runbook(self, request: Request) -> Response:
        name = request.path_params["name"]
        page = self._c.content.pages.get(name)
        if page is None:
            known = ", ".join(sorted(self._c.content.pages))
            raise HTTPException(404, f"there is no runbook named {name}; runbooks: {known}")
        return _json(runbook_view(page, with_page=True))

    async def runs(self, request: Request) -> Response:
        incident_id = request.query_params.get("incident_id")
        asked = PageAsked.of(request, (float, str), default=MAX_PAGE)
        found = await self._c.database.call(
            lambda: self._c.journal.list(incident_id=incident_id, limit=asked.limit + 1, before=asked.after)
        )
        return asked.page([await self._run_view(run) for run in found], lambda row: (row.created_at, row.id))

    async def run(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        return _json(await self._run_view(await self._c.database.call(lambda: self._c.journal.get(run_id))))

    async def start_run(self, request: Request) -> Response:
        body = await read_body(request, RunRequest)
        who = note(request, claim=body.requested_by, target=body.runbook, why=body.reason)
        if body.incident_id is not None:
            await self._incident(body.incident_id)
        inputs = await self._with_new_nodes(body)
        run = await self._c.executor.propose(
            body.runbook,
            inputs,
            reason=body.reason,
            incident_id=body.incident_id,
            requested_by=who,
            idempotency_key=body.idempotency_key,
            approve=body.approve,
            override=body.override,
            dry_run=body.dry_run,
        )
        return _json(await self._new_run_view(_unless_refused(run)), 201)

    async def act(self, request: Request) -> Response:
        body = await read_body(request, ActionRequest)
        who = note(request, claim=body.requested_by, target=body.command, why=body.reason)
        run = await self._c.executor.act(
            body.command,
            reason=body.reason,
            requested_by=who,
            idempotency_key=body.idempotency_key,
            override=body.override,
            dry_run=body.dry_run,
        )
        return _json(await self._new_run_view(_unless_refused(run)), 201)

    async def verbs(self, request: Request) -> Response:
        return listed(request, [VerbInfo.model_validate(verb.to_dict()) for verb in VERBS.values()])

    async def decide(self, request: Request) -> Response:
        body = await read_body(request, ApprovalRequest)
        run_id = request.path_params["id"]
        why = f"{body.decision}: {body.comment}" if body.comment else body.decision
        who = note(request, claim=body.by, target=run_id, why=why)
        run = await self._c.executor.decide(run_id, body.decision, who, body.comment, body.override)
        return _json(run_view(_unless_refused(run)))

    async def cancel(self, request: Request) -> Response:
        body = await read_body(request, CancelRequest)
        who = note(request, claim=body.by, target=request.path_params["id"])
        return _json(run_view(await self._c.executor.cancel(request.path_params["id"], who)))

    async def order_run(self, request: Request) -> Response:
        body = await read_body(request, RunOrder)
        run_id, what = request.path_params["id"], request.url.path.rpartition("/")[2]
        who = note(request, claim=body.by, target=run_id, why=body.comment)
        run = await self._c.executor.order(run_id, cast(OrderKind, what), who, body.comment)
        return _json(run_view(run))

    async def diagnose(self, request: Request) -> Response:
        body = await read_body(request, DiagnoseRequest)
        return _json(diagnosis_view(self._c.inquiry.diagnose(body.tree, body.scope)))

    async def routing(self, request: Request) -> Response:
        wait_s = wait_param(request)
        after = int_param(request, "after") if "after" in request.query_params else None
        table = self._c.routing.table
        if after is not None:
            waited = await self._until_stopping(self._c.routing.wait(after, wait_s))
            if waited is None:
                return Response(status_code=204)
            table = waited
        if table.version == 0:
            return Response(status_code=204)  # nothing was routed yet: "no table" must not look like "no nodes"
        return _json(table)

    async def routing_signals(self, request: Request) -> Response:
        nodes = [route.node for route in self._c.routing.table.routes]
        return listed(request, route_signals(self._c.store, nodes, self._c.clock.now()))

    async def traffic_rules(self, request: Request) -> Response:
        return listed(request, await self._c.traffic_rules.current())

    async def make_traffic_rule(self, request: Request) -> Response:
        body = await read_body(request, TrafficRuleRequest)
        who = note(request, claim=body.made_by)
        rule, _ = await self._c.traffic_rules.make(body.model_copy(update={"made_by": who}))
        note(request, claim=body.made_by, target=f"route/{rule.id}", why=f"{rule.spec.words}: {rule.reason}")
        return _json(rule, 201)

    async def remove_traffic_rule(self, request: Request) -> Response:
        by = note(request, claim=_claim(request), target=f"route/{request.path_params['id']}")
        return _json(await self._c.traffic_rules.remove(request.path_params["id"], by))

    async def freezes(self, request: Request) -> Response:
        return listed(request, [freeze_view(freeze) for freeze in self._c.freezes.in_force])

    async def make_freeze(self, request: Request) -> Response:
        body = await read_body(request, FreezeRequest)
        pools = {state.row.spec.pool for state in self._c.fleet.nodes.values()}
        if body.pool is not None and body.pool not in pools:
            raise BadInputError(f"there is no pool {body.pool}; pools: {', '.join(sorted(pools)) or 'none'}")
        target = "fleet" if body.pool is None else f"pool/{body.pool}"
        who = note(request, claim=body.made_by, target=target, why=body.reason)
        made = await self._c.freezes.make(body.model_copy(update={"made_by": who}))
        note(request, claim=body.made_by, target=target, why=f"{made.id}: {made.reason}")
        return _json(freeze_view(made), 201)

    async def end_freezes(self, request: Request) -> Response:
        by = note(request, claim=_claim(request))
        ended = await self._c.freezes.end(request.path_params.get("id"), by)
        note(request, claim=_claim(request), target=", ".join(freeze.id for freeze in ended))
        return page_of([freeze_view(freeze) for freeze in ended])

    async def receipts(self, request: Request) -> Response:
        asked = PageAsked.of(request, (str,), default=200, most=MAX_RECEIPTS)
        rows = await self._c.receipts.listing(asked.limit + 1, None if asked.after is None else str(asked.after[0]))
        return asked.page(rows, lambda row: (row.id,))

    async def receipt_key(self, _: Request) -> Response:
        return PlainTextResponse(self._c.receipts.public_key)

    async def receipt(self, request: Request) -> Response:
        """The document as it was signed: every field of it is under the signature."""
        found = await self._c.receipts.document(request.path_params["id"])
        if found is None:
            raise HTTPException(404, f"there is no receipt {request.path_params['id'][:100]}")
        return JSONResponse(found)

    async def query(self, request: Request) -> Response:
        expression = request.query_params.get("expr", "")
        if not expression or len(expression) > MAX_EXPRESSION_CHARS:
            raise BadInputError(f"expr: expected a PromQL expression of 1 to {MAX_EXPRESSION_CHARS} characters")
        now = self._c.clock.now()
        samples = evaluate(expression, self._c.store, now)
        if len(samples) > MAX_SAMPLES:
            raise BadInputError(f"expr: gives {len(samples)} series, more than {MAX_SAMPLES}; narrow it down")
        return JSONResponse(
            {"at": now, "samples": [{"labels": one.labels, "value": _json_number(one.value)} for one in samples]}
        )

    async def content(self, _: Request) -> Response:
        return _json(self._c.content.listing())

    async def reload_content(self, request: Request) -> Response:
        note(request, target=", ".join(self._c.content.state().folders))
        await self._c.content.reload("asked for over HTTP")
        return _json(self._c.content.listing())

    async def silences(self, request: Request) -> Response:
        return listed(request, await self._c.alertmanager.silences.current())

    async def add_silence(self, request: Request) -> Response:
        body = await read_body(request, SilenceRequest)
        who = note(request, claim=body.created_by)
        silence = await self._c.alertmanager.silences.add(body.model_copy(update={"created_by": who}))
        note(request, claim=body.created_by, target=silence.id, why=body.comment)
        return _json(silence, 201)

    async def expire_silence(self, request: Request) -> Response:
        note(request, target=request.path_params["id"])
        return _json(await self._c.alertmanager.silences.expire(request.path_params["id"]))

    async def notifications(self, request: Request) -> Response:
        incident_id, asked = request.query_params.get("incident_id"), PageAsked.of(request, (str,), default=200)
        before = None if asked.after is None else str(asked.after[0])
        rows = await self._c.notifications.listing(incident_id, asked.limit + 1, before)
        return asked.page(rows, lambda row: (row.id,), oldest_first=True)

    async def notification(self, request: Request) -> Response:
        found = await self._c.notifications.one(request.path_params["id"])
        if found is None:
            raise HTTPException(404, f"there is no notification {request.path_params['id'][:100]}")
        return _json(found)

    async def receivers(self, request: Request) -> Response:
        return listed(request, self._c.notifications.receivers())

    async def test_receiver(self, request: Request) -> Response:
        body = await read_body(request, wire.ReceiverTest)
        name = request.path_params["name"]
        who = note(request, claim=body.by, target=name)
        return _json(await self._c.notifications.test(name, who))

    async def identity(self, request: Request) -> Response:
        who = identity_of(request)
        return _json(CallerInfo(name=who.name, role=who.role, via=who.via))

    async def tokens(self, request: Request) -> Response:
        return listed(request, self._c.tokens.listing())

    async def create_token(self, request: Request) -> Response:
        body = await read_body(request, TokenRequest)
        who = note(request, target=body.name, why=body.role.value)
        return _json(await self._c.tokens.create(body, who), 201)

    async def revoke_token(self, request: Request) -> Response:
        name = request.path_params["name"]
        who = note(request, target=name)
        return _json(await self._c.tokens.revoke(name, who))

    async def webhook(self, request: Request) -> Response:
        return await self._c.alertmanager.webhook.receive(request)

    async def audit(self, request: Request) -> Response:
        wanted, asked = request.query_params, PageAsked.of(request, (int,), default=200, most=MAX_AUDIT_ROWS)
        rows = await self._c.audit.read(
            since=float_param(request, "since"),
            who=wanted.get("who"),
            target=wanted.get("target"),
            limit=asked.limit + 1,
            before=asked.after,
        )
        return asked.page(rows, lambda row: (row.seq,), oldest_first=True)

    async def verify_audit(self, _: Request) -> Response:
        return _json(await self._c.audit.verify())

    async def _with_new_nodes(self, body: RunRequest) -> dict[str, str]:
        """The inputs with names for new nodes: fresh ones, or those of the same request before."""
        page = self._c.content.pages.get(body.runbook)
        if page is None:
            return body.inputs
        key = body.idempotency_key
        known = await self._c.database.call(lambda: self._c.journal.find(key)) if key else None
        if known is not None and known.runbook == body.runbook:
            return {**new_nodes(page, known.inputs), **body.inputs}
        nodes = await self._c.lookup.nodes()
        return with_new_nodes(page, body.inputs, {node.name for node in nodes}, given_names(nodes))

    def _nodes(self, names: Iterable[str] | None = None) -> list[Node]:
        """Those of these names, or all, by name."""
        now, states = self._c.clock.now(), self._c.fleet.nodes
        signals, cards = self._c.groups.look().signals, self._c.groups.cards().of_node
        firing: dict[str, list[str]] = {}
        for alert in self._alerts():
            if str(alert.state) == "firing" and alert.labels.get("node"):
                firing.setdefault(alert.labels["node"], []).append(alert.name)
        scraped = self._c.signals.last_success_at
        checks = self._c.deep_checks
        return [
            node_view(
                state,
                signals.get(name, {}),
                scraped.get(name),
                firing.get(name, []),
                deep_check_view(checks.last(name), now, checks.max_age_s),
                self._c.fleet.seen_at(name),
                now,
                cards.get(name, ()),
            ).model_copy(update={"cost_per_hour": self._c.groups.cost_of(name)})
            for name, state in ((name, states[name]) for name in sorted(states if names is None else names))
        ]

    def _alerts(self) -> list[Any]:
        return [alert for alert in self._c.alerting.alerts() if not self._c.alerting.is_of_removed_node(alert.labels)]

    async def _stored_incident(self, incident_id: str) -> StoredIncident:
        stored = await self._c.database.read(lambda c: get_incident(c, incident_id))
        if stored is None and (held := self._c.book.get(incident_id)) is not None:
            stored = StoredIncident(held)
        if stored is None:
            raise HTTPException(404, f"there is no incident {incident_id[:100]}")
        return stored

    async def _incident(self, incident_id: str) -> Incident:
        stored = await self._stored_incident(incident_id)
        timeline = await self._c.timeline.read_all(incident_id)
        if stored.imported is not None:
            return imported_view(stored, timeline)
        silencing = self._c.alertmanager.automation.silencing_of
        known_runs = await self._runs(incident_id)
        runs = [await self._run_view(run) for run in known_runs]
        by_hand = no_remedy(stored.incident, self._c.content.current, known_runs, timeline)
        node = stored.incident.scope.get("node", "")
        offence = await self._c.failures.offence(node, self._c.clock.now() - LOOK_BACK_S) if node else ""
        view = incident_view(stored, runs, timeline, silencing, by_hand)
        told = await self._c.notifications.listing(incident_id)
        dashboard = self._c.notifications.dashboard_of(stored.incident)
        impact = await self._c.notifications.impact_of(stored.incident)
        more = {"offence": offence, "notifications": told, "dashboard": dashboard, "impact": impact}
        return view.model_copy(update=more)

    async def _run_view(self, run: Run) -> wire.Run:
        """The run, what was predicted of it, and what keeps a proposal from acting now."""
        held = await self._c.executor.why_held(run) if run.status is RunStatus.PROPOSED else ""
        return run_view(run, held=held, prediction=self._c.forecasts.known_words(run.id))

    async def _new_run_view(self, run: Run) -> wire.Run:
        """A run that was just asked for. Only a dry run waits for what is predicted of it."""
        if not run.dry_run:
            self._c.forecasts.note_started(run)
            return run_view(run, prediction=self._c.forecasts.known_words(run.id))
        return run_view(run, prediction=await self._c.forecasts.words_of(run))

    async def _runs(self, incident_id: str | None) -> tuple[Run, ...]:
        return await self._c.database.call(lambda: self._c.journal.list(incident_id=incident_id))

    async def _until_stopping(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None when the controller stops first: no long poll may hold up its end."""
        task = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()


def _note_incident(request: Request, body: IncidentNote, what: str = "") -> str:
    """Tell the audit about a word on an incident; who says it."""
    why = ": ".join(part for part in (what, body.comment.strip()) if part)
    return note(request, claim=body.by, target=request.path_params["id"], why=why)


def _load_of(name: str, loads: Mapping[str, wire.GroupLoad]) -> dict[str, wire.GroupLoad]:
    """What a view is updated with; nothing where no node of it is wanted."""
    return {"load": loads[name]} if name in loads else {}


def _claim(request: Request) -> str:
    return request.query_params.get("by", NO_CLAIM)


def _unless_refused(run: Run) -> Run:
    if run.status is RunStatus.REFUSED and not run.dry_run:
        raise RunRefusedError(run.error or "a guard refused it", remedy=f"fleetctl describe run {run.id}")
    return run


def _json_number(value: float) -> float | str:
    """JSON has no NaN or infinity: those are the strings Prometheus uses."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def _json(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")
