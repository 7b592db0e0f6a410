"""What the users of the fleet felt during an incident, as far as it was recorded. What was not, stays None."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from alerts.series.store import SeriesStore
from diagnostics.postmortem import Impact
from diagnostics.record import IncidentRecord
from fleetctl.controller.signals.scrape import GATEWAY_JOB

TTFT = "llm:ttft_seconds:p99"
REQUESTS = "gateway_requests_total"
HANDOFFS = "gateway_handoffs_total"
ACCEPTED = ("finished", "failed", "client_gone")  # the gateway's outcomes but `refused`, which never started

Points = Sequence[tuple[float, float]]


def impact_of(record: IncidentRecord, store: SeriesStore, since: float, until: float) -> Impact:
    """From the gateway's counters, and the nodes' p99 time to first token before, during and at the end."""
    opened_at = record.opened_at
    ended: dict[str, float] = {}
    moved: float | None = None
    ttft: list[tuple[float, float]] = []
    was_watched = False
    for labels, points in store.dump(since, until, names=(REQUESTS, HANDOFFS, "up", TTFT)):
        match labels.get("__name__"):
            case name if name == REQUESTS:
                outcome = labels.get("outcome", "")
                ended[outcome] = ended.get(outcome, 0.0) + increase(points, opened_at)
            case name if name == HANDOFFS and labels.get("result") == "moved":
                moved = (moved or 0.0) + increase(points, opened_at)
            case "up" if labels.get("job") == GATEWAY_JOB:
                was_watched = any(at < opened_at for at, _ in points)
            case name if name == TTFT:
                ttft += [point for point in points if math.isfinite(point[1])]
            case _:
                pass
    if not was_watched:
        # The first value of a counter is then no growth: it may have grown for days before anybody looked.
        ended, moved = {}, None
    during = [value for at, value in ttft if at >= opened_at]
    last_at = max((at for at, _ in ttft), default=0.0)
    after = [value for at, value in ttft if at == last_at and at >= opened_at]
    return Impact(
        requests=_count(ended, ACCEPTED),
        finished=_count(ended, ("finished",)),
        moved=None if moved is None else round(moved),
        lost=_count(ended, ("failed",)),
        p99_ttft_before_s=_median(value for at, value in ttft if at < opened_at),
        p99_ttft_worst_s=max(during, default=None),
        p99_ttft_after_s=max(after, default=None),
    )


def increase(points: Points, since: float) -> float:
    """How much a counter grew from `since` on. It begins at zero when its first point is later, and after a reset."""
    total, last = 0.0, 0.0
    for at, value in points:
        if not math.isfinite(value):
            continue
        if at >= since:
            total += value - last if value >= last else value
        last = value
    return total


def _count(ended: Mapping[str, float], outcomes: Sequence[str]) -> int | None:
    """None when the gateway was not recorded at all; an outcome that never happened is zero then."""
    return round(sum(ended.get(outcome, 0.0) for outcome in outcomes)) if ended else None


def _median(values: Iterable[float]) -> float | None:
    ranked = sorted(values)
    return ranked[len(ranked) // 2] if ranked else None
