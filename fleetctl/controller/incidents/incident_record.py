"""An incident with its runs and timeline, as the post-mortem and the black box take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from diagnostics.incident import Incident
from diagnostics.record import IncidentRecord
from fleetctl.controller.incidents.views import run_view
from fleetctl.wire import TimelineEntry
from runbooks.run import Run


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
