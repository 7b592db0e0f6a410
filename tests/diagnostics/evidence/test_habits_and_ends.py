"""What was always so is no news, and how a process ended tells who ended it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

NOW = 1_700_000_000.0
AT = np.arange(NOW - 3600, NOW + 1, 5.0)
SINCE = NOW - 300

Level = float | Callable[[np.ndarray], np.ndarray]
OWN = {"node": "node-1", "pool": "chat", "engine": "trtllm"}


def _then(before: float, after: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda at: np.where(at < SINCE, before, after)


def _answer(question: str, *series: tuple[str, dict[str, str], Level]) -> str:
    store = SeriesStore()
    for name, labels, level in series:
        values = level(AT) if callable(level) else np.full_like(AT, level)
        store.append_matrix(
            [LabelSet.of({METRIC_NAME: name, **labels})], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :]
        )
    asked = [builtin_knowledge().questions[question]]
    at = AskedAt(NOW, SINCE, kept_since=NOW - 3600)
    return read_all(asked, {"pool": "chat"}, store_query(store, NOW), at)[question].answer


def _own(**levels: Level) -> list[tuple[str, dict[str, str], Level]]:
    up: Level = 1.0
    return [(f"llm:{name.replace('__', ':')}", OWN, level) for name, level in {"up": up, **levels}.items()]


@pytest.mark.parametrize(("before", "now", "answer"), [(0.33, 0.33, "no"), (0.05, 0.33, "yes"), (0.01, 0.02, "no")])
def test_clients_that_hang_up_as_they_always_did_are_no_symptom(before: float, now: float, answer: str) -> None:
    told = _own(aborted__rate=_then(before, now), requests__rate=1.0)
    assert _answer("clients_hang_up", *told) == answer


@pytest.mark.parametrize(
    ("tokens", "ended", "failed", "answer"),
    [
        (_then(200.0, 800.0), 1.0, 0.0, "yes"),
        (200.0, _then(1.0, 0.3), _then(0.0, 0.7), "no"),  # those that failed after their tokens
        (_then(4.0, 40.0), 0.02, 0.0, "unknown"),  # five in four minutes: chance
        (_then(2.0, 400.0), _then(0.005, 1.0), 0.0, "unknown"),  # nine in half an hour: what they were is chance too
    ],
)
def test_answers_are_longer_in_tokens_of_all_that_ended(
    tokens: Level, ended: Level, failed: Level, answer: str
) -> None:
    told = _own(generation_tokens__rate=tokens, requests__rate=ended, failed__rate=failed)
    assert _answer("answers_longer", *told) == answer


def test_after_an_overload_in_which_the_short_ones_ended_lengths_compare_nothing() -> None:
    told = {"generation_tokens__rate": _then(200.0, 800.0), "requests__rate": 1.0, "served__rate": 1.0}
    assert _answer("answers_longer", *_own(**told, arrivals__rate=1.0)) == "yes"
    assert _answer("answers_longer", *_own(**told, arrivals__rate=_then(5.0, 1.0))) == "unknown"


@pytest.mark.parametrize(("batch", "people", "answer"), [(60.0, 20.0, "yes"), (15.0, 45.0, "no"), (5.0, 16.0, "no")])
def test_tenant_whose_requests_hold_the_seats_is_seen_whatever_number_it_sends(
    batch: float, people: float, answer: str
) -> None:
    told = [
        ("gateway_tenant_running_requests", {"tenant": "batch"}, _then(5.0, batch)),
        ("gateway_tenant_running_requests", {"tenant": "people"}, _then(15.0, people)),
    ]
    assert _answer("tenant_holds_more", *told) == answer


def _ended(status: float, waiting: float) -> list[tuple[str, dict[str, str], Level]]:
    gone = _then(np.nan, status)
    return [
        *_own(running=48.0, waiting=waiting),
        ("fleet_node_process_up", OWN, _then(1.0, 0.0)),
        ("fleet_node_exit_status", OWN, lambda at: np.where(at < NOW - 120, np.nan, gone(at))),
    ]


@pytest.mark.parametrize(
    ("status", "waiting", "told"), [(143, 120, True), (-15, 120, True), (139, 120, False), (143, 3, False)]
)
def test_node_that_is_told_to_end_while_its_queue_is_full_is_told_from_one_that_fails(
    status: float, waiting: float, told: bool
) -> None:
    assert (_answer("ended_when_full", *_ended(status, waiting)) == "yes") is told
    assert _answer("ended_unasked", *_ended(status, waiting)) == ("no" if status in (143, -15) else "yes")


@pytest.mark.parametrize(("before", "failed", "told"), [(0.9, 2.0, True), (0.99, 2.0, False), (0.9, 0.0, False)])
def test_card_that_filled_up_is_out_of_memory_where_its_node_fails(before: float, failed: float, told: bool) -> None:
    series = _own(gpu_memory_ratio=_then(before, 0.99), failed__rate=_then(0.0, failed), served__rate=_then(2.0, 0.1))
    assert (_answer("memory_ran_full", *series) == "yes") is told


@pytest.mark.parametrize(
    ("status", "comes_back", "since_s", "returns", "stays"),
    [
        (134.0, 1.0, 60.0, "yes", "no"),
        (134.0, 0.0, 60.0, "no", "yes"),  # nobody starts it unasked
        (143.0, 1.0, 60.0, "no", "yes"),  # it was told to end
        (134.0, 1.0, 400.0, "no", "yes"),  # it was given its time
    ],
)
def test_what_its_platform_starts_again_is_away_for_five_minutes_at_most(
    status: float, comes_back: float, since_s: float, returns: str, stays: str
) -> None:
    def away(value: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda at: np.where(at < NOW - since_s, np.nan, value)

    told = [
        ("fleet_node_process_up", OWN, lambda at: np.where(at < NOW - since_s, 1.0, 0.0)),
        ("fleet_node_exit_status", OWN, away(status)),
        ("fleet_node_comes_back", OWN, away(comes_back)),
    ]
    assert (_answer("ended_and_returns", *told), _answer("stays_away", *told)) == (returns, stays)


def test_nodes_that_end_by_themselves_within_an_hour_have_it_in_common() -> None:
    def ended(node: str, ago_s: float) -> list[tuple[str, dict[str, str], Level]]:
        places = OWN | {"node": node}

        def is_away(at: np.ndarray) -> np.ndarray:
            return (at >= NOW - ago_s) & (at < NOW - ago_s + 60)

        return [
            ("fleet_node_process_up", places, lambda at: np.where(is_away(at), 0.0, 1.0)),
            ("fleet_node_exit_status", places, lambda at: np.where(is_away(at), 134.0, np.nan)),
        ]

    assert _answer("several_ended", *ended("node-1", 600), *ended("node-2", 2400)) == "yes"
    assert _answer("several_ended", *ended("node-1", 600)) == "no"
