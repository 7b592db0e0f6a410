"""What fills up under more work, what waits without it, and a node that a gateway leaves out by turns."""

from __future__ import annotations

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

NOW = 1_700_000_000.0
BEGIN = NOW - 300
AT = np.arange(NOW - 3600, NOW + 1, 5.0)
# A healthy node: its levels before BEGIN, and after.
HEALTHY = {
    "llm:up": (1.0, 1.0),
    "llm:arrivals:rate": (2.0, 2.0),
    "llm:prompt_tokens:rate": (4000.0, 4000.0),
    "llm:prompt_tokens:mean": (2000.0, 2000.0),
    "llm:generation_tokens:rate": (400.0, 400.0),
    "llm:running": (8.0, 8.0),
    "llm:waiting": (0.0, 0.0),
    "llm:kv_ratio": (0.3, 0.3),
    "llm:step_seconds:mean": (0.02, 0.02),
}


def _answer(question: str, store: SeriesStore) -> str:
    asked = [builtin_knowledge().questions[question]]
    at = AskedAt(NOW, BEGIN, kept_since=NOW - 3600)
    return read_all(asked, {"pool": "chat"}, store_query(store, NOW), at)[question].answer


def _put(store: SeriesStore, name: str, labels: dict[str, str], values: Floats) -> None:
    own = LabelSet.of({METRIC_NAME: name, **labels})
    store.append_matrix([own], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :])


def _pool(**since: float) -> SeriesStore:
    """Three nodes whose levels are healthy, and since BEGIN these."""
    store = SeriesStore()
    named = {f"llm:{name.replace('__', ':')}": value for name, value in since.items()}
    for number in range(3):
        place = {"node": f"node-{number}", "pool": "chat", "engine": "vllm"}
        for name, (before, after) in (HEALTHY | dict.fromkeys(named.keys() - HEALTHY.keys(), (0.0, 0.0))).items():
            _put(store, name, place, np.where(AT < BEGIN, before, named.get(name, after)))
    return store


@pytest.mark.parametrize(
    ("since", "answer"),
    [
        ({"arrivals__rate": 4.0, "kv_ratio": 1.0}, "yes"),
        ({"arrivals__rate": 4.0, "waiting": 20.0}, "yes"),
        ({"arrivals__rate": 4.0, "rejected__rate": 1.0}, "yes"),
        ({"arrivals__rate": 4.0}, "no"),
        ({"kv_ratio": 1.0, "waiting": 20.0}, "no"),
    ],
    ids=["the cache is full", "a queue", "refused for want of room", "there is room", "full without more work"],
)
def test_work_fills_a_pool_where_more_comes_and_no_room_is_left(since: dict[str, float], answer: str) -> None:
    assert _answer("load_fills", _pool(**since)) == answer


@pytest.mark.parametrize(
    ("since", "answer"),
    [
        ({"waiting": 12.0}, "yes"),
        ({}, "no"),
        ({"waiting": 12.0, "arrivals__rate": 3.0}, "no"),
        ({"waiting": 12.0, "running": 20.0}, "no"),
        ({"waiting": 12.0, "kv_ratio": 0.99}, "no"),
        ({"waiting": 12.0, "prompt_tokens__mean": 6000.0}, "no"),
        ({"waiting": 12.0, "generation_tokens__rate": 40.0}, "no"),
        ({"waiting": 12.0, "step_seconds__mean": 0.05}, "no"),
    ],
    ids=["nothing else changed", "nobody waits", "more come", "more run", "no cache", "longer", "stuck", "slower"],
)
def test_requests_wait_without_more_work_where_nothing_that_costs_time_has_changed(
    since: dict[str, float], answer: str
) -> None:
    assert _answer("waits_without_work", _pool(**since)) == answer


def test_node_that_was_left_out_a_minute_ago_is_still_told_as_left_out() -> None:
    store = _pool()
    out: Floats = np.where((NOW - 100 < AT) & (NOW - 60 > AT), 1.0, 0.0)
    _put(store, "gateway_node_ejected", {"node": "node-1", "reason": "reset"}, out)
    assert _answer("gateway_ejects", store) == "yes"


@pytest.mark.parametrize(
    ("since", "answer"),
    [
        ({"step_seconds__mean": 0.036}, "yes"),
        ({"step_seconds__mean": 0.032, "running": 16.0}, "unknown"),
        ({"step_seconds__mean": 0.036, "running": 32.0}, "no"),
        ({"running": 32.0}, "no"),
    ],
    ids=["by themselves", "a little more than the batch explains", "as the batch explains", "not at all"],
)
def test_steps_cost_more_where_their_batch_does_not_explain_it(since: dict[str, float], answer: str) -> None:
    assert _answer("steps_cost_more", _pool(**since)) == answer


@pytest.mark.parametrize(("before", "after", "answer"), [(0.02, 0.024, "yes"), (0.024, 0.024, "no")])
def test_node_falls_behind_that_was_as_quick_as_its_peers(before: float, after: float, answer: str) -> None:
    store = _pool()
    slow = {"node": "node-9", "pool": "chat", "engine": "vllm"}
    _put(store, "llm:step_seconds:mean", slow, np.where(AT < BEGIN, before, after))
    assert _answer("fell_behind", store) == answer


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [(0.02, 0.4, "yes"), (0.3, 0.4, "no"), (0.3, 0.9, "yes"), (0.02, 0.15, "unknown")],
    ids=["nobody waited", "they always waited", "three times as long as ever", "a little"],
)
def test_wait_is_news_where_it_is_longer_than_it_always_was(before: float, after: float, answer: str) -> None:
    store = _pool()
    for number in range(3):
        place = {"node": f"node-{number}", "pool": "chat", "engine": "vllm"}
        _put(store, "llm:queue_seconds:mean", place, np.where(AT < BEGIN, before, after))
    assert _answer("queue_waits", store) == answer
    assert _answer("queue_everywhere", store) == answer


def test_fewer_seem_to_come_behind_a_queue_where_nobody_counts_who_came() -> None:
    assert _answer("arrivals_down", _pool(arrivals__rate=0.6)) == "yes"
    assert _answer("arrivals_down", _pool(arrivals__rate=0.6, backlog_seconds=30.0)) == "unknown"
