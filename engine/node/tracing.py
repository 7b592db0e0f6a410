"""Spans of requests, sent by OTLP/HTTP. Imported only when a collector is configured: the SDK costs memory and time.

A span is made when its request has ended, from the times that were noted on the way, so that tracing is never in the
way of an answer. Sending is a thread's work, from a bounded queue; what a dead collector loses is counted and logged.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.node.generation_request import Kind
from engine.node.inflight import Fate
from engine.node.request_record import RequestRecord

log = structlog.get_logger()

SPAN_NAME = "llm_request"  # vLLM's
PROVIDER = "fleet"
DEFAULT_SERVICE_NAME = "fleet-node"
QUIET_S = 60.0  # between two log lines on a collector that does not answer
_LIBRARY_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")

_OPERATIONS: Mapping[Kind, str] = {
    "chat": "chat",
    "completion": "text_completion",
    "response": "chat",
    "embedding": "embeddings",
    "score": "rerank",
}

Attributes = dict[str, str | bool | int | float | Sequence[str]]


class Tracing:
    """Owner of the exporter and its thread. `write` is called from the event loop, `close` once in the end."""

    def __init__(self, endpoint: str, facts: Mapping[str, str]) -> None:
        """`endpoint` is the whole URL; `facts` become attributes of the resource, empty ones left out."""
        self._exporter = _CalmExporter(OTLPSpanExporter(endpoint=endpoint), time.monotonic)
        self._processor = BatchSpanProcessor(self._exporter)
        provider = TracerProvider(resource=_resource(facts), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("engine")
        self._propagator = TraceContextTextMapPropagator()
        parts = urlsplit(endpoint)
        log.info("traces.exported", to=f"{parts.scheme}://{parts.hostname}:{parts.port}{parts.path}")

    def write(self, record: RequestRecord) -> str | None:
        """Queues the spans of one request; returns its trace id. Never waits, never raises."""
        try:
            return self._write(record)
        except Exception as exc:  # noqa: BLE001 - whatever the library objects to, the request was answered
            self._exporter.note_problem(f"{type(exc).__name__}: {exc}", 1)
            return None

    def _write(self, record: RequestRecord) -> str | None:
        # One reading of both clocks, so that the phases of a request touch each other exactly.
        wall_ns, now_ns = time.time_ns(), time.monotonic_ns()

        def unix_ns(at: float) -> int:
            return wall_ns - now_ns + round(at * 1e9)

        parent = self._propagator.extract(dict(record.arrival.trace_headers))
        span = self._tracer.start_span(
            SPAN_NAME,
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes_of(record),
            start_time=unix_ns(record.arrival.at),
        )
        if span.is_recording():
            inside = set_span_in_context(span, parent)
            for phase in record.phases:
                child = self._tracer.start_span(phase.name, context=inside, start_time=unix_ns(phase.start))
                if not phase.is_whole:
                    child.set_attribute("fleet.phase.cut", True)
                child.end(unix_ns(phase.end))
            if record.state is Fate.FAILED or (record.status or 0) >= 500:
                span.set_status(Status(StatusCode.ERROR, record.error_code or record.state.value))
        span.end(unix_ns(max(record.ended_at, record.arrival.at)))
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None

    def close(self, timeout_s: float) -> None:
        """Sends what is queued; gives up after `timeout_s`."""
        self._exporter.close_soon()
        # The library's own limit is half a minute, and a request to a silent collector can't be interrupted at all.
        flushing = threading.Thread(target=self._processor.shutdown, name="flush-spans", daemon=True)
        flushing.start()
        flushing.join(timeout_s)
        if flushing.is_alive():
            log.warning("traces.not_flushed", timeout_s=timeout_s)


def attributes_of(record: RequestRecord) -> Attributes:
    """OpenTelemetry's GenAI names, vLLM's where those have none (or others), ours last. Unknown ones are left out."""
    arrival, sampling = record.arrival, record.sampling
    found: dict[str, str | bool | int | float | Sequence[str] | None] = {
        "gen_ai.operation.name": arrival.kind and _OPERATIONS[arrival.kind],
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.answer_id,
        "gen_ai.response.finish_reasons": [reason for reason in record.finish_reasons if reason is not None] or None,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.request.id": arrival.request_id,
        "gen_ai.usage.prompt_tokens": record.prompt_tokens,
        "gen_ai.usage.completion_tokens": record.output_tokens,
        "gen_ai.usage.num_sequences": record.num_choices or None,
        "gen_ai.latency.time_in_queue": record.queue_s,
        "gen_ai.latency.time_to_first_token": record.ttft_s,
        "gen_ai.latency.time_in_model_prefill": record.prefill_s,
        "gen_ai.latency.time_in_model_decode": record.decode_s,
        "gen_ai.latency.time_in_model_inference": _sum(record.prefill_s, record.decode_s),
        "gen_ai.latency.e2e": record.e2e_s,
        "http.response.status_code": record.status,
        "error.type": record.error_code,
        "fleet.request.state": record.state.value,
        "fleet.request.priority": record.priority,
        "fleet.request.preemptions": record.num_preemptions,
        "fleet.request.continued": arrival.is_continued,
    }
    if sampling is not None:
        found |= {
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k or None,
            "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
            "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
            "gen_ai.request.seed": sampling.seed,
            "gen_ai.request.n": record.num_choices,
            "gen_ai.request.stream": record.stream,
        }
    return {name: value for name, value in found.items() if value is not None}


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None else first + (second or 0.0)


def _resource(facts: Mapping[str, str]) -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins over ours."""
    ours = Resource({name: value for name, value in facts.items() if value})
    theirs = Resource.create()
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    merged = ours.merge(theirs)
    return merged if named else merged.merge(Resource({"service.name": DEFAULT_SERVICE_NAME}))


class _CalmExporter(SpanExporter):
    """Passes spans on; says that they can't be sent once in a while, and once that they can again."""

    def __init__(self, inner: SpanExporter, now: Callable[[], float]) -> None:
        self._inner = inner
        self._now = now
        self._reason = "unknown"
        self._num_lost = 0
        self._said_at: float | None = None
        self._is_failing = False
        self._is_closing = False
        for name in _LIBRARY_LOGGERS:  # it would write several lines for each batch
            logging.getLogger(name).addFilter(self._keep_reason)

    def _keep_reason(self, record: logging.LogRecord) -> bool:
        self._reason = record.getMessage()[:300]
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.note_problem(self._reason, len(spans))
        elif self._is_failing:
            self._is_failing = False
            log.info("traces.export_recovered", lost_spans=self._num_lost)
            self._num_lost, self._said_at = 0, None
        return result

    def note_problem(self, reason: str, num_lost: int) -> None:
        self._is_failing = True
        self._num_lost += num_lost
        now = self._now()
        if self._said_at is None or now - self._said_at >= QUIET_S or self._is_closing:
            self._said_at = now
            log.warning("traces.export_failed", reason=reason, lost_spans=self._num_lost)

    def close_soon(self) -> None:
        """What fails from now on is said at once: there is no later."""
        self._is_closing = True

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
