"""The charts of an incident's page for a screen of characters: each line in so many columns, with marks. Pure."""

from __future__ import annotations

from diagnostics.key_series import key_charts
from diagnostics.postmortem_html import drawn_window, marks_of
from diagnostics.timechart import Line, Points, thinned
from fleetctl.controller.incidents.incident_report import IncidentReport
from fleetctl.wire.chart import ChartLine, ChartMark, IncidentChart, IncidentCharts

MAX_COLUMNS = 400


def charts_view(report: IncidentReport, num_columns: int) -> IncidentCharts:
    """The series that its page draws, over the same time."""
    columns = max(1, min(num_columns, MAX_COLUMNS))
    since, until = drawn_window(report.record, report.until)
    charts = []
    for chart in key_charts(report.series, report.record):
        lines = [_line(one, since, until, columns) for one in chart.lines]
        lines = [one for one in lines if any(value is not None for value in one.values)]
        if lines:
            limit = report.impact.objective_ttft_s if "first token" in chart.title else None
            charts.append(IncidentChart(title=chart.title, unit=chart.unit, limit=limit, lines=lines))
    marks = [
        ChartMark(at=mark.at, text=mark.text, kind=mark.kind)
        for mark in marks_of(report.record)
        if since <= mark.at <= until
    ]
    return IncidentCharts(since=since, until=until, charts=charts, marks=marks)


def _line(line: Line, since: float, until: float, columns: int) -> ChartLine:
    return ChartLine(name=line.name, is_own=line.is_own, values=highest(line.points, since, until, columns))


def highest(points: Points, since: float, until: float, columns: int) -> list[float | None]:
    """The highest value of each column: no peak is lost. None where nothing was known."""
    found: list[float | None] = [None] * columns
    for at, value in thinned(points, since, until):
        if value is not None:
            column = min(columns - 1, int((at - since) / (until - since) * columns))
            before = found[column]
            found[column] = value if before is None else max(value, before)
    return found
