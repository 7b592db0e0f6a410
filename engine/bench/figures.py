"""Timestamps of answers to the figures people compare engines by. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SLO_TTFT_S = 1.0
SLO_ITL_S = 0.1  # mean over a request


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One request's timing, in seconds of one clock."""

    sent_at: float
    chunk_times: tuple[float, ...]  # when text arrived
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one engine at one concurrency. None: it was not seen."""

    output_tokens_per_s: float
    num_requests: int = 0  # answered to the end
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    goodput_per_s: float | None = None  # requests within the objective
    good_ratio: float | None = None


def figures_of(answers: Sequence[RequestTiming], seconds: float, *, cut_tokens: int = 0) -> Figures:
    """`seconds`: from the first request sent to the last answer's end. `cut_tokens`: of answers that a limit of time
    cut off; they count as output and for nothing else. Raises ValueError when there was no output at all."""
    if not (answers or cut_tokens) or seconds <= 0:
        raise ValueError("no answers were measured")
    if not answers:
        return Figures(cut_tokens / seconds)
    ttfts = sorted(a.chunk_times[0] - a.sent_at for a in answers)
    gaps = sorted(
        later - sooner for a in answers for sooner, later in zip(a.chunk_times, a.chunk_times[1:], strict=False)
    )
    good = sum(_is_good(a) for a in answers)
    return Figures(
        output_tokens_per_s=(sum(a.output_tokens for a in answers) + cut_tokens) / seconds,
        num_requests=len(answers),
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        itl_p50_s=percentile(gaps, 0.5) if gaps else None,
        itl_p95_s=percentile(gaps, 0.95) if gaps else None,
        itl_p99_s=percentile(gaps, 0.99) if gaps else None,
        goodput_per_s=good / seconds,
        good_ratio=good / len(answers),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def _is_good(answer: RequestTiming) -> bool:
    if answer.chunk_times[0] - answer.sent_at > SLO_TTFT_S:
        return False
    rest = answer.output_tokens - 1
    return rest < 1 or (answer.chunk_times[-1] - answer.chunk_times[0]) / rest <= SLO_ITL_S
