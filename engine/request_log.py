"""The one line that is written for each request, when it ends. No prompt and no text."""

from __future__ import annotations

import structlog

from engine.inflight import Fate, Flight

log = structlog.get_logger()


def log_finished(flight: Flight, fate: Fate, now: float) -> None:
    """`now` is monotonic."""
    scheduled = min((c.scheduled_at for c in flight.choices if c.scheduled_at is not None), default=None)
    first = flight.first_token_at
    log.info(
        "request.finished",
        request_id=flight.ask.request_id,
        kind=flight.ask.kind,
        state=fate.value,
        finish_reasons=[c.finish_reason for c in flight.choices],
        error=flight.error,
        continued=flight.is_continued,
        tokens_in=flight.num_prompt_tokens,
        tokens_out=flight.num_output_tokens,
        queue_s=None if scheduled is None else round(scheduled - flight.arrived_at, 4),
        ttft_s=None if first is None else round(first - flight.arrived_at, 4),
        e2e_s=round(now - flight.arrived_at + flight.elapsed_before_s, 4),
    )
