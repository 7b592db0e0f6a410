"""Whose numbers count for a share, how long a cache is full, and a card that fills up after a start."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 300
AT = np.arange(BEGIN - 5400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))
POOL = {"pool": "chat"}


def _from(begin_s: float, before: float, after: float) -> Floats:
    values: Floats = np.where(begin_s + BEGIN <= AT, after, before)
    return values


def _answer(question: str, told: Mapping[str, Mapping[str, Floats]], began: float = BEGIN) -> str:
    """Of what each node tells, `NaN` where it tells nothing: the pool's answer."""
    store = SeriesStore(retention_s=7200.0)
    for node, series in told.items():
        for name, values in series.items():
            labels = LabelSet.of({METRIC_NAME: name, "node": node, **POOL, "model": "m", "engine": "vllm"})
            kept = ~np.isnan(values)
            if kept.any():
                store.append_matrix([labels], np.round(AT[kept] * 1000).astype(np.int64), values[kept][np.newaxis, :])
    asked = AskedAt(NOW, began, began, kept_since=BEGIN - 5400)
    found = read_all([builtin_knowledge().questions[question]], POOL, store_query(store, NOW), asked)
    return found[question].answer


WORKS = {"llm:arrivals:rate": 2 * ALWAYS, "llm:up": ALWAYS, "llm:heartbeats:changes": 23 * ALWAYS}


@pytest.mark.parametrize(
    ("beats", "up", "is_told"),
    [
        pytest.param(23 * ALWAYS, ALWAYS, True, id="is sent nothing"),
        pytest.param(_from(0, 23.0, 0.0), ALWAYS, False, id="numbers stand still"),
        pytest.param(23 * ALWAYS, _from(0, 1.0, np.nan), False, id="is not scraped"),
    ],
)
@pytest.mark.parametrize("question", ["node_starved", "load_uneven"])
def test_a_node_whose_numbers_stand_still_or_are_not_scraped_has_no_share(
    question: str, beats: Floats, up: Floats, is_told: bool
) -> None:
    silent = {"llm:arrivals:rate": _from(0, 2.0, 0.0), "llm:up": up, "llm:heartbeats:changes": beats}
    assert (_answer(question, {"node-0": WORKS, "node-1": WORKS, "node-2": silent}) == "yes") is is_told


@pytest.mark.parametrize(
    ("full_for_s", "preempts", "past", "is_told"),
    [
        pytest.param(15.0, 0.0, 0.97, True, id="some seconds"),
        pytest.param(90.0, 0.0, 0.97, False, id="a minute and a half"),
        pytest.param(15.0, 0.4, 0.97, False, id="some seconds, and somebody lost blocks"),
        pytest.param(15.0, 0.0, 0.7, False, id="some seconds, and never before"),
    ],
)
def test_a_cache_that_is_full_for_some_seconds_as_ever_is_no_pressure(
    full_for_s: float, preempts: float, past: float, is_told: bool
) -> None:
    is_full = (NOW - 20 - full_for_s < AT) & (NOW - 20 >= AT)
    was_full = (BEGIN - 915 < AT) & (BEGIN - 900 >= AT)
    node = {
        "llm:kv_ratio": np.where(is_full, 0.99, np.where(was_full, past, 0.7)),
        "llm:preemptions:rate": preempts * ALWAYS,
    }
    assert (_answer("full_for_a_moment", {"node-0": node}) == "yes") is is_told


@pytest.mark.parametrize(("started_s", "is_told"), [(-1320.0, True), (-120.0, False)])
def test_a_card_that_fills_up_well_after_a_start_ran_full(started_s: float, is_told: bool) -> None:
    """What an engine takes at its start it holds; what comes twenty minutes later is no part of it."""
    node = {
        "llm:gpu_memory_ratio": _from(0, 0.88, 0.998),
        "llm:deploy_age_seconds": np.maximum(AT - BEGIN - started_s, 0.0),
        "llm:failed:rate": _from(0, 0.0, 0.3),
        "llm:served:rate": 2 * ALWAYS,
    }
    assert (_answer("memory_ran_full", {"node-0": node}) == "yes") is is_told


@pytest.mark.parametrize(("slow_for_s", "is_told"), [(60.0, True), (900.0, False)])
def test_a_node_that_is_slower_for_a_minute_is_no_straggler(slow_for_s: float, is_told: bool) -> None:
    """Of six healthy nodes one was a fifth slower than the middle one for a minute: a straggler, 98 % sure."""
    alike = {"llm:step_seconds:mean": 0.02 * ALWAYS, "llm:up": ALWAYS}
    slow = {"llm:step_seconds:mean": np.where(NOW - slow_for_s < AT, 0.024, 0.02), "llm:up": ALWAYS}
    assert (
        _answer("slower_by_turns", {"node-0": alike, "node-1": alike, "node-2": slow}, began=NOW - 1200) == "yes"
    ) is is_told
