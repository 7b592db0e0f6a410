"""HTTP requests by route, under the names that vLLM's server has them: what comes before and beside the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

DURATION_BUCKETS_S = (0.1, 0.5, 1.0)
LEFT_OUT = ("/metrics", "/health")  # asked all the time, and about nothing but themselves
UNKNOWN = "none"  # a path or method that is not ours: a stranger's words are no label


class HttpMetrics:
    """Counted when an answer is written to its end. An error after a stream began is no 5xx."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "http_requests",
            "HTTP requests by route, method and class of status.",
            ("handler", "status", "method"),
            registry=registry,
        )
        self.durations = Histogram(
            "http_request_duration_seconds",
            "From the request's head to the end of its answer.",
            ("handler", "method"),
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )

    def note(self, handler: str, method: str, status: int, seconds: float) -> None:
        """One answer was written, or broken off."""
        self.requests.labels(handler=handler, status=f"{status // 100}xx", method=method).inc()
        self.durations.labels(handler=handler, method=method).observe(seconds)


class HttpMetricsMiddleware:
    """Outermost, so that it sees every answer."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, routes: Iterable[Route]) -> None:
        self.app = app
        self.metrics = metrics
        self.routes = {route.endpoint: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(LEFT_OUT):
            await self.app(scope, receive, send)
            return
        started_at = time.monotonic()
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except Exception:
            status = status or 500  # answered further out
            raise
        finally:
            if status:  # else the client left before there was an answer
                route = self.routes.get(scope["endpoint"]) if "endpoint" in scope else None
                handler = UNKNOWN if route is None else route.path
                method = scope["method"] if route is not None and scope["method"] in (route.methods or ()) else UNKNOWN
                self.metrics.note(handler, method, status, time.monotonic() - started_at)
