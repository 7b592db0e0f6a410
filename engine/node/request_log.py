"""Tells how each request ended: the one line of the log, and a span when traces are exported."""

from __future__ import annotations

from typing import Protocol

import structlog

from engine.node.request_record import RequestRecord

log = structlog.get_logger()


class SpanWriter(Protocol):
    """Where spans go. Never waits and never raises."""

    def write(self, record: RequestRecord) -> str | None:
        """The id of the trace that the request belongs to; None when it is not known."""
        ...


class RequestLog:
    """Without a writer only the line is written."""

    def __init__(self, spans: SpanWriter | None = None) -> None:
        self._spans = spans

    def write(self, record: RequestRecord) -> None:
        """To be called once for each request, when its answer was written or never will be."""
        trace_id = None if self._spans is None else self._spans.write(record)
        arrival = record.arrival
        log.info(
            "request.finished",
            request_id=arrival.request_id,
            answer_id=record.answer_id,
            trace_id=trace_id,
            kind=arrival.kind,
            model=record.model,
            state=record.state.value,
            status=record.status,
            finish_reasons=list(record.finish_reasons),
            error=record.error,
            error_code=record.error_code,
            continued=arrival.is_continued,
            shadow_of=arrival.shadow_of or None,
            stream=record.stream,
            choices=record.num_choices,
            priority=record.priority,
            tokens_in=record.prompt_tokens,
            tokens_out=record.output_tokens,
            tokens_cached=record.cached_tokens,
            preemptions=record.num_preemptions,
            queue_s=_rounded(record.queue_s),
            prefill_s=_rounded(record.prefill_s),
            decode_s=_rounded(record.decode_s),
            ttft_s=_rounded(record.ttft_s),
            e2e_s=_rounded(record.e2e_s),
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
