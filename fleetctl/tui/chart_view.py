"""An incident's key series as lines of blocks, with onset, alerts, rollouts and runs marked above them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.tui.cell import BLOCKS, UNKNOWN, Cell, StorySection, Tone, clip, clock_time, quantity
from fleetctl.wire.chart import ChartLine, ChartMark, IncidentChart, IncidentCharts

COLUMNS = 48  # beside its name and last value it fits in the narrowest place that an incident is shown in
NAME_WIDTH = 12
MAX_OWN, MAX_PEERS = 3, 3  # lines of one chart
MARKS = {"onset": "o", "alert": "a", "verdict": "v", "action": "r", "deploy": "d", "end": "e"}
_RANKS = ("onset", "deploy", "action", "end", "alert", "verdict")  # which is shown where two fall into one column
_KEY = "o it began   a alert   v verdict   r run   d rollout   e end"

Row = tuple[Cell, ...]


def chart_section(charts: IncidentCharts | None, unknown: str = "") -> StorySection:
    """All charts over one line of marks."""
    if charts is None:
        return StorySection(Cell(f"Charts: not known{f': {unknown}' if unknown else ' yet'}", Tone.DIM))
    if not charts.charts:
        return StorySection(Cell("Charts: no series of its place were kept", Tone.DIM))
    rows: list[Row] = [(Cell(""), Cell(marks_line(charts.marks, charts.since, charts.until), Tone.WARN), Cell(""))]
    for chart in charts.charts:
        rows += _rows(chart)
    heading = f"Measured {clock_time(charts.since)} to {clock_time(charts.until)} UTC"
    return StorySection(Cell(heading, Tone.STRONG), tuple(rows), (Cell(_KEY, Tone.DIM),))


def marks_line(marks: list[ChartMark], since: float, until: float) -> str:
    """A letter in the column of each moment."""
    line = [" "] * COLUMNS
    for mark in sorted(marks, key=lambda one: -_RANKS.index(one.kind) if one.kind in _RANKS else 0):
        if until > since and mark.kind in MARKS:
            line[min(COLUMNS - 1, int((mark.at - since) / (until - since) * COLUMNS))] = MARKS[mark.kind]
    return "".join(line)


def _rows(chart: IncidentChart) -> Iterator[Row]:
    known = [value for line in chart.lines for value in line.values if value is not None]
    top = max(known, default=0.0)
    told = f"{chart.title}, up to {_value(top, chart.unit)}"
    promised = f", promised {_value(chart.limit, chart.unit)}" if chart.limit is not None else ""
    yield Cell(""), Cell(told + promised, Tone.DIM), Cell("")
    own = [line for line in chart.lines if line.is_own][:MAX_OWN]
    peers = [line for line in chart.lines if not line.is_own][:MAX_PEERS]
    for line in (*own, *peers):
        last = line.values[-1] if line.values else None
        is_late = chart.limit is not None and last is not None and last > chart.limit
        tone = Tone.BAD if is_late else Tone.PLAIN if line.is_own else Tone.DIM
        yield (
            Cell(clip(line.name, NAME_WIDTH), Tone.STRONG if line.is_own else Tone.DIM),
            Cell(blocks(line, top), Tone.BUSY if line.is_own else Tone.DIM),
            Cell(_value(last, chart.unit), tone, right=True),
        )


def blocks(line: ChartLine, top: float) -> str:
    """From nothing up to the highest of the chart, so that lines compare; a gap where nothing was known."""
    step = len(BLOCKS) - 1
    return "".join(
        " " if value is None else BLOCKS[0 if top <= 0 else round(max(0.0, value) / top * step)]
        for value in line.values
    )


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if unit == "count" else quantity(value, unit)
