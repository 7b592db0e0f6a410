"""Alerts that have stood since the record began: what got worse since is asked about."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import diagnose
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.tree_file import builtin_tree_files, load_trees

NOW = 1_700_000_000.0
BEGAN = NOW - 5400.0
GREW = NOW - 900.0


def _said(arrivals: Callable[[np.ndarray], np.ndarray]) -> Diagnosis:
    """What is said of a pool whose requests have always waited half a second; the queue grows with what arrives."""
    at = np.arange(BEGAN, NOW + 1, 15.0)
    noise = np.random.default_rng(5).normal(1, 0.03, (8, len(at)))
    load = arrivals(at)
    levels = {
        "up": np.ones_like(at),
        "arrivals:rate": load,
        "prompt_tokens:rate": 2000 * load,
        "waiting": 2 * load**2,
        "running": 8 * load,
        "queue_seconds:mean": 0.5 * load**2,
        "ttft_seconds:mean": 0.8 * load**2,
        "steps:rate": np.full_like(at, 60.0),
    }
    store = SeriesStore()
    for wave, (name, values) in zip(noise, levels.items(), strict=True):
        labels = LabelSet.of({METRIC_NAME: f"llm:{name}", "node": "node-1", "pool": "chat", "engine": "vllm"})
        row = values if name == "up" else values * wave
        store.append_matrix([labels], np.round(at * 1000).astype(np.int64), row[np.newaxis, :])
    trees = load_trees(builtin_tree_files())
    return diagnose(builtin_knowledge(), [trees["capacity"]], {"pool": "chat"}, store, NOW, BEGAN + 30)


def _answer(said: Diagnosis, question: str) -> str:
    return next((one.answer for one in said.evidence if one.question == question), "not asked")


def test_more_arrivals_under_an_alert_as_old_as_the_record_are_seen_against_the_time_before_them() -> None:
    said = _said(lambda at: np.where(at < GREW, 1.0, 2.0))
    assert said.onset == pytest.approx(GREW, abs=60)
    assert _answer(said, "arrivals_up") == "yes"


def test_where_nothing_changed_since_the_alerts_keep_their_own_beginning() -> None:
    said = _said(np.ones_like)
    assert said.onset == pytest.approx(BEGAN + 30, abs=60)
    assert _answer(said, "arrivals_up") != "yes"


def test_what_crept_up_under_alerts_that_have_always_stood_is_seen_against_an_hour_ago() -> None:
    """No moment at which it changed: against its last half hour it never rises."""
    said = _said(lambda at: np.clip(1.0 + (at - (NOW - 3600)) / 3600, 1.0, None))
    assert _answer(said, "arrivals_up") == "yes"
    assert _answer(_said(np.ones_like), "arrivals_up") == "no"


def test_what_other_trees_show_is_asked_about_under_alerts_that_have_always_stood() -> None:
    """First tokens are as late as ever, and lately clients hang up: no series of the alert shows it."""
    at = np.arange(BEGAN, NOW + 1, 15.0)
    noise = np.random.default_rng(7).normal(1, 0.03, (8, len(at)))
    levels = {
        "up": np.ones_like(at),
        "arrivals:rate": np.full_like(at, 2.0),
        "requests:rate": np.full_like(at, 2.0),
        "prompt_tokens:rate": np.full_like(at, 4000.0),
        "ttft_seconds:mean": np.full_like(at, 0.9),
        "aborted:rate": np.where(at < GREW, 0.02, 0.9),
    }
    store = SeriesStore()
    for wave, (name, values) in zip(noise, levels.items(), strict=False):
        labels = LabelSet.of({METRIC_NAME: f"llm:{name}", "node": "node-1", "pool": "chat", "engine": "vllm"})
        row = values if name == "up" else values * wave
        store.append_matrix([labels], np.round(at * 1000).astype(np.int64), row[np.newaxis, :])
    trees = load_trees(builtin_tree_files())
    said = diagnose(builtin_knowledge(), [trees["latency"]], {"pool": "chat"}, store, NOW, BEGAN + 30)
    assert said.onset == pytest.approx(GREW, abs=60)
    assert said.cause == "client_disconnects"
