"""One event."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fleetctl.wire.base import Wire


class TimelineEntry(Wire):
    """One event, as people read it; `seq` grows by time."""

    seq: int  # one more with each
    at: float  # when
    kind: str  # noun.past_or_state, as in the logs
    text: str  # what happened
    incident_id: str | None = None  # that it belongs to
    run_id: str | None = None  # of the run that it tells of
    node: str | None = None  # that it is about
    data: dict[str, Any] = Field(default_factory=dict)  # the same for programs
