"""`/openapi.json`: what this controller takes and answers, from the types of `fleetctl.wire`.

One row of `OPERATIONS` for each route and method; a test compares them with the routes. Roles come from the routes
themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from fleetctl.controller.http_edge import ApiRoute
from fleetctl.kit.version import software_version
from fleetctl.traffic_rule import TrafficRule, TrafficRuleRequest
from fleetctl.wire.alert import Alert, AlertExplanation
from fleetctl.wire.audit import AuditCheck, AuditRow
from fleetctl.wire.autoscaler import AutoscalerPool, AutoscalerRequest
from fleetctl.wire.base import Problem
from fleetctl.wire.chart import IncidentCharts
from fleetctl.wire.content import ContentListing
from fleetctl.wire.diagnosis import DiagnoseRequest, Diagnosis
from fleetctl.wire.failure import Failure, FailureGroup, FailuresBy
from fleetctl.wire.freeze import Freeze, FreezeRequest
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupBy, NodeGroup
from fleetctl.wire.held import HeldRequests, KvBlocks
from fleetctl.wire.identity import CallerInfo, MadeToken, TokenInfo, TokenRequest, TokenRole
from fleetctl.wire.incident import (
    AssignRequest,
    Incident,
    IncidentNote,
    IncidentSilenceRequest,
    IncidentStatus,
    SeverityRequest,
    VerdictRequest,
)
from fleetctl.wire.node import Node
from fleetctl.wire.notification import Notification, Receiver, ReceiverTest
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.receipt import DrainReceipt
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import RouteSignals, RoutingTable
from fleetctl.wire.run import ActionRequest, ApprovalRequest, CancelRequest, Run, RunOrder, RunRequest
from fleetctl.wire.runbook import RunbookInfo, VerbInfo
from fleetctl.wire.silence import Silence, SilenceRequest
from fleetctl.wire.status import Status
from fleetctl.wire.tenant import TenantUse
from fleetctl.wire.timeline import TimelineEntry

REF = "#/components/schemas/{model}"
TEXT, FILE, EVENTS = "text/plain", "application/gzip", "text/event-stream"
ANY = "application/json"  # JSON of no type of ours

_TEXT = {"type": "string"}
_NAME = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 10**18}
_LIMIT = {
    "type": "integer",
    "minimum": 1,
    "maximum": 10**18,
    "description": "Rows of this page; not all that is asked for need come.",
}
_CURSOR = {"type": "string", "maxLength": 1000, "description": "As the `Link` of the page before has it; opaque."}
_LINK = {
    "description": 'Where the next page is (`rel="next"`); without one this is the last.',
    "schema": {"type": "string"},
}
_SECONDS = {"type": "number", "minimum": 0}
_WAIT = {"type": "number", "minimum": 0, "maximum": 30}


_WHY_NOT: Mapping[HTTPStatus, str] = {
    HTTPStatus.BAD_REQUEST: "Something in the request is wrong: what, and how to mend it.",
    HTTPStatus.UNAUTHORIZED: "No token, or one that opens nothing.",
    HTTPStatus.FORBIDDEN: "The token's role does not suffice, or a foreign page's script asks.",
    HTTPStatus.NOT_FOUND: "There is nothing of this name.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
    HTTPStatus.CONFLICT: "A guard refused it, or it was decided otherwise.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.MISDIRECTED_REQUEST: "Asked on its own machine under a name that is not its own.",
    HTTPStatus.TOO_MANY_REQUESTS: "This caller asks too often: again after `Retry-After`.",
    HTTPStatus.SERVICE_UNAVAILABLE: "It does not lead, or what it has to ask does not answer.",
}
_OF_ALL = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One route and method. `answer`: a type, or the media type of what has none. `body`: a type, or a media type."""

    summary: str
    answer: type[BaseModel] | str
    is_list: bool = False
    body: type[BaseModel] | str | None = None
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    required: str = ""  # of the query
    makes: bool = False  # answers 201
    may_be_empty: bool = False  # 204


def _one(summary: str, answer: type[BaseModel] | str, **more: Any) -> Operation:
    return Operation(summary, answer, **more)


def _all(summary: str, answer: type[BaseModel], **query: dict[str, Any]) -> Operation:
    return Operation(summary, answer, is_list=True, query={**query, "limit": _LIMIT, "cursor": _CURSOR})


def _do(summary: str, answer: type[BaseModel], body: type[BaseModel] | str | None = None, **more: Any) -> Operation:
    return Operation(summary, answer, body=body, **more)


def _enum(values: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_BY = {"by": _TEXT}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/health/live"): _one("Whether the process answers", ANY),
    ("GET", "/health/leader"): _one("Whether this controller leads", ANY),
    ("GET", "/metrics"): _one("Prometheus text", TEXT),
    ("GET", "/openapi.json"): _one("This document", ANY),
    ("GET", "/v1/status"): _one("How the controller is, and whom it reaches", Status),
    ("GET", "/v1/identity"): _one("Whom it takes you for", CallerInfo),
    ("GET", "/v1/tokens"): _all("Named tokens, without the tokens", TokenInfo),
    ("POST", "/v1/tokens"): _do("Make a token, told this once", MadeToken, TokenRequest, makes=True),
    ("DELETE", "/v1/tokens/{name}"): _do("End a token", TokenInfo),
    ("GET", "/v1/nodes"): _all("Every node with its signals", Node),
    ("GET", "/v1/nodes/{name}"): _one("One node", Node),
    ("GET", "/v1/nodes/{name}/logs"): _one(
        "The last lines that it wrote", TEXT, query={"lines": _COUNT, "follow": _enum(["true", "false", "1", "0"])}
    ),
    ("GET", "/v1/nodes/{name}/requests"): _one("What it holds", HeldRequests),
    ("GET", "/v1/nodes/{name}/kv"): _one("What its KV cache is used for", KvBlocks),
    ("GET", "/v1/groups"): _all("Nodes by pool, zone, model or revision", NodeGroup, by=_enum(GroupBy)),
    ("GET", "/v1/gpus"): _all("Every card", Gpu),
    ("GET", "/v1/failures"): _all("Failures of nodes", Failure, since=_SECONDS),
    ("GET", "/v1/failures/groups"): _all("Failures counted", FailureGroup, by=_enum(FailuresBy), since=_SECONDS),
    ("GET", "/v1/pools"): _all("Every pool", Pool),
    ("GET", "/v1/pools/{name}"): _one("One pool", Pool),
    ("GET", "/v1/autoscaler"): _all("What the autoscaler says of each pool", AutoscalerPool),
    ("POST", "/v1/autoscaler/{pool}"): _do("Set a pool's limits", AutoscalerPool, AutoscalerRequest),
    ("GET", "/v1/revisions"): _all("Every revision", Revision),
    ("GET", "/v1/revisions/{id}"): _one("One revision", Revision),
    ("GET", "/v1/rollouts"): _all("Rollouts, the newest first", Rollout, pool=_TEXT),
    ("GET", "/v1/rollouts/{id}"): _one("One rollout", Rollout),
    ("GET", "/v1/gateways"): _all("Every gateway", Gateway),
    ("GET", "/v1/gateways/{name}"): _one("One gateway", Gateway),
    ("GET", "/v1/tenants"): _all("Tenants of the gateways", TenantUse),
    ("GET", "/v1/alerts"): _all("Alerts that are not clear", Alert),
    ("GET", "/v1/alerts/{fingerprint}/explanation"): _one("An alert's rule in parts", AlertExplanation),
    ("GET", "/v1/incidents"): _all("Incidents, the newest first", Incident, status=_enum(IncidentStatus)),
    ("POST", "/v1/incidents"): _do("Take an incident's file in", Incident, FILE, query=_BY, makes=True),
    ("GET", "/v1/incidents/{id}"): _one("One incident", Incident),
    ("GET", "/v1/incidents/{id}/postmortem"): _one(
        "Its post-mortem", "text/markdown", query={"format": _enum(["md", "html"])}
    ),
    ("GET", "/v1/incidents/{id}/blackbox"): _one("Its file", FILE),
    ("GET", "/v1/incidents/{id}/charts"): _one("Its series", IncidentCharts, query={"columns": _COUNT}),
    ("POST", "/v1/incidents/{id}/acknowledgement"): _do("Somebody saw it", Incident, IncidentNote),
    ("POST", "/v1/incidents/{id}/assignment"): _do("It is somebody's", Incident, AssignRequest),
    ("POST", "/v1/incidents/{id}/comments"): _do("A line on its timeline", Incident, IncidentNote),
    ("POST", "/v1/incidents/{id}/severity"): _do("How grave it is", Incident, SeverityRequest),
    ("POST", "/v1/incidents/{id}/silence"): _do("Silence its alerts", Incident, IncidentSilenceRequest),
    ("POST", "/v1/incidents/{id}/verdict"): _do("Its verdict was wrong", Incident, VerdictRequest),
    ("GET", "/v1/events"): _all(
        "The timeline",
        TimelineEntry,
        **{"after": _COUNT, "wait_s": _WAIT, "newest": _COUNT, "since": _SECONDS},
        **dict.fromkeys(("kind", "node", "run_id", "incident_id"), _TEXT),
    ),
    ("GET", "/v1/events/stream"): _one("The timeline as it goes on", EVENTS, query={"after": _COUNT}),
    ("GET", "/v1/events/nodes"): _one("The nodes, then what changes of them", EVENTS, query={"after": _TEXT}),
    ("GET", "/v1/runbooks"): _all("Every runbook", RunbookInfo),
    ("GET", "/v1/runbooks/{name}"): _one("One runbook with its page", RunbookInfo),
    ("GET", "/v1/runs"): _all("Runs, the newest first", Run, incident_id=_TEXT),
    ("POST", "/v1/runs"): _do("Start a runbook", Run, RunRequest, makes=True),
    ("GET", "/v1/runs/{id}"): _one("One run with its steps", Run),
    ("POST", "/v1/runs/{id}/approval"): _do("Approve or deny", Run, ApprovalRequest),
    ("POST", "/v1/runs/{id}/cancel"): _do("Stop before the next step", Run, CancelRequest),
    ("POST", "/v1/runs/{id}/pause"): _do("Pause before the next step", Run, RunOrder),
    ("POST", "/v1/runs/{id}/resume"): _do("Go on", Run, RunOrder),
    ("POST", "/v1/runs/{id}/skip"): _do("Skip a step", Run, RunOrder),
    ("POST", "/v1/actions"): _do("Carry out one command", Run, ActionRequest, makes=True),
    ("GET", "/v1/verbs"): _all("Commands that it carries out", VerbInfo),
    ("POST", "/v1/diagnose"): _do("Say what is wrong there now", Diagnosis, DiagnoseRequest),
    ("GET", "/v1/routing"): _one(
        "The routing table", RoutingTable, query={"after": _COUNT, "wait_s": _WAIT}, may_be_empty=True
    ),
    ("GET", "/v1/routing/signals"): _all("What the gateways choose nodes by", RouteSignals),
    ("GET", "/v1/traffic-rules"): _all("Traffic rules in force", TrafficRule),
    ("POST", "/v1/traffic-rules"): _do("Make a traffic rule", TrafficRule, TrafficRuleRequest, makes=True),
    ("DELETE", "/v1/traffic-rules/{id}"): _do("End a traffic rule", TrafficRule, query=_BY),
    ("GET", "/v1/freezes"): _all("Freezes in force", Freeze),
    ("POST", "/v1/freezes"): _do("Freeze the fleet or a pool", Freeze, FreezeRequest, makes=True),
    ("DELETE", "/v1/freezes"): _do("End all freezes", Freeze, is_list=True, query=_BY),
    ("DELETE", "/v1/freezes/{id}"): _do("End a freeze", Freeze, is_list=True, query=_BY),
    ("GET", "/v1/audit"): _all("Who changed what", AuditRow, since=_SECONDS, who=_TEXT, target=_TEXT),
    ("GET", "/v1/audit/verification"): _one("Whether it is as it was written", AuditCheck),
    ("GET", "/v1/receipts"): _all("Receipts of drains", DrainReceipt),
    ("GET", "/v1/receipts/key"): _one("The key that they are signed with", TEXT),
    ("GET", "/v1/receipts/{id}"): _one("One receipt as it was signed", ANY),
    ("GET", "/v1/query"): _one("A PromQL expression now", ANY, query={"expr": _TEXT}, required="expr"),
    ("GET", "/v1/content"): _one("The content in force", ContentListing),
    ("POST", "/v1/content/reload"): _do("Read the content again", ContentListing),
    ("GET", "/v1/silences"): _all("Silences", Silence),
    ("POST", "/v1/silences"): _do("Make a silence", Silence, SilenceRequest, makes=True),
    ("DELETE", "/v1/silences/{id}"): _do("End a silence", Silence),
    ("GET", "/v1/notifications"): _all("Who was told of what, the newest last", Notification, incident_id=_TEXT),
    ("GET", "/v1/notifications/{id}"): _one("One notification", Notification),
    ("GET", "/v1/receivers"): _all("Who can be told, and how that goes", Receiver),
    ("POST", "/v1/receivers/{name}/test"): _do("Tell it that this is a test", Notification, ReceiverTest),
    ("POST", "/webhooks/alertmanager"): _one("Alertmanager's notifications", ANY, body=ANY),
}


def document(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """The OpenAPI 3.1 document. A route's role is in its description and in `x-fleetctl-role`."""
    roles = {(route.method, plain_path(route.path)): route.role.value for route in routes}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _described(method, path, operation, roles.get((method, path), ""))
    return {
        "openapi": "3.1.0",
        "info": {"title": "fleetctl controller", "version": software_version()},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def plain_path(path: str) -> str:
    """As OpenAPI writes it: without Starlette's kinds."""
    return re.sub(r":\w+\}", "}", path)


def _described(method: str, path: str, operation: Operation, role: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done.", "content": _content(operation.answer, operation.is_list)}
    if operation.is_list and method == "GET":
        answer["headers"] = {"Link": _LINK}
    described: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub(r'[/.{}-]+', '_', path).rstrip('_')}",
        "summary": operation.summary,
        "responses": {"201" if operation.makes else "200": answer},
    }
    if operation.may_be_empty:
        described["responses"]["204"] = {"description": "Nothing newer, or nothing yet."}
    if method == "GET":
        described["responses"]["304"] = {"description": "As `If-None-Match` says it is known."}
    why_not = {"application/json": {"schema": {"$ref": REF.format(model=Problem.__name__)}}}
    for status in _refusals(method, path, operation):
        described["responses"][str(status.value)] = {"description": _WHY_NOT[status], "content": why_not}
    if role:
        described |= {
            "description": f"For role {role} and above.",
            "x-fleetctl-role": role,
            # Reads on the controller's own machine need no token.
            "security": [{"token": []}, {}] if role == TokenRole.VIEWER and method == "GET" else [{"token": []}],
        }
    in_path = re.findall(r"\{(\w+)\}", path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": _NAME} for name in in_path]
    parameters += [
        {"name": name, "in": "query", "required": name == operation.required, "schema": form}
        for name, form in operation.query.items()
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = _content(operation.body, False)
        if operation.body == ANY:  # Alertmanager's payload, or the list that Prometheus sends
            content = {ANY: {"schema": {"type": ["object", "array"]}}}
        described["requestBody"] = {"required": not _may_be_left_out(operation.body), "content": content}
    return described


def _refusals(method: str, path: str, operation: Operation) -> list[HTTPStatus]:
    """What may be answered instead, by any operation and by those of its kind."""
    found = [*_OF_ALL]
    if path in ("/health/live", "/metrics"):
        found = [HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST]
    elif method == "GET":
        found.append(HTTPStatus.MISDIRECTED_REQUEST)
    if "{" in path or (method, path) in (("POST", "/v1/runs"), ("POST", "/v1/actions")):  # they name what may be gone
        found.append(HTTPStatus.NOT_FOUND)
    if operation.body is not None:
        found += [HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE]
    if method != "GET":
        found.append(HTTPStatus.CONFLICT)
    return sorted(found)


def _may_be_left_out(body: type[BaseModel] | str) -> bool:
    """No body at all is one that says nothing: right where nothing has to be said."""
    return isinstance(body, type) and not any(field.is_required() for field in body.model_fields.values())


def _content(answer: type[BaseModel] | str, is_list: bool) -> dict[str, Any]:
    if isinstance(answer, str):
        form: dict[str, Any] = {"type": "object"} if answer == ANY else {"type": "string"}
        return {answer: {"schema": form}}
    schema = {"$ref": REF.format(model=answer.__name__)}
    return {"application/json": {"schema": {"type": "array", "items": schema} if is_list else schema}}


def _schemas() -> dict[str, Any]:
    """Bodies as they are checked, answers as they are written."""
    bodies = {o.body for o in OPERATIONS.values() if isinstance(o.body, type)}
    answers = {o.answer for o in OPERATIONS.values() if isinstance(o.answer, type)} | {Problem}
    wanted = [(b, "validation") for b in bodies] + [(a, "serialization") for a in answers]
    _, schemas = models_json_schema(sorted(wanted, key=lambda one: one[0].__name__), ref_template=REF)  # type: ignore[arg-type]
    defined: dict[str, Any] = schemas["$defs"]
    return defined
