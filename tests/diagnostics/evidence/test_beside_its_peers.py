"""Nodes that fall silent together, a card that may draw less than the others, and one that nobody has reset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.evidence.score import rank_causes
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 1800
AT = np.arange(BEGIN - 1800, NOW + 1, 15.0)
ALWAYS = np.ones(len(AT))


def _store(**series: Sequence[Floats]) -> SeriesStore:
    """Of each name `llm:<name>` one series per node."""
    store = SeriesStore()
    for name, rows in series.items():
        labels = [
            LabelSet.of(
                {METRIC_NAME: f"llm:{name.replace('__', ':')}", "node": f"node-{n}", "pool": "chat", "gpu": "0"}
            )
            for n in range(len(rows))
        ]
        store.append_matrix(labels, np.round(AT * 1000).astype(np.int64), np.array(rows))
    return store


def _answer(question: str, store: SeriesStore) -> str:
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 1800)
    known = builtin_knowledge().questions
    return read_all([known[question]], {"pool": "chat"}, store_query(store, NOW), asked)[question].answer


def _silent_from(at: float) -> Floats:
    values: Floats = np.where(at <= AT, 0.0, 1.0)
    return values


@pytest.mark.parametrize(
    ("silent_from", "answer"),
    [
        ((BEGIN, BEGIN + 60), "yes"),
        ((BEGIN,), "no"),
        ((BEGIN, BEGIN + 900), "no"),
        ((BEGIN - 1200, BEGIN), "no"),
        ((BEGIN, BEGIN, BEGIN + 30), "no"),
    ],
    ids=["two at once", "one", "another one a quarter of an hour later", "one long before", "half of the pool"],
)
def test_several_nodes_are_silent_together(silent_from: tuple[float, ...], answer: str) -> None:
    up = [*map(_silent_from, silent_from), *[ALWAYS] * (6 - len(silent_from))]
    assert _answer("several_silent", _store(up=up)) == answer


@pytest.mark.parametrize(
    ("watts", "is_limited", "answer"),
    [(150.0, 1.0, "yes"), (290.0, 1.0, "no"), (150.0, 0.0, "unknown")],
    ids=["held at half", "at the limit of all", "it has less to do"],
)
def test_card_is_capped_whose_limit_is_far_below_its_peers_power(watts: float, is_limited: float, answer: str) -> None:
    store = _store(
        gpu_power_watts=[watts * ALWAYS, *[300 * ALWAYS] * 3],
        gpu_utilization_ratio=[0.9 * ALWAYS] * 4,
        gpu_throttled_sw_power=[is_limited * ALWAYS, *[0 * ALWAYS] * 3],
    )
    read = _answer("gpu_power_capped", store)
    assert read == answer or (answer == "no" and read == "unknown")  # it tells a yes alone


@pytest.mark.parametrize(
    ("watts", "is_limited", "is_said"),
    [(200.0, 1.0, True), (300.0, 1.0, False), (200.0, 0.0, False)],
    ids=["less than before", "as much as before", "it has less to do"],
)
def test_limit_that_was_lowered_on_all_cards_is_seen_by_what_they_drew(
    watts: float, is_limited: float, is_said: bool
) -> None:
    """No peer shows it: all are held alike."""
    store = _store(
        up=[ALWAYS] * 4,
        prompt_tokens__rate=[2000 * ALWAYS] * 4,
        gpu_power_watts=[np.where(AT < BEGIN, 290.0, watts)] * 4,
        gpu_utilization_ratio=[0.9 * ALWAYS] * 4,
        gpu_throttled_sw_power=[is_limited * ALWAYS] * 4,
    )
    assert (_answer("gpu_limit_lowered", store) == "yes") == is_said
    assert _answer("gpu_power_capped", store) != "yes"


@pytest.mark.parametrize(("steps", "answer"), [(0.0, "yes"), (60.0, "unknown")], ids=["stands still", "computes"])
def test_xid_of_half_an_hour_ago_counts_while_its_node_takes_no_step(steps: float, answer: str) -> None:
    store = _store(
        up=[ALWAYS, ALWAYS],
        steps__rate=[np.where(AT < BEGIN, 60.0, steps), 60 * ALWAYS],
        running=[5 * ALWAYS, 5 * ALWAYS],
        waiting=[0 * ALWAYS, 0 * ALWAYS],
    )
    during = (AT >= BEGIN) & (AT < BEGIN + 300)
    labels = LabelSet.of({METRIC_NAME: "llm:gpu_critical_xids", "node": "node-0", "pool": "chat", "gpu": "0"})
    store.append_matrix([labels], np.round(AT[during] * 1000).astype(np.int64), ALWAYS[np.newaxis, during])
    assert _answer("gpu_xid", store) == answer


@pytest.mark.parametrize(
    ("of_one", "of_all", "answer"), [(4.0, 1.0, "yes"), (1.1, 1.0, "no"), (4.0, 4.0, "no")], ids=["one", "none", "all"]
)
def test_of_engines_that_tell_no_steps_each_node_s_tokens_are_held_against_its_peers(
    of_one: float, of_all: float, answer: str
) -> None:
    tpot = [0.02 * np.where(AT < BEGIN, 1.0, times) for times in (of_one, of_all, of_all, of_all)]
    assert _answer("slow_tokens", _store(up=[ALWAYS] * 4, tpot_seconds__mean=tpot)) == answer


@pytest.mark.parametrize(
    ("times", "phase", "answer"), [(30.0, "ready", "yes"), (30.0, "starting", "unknown"), (2.0, "ready", "no")]
)
def test_a_node_that_is_ready_by_its_word_and_far_slower_does_not_warm_up(
    times: float, phase: str, answer: str
) -> None:
    store = _store(up=[ALWAYS] * 4, step_seconds__mean=[times * 0.02 * ALWAYS, *[0.02 * ALWAYS] * 3])
    labels = LabelSet.of({METRIC_NAME: "fleet_node_phase", "node": "node-0", "pool": "chat", "phase": phase})
    store.append_matrix([labels], np.round(AT * 1000).astype(np.int64), ALWAYS[np.newaxis, :])
    assert _answer("slow_though_ready", store) == answer
    assert "slow_though_ready" in builtin_knowledge().expectations["cold_start"].never


def test_a_node_whose_tokens_are_slow_is_no_pool_that_decodes_slowly() -> None:
    known = builtin_knowledge()
    seen = ["slow_tokens", "itl_up", "tokens_slower", "e2e_up", "ttft_up", "slower_than_peers", "queue_waits"]
    unknown = ["slow_steps", "fell_far_behind", "steps_slower_than_before", "steps_cost_more", "fell_behind"]
    readings = {
        name: Evidence(name, name, "yes" if name in seen else "unknown" if name in unknown else "no")
        for name in known.questions
    }
    ranking = rank_causes(known.expectations, known.questions, readings, ["latency"], "pool")
    assert ranking.best.causes == ("slow_node",)


def test_where_steps_are_told_they_alone_are_asked() -> None:
    tpot = [0.08 * ALWAYS, *[0.02 * ALWAYS] * 3]
    told = _store(up=[ALWAYS] * 4, tpot_seconds__mean=tpot, step_seconds__mean=[0.02 * ALWAYS] * 4)
    assert _answer("slow_tokens", told) == "no"
