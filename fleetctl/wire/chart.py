"""What was measured in an incident's place."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Wire


class ChartLine(Wire):
    """One series of a chart: the highest value of each of its columns, oldest first; None where nothing was known."""

    name: str
    is_own: bool = True  # of the incident's place; others are its peers
    values: list[float | None]


class ChartMark(Wire):
    """A moment to be seen in every chart."""

    at: float
    text: str
    kind: str  # onset, alert, verdict, action, deploy, end


class IncidentChart(Wire):
    """One metric of an incident's place."""

    title: str
    unit: str  # seconds, ratio, count, per_second
    limit: float | None = None  # what is promised
    lines: list[ChartLine]


class IncidentCharts(Wire):
    """What was measured in an incident's place, and what happened there, over one window of time."""

    since: float
    until: float
    charts: list[IncidentChart] = Field(default_factory=list)  # none: no series of its place were kept
    marks: list[ChartMark] = Field(default_factory=list)  # by time
