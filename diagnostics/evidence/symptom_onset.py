"""When what the alerts of a place tell of began, by the symptom series of their trees; where its past ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from alerts.errors import BadExpressionError, QueryError
from alerts.promql import evaluate_series
from alerts.series.store import SeriesStore
from diagnostics.evidence.onset import LOOK_BACK_S, Onset, find_onset
from diagnostics.query import AskedAt, bind_query

ONSET_STEP_S = 15.0
YOUNG_STEP_S = (
    5.0  # of a record's first minutes: where it began in them, a minute of past is twelve samples (MIN_BEFORE)
)
YOUNG_S = 300.0
AGED_S = 600.0  # alerts that began so soon after the record did have no past; and a change needs as much before it
OLD_S = 5400.0  # alerts that have stood for so long are how it always is: what joins them is another story
DRIFT_S = 3600.0  # of alerts that have always stood, where nothing changed at once: what crept up is so young
LEAST_DRIFT_S = 900.0  # and has so much of the record before it, at the least
LEAST_PAST_S = 90.0  # of a record: half a minute until rates have values, and a minute of them


def onset_of_alerts(
    templates: Sequence[str],
    others: Sequence[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    active_at: float,
    now: float,
) -> Onset:
    """When what the alerts tell of began.

    Alerts as old as the record leave nothing to compare with, and those that have stood for hours are how it always is:
    where something has changed since, for good, that change is asked about; what the alerts tell of comes first. Where
    nothing changed at once, now is compared with an hour ago, or with as early as there is a past: what creeps up has
    no moment.
    """
    onset = onset_of_series(templates, scope, store, active_at, now)
    since = kept_since(store)
    if since is None or not has_always_stood(onset.at, onset.early, since, now):
        return onset
    for asked in (templates, others):
        later = onset_of_series(asked, scope, store, now, now, not_before=since + AGED_S)
        if onset.late < later.at < now:
            return later
    return replace(onset, past_until=min(now, max(since + AGED_S + LEAST_DRIFT_S, now - DRIFT_S)))


def has_always_stood(began: float, early: float, since: float, now: float) -> bool:
    """Whether what began then, or `early`, is as old as the record, which began at `since`, or how it always is."""
    age_s = now - began
    return age_s >= OLD_S or (early - since < AGED_S and age_s >= AGED_S)


def onset_of_series(
    templates: Iterable[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    active_at: float,
    now: float,
    look_back_s: float = LOOK_BACK_S,
    not_before: float = -math.inf,
) -> Onset:
    """When what the alerts tell of began, by the trees' own symptom series for the scope."""
    since = kept_since(store)
    series = []
    for template in templates:
        query, why = bind_query(template, scope, AskedAt(now, active_at))
        if why:
            continue
        try:
            series.append(_symptom(query, store, active_at - look_back_s, now, since))
        except (BadExpressionError, QueryError):
            continue
    onset = find_onset(series, active_at, now, look_back_s, not_before)
    if since is None:
        return onset
    # Of a young record a past that may hold the first seconds of it says more than none.
    return replace(onset, early=min(onset.at, max(onset.early, since + LEAST_PAST_S)))


def _symptom(
    query: str, store: SeriesStore, start: float, end: float, since: float | None
) -> list[tuple[float, float]]:
    """The first series of a query, denser in the first minutes of the record. Raises BadExpressionError, QueryError."""
    young_until = start if since is None else since + YOUNG_S
    points: list[tuple[float, float]] = []
    if young_until > start:
        steps = math.ceil((young_until - start) / ONSET_STEP_S)  # the others stay on their grid
        last = min(end, start + steps * ONSET_STEP_S - YOUNG_STEP_S)
        young = evaluate_series(query, store, max(start, since or start), last, YOUNG_STEP_S)
        points += [point for _, found in young[:1] for point in found]
        start += steps * ONSET_STEP_S
    rest = evaluate_series(query, store, start, end, ONSET_STEP_S) if start <= end else []
    return points + [point for _, found in rest[:1] for point in found]


def asked_at(onset: Onset, store: SeriesStore, now: float) -> AskedAt:
    """When a question is asked about what began then."""
    return AskedAt(now, onset.compares_until, onset.late, began=onset.at, kept_since=kept_since(store))


def kept_since(store: SeriesStore) -> float | None:
    """When the record begins (Unix seconds)."""
    bounds = store.bounds()
    return None if bounds is None else bounds[0]
