"""Which series of an incident a person wants to see, out of all that were kept, and what an action did to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from diagnostics.record import IncidentRecord, RunRecord
from diagnostics.scope import scope_text
from diagnostics.timechart import Chart, Line
from diagnostics.value_format import format_value

MAX_OWN, MAX_PEERS = 6, 8  # lines of one chart: more are a carpet
SEEN_S = 10.0  # for at least so long a run that was verified has seen what it promised
EFFECT_WINDOW_S = 60.0  # what is compared before a run began and after it ended
# Of a node that is dead or hangs, what its series still say is what they said last.
DEAD_NODE_ALERTS = frozenset({"LLMNodeDown", "LLMCoreDown", "LLMCoreStuck"})
LOST = "gateway_requests_total"
LOST_OUTCOMES = ("failed", "gave_up")


class KeySeries(NamedTuple):
    """One metric that is drawn."""

    name: str
    title: str
    unit: str


KEY_SERIES = (
    KeySeries("llm:ttft_seconds:p99", "p99 time to first token", "seconds"),
    KeySeries("llm:waiting", "Requests that wait", "count"),
    KeySeries("llm:kv_ratio", "KV cache in use", "ratio"),
    KeySeries("llm:step_seconds:mean", "Time of a decode step", "seconds"),
    KeySeries("llm:prefix_hit_ratio", "Prefix hit ratio", "ratio"),
    KeySeries("llm:requests:rate", "Requests ended per second", "per_second"),
    KeySeries(LOST, "Requests failed or given up, since the beginning of the window", "count"),
)
NAMES = frozenset(one.name for one in KEY_SERIES)

Points = Sequence[tuple[float, float | None]]
Series = tuple[Mapping[str, str], Points]


def is_key_series(labels: Mapping[str, str], scope: Mapping[str, str]) -> bool:
    """Whether the series may be drawn: of a metric above, in the incident's pool where it has one."""
    name = labels.get("__name__", "")
    if name == LOST:
        return labels.get("outcome") in LOST_OUTCOMES
    pool = scope.get("pool")
    return name in NAMES and (not pool or labels.get("pool", pool) == pool)


def key_charts(series: Iterable[Series], record: IncidentRecord) -> tuple[Chart, ...]:
    """One chart for each metric that has a value: the incident's own place first, some of its peers pale behind."""
    found: dict[str, list[Series]] = {}
    for labels, points in series:
        if is_key_series(labels, record.scope):
            found.setdefault(labels["__name__"], []).append((labels, points))
    charts = []
    for key in KEY_SERIES:
        lines = _lost_lines(found.get(key.name, ())) if key.name == LOST else _lines(found.get(key.name, ()), record)
        own = sum(one.is_own for one in lines)
        if not own:
            continue
        shown = [one for one in lines if one.is_own][:MAX_OWN] + [one for one in lines if not one.is_own][:MAX_PEERS]
        title = key.title + (f" ({MAX_OWN} of {own})" if own > MAX_OWN else "")
        charts.append(Chart(title, key.unit, tuple(shown)))
    return tuple(charts)


def effect_words(run: RunRecord, series: Iterable[Series], record: IncidentRecord) -> str:
    """What was measured in the incident's place before the run began, a minute at most and only since the incident did,
    and in the minute after it ended, or from when what it promised was seen. Of a node that was replaced it is measured
    after that at its replacement, of one that was taken out at the rest of its pool. "" where nothing was.

    A node that was dead or hung by then is not measured before: its last numbers tell of nobody's requests."""
    begun = [step.started_at for step in run.steps if step.started_at is not None]
    ended = [step.ended_at for step in run.steps if step.ended_at is not None]
    if not begun or not ended or run.status in ("proposed", "running", "approved", "verifying", "undoing"):
        return ""
    first, last = min(begun), max(ended)
    began = record.onset_at if record.onset_at is not None else record.opened_at
    since = max(first - EFFECT_WINDOW_S, began) if began < first else first - EFFECT_WINDOW_S
    replacement = run.inputs.get("replacement") if run.inputs.get("node") == record.scope.get("node") else None
    place_after = {**record.scope, "node": replacement} if replacement else dict(record.scope)
    gone = "" if replacement else _taken_out(record, first)
    if gone:
        del place_after["node"]
    seen_from = max(last, run.updated_at - SEEN_S) if run.status == "succeeded" and run.verification else last
    parts = []
    known = list(series)
    dead = {
        one.labels.get("node", "")
        for one in record.alerts
        if one.name in DEAD_NODE_ALERTS and (one.active_at or one.fired_at or 0.0) <= first
    }
    for key in KEY_SERIES:
        if key.name == LOST:
            continue
        of_key = [(labels, points) for labels, points in known if labels.get("__name__") == key.name]
        of_place = [(labels, p) for labels, p in of_key if _is_in(labels, record.scope)]
        before = _mean((p for labels, p in of_place if labels.get("node") not in dead), since, first)
        is_hollow = any(labels.get("node") in dead for labels, _ in of_place)
        of_after = (p for labels, p in of_key if _is_in(labels, place_after) and labels.get("node") != (gone or None))
        after = _mean(of_after, seen_from, seen_from + EFFECT_WINDOW_S)
        if after is not None and (before is not None or is_hollow):
            told = "not measured" if before is None else format_value(before, key.unit)
            parts.append(f"{key.title} {told} before, {format_value(after, key.unit)} after")
    rest = f" (after it: the rest of {scope_text(place_after)}, as {gone} was taken out)" if gone and parts else ""
    return "; ".join(parts) + rest


def _taken_out(record: IncidentRecord, since: float) -> str:
    """The incident's node, where it was stopped since then; "" where it was not, or where it is about several."""
    node = record.scope.get("node", "")
    events = (*record.timeline, *record.around)
    return node if any(one.kind == "node.stopped" and one.node == node and one.at >= since for one in events) else ""


def _lines(found: Sequence[Series], record: IncidentRecord) -> list[Line]:
    lines = [
        Line(labels.get("node") or labels.get("pool") or "fleet", points, _is_own(labels, record))
        for labels, points in found
    ]
    return sorted(lines, key=lambda one: (not one.is_own, one.name))


def _lost_lines(found: Sequence[Series]) -> list[Line]:
    """Each counter from its first value on, those that grew."""
    lines = []
    for labels, points in found:
        known = [(at, value) for at, value in points if value is not None and math.isfinite(value)]
        if known and known[-1][1] > known[0][1]:
            grown = tuple((at, value - known[0][1]) for at, value in known)
            lines.append(Line(f"{labels.get('outcome', '')} on {labels.get('node') or 'no node'}", grown))
    return sorted(lines, key=lambda one: one.name)


def _is_own(labels: Mapping[str, str], record: IncidentRecord) -> bool:
    """Whether the series is of the incident's place: of its node, else of every node of the place."""
    return _is_in(labels, record.scope)


def _is_in(labels: Mapping[str, str], place: Mapping[str, str]) -> bool:
    return all(labels.get(name, value) == value for name, value in place.items())


def _mean(series: Iterable[Points], since: float, until: float) -> float | None:
    values = [v for points in series for at, v in points if since <= at <= until and v is not None and math.isfinite(v)]
    return sum(values) / len(values) if values else None
