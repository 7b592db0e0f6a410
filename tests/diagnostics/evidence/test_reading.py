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


def test_of_a_node_that_a_deploy_started_the_deploy_is_known_and_its_own_numbers_have_no_past() -> None:
    store = SeriesStore(retention_s=DAY_S, max_points=100_000)
    for step in range(-360, 1):
        at = NOW + 10.0 * step
        store.append(LABELS, at, 3.0)  # its pool has long had traffic
        if at >= ONSET - 40.0:  # itself too short a time for a past
            new = {"pool": "chat", "node": "node-2"}
            store.append({"__name__": "llm:arrivals:rate", **new}, at, 3.0)
            store.append({"__name__": "llm:deploy_age_seconds", **new}, at, at - ONSET + 40.0)
            store.append({"__name__": "fleet_change_timestamp_seconds", "kind": "deploy", **new}, at, ONSET - 40.0)
    known = builtin_questions()
    asked = [known["changed_deploy"], known["arrivals_up"]]
    found = read_all(asked, {"node": "node-2", "pool": "chat"}, store_query(store, NOW), AskedAt(NOW, ONSET))
    assert found["changed_deploy"].answer == "yes"
    assert found["arrivals_up"].answer == "unknown"
    assert "no past to compare with" in found["arrivals_up"].why_unknown
