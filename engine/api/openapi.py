"""`/openapi.json`: what this node takes and answers, from the models that check its requests.

One row of `OPERATIONS` for each route and method; a test compares them with the routes, and another runs generated
requests against a node and compares its answers with the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api import answers, schema, schema_pooling, schema_responses
from engine.api.arrival import SHADOW_HEADER
from engine.api.body import carries_token
from engine.api.deadline import DEADLINE_HEADER
from engine.api.status import package_version

REF = "#/components/schemas/{model}"
STREAM = "text/event-stream"
METRICS = "text/plain"

# What any route with a body may answer, whatever it does.
BODY_ERRORS = (400, 408, 413, 415)
# What a route that takes work may answer besides: wrong model, full queue, internal, not ready, deadline.
WORK_ERRORS = (401, 404, 429, 500, 503, 504)

MEANINGS = {
    200: "Done.",
    202: "Handed off: another node goes on with the request.",
    400: "The request can't be understood or served; `param` names the field.",
    401: "The token or API key is missing or wrong.",
    404: "There is no such model or route.",
    408: "The body did not arrive in time.",
    409: "It can't be done here, or not now; the message says why.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too much waits here. Retry-After says when to come back; nothing was begun.",
    500: "The node failed; its log has the cause.",
    503: "Not now: loading, draining or broken. With X-Fleet-Refused another node may take it.",
    504: "The request's deadline passed.",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route and method. `answers` by status: a model (JSON), or the media type of text."""

    method: str
    path: str
    summary: str
    answers: Mapping[int, type[BaseModel] | tuple[type[BaseModel] | str, ...]]
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    headers: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    query: type[BaseModel] | None = None
    in_path: tuple[str, ...] = ()
    is_guarded: bool = False
    is_untyped: bool = False  # its body is another node's: an object that is read unseen by people

    @property
    def takes_body(self) -> bool:
        """Whether the route reads a body."""
        return self.body is not None or self.is_untyped


_FLEET_HEADERS: dict[str, dict[str, Any]] = {
    DEADLINE_HEADER: {"type": "number", "exclusiveMinimum": 0, "maximum": schema.MAX_DEADLINE_S},
    SHADOW_HEADER: {"type": "string", "description": "It is a gateway's copy of the request of this id."},
    "X-Fleet-Handoff": {"type": "string", "description": "`accept`: this client can go on with it elsewhere."},
}
_HEADERS_OF_THOSE_THAT_STAY = {name: form for name, form in _FLEET_HEADERS.items() if name != "X-Fleet-Handoff"}
_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "One event: a chunk as OpenAI's, an error, a hand-off (event `fleet.handoff`), or `[DONE]`.",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}
_READINESS = {200: answers.Readiness, 503: answers.Readiness}

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/models", "Models served", {200: answers.ModelList}, errors=(401,)),
    Operation(
        "GET", "/v1/models/{model}", "One of them", {200: answers.ModelEntry}, errors=(401, 404), in_path=("model",)
    ),
    Operation(
        *("POST", "/v1/completions", "Complete a prompt"),
        {200: (answers.Completion, STREAM), 202: answers.HandoffAnswer},
        body=schema.CompletionBody,
        errors=(*WORK_ERRORS, 409),
        headers=_FLEET_HEADERS,
    ),
    Operation(
        *("POST", "/v1/chat/completions", "Answer a conversation"),
        {200: (answers.ChatCompletion, STREAM), 202: answers.HandoffAnswer},
        body=schema.ChatBody,
        errors=(*WORK_ERRORS, 409),
        headers=_FLEET_HEADERS,
    ),
    Operation(
        *("POST", "/v1/responses", "Answer a conversation, in OpenAI's newer form"),
        {200: (answers.ResponseAnswer, STREAM)},
        body=schema_responses.ResponsesBody,
        errors=(*WORK_ERRORS, 409),
        headers=_HEADERS_OF_THOSE_THAT_STAY,
    ),
    *(
        Operation(method, "/v1/responses/{id}", "None is kept", {}, errors=(401, 404), in_path=("id",))
        for method in ("GET", "DELETE")
    ),
    Operation(
        *("POST", "/v1/embeddings", "Texts as vectors"),
        {200: answers.Embeddings},
        body=schema_pooling.EmbeddingBody,
        errors=(*WORK_ERRORS, 409),
        headers=_HEADERS_OF_THOSE_THAT_STAY,
    ),
    *(
        Operation(
            *("POST", path, "How well pairs of texts go together"),
            {200: answers.Scores},
            body=schema_pooling.ScoreBody,
            errors=(*WORK_ERRORS, 409),
            headers=_HEADERS_OF_THOSE_THAT_STAY,
        )
        for path in ("/v1/score", "/score")
    ),
    *(
        Operation(
            *("POST", path, "Documents by how well they go with a query"),
            {200: answers.Ranking},
            body=schema_pooling.RerankBody,
            errors=(*WORK_ERRORS, 409),
            headers=_HEADERS_OF_THOSE_THAT_STAY,
        )
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    Operation(
        *("POST", "/tokenize", "Text or a conversation as token ids"),
        {200: answers.Tokens},
        body=schema.TokenizeBody,
        errors=(401, 404),
    ),
    Operation(
        *("POST", "/detokenize", "Token ids as text"),
        {200: answers.DetokenizedText},
        body=schema.DetokenizeBody,
        errors=(401, 404),
    ),
    Operation("GET", "/health", "As /health/ready", _READINESS),
    Operation("GET", "/health/ready", "Whether it takes work, and why not", _READINESS),
    Operation("GET", "/health/live", "Whether the process answers", {200: answers.Live}),
    Operation(
        *("GET", "/health/deep", "Readiness with progress and the golden prompt"),
        {200: answers.DeepHealth, 503: answers.DeepHealth},
    ),
    Operation("GET", "/ping", "As /health/ready", _READINESS),
    Operation("POST", "/ping", "As /health/ready", _READINESS),
    Operation("GET", "/version", "Version of the engine", {200: answers.Version}),
    Operation("GET", "/metrics", "Prometheus text", {200: (METRICS,)}),
    Operation("GET", "/info", "Name, model, limits, capacity", {200: answers.Info}),
    Operation("GET", "/openapi.json", "This document", {200: answers.AnswerBody}),
    Operation(
        *("GET", "/admin/drain", "State of the drain"),
        {200: answers.DrainStatus},
        query=schema.DrainQuery,
        errors=(400,),
        is_guarded=True,
    ),
    Operation(
        *("POST", "/admin/drain", "Take no more work"),
        {200: answers.DrainStatus},
        body=schema.DrainBody,
        is_guarded=True,
    ),
    Operation("POST", "/admin/resume", "Take work again", {200: answers.DrainStatus}, is_guarded=True),
    Operation("GET", "/admin/sleep", "Whether it sleeps", {200: answers.SleepAnswer}, is_guarded=True),
    Operation(
        *("POST", "/admin/sleep", "Give the memory of KV cache and weights back"),
        {200: answers.SleepAnswer},
        query=schema.SleepQuery,
        errors=(400, 409),
        is_guarded=True,
    ),
    Operation(
        *("POST", "/admin/wake_up", "Load what sleep gave back"),
        {200: answers.SleepAnswer},
        errors=(409, 503),
        is_guarded=True,
    ),
    Operation("GET", "/admin/requests", "What is in flight", {200: answers.HeldRequests}, is_guarded=True),
    Operation(
        *("GET", "/admin/kv", "What the KV cache is used for"),
        {200: answers.KvBlocks},
        errors=(503,),
        is_guarded=True,
    ),
    Operation(
        *("POST", "/admin/abort", "End these requests, or all"),
        {200: answers.Aborted},
        body=schema.AbortBody,
        is_guarded=True,
    ),
    Operation(
        *("POST", "/admin/export", "Requests as another node can go on with them"),
        {200: answers.Exported},
        body=schema.ExportBody,
        is_guarded=True,
    ),
    Operation("GET", "/admin/limits", "Limits in force", {200: answers.LimitsAnswer}, is_guarded=True),
    Operation(
        *("POST", "/admin/limits", "Change limits"),
        {200: answers.LimitsAnswer},
        body=schema.LimitsBody,
        is_guarded=True,
    ),
    Operation(
        *("POST", "/admin/reset_prefix_cache", "Forget cached prompts"),
        {200: answers.Success},
        errors=(503,),
        is_guarded=True,
    ),
    Operation(
        "GET", "/admin/faults", "Faults that are on", {200: answers.FaultsAnswer}, errors=(404,), is_guarded=True
    ),
    Operation(
        *("POST", "/admin/faults", "Turn faults on or off"),
        {200: answers.FaultsAnswer},
        body=schema.FaultsBody,
        errors=(404,),
        is_guarded=True,
    ),
    Operation(
        *("POST", "/internal/continue", "Go on with another node's request"),
        {200: (answers.Completion, answers.ChatCompletion, STREAM), 202: answers.HandoffAnswer},
        errors=(*WORK_ERRORS, 409),
        is_guarded=True,
        is_untyped=True,
    ),
)


def routes() -> list[Route]:
    """For the application."""
    return [Route("/openapi.json", show, methods=["GET"])]


async def show(request: Request) -> Response:
    """Guarded routes are shown to those who may use them."""
    return JSONResponse(document(with_guarded=carries_token(request)))


def document(*, with_guarded: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    shown = [o for o in OPERATIONS if with_guarded or not o.is_guarded]
    paths: dict[str, dict[str, Any]] = {}
    for operation in shown:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "fleetctl engine node", "version": package_version()},
        "paths": paths,
        "components": {
            "schemas": _schemas(shown),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    """Bodies as they are checked, answers as they are written: what has a default may be left out of a body only."""
    bodies = {o.body for o in operations if o.body is not None}
    shown = {kind for o in operations for kinds in o.answers.values() for kind in _kinds(kinds)}
    models = {kind for kind in shown if not isinstance(kind, str)} | {answers.ErrorAnswer}
    wanted = [(b, "validation") for b in bodies] + [(m, "serialization") for m in models]
    _, schemas = models_json_schema(sorted(wanted, key=lambda w: w[0].__name__), ref_template=REF)  # type: ignore[arg-type]
    defined: dict[str, Any] = schemas["$defs"]
    return defined


def _kinds(kinds: type[BaseModel] | tuple[type[BaseModel] | str, ...]) -> tuple[type[BaseModel] | str, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[/.{}]+', '_', operation.path)}",
        "summary": operation.summary,
        "tags": [operation.path.split("/")[1] if operation.is_guarded else "public"],
        "responses": {},
    }
    responses = described["responses"]
    for status, kinds in operation.answers.items():
        responses[str(status)] = {"description": MEANINGS[status], "content": _content(_kinds(kinds))}
    errors = {*operation.errors, *(BODY_ERRORS if operation.takes_body else ())}
    if operation.is_guarded:
        errors.add(401)
        described["security"] = [{"token": []}]
    for status in sorted(errors - set(operation.answers)):
        responses[str(status)] = {"description": MEANINGS[status], "content": _content((answers.ErrorAnswer,))}
    query = {} if operation.query is None else operation.query.model_json_schema()["properties"]
    in_path = {name: {"type": "string"} for name in operation.in_path}
    if operation.headers or query or in_path:
        described["parameters"] = [
            {"name": name, "in": where, "required": where == "path", "schema": form}
            for where, forms in (("header", operation.headers), ("query", query), ("path", in_path))
            for name, form in forms.items()
        ]
    if operation.takes_body:
        form = {"type": "object"} if operation.body is None else _reference(operation.body)
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": form}}}
    return described


def _content(kinds: Iterable[type[BaseModel] | str]) -> dict[str, Any]:
    texts = [kind for kind in kinds if isinstance(kind, str)]
    models = [_reference(kind) for kind in kinds if not isinstance(kind, str)]
    content: dict[str, Any] = {text: {"schema": _EVENT if text == STREAM else {"type": "string"}} for text in texts}
    if models:
        content["application/json"] = {"schema": models[0] if len(models) == 1 else {"anyOf": models}}
    return content


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
