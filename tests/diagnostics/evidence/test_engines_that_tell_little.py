"""What is asked of engines that count no requests, and of pools with a few requests a minute."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.judge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 2400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))


def _then(before: float, after: float, at: float = 0.0) -> Floats:
    return np.where(BEGIN + at > AT, before, after)


def _answer(question: str, series: Mapping[str, Floats], engine: str = "llamacpp") -> str:
    places = {"node": "node-0", "pool": "chat", "model": "m", "engine": engine}
    told = {"llm:up": ALWAYS, "llm:prompt_tokens:rate": 500 * ALWAYS, **series}
    store = SeriesStore()
    store.append_matrix(
        [LabelSet.of({METRIC_NAME: name, **places}) for name in told],
        np.round(AT * 1000).astype(np.int64),
        np.array(list(told.values())),
    )
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 2400)
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question].answer


@pytest.mark.parametrize(
    ("hits", "per_minute", "answer"),
    [(0.1, 2.0, "yes"), (0.6, 2.0, "unknown"), (0.1, 0.5, "unknown"), (0.6, 40.0, "yes")],
    ids=["each of eight finds next to nothing", "eight find less", "two find nothing", "forty find less"],
)
def test_a_few_prompts_that_find_nothing_any_more_are_no_chance(hits: float, per_minute: float, answer: str) -> None:
    series = {"llm:prefix_hit_ratio": _then(0.9, hits), "llm:first_tokens:rate": per_minute / 60 * ALWAYS}
    assert _answer("shared_tokens_fell", series) == answer


@pytest.mark.parametrize(
    ("series", "answer"),
    [
        ({"llm:ttft_estimate_seconds": _then(2.0, 40.0)}, "yes"),
        ({"llm:ttft_estimate_seconds": _then(2.0, 2.1)}, "no"),
        ({"llm:ttft_estimate_seconds": _then(2.0, 40.0), "llm:ttft_seconds:mean": 2 * ALWAYS}, "no"),
        ({}, "unknown"),
    ],
    ids=["estimated", "estimated as ever", "told", "neither"],
)
def test_first_tokens_are_later_by_an_estimate_where_nobody_tells_them(
    series: Mapping[str, Floats], answer: str
) -> None:
    assert _answer("ttft_up", series) == answer


@pytest.mark.parametrize(
    ("usual", "burst", "answer"),
    [(0.02, 0.036, "no"), (0.3, 0.6, "yes")],
    ids=["three more within four minutes", "seventy more"],
)
def test_a_few_requests_more_are_no_wave(usual: float, burst: float, answer: str) -> None:
    assert _answer("arrivals_up", {"llm:arrivals:rate": _then(usual, burst, at=480.0)}) == answer


@pytest.mark.parametrize(("usual", "answer"), [(0.03, "unknown"), (1.0, "yes")], ids=["two a minute", "sixty"])
def test_a_minute_without_one_of_two_requests_is_no_fall(usual: float, answer: str) -> None:
    assert _answer("arrivals_dropped", {"llm:arrivals:rate": _then(usual, 0.0)}) == answer


@pytest.mark.parametrize(("usual", "answer"), [(0.02, "unknown"), (1.0, "yes")], ids=["four in three minutes", "many"])
def test_hits_are_lost_under_load_where_there_is_load(usual: float, answer: str) -> None:
    series = {
        "llm:arrivals:rate": _then(usual, 1.4 * usual),
        "llm:prefix_hit_ratio": _then(0.8, 0.3),
    }
    assert _answer("hits_lost_under_load", series) == answer
