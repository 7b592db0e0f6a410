"""Where no alert fires, symptoms are read against the time before the last change that lasts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.calm import look_around
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.incident import FiredAlert
from diagnostics.inquiry import diagnose_alerts
from diagnostics.tree_file import builtin_tree_files, load_trees

NOW = 1_700_000_000.0
STEP_S = 15.0
WELL = {"up": 1.0, "running": 8.0, "waiting": 0.0, "arrivals:rate": 2.0, "steps:rate": 60.0, "queue_seconds:mean": 0.01}


def _said(loading: bool = False, **changed: Callable[[np.ndarray], np.ndarray]) -> Diagnosis:
    """What is said of the pool of `_store`."""
    store = _store(loading, **changed)
    return look_around(builtin_knowledge(), load_trees(builtin_tree_files()), {"pool": "chat"}, store, NOW)


def _store(loading: bool = False, **changed: Callable[[np.ndarray], np.ndarray]) -> SeriesStore:
    """A pool of three nodes after three hours; the age of each sample in seconds to its value.

    `loading`: the controller has restarted the last of them 40 s ago, and it loads.
    """
    at = np.arange(NOW - 3 * 3600, NOW + 1, STEP_S)
    noise = np.random.default_rng(3).normal(1, 0.04, (len(changed) + len(WELL) + 2, 3, len(at)))
    levels = {name: lambda age, level=level: np.full_like(age, level) for name, level in WELL.items()}
    levels["ttft_seconds:mean"] = lambda age: np.full_like(age, 0.2)
    levels["itl_seconds:mean"] = lambda age: np.full_like(age, 0.02)
    levels |= {name.replace("__", ":"): given for name, given in changed.items()}
    store = SeriesStore()
    for (name, level), waves in zip(levels.items(), noise, strict=False):
        steady = name in ("up", "waiting")
        rows = np.array([level(NOW - at) * (1 if steady else wave) for wave in waves])
        labels = [
            LabelSet.of({METRIC_NAME: f"llm:{name}", "node": f"node-{i}", "pool": "chat", "engine": "vllm"})
            for i in range(3)
        ]
        if loading and name == "up":
            rows[2, at > NOW - 40] = 0.0
        store.append_matrix(labels, np.round(at * 1000).astype(np.int64), rows)
    if loading:
        own = {"node": "node-2", "pool": "chat"}
        facts = [
            LabelSet.of({METRIC_NAME: "fleet_node_phase", "phase": "starting", **own}),
            LabelSet.of({METRIC_NAME: "fleet_change_timestamp_seconds", "kind": "restart", **own}),
            LabelSet.of({METRIC_NAME: "llm:objective_ttft_seconds", "pool": "chat", "engine": "vllm"}),
        ]
        late = at[at > NOW - 40]
        values = np.array([np.full_like(late, one) for one in (1.0, NOW - 40, 2.5)])
        store.append_matrix(facts, np.round(late * 1000).astype(np.int64), values)
    return store


@pytest.mark.parametrize("age_s", [300.0, 900.0, 3600.0])
def test_traffic_that_was_cut_off_is_said_though_nothing_that_is_left_is_slow(age_s: float) -> None:
    said = _said(arrivals__rate=lambda age: np.where(age <= age_s, 0.0, 2.0))
    assert said.cause == "network_path"
    assert said.onset == pytest.approx(NOW - age_s, abs=60)


@pytest.mark.parametrize("age_s", [300.0, 900.0, 3600.0])
def test_decoding_that_became_slow_without_an_alert_is_still_said_an_hour_later(age_s: float) -> None:
    said = _said(itl_seconds__mean=lambda age: np.where(age <= age_s, 0.045, 0.02))
    assert said.cause == "decode_slow"
    assert said.onset == pytest.approx(NOW - age_s, abs=60)


@pytest.mark.parametrize(("age_s", "confidence"), [(30.0, "likely"), (300.0, "confirmed")])
def test_decoding_that_is_slow_for_seconds_is_not_confirmed(age_s: float, confidence: str) -> None:
    def slower(age: np.ndarray) -> np.ndarray:
        return np.where(age <= age_s, 0.045, 0.02)

    said = _said(itl_seconds__mean=slower, step_seconds__mean=slower)
    assert (said.cause, said.confidence) == ("decode_slow", confidence)


def test_what_hangs_on_what_nobody_tells_keeps_a_verdict_from_being_confirmed() -> None:
    said = _said(itl_seconds__mean=lambda age: np.where(age <= 300.0, 0.045, 0.02))
    assert (said.cause, said.confidence, said.runner_up) == ("decode_slow", "likely", "slow_node")


def test_steps_that_are_longer_because_twice_as_many_requests_come_are_nothing_wrong() -> None:
    said = _said(
        itl_seconds__mean=lambda age: np.where(age <= 3600, 0.034, 0.02),
        arrivals__rate=lambda age: np.where(age <= 3600, 4.0, 2.0),
    )
    assert (said.cause, said.confidence) == (None, "confirmed")


def test_pool_without_a_change_is_told_well() -> None:
    assert _said().title == "Nothing is wrong with pool chat: no alert, no symptom"


def test_node_that_loads_on_purpose_while_nobody_waits_is_nothing_wrong_and_is_named() -> None:
    said = _said(loading=True, ttft_seconds__p99=lambda age: np.full_like(age, 0.9))
    assert (said.cause, said.confidence) == (None, "confirmed")
    assert said.title.startswith("Nothing is wrong: node-2 is ")


def test_node_that_loads_is_the_cause_once_the_promise_is_broken_beside_it() -> None:
    said = _said(
        loading=True,
        first_tokens__rate=lambda age: np.full_like(age, 2.0),
        ttft_seconds__p99=lambda age: np.where(age < 120, 4.0, 0.9),
    )
    assert said.cause in ("cold_start", "maintenance")


@pytest.mark.parametrize(
    ("scope", "told", "cause"),
    [
        ({"pool": "chat"}, frozenset(), "decode_slow"),
        ({"pool": "chat"}, frozenset({"decode_slow"}), None),  # another incident was given it
        ({}, frozenset(), None),  # of the fleet as a whole: it is of what watches
    ],
)
def test_alert_that_says_nothing_of_what_is_wrong_does_not_hide_it(
    scope: dict[str, str], told: frozenset[str], cause: str | None
) -> None:
    store = _store(itl_seconds__mean=lambda age: np.where(age <= 900, 0.045, 0.02))
    alert = FiredAlert("a", "LLMOutputUnchecked", "ticket", "firing", dict(scope))
    trees = load_trees(builtin_tree_files())
    said = diagnose_alerts(builtin_knowledge(), trees, {}, [alert], scope, store, NOW, NOW - 600, told)
    assert said.cause == cause
    assert "No tree explains LLMOutputUnchecked" in " ".join((said.title, *said.not_known))


def test_a_process_that_ended_twice_is_told_although_it_answers_at_this_minute() -> None:
    """Where nobody tells of processes, what it counts begins anew: five minutes after the first end nothing fires."""
    store = _store()
    at = np.arange(NOW - 3600, NOW + 1, STEP_S)
    since = np.where(at < NOW - 240, at - at[0], np.where(at < NOW - 20, at - NOW + 240, at - NOW + 20))
    own = {"node": "node-1", "pool": "chat", "engine": "sglang"}
    key = LabelSet.of({METRIC_NAME: "sglang:prompt_tokens_total", **own})
    store.append_matrix([key], np.round(at * 1000).astype(np.int64), 500 * since[np.newaxis, :])
    found = look_around(builtin_knowledge(), load_trees(builtin_tree_files()), {"pool": "chat"}, store, NOW)
    assert ("ends_again", "yes") in {(one.question, one.answer) for one in found.evidence}
    assert "Nothing is wrong" not in found.title
