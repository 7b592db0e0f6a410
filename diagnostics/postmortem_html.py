"""The post-mortem as one HTML file: what the Markdown page states, and its key series with onset, alerts and actions.

It needs nothing from anywhere: no script, no style sheet, no font and no picture. The statements come from the Markdown
page, so that the two never differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markdown_it import MarkdownIt

from diagnostics.diagnosis_history import verdict_changes
from diagnostics.key_series import Series, key_charts
from diagnostics.postmortem import PostmortemInput, began_at, render
from diagnostics.record import IncidentRecord
from diagnostics.timechart import Chart, Mark, draw_chart

CHARTS_BEFORE = "<h2>How long it took</h2>"
ROLLOUTS = "rollout."  # kinds of events begin so
LEAD_S = 600.0  # drawn before the onset, or as long as the incident lasted if that is more

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1c2430;max-width:920px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid #d8dde3}h3{font-size:1rem}
table{border-collapse:collapse;width:100%;font-size:13px;display:block;overflow-x:auto}
th,td{border:1px solid #d8dde3;padding:3px 8px;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{background:#f2f4f7}code{font-size:12px;background:#f2f4f7;padding:0 3px;overflow-wrap:anywhere}
svg{width:100%;height:auto;margin:.4rem 0;background:#fff}svg text{font:11px system-ui,sans-serif;fill:#5a6572}
svg .title{font-weight:600;fill:#1c2430}svg .grid{stroke:#e6eaee}svg .limit{stroke:#c0392b;stroke-dasharray:5 4}
svg polyline{fill:none;stroke-width:1.6}svg .peer{stroke-width:1}svg .mark{stroke-width:1.4}
svg .onset{stroke:#c0392b}svg .alert{stroke:#e08a00;stroke-dasharray:3 3}
svg .verdict{stroke:#6a4c93;stroke-dasharray:2 3}
svg .action{stroke:#2e8b57}
svg .deploy{stroke:#0b62a4;stroke-dasharray:6 3}svg .end{stroke:#7f8c8d}
.key span{margin-right:1.2em}.key .onset{color:#c0392b}.key .alert{color:#b36b00}.key .verdict{color:#6a4c93}
.key .action{color:#2e8b57}
.key .deploy{color:#0b62a4}.key .end{color:#5a6572}@media print{body{margin:0;max-width:none}}
"""
_KEY = (
    ("onset", "it began"),
    ("alert", "an alert fired"),
    ("verdict", "a verdict"),
    ("action", "a run began or ended"),
    ("deploy", "a rollout"),
    ("end", "resolved"),
)


def render_html(report: PostmortemInput, series: Iterable[Series]) -> str:
    """The page. `series`: those that were kept; which of them are drawn is judged in `key_series`."""
    incident = report.incident
    # Raw HTML is off: a text that got through the Markdown page's own escaping is shown, never a tag.
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(render(report))
    title = escape(f"Post-mortem: {incident.title}")
    drawn = _drawn(key_charts(series, incident), report)
    before, found, after = body.partition(CHARTS_BEFORE)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n{before}{drawn}{found}{after}</body></html>\n"
    )


def marks_of(incident: IncidentRecord) -> list[Mark]:
    """Onset, alerts, verdicts, runs, rollouts and the end, in time."""
    marks = [Mark(began_at(incident), "it began", "onset")]
    marks += [Mark(one.fired_at, f"{one.name} fired", "alert") for one in incident.alerts if one.fired_at is not None]
    marks += [
        Mark(one.at, f"verdict: {one.cause or 'no cause'} ({one.confidence})", "verdict")
        for one in verdict_changes(incident)
    ]
    for run in incident.runs:
        begun = [step.started_at for step in run.steps if step.started_at is not None]
        ended = [step.ended_at for step in run.steps if step.ended_at is not None]
        if begun:
            marks.append(Mark(min(begun), f"{run.runbook} began ({run.id})", "action"))
        if begun and ended:
            marks.append(Mark(max(ended), f"{run.runbook}: {run.status} ({run.id})", "action"))
    told = {event.seq: event for event in (*incident.around, *incident.timeline) if event.kind.startswith(ROLLOUTS)}
    marks += [Mark(event.at, event.text, "deploy") for event in told.values()]
    if incident.resolved_at is not None:
        marks.append(Mark(incident.resolved_at, "resolved", "end"))
    return sorted(marks, key=lambda one: one.at)


def drawn_window(incident: IncidentRecord, now: float) -> tuple[float, float]:
    """From when until when its charts go: as long before the onset as after it, ten minutes at least."""
    until = incident.resolved_at or now
    began = began_at(incident)
    return began - max(LEAD_S, until - began), until


def _drawn(charts: Sequence[Chart], report: PostmortemInput) -> str:
    incident = report.incident
    since, until = drawn_window(incident, report.written_at)
    marks = marks_of(incident)
    pictures = []
    for chart in charts:
        limit = report.impact.objective_ttft_s if "first token" in chart.title else None
        pictures.append(draw_chart(Chart(chart.title, chart.unit, chart.lines, limit), marks, since, until))
    shown = "\n".join(one for one in pictures if one)
    if not shown:
        return "<h2>What was measured</h2>\n<p>No series of its place were kept.</p>\n"
    key = "".join(f'<span class="{kind}">│ {escape(text)}</span>' for kind, text in _KEY)
    return f'<h2>What was measured</h2>\n<p class="key">{key}Times are UTC; pale lines are its peers.</p>\n{shown}\n'
