"""The controller's HTTP API put together: which route there is, who may ask it, and what the audit calls it.

What a route does is in `api/`: each a short way from the request to a part and back.
"""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetctl.controller.access.gate import TokenGate
from fleetctl.controller.access.rate_limits import RateLimits
from fleetctl.controller.alertmanager.webhook import WEBHOOK_PATH
from fleetctl.controller.api.event_api import EventApi
from fleetctl.controller.api.incident_api import IncidentApi
from fleetctl.controller.api.node_api import NodeApi
from fleetctl.controller.api.people_api import PeopleApi
from fleetctl.controller.api.pool_api import PoolApi
from fleetctl.controller.api.run_api import RunApi
from fleetctl.controller.api.status_api import StatusApi
from fleetctl.controller.api.traffic_api import TrafficApi
from fleetctl.controller.controller import Controller
from fleetctl.controller.http_edge import (
    ApiRoute,
    ChangeRoutes,
    HostGate,
    guarded,
    http_exception_handler,
    read_route,
)
from fleetctl.controller.openapi import document
from fleetctl.settings.controller import ControllerSettings
from fleetctl.wire.identity import TokenRole

WEBHOOK_PATHS = (WEBHOOK_PATH, f"{WEBHOOK_PATH}/")  # a redirect would not be followed with its body


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
    tokens = controller.tokens
    status, pools = StatusApi(controller), PoolApi(controller)
    nodes, events, traffic = (
        NodeApi(controller, stopping),
        EventApi(controller, stopping),
        TrafficApi(controller, stopping),
    )
    incidents, runs, people = IncidentApi(controller), RunApi(controller), PeopleApi(controller)
    change = ChangeRoutes(controller.audit, tokens).route
    reads = {
        "/health/live": status.live,
        "/health/leader": status.leader,
        "/metrics": status.metrics,
        "/v1/status": status.status,
        "/v1/identity": people.identity,
        "/v1/tokens": people.tokens,
        "/v1/nodes": nodes.nodes,
        "/v1/nodes/{name}": nodes.node,
        "/v1/nodes/{name}/logs": nodes.node_logs,
        "/v1/nodes/{name}/requests": nodes.node_requests,
        "/v1/nodes/{name}/kv": nodes.node_kv,
        "/v1/groups": nodes.groups,
        "/v1/gpus": nodes.gpus,
        "/v1/failures": nodes.failures,
        "/v1/failures/groups": nodes.failure_groups,
        "/v1/pools": pools.pools,
        "/v1/pools/{name:path}": pools.pool,
        "/v1/autoscaler": pools.autoscaler,
        "/v1/revisions": pools.revisions,
        "/v1/revisions/{id}": pools.revision,
        "/v1/rollouts": pools.rollouts,
        "/v1/rollouts/{id}": pools.rollout,
        "/v1/gateways": nodes.gateways,
        "/v1/tenants": nodes.tenants,
        "/v1/gateways/{name}": nodes.gateway,
        "/v1/alerts": incidents.alerts,
        "/v1/alerts/{fingerprint}/explanation": incidents.explain_alert,
        "/v1/incidents": incidents.incidents,
        "/v1/incidents/{id}": incidents.incident,
        "/v1/incidents/{id}/postmortem": incidents.postmortem,
        "/v1/incidents/{id}/blackbox": incidents.blackbox,
        "/v1/incidents/{id}/charts": incidents.incident_charts,
        "/v1/events": events.events,
        "/v1/events/stream": events.event_stream,
        "/v1/events/nodes": nodes.node_stream,
        "/v1/runbooks": runs.runbooks,
        "/v1/runbooks/{name}": runs.runbook,
        "/v1/runs": runs.runs,
        "/v1/runs/{id}": runs.run,
        "/v1/verbs": runs.verbs,
        "/v1/routing": traffic.routing,
        "/v1/routing/signals": traffic.routing_signals,
        "/v1/traffic-rules": traffic.traffic_rules,
        "/v1/freezes": traffic.freezes,
        "/v1/audit": people.audit,
        "/v1/audit/verification": people.verify_audit,
        "/v1/receipts": people.receipts,
        "/v1/receipts/key": people.receipt_key,
        "/v1/receipts/{id}": people.receipt,
        "/v1/query": status.query,
        "/v1/content": status.content,
        "/v1/silences": people.silences,
        "/v1/notifications": people.notifications,
        "/v1/notifications/{id}": people.notification,
        "/v1/receivers": people.receivers,
    }
    routes: list[Route] = [
        *(read_route(path, handler, tokens) for path, handler in reads.items()),
        read_route("/v1/diagnose", incidents.diagnose, tokens, method="POST"),
        change("POST", "/v1/runs", "run.requested", runs.start_run, by_journal=True),
        change("POST", "/v1/runs/{id}/approval", "run.answered", runs.decide, role=TokenRole.APPROVER, by_journal=True),
        change("POST", "/v1/runs/{id}/cancel", "run.cancel_requested", runs.cancel, by_journal=True),
        change("POST", "/v1/runs/{id}/pause", "run.paused", runs.order_run, by_journal=True),
        change("POST", "/v1/runs/{id}/resume", "run.resumed", runs.order_run, by_journal=True),
        change("POST", "/v1/runs/{id}/skip", "run.skip_requested", runs.order_run, by_journal=True),
        change("POST", "/v1/actions", "run.requested", runs.act, by_journal=True),
        change("POST", "/v1/traffic-rules", "traffic_rule.made", traffic.make_traffic_rule),
        change("DELETE", "/v1/traffic-rules/{id:path}", "traffic_rule.removed", traffic.remove_traffic_rule),
        change("POST", "/v1/incidents", "incident.imported", incidents.import_incident),
        change("POST", "/v1/incidents/{id}/acknowledgement", "incident.acknowledged", incidents.acknowledge_incident),
        change("POST", "/v1/incidents/{id}/assignment", "incident.assigned", incidents.assign_incident),
        change("POST", "/v1/incidents/{id}/comments", "incident.commented", incidents.comment_incident),
        change("POST", "/v1/incidents/{id}/severity", "incident.severity_set", incidents.set_incident_severity),
        change("POST", "/v1/incidents/{id}/silence", "incident.silenced", incidents.silence_incident),
        change("POST", "/v1/incidents/{id}/verdict", "diagnosis.corrected", incidents.correct_verdict),
        change("POST", "/v1/freezes", "freeze.made", traffic.make_freeze),
        change("DELETE", "/v1/freezes", "freeze.ended", traffic.end_freezes),
        change("DELETE", "/v1/freezes/{id}", "freeze.ended", traffic.end_freezes),
        change("POST", "/v1/autoscaler/{pool:path}", "autoscaler.set", pools.configure_autoscaler),
        change("POST", "/v1/content/reload", "content.reloaded", status.reload_content),
        change("POST", "/v1/silences", "silence.added", people.add_silence),
        change("DELETE", "/v1/silences/{id}", "silence.expired", people.expire_silence),
        change("POST", "/v1/receivers/{name}/test", "receiver.tested", people.test_receiver),
        change("POST", "/v1/tokens", "token.created", people.create_token, role=TokenRole.ADMIN),
        change("DELETE", "/v1/tokens/{name}", "token.revoked", people.revoke_token, role=TokenRole.ADMIN),
        *(Route(path, guarded(people.webhook), methods=["POST"]) for path in WEBHOOK_PATHS),  # its own way in and audit
    ]

    async def show_document(_: Request) -> Response:
        return JSONResponse(document(route for route in routes if isinstance(route, ApiRoute)))

    routes.append(read_route("/openapi.json", show_document, tokens))
    return routes


def host_names(settings: ControllerSettings) -> set[str]:
    """The names under which clients may know this controller."""
    given = {settings.host, urlsplit(settings.base_url).hostname or "", socket.gethostname(), *settings.allowed_hosts}
    return {name for name in given if name}
