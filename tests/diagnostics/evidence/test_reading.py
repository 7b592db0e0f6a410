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


def store_of_prompts(past: list[tuple[float, float]], now: float = 5000.0) -> SeriesStore:
    """A pool that was there for half an hour: `past` has prompt tokens a second from so long before the onset on."""
    store = SeriesStore(retention_s=DAY_S, max_points=100_000)
    for step in range(-360, 1):
        at = NOW + 5.0 * step
        before_s = ONSET - at
        rate = next((rate for since_s, rate in reversed(past) if before_s <= since_s), 0.0) if before_s > 0 else now
        for node in ("node-1", "node-2"):
            own = {"pool": "chat", "node": node}
            store.append({"__name__": "llm:up", **own}, at, 1.0)
            store.append({"__name__": "llm:limit", "limit": "prefill_chunk_tokens", **own}, at, 2048.0)
            store.append({"__name__": "llm:prompt_tokens:rate", **own}, at, rate)
            if rate:
                store.append({"__name__": "llm:prompt_tokens:p99", **own}, at, 9000.0 if rate > 100 else 24.0)
    return store


LENGTHS, FACTS = "longest_prompts_grew", "chunking_off"


def read_of(store: SeriesStore) -> tuple[str, str, str]:
    """What is said of lengths, why it is unknown, and what is said of limits."""
    known = builtin_questions()
    asked = [known[LENGTHS], known[FACTS]]
    found = read_all(asked, {"pool": "chat"}, store_query(store, NOW), AskedAt(NOW, ONSET))
    return found[LENGTHS].answer, found[LENGTHS].why_unknown, found[FACTS].answer


@pytest.mark.parametrize(
    ("past", "why"),
    [
        pytest.param([], "no traffic is known", id="idle"),
        pytest.param([(1500.0, 1.2)], "traffic is known from 0 ms", id="health checks"),
        pytest.param([(40.0, 5000.0)], "the least is 60 s", id="too young"),
        pytest.param([(1500.0, 1.2), (200.0, 5000.0)], "as health checks are", id="mostly health checks"),
    ],
)
def test_idle_minutes_and_health_checks_are_no_past_of_traffic_and_limits_have_one(
    past: list[tuple[float, float]], why: str
) -> None:
    lengths, why_unknown, facts = read_of(store_of_prompts(past))
    assert (lengths, facts) == ("unknown", "no")
    assert why in why_unknown


def test_minutes_of_users_are_a_past_although_nobody_came_before() -> None:
    assert read_of(store_of_prompts([(150.0, 5000.0)]))[0] == "no"


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


def answers_of_a_silent_node(*told: tuple[dict[str, str], float]) -> dict[str, str]:
    """What is answered of node-2 that has just fallen silent: its last numbers are still in the store."""
    store = SeriesStore(retention_s=DAY_S, max_points=100_000)
    node = {"pool": "chat", "node": "node-2"}
    for step in range(-60, 1):
        at = NOW + 10.0 * step
        store.append({"__name__": "llm:up", **node}, at, 1.0 if step < -2 else 0.0)
        store.append({"__name__": "llm:steps:rate", **node}, at, 20.0)
        store.append({"__name__": "llm:node_state", "state": "loading", **node}, at, 0.0)
        for labels, value in told:
            store.append({**labels, **node}, at, value)
    known = builtin_questions()
    asked = [known[name] for name in ("gpu_gone", "loading", "queue_waits")]
    found = read_all(asked, node, store_query(store, NOW), AskedAt(NOW, NOW - 30))
    return {name: one.answer for name, one in found.items()}


def test_what_others_know_of_a_silent_node_is_evidence() -> None:
    missing = ({"__name__": "llm:gpu_cards_missing"}, 1.0)
    why = ({"__name__": "llm:gpu_critical_xids"}, 1.0)
    starts = ({"__name__": "fleet_node_phase", "phase": "starting"}, 1.0)
    answers = answers_of_a_silent_node(missing, why, starts)
    assert answers == {"gpu_gone": "yes", "loading": "yes", "queue_waits": "unknown"}


def test_the_last_numbers_of_a_silent_node_are_none_and_nobody_says_no_in_its_place() -> None:
    assert set(answers_of_a_silent_node().values()) == {"unknown"}


def answer_to(question: str, *levels: tuple[str, float, float]) -> str:
    """What is answered of the pool: series with their level before the onset and since; of a counter its rate."""
    store = SeriesStore(retention_s=DAY_S, max_points=100_000)
    totals = dict.fromkeys((name for name, _, _ in levels), 0.0)
    for step in range(-360, 1):
        at = NOW + 10.0 * step
        for name, before, since in levels:
            level = before if at < ONSET else since
            totals[name] += 10.0 * level
            is_counter = name.endswith(("_sum", "_count"))
            store.append({"__name__": name, "pool": "chat", "node": "n1"}, at, totals[name] if is_counter else level)
    asked = AskedAt(NOW, ONSET, kept_since=NOW - 3600)
    found = read_all([builtin_questions()[question]], {"pool": "chat"}, store_query(store, NOW), asked)
    return found[question].answer


@pytest.mark.parametrize(
    ("before", "since", "answer"),
    [
        (0.2, 0.62, "yes"),  # less than half a second, and twice what it ever was
        (0.7, 0.75, "no"),  # a far region: it was never sooner
        (0.2, 0.25, "no"),
    ],
)
def test_time_is_lost_on_the_way_where_more_of_it_is_than_before(before: float, since: float, answer: str) -> None:
    first_tokens = ("llm:ttft_seconds:mean", 0.2, 0.2)
    counted = ("gateway_ttft_seconds_count", 2.0, 2.0)
    assert (
        answer_to("lost_on_the_way", first_tokens, counted, ("gateway_ttft_seconds_sum", 2 * before, 2 * since))
        == answer
    )


@pytest.mark.parametrize(
    ("before", "since", "answer"),
    [(0.72, 0.85, "yes"), (0.0, 0.5, "yes"), (0.72, 0.73, "no"), (0.72, 0.4, "no"), (0.96, 0.99, "unknown")],
)
def test_requests_that_are_sent_again_are_found_in_the_cache(before: float, since: float, answer: str) -> None:
    assert answer_to("prompts_repeat", ("llm:prefix_hit_ratio", before, since)) == answer


@pytest.mark.parametrize(("requests", "answer"), [(2.0, "yes"), (0.2, "unknown")])
def test_few_prompts_say_nothing_of_what_prompts_share(requests: float, answer: str) -> None:
    first_tokens = ("llm:first_tokens:rate", 2.0, requests)
    assert answer_to("shared_tokens_fell", ("llm:prefix_hit_ratio", 0.7, 0.4), first_tokens) == answer
