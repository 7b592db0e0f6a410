"""The node's ASGI application: routes, request ids, and every error in OpenAI's shape."""

from __future__ import annotations

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.api import openapi
from engine.api.admin import AdminRoutes
from engine.api.entry import Entry
from engine.api.errors import ApiError, error_response
from engine.api.http_metrics import HttpMetrics, HttpMetricsMiddleware
from engine.api.openai import OpenAIRoutes
from engine.api.pooling_routes import PoolingRoutes
from engine.api.responses_routes import ResponsesRoutes
from engine.api.status import StatusRoutes
from engine.node.node import ServingNode
from engine.protocol.request_id import usable_request_id

log = structlog.get_logger()


def build_app(node: ServingNode) -> Starlette:
    """The application of one node; each group of routes is given the parts that it works with."""
    entry = Entry(node.model, node.admission, node.requests)
    openai = OpenAIRoutes(entry, started_at=node.started_at)
    admin = AdminRoutes(
        model=node.model,
        core=node.core,
        requests=node.requests,
        admission=node.admission,
        drain=node.drain,
        sleeper=node.sleeper,
        health=node.health,
        limits=node.limits,
        faults=node.faults if node.config.enable_faults else None,
    )
    groups = (openai, ResponsesRoutes(entry), PoolingRoutes(entry), StatusRoutes(node), admin, openapi)
    routes = [route for group in groups for route in group.routes()]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(HttpMetricsMiddleware, HttpMetrics(node.metrics.registry), routes),
            Middleware(RequestIdMiddleware),
        ],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_bug},
    )
    app.state.config = node.config  # limits and keys, for what is checked before a route's own work
    app.state.model = node.model
    return app


class RequestIdMiddleware:
    """Gives each request an id, the client's own when it sent a usable one, and returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["request_id"] = usable_request_id(Headers(scope=scope).get("X-Request-Id"))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault(
                    "X-Request-Id", state["request_id"]
                )  # the body may name another
            await send(message)

        await self.app(scope, receive, send_with_id)


async def _on_api_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, ApiError)
    return error_response(exc)


async def _on_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    message = f"{request.method} {request.url.path}: {exc.detail}"
    return error_response(ApiError(exc.status_code, message, headers=exc.headers))


async def _on_bug(request: Request, exc: Exception) -> Response:
    log.error("request.crashed", request_id=request.state.request_id, path=request.url.path, exc_info=exc)
    return error_response(ApiError(500, "internal error; the node's log has the cause", code="internal"))
