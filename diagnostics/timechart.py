"""A line chart over time as SVG: nothing but shapes and text, with its styles on the page that holds it. Pure.

Points come as (Unix seconds, value); a gap is where a series went stale. Every text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape, quoteattr

from diagnostics.value_format import format_value

WIDTH, HEIGHT = 860.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 12.0, 24.0, 26.0
MAX_COLUMNS = 400  # more points than pixels tell nothing
COLOURS = ("#0b62a4", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#008b8b", "#8b4513", "#556b2f")
TICKS_S = (5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `is_own`: of the incident's place; others are drawn pale."""

    name: str
    points: Points
    is_own: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment to be seen in every chart."""

    at: float
    text: str
    kind: str  # a CSS class: onset, alert, verdict, action, end


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn over one window of time."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    limit: float | None = None  # a promise or a limit, as a dashed line


def draw_chart(chart: Chart, marks: Sequence[Mark], since: float, until: float) -> str:
    """The chart as one `<svg>` element; "" when no line has a finite value in the window."""
    lines = [(one, thinned(one.points, since, until)) for one in chart.lines]
    lines = [(one, points) for one, points in lines if any(value is not None for _, value in points)]
    values = [value for _, points in lines for _, value in points if value is not None]
    if not values or until <= since:
        return ""
    top = max(*values, chart.limit or 0.0, 1e-9) * 1.08
    low = min(0.0, *values)

    def x_of(at: float) -> float:
        return LEFT + (at - since) / (until - since) * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (top - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label={quoteattr(chart.title)}>',
        f'<text class="title" x="{LEFT:.0f}" y="14">{escape(chart.title)}</text>',
    ]
    for step in range(4):
        value = low + (top - low) / 1.08 * step / 3
        y = y_of(value)
        parts.append(f'<line class="grid" x1="{LEFT:.0f}" x2="{WIDTH - RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        told = escape(format_value(value, chart.unit))
        parts.append(f'<text class="tick" x="{LEFT - 6:.0f}" y="{y + 3:.1f}" text-anchor="end">{told}</text>')
    tick_s = next((one for one in TICKS_S if (until - since) / one <= 10), TICKS_S[-1])
    at = math.ceil(since / tick_s) * tick_s
    while at <= until:
        clock = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if tick_s < 60 else "%H:%M")
        parts.append(f'<text class="tick" x="{x_of(at):.1f}" y="{HEIGHT - 8:.0f}" text-anchor="middle">{clock}</text>')
        at += tick_s
    for mark in marks:
        if since <= mark.at <= until:
            x = x_of(mark.at)
            parts.append(
                f'<line class="mark {escape(mark.kind)}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:.0f}"'
                f' y2="{HEIGHT - BOTTOM:.0f}"><title>{escape(mark.text)}</title></line>'
            )
    if chart.limit is not None:
        y = y_of(chart.limit)
        parts.append(f'<line class="limit" x1="{LEFT:.0f}" x2="{WIDTH - RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    own = [one for one, _ in lines if one.is_own]
    for one, points in sorted(lines, key=lambda pair: pair[0].is_own):
        colour = COLOURS[own.index(one) % len(COLOURS)] if one.is_own else "#b9c0c7"
        for run in _runs(points):
            path = " ".join(f"{x_of(at):.1f},{y_of(value):.1f}" for at, value in run)
            if len(run) == 1:
                path += " " + path
            parts.append(
                f'<polyline class="{"own" if one.is_own else "peer"}" stroke="{colour}" points="{path}">'
                f"<title>{escape(one.name)}</title></polyline>"
            )
    legend = LEFT + 8 * len(chart.title) + 24
    for number, one in enumerate(own[:6]):
        name = one.name if len(one.name) <= 28 else one.name[:27] + "…"
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<text class="legend" x="{legend:.0f}" y="14" fill="{colour}">{escape(name)}</text>')
        legend += 7 * len(name) + 16
    parts.append("</svg>")
    return "".join(parts)


def thinned(points: Points, since: float, until: float) -> list[tuple[float, float | None]]:
    """At most two points a column, its lowest and its highest: no peak is lost. NaN and infinity are gaps."""
    columns: dict[int, list[tuple[float, float]]] = {}
    gaps: dict[int, float] = {}
    for at, value in points:
        if not since <= at <= until:
            continue
        column = int((at - since) / (until - since) * MAX_COLUMNS)
        if value is None or not math.isfinite(value):
            gaps.setdefault(column, at)
        else:
            columns.setdefault(column, []).append((at, value))
    kept: list[tuple[float, float | None]] = []
    for column in sorted(columns.keys() | gaps.keys()):
        found = columns.get(column)
        if found is None:
            kept.append((gaps[column], None))
            continue
        extremes = {min(found, key=lambda one: one[1]), max(found, key=lambda one: one[1])}
        kept += sorted(extremes)
    return kept


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The stretches between gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]
