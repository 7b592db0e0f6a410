"""What is unusual against the half hour before is held against this hour of other days too, where they were kept."""

from __future__ import annotations

import pytest

from alerts.series.store import SeriesStore
from diagnostics.evidence.question_file import builtin_questions
from diagnostics.evidence.reading import DAY_S, read_all
from diagnostics.query import AskedAt, store_query

NOW = 1_700_000_000.0
ONSET = NOW - 300.0
NAME = "arrivals_up"
LABELS = {"__name__": "llm:arrivals:rate", "pool": "chat", "node": "node-1"}


def store_with(
    before: float, now: float, *, yesterday: float | None = None, last_week: float | None = None
) -> SeriesStore:
    """Arrivals a second: before and after the onset, and around this hour of other days."""
    store = SeriesStore(retention_s=10 * DAY_S, max_points=100_000)
    days = [(7 * DAY_S, last_week), (DAY_S, yesterday)]
    for ago_s, rate in days:
        for step in range(-240, 120) if rate is not None else ():
            store.append(LABELS, NOW - ago_s + 10.0 * step, rate)
    for step in range(-360, 1):
        at = NOW + 10.0 * step
        store.append(LABELS, at, now if at >= ONSET else before)
    return store


def usual_of(store: SeriesStore) -> tuple[str, str]:
    question = builtin_questions()[NAME]
    found = read_all([question], {"pool": "chat"}, store_query(store, NOW), AskedAt(NOW, ONSET))[NAME]
    return found.answer, found.usual


@pytest.mark.parametrize(
    ("yesterday", "last_week", "said"),
    [
        (30.0, None, "against this hour yesterday no, 1.0×"),
        (10.0, 30.0, "against this hour yesterday yes, 3.0×, a week ago no, 1.0×"),
        (None, None, ""),
    ],
)
def test_a_rise_says_what_this_hour_of_other_days_was(
    yesterday: float | None, last_week: float | None, said: str
) -> None:
    assert usual_of(store_with(10.0, 30.0, yesterday=yesterday, last_week=last_week)) == ("yes", said)


def test_what_is_as_before_is_held_against_no_other_day() -> None:
    assert usual_of(store_with(10.0, 10.0, yesterday=1.0)) == ("no", "")
