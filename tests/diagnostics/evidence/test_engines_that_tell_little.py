"""What is asked of engines that count no requests, and of pools with a few requests a minute."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import AskedAt, store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 600
AT = np.arange(BEGIN - 2400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))


def _then(before: float, after: float, at: float = 0.0) -> Floats:
    return np.where(BEGIN + at > AT, before, after)


def _asked(question: str, *nodes: Mapping[str, Floats], engine: str = "llamacpp") -> Evidence:
    store = SeriesStore()
    for number, series in enumerate(nodes):
        places = {"node": f"node-{number}", "pool": "chat", "model": "m", "engine": engine}
        told = {"llm:up": ALWAYS, "llm:prompt_tokens:rate": 500 * ALWAYS, **series}
        for name, values in told.items():
            known_at = ~np.isnan(values)
            store.append_matrix(
                [LabelSet.of({METRIC_NAME: name, **places})],
                np.round(AT[known_at] * 1000).astype(np.int64),
                values[np.newaxis, known_at],
            )
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 2400)
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question]


def _answer(question: str, *nodes: Mapping[str, Floats], engine: str = "llamacpp") -> str:
    return _asked(question, *nodes, engine=engine).answer


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


def _node(step_s: Floats, reads_s: float = 0.2, begun: float = 1.0, running: float = 8.0) -> dict[str, Floats]:
    return {
        "llm:step_seconds:mean": step_s,
        "llm:prefill_seconds:mean": reads_s * ALWAYS,
        "llm:first_tokens:rate": begun * ALWAYS,
        "llm:running": running * ALWAYS,
    }


@pytest.mark.parametrize(
    ("odd", "answer"),
    [
        (_node(_then(0.02, 0.026)), "yes"),
        (_node(_then(0.02, 0.026), reads_s=0.6), "no"),
        (_node(_then(0.02, 0.026), running=20.0), "no"),
    ],
    ids=["with as much to do", "reads more prompts beside its steps", "has a larger batch"],
)
def test_a_node_that_reads_more_or_runs_more_than_its_peers_is_no_straggler(
    odd: Mapping[str, Floats], answer: str
) -> None:
    like = _node(0.02 * ALWAYS)
    assert _answer("slower_beyond_work", odd, like, like, engine="sglang") == answer
    assert "slower_beyond_work" in str(builtin_knowledge().expectations["straggler"].must)


@pytest.mark.parametrize(
    ("peers", "answer"), [(0.02, "yes"), (0.04, "no")], ids=["its peers' come as ever", "its peers' are as slow"]
)
def test_a_mean_over_nodes_of_which_one_is_slow_is_none_of_all_nodes(peers: float, answer: str) -> None:
    slow = _node(_then(0.02, 0.08))
    like = _node(_then(0.02, peers))
    assert _answer("few_slower", slow, like, like, engine="trtllm") == answer


@pytest.mark.parametrize(("now", "answer"), [(0.9, "yes"), (0.06, "no")], ids=["most of the time", "as good as never"])
def test_a_server_that_reads_most_of_the_time_is_seen_to(now: float, answer: str) -> None:
    assert _answer("reads_more", {"llm:reading_slots": _then(0.05, now)}) == answer


@pytest.mark.parametrize(
    ("of_peers", "answer"),
    [(0.75, "yes"), (0.5, "no")],
    ids=["its peers end its share too", "its share is missing"],
)
def test_trtllm_node_of_which_nothing_ends_is_starved_where_its_peers_end_what_it_should_have_had(
    of_peers: float, answer: str
) -> None:
    starved = {"llm:requests:rate": _then(0.5, 0.0), "llm:arrivals:rate": np.where(BEGIN > AT, 0.5, np.nan)}
    like = {"llm:requests:rate": _then(0.5, of_peers), "llm:arrivals:rate": _then(0.5, of_peers)}
    assert _answer("node_starved", starved, like, like, engine="trtllm") == answer


def test_what_no_engine_of_the_scope_tells_is_said_by_its_name() -> None:
    told = {"llm:running": ALWAYS}
    assert _asked("kv_full", told).why_unknown == "no series has data: llama.cpp's server tells none"
    assert _asked("kv_full", told, engine="vllm").why_unknown == "no series has data"
    assert _asked("kv_full", told, engine="something-else").why_unknown == "no series has data"


@pytest.mark.parametrize(("waiting", "running", "answer"), [(3.0, 0.0, "yes"), (0.0, 1.0, "yes"), (0.0, 0.0, "no")])
def test_who_waits_three_minutes_at_a_slot_that_is_free_is_held_by_a_server_that_hangs(
    waiting: float, running: float, answer: str
) -> None:
    hangs = {
        "llm:steps:rate": _then(40.0, 0.0),
        "llm:running": _then(1.0, running),
        "llm:waiting": _then(0.0, waiting),
    }
    works = {"llm:steps:rate": 40 * ALWAYS, "llm:running": ALWAYS, "llm:waiting": 0 * ALWAYS}
    assert _answer("no_steps", hangs, works) == answer


@pytest.mark.parametrize(
    ("running", "step_s", "answer"),
    [(12.0, 0.04, "yes"), (12.0, 0.12, "no"), (2.0, 0.04, "no")],
    ids=["six times as many at once", "and steps six times as long", "as many as ever"],
)
def test_steps_that_are_as_long_as_their_batch_needs_are_more_work_and_not_slow(
    running: float, step_s: float, answer: str
) -> None:
    series = {"llm:running": _then(2.0, running), "llm:step_seconds:mean": _then(0.02, step_s)}
    assert _answer("batch_explains", series) == answer
