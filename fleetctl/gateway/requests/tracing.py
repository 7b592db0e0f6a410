"""A span of each request at the gateway, sent by OTLP/HTTP. Imported only when a collector is configured.

It lies between the client's span and the node's: `traceparent` goes on to every node that has the request with this
span as the parent, so moves and retries are siblings under it. Sending is a thread's work, from a bounded queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fleetctl.gateway.requests.fates import TRACE_HEADERS, Outcome, ProxiedRequest

log = structlog.get_logger()

SPAN_NAME = "gateway.request"
SERVICE_NAME = "fleet-gateway"


class RequestTrace:
    """The open span of one request, and its phases. Times are monotonic seconds."""

    __slots__ = ("_inside", "_offset_ns", "_propagator", "_span", "_tracer")

    def __init__(self, tracer: Tracer, parent: Context, started: float) -> None:
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()
        # One reading of both clocks, so that the phases of a request touch each other exactly.
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._span: Span = tracer.start_span(
            SPAN_NAME, context=parent, kind=SpanKind.SERVER, start_time=self._unix_ns(started)
        )
        self._inside = set_span_in_context(self._span, parent)

    def carried_by(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers with this span as the parent, in place of the client's."""
        ours: dict[str, str] = {}
        self._propagator.inject(ours, self._inside)
        kept = [pair for pair in headers if pair[0].lower() not in TRACE_HEADERS]
        return [*kept, *((name.encode("latin-1"), value.encode("latin-1")) for name, value in ours.items())]

    def note_phase(self, name: str, start: float, end: float, **attributes: str) -> None:
        """A part of the request's time, as a child span."""
        if self._span.is_recording():
            child = self._tracer.start_span(name, context=self._inside, start_time=self._unix_ns(start))
            child.set_attributes(attributes)
            child.end(self._unix_ns(max(start, end)))

    def end(self, proxied: ProxiedRequest) -> None:
        """The request has its fate."""
        assert proxied.outcome is not None
        assert proxied.duration_s is not None
        started, ended = proxied.started, proxied.started + proxied.duration_s
        if proxied.queue_wait_s:
            self.note_phase("gateway.queue", started, started + proxied.queue_wait_s)
        if proxied.ttft_s is not None:
            self.note_phase("gateway.stream", started + proxied.ttft_s, ended)
        found: dict[str, str | int | float | None] = {
            "gen_ai.request.id": proxied.request_id,
            "http.response.status_code": proxied.status,
            "error.type": proxied.reason or None,
            "fleet.request.state": proxied.outcome.value,
            "fleet.tenant": proxied.tenant,
            "fleet.node": proxied.last_node or None,
            "fleet.gateway.moved": proxied.moved,
            "fleet.gateway.retries": proxied.retries,
            "fleet.gateway.queue_s": proxied.queue_wait_s,
            "gen_ai.latency.time_to_first_token": proxied.ttft_s,
        }
        self._span.set_attributes({name: value for name, value in found.items() if value is not None})
        if proxied.outcome.is_lost or (proxied.outcome is Outcome.REFUSED and (proxied.status or 0) >= 500):
            self._span.set_status(Status(StatusCode.ERROR, proxied.reason or proxied.outcome.value))
        self._span.end(self._unix_ns(ended))

    def _unix_ns(self, at: float) -> int:
        return self._offset_ns + round(at * 1e9)


class RequestTraces:
    """Owner of the exporter and its thread. `close` is owed once in the end."""

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint`: the whole URL; None: as OpenTelemetry's environment says."""
        exporter = OTLPSpanExporter(endpoint=endpoint)
        resource = Resource({"service.name": SERVICE_NAME}).merge(Resource.create())
        if str(resource.attributes.get("service.name")).startswith("unknown_service"):  # the library's own default
            resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("fleetctl.gateway")
        self._propagator = TraceContextTextMapPropagator()
        log.info("traces.exported", to=endpoint or "as OTEL_EXPORTER_OTLP_* says")

    def begin(self, headers: Iterable[tuple[bytes, bytes]], started: float) -> RequestTrace:
        """The span of a request that came in at `started` (monotonic seconds) with these headers."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
        return RequestTrace(self._tracer, self._propagator.extract(carrier), started)

    def close(self) -> None:
        """Send what is queued; what a silent collector does not take within the library's limit is lost."""
        self._provider.shutdown()
