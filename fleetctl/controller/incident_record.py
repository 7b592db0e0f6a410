"""An incident with its runs and timeline, as the post-mortem and the black box take it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from alerts.store import SeriesStore
from diagnostics.incident import Incident
from diagnostics.postmortem import Impact
from diagnostics.record import IncidentRecord
from fleetctl.controller.views import run_view
from fleetctl.wire import TimelineEntry
from runbooks.run import Run

TTFT = "llm:ttft_seconds:p99"


def record_of(incident: Incident, runs: Sequence[Run], timeline: Sequence[TimelineEntry]) -> IncidentRecord:
    return IncidentRecord.model_validate(
        {
            **asdict(incident),
            "scope": dict(incident.scope),
            "status": incident.status.value,
            "runs": [run_view(run).model_dump(mode="json") for run in runs],
            "timeline": [entry.model_dump(mode="json") for entry in timeline],
        }
    )


def impact_of(record: IncidentRecord, store: SeriesStore, since: float, until: float) -> Impact:
    """What users felt, as far as it was recorded: drain receipts and the nodes' p99 time to first token."""
    moved = [
        step.receipt["moved"]
        for run in record.runs
        for step in run.steps
        if step.status == "done" and isinstance(step.receipt.get("moved"), int)
    ]
    before: list[float] = []
    during: list[float] = []
    last: tuple[float, float] | None = None
    for labels, points in store.dump(since, until):
        if labels.get("__name__") != TTFT:
            continue
        for at, value in points:
            if not math.isfinite(value):
                continue
            (before if at < record.opened_at else during).append(value)
            if last is None or at > last[0] or (at == last[0] and value > last[1]):
                last = at, value
    return Impact(
        moved=sum(moved) if moved else None,
        p99_ttft_before_s=_median(before),
        p99_ttft_worst_s=max(during, default=None),
        p99_ttft_after_s=last[1] if last is not None and during else None,
    )


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
