"""What one of several nodes, or a few requests of many, have: lost in a mean, and not the others' doing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis, Evidence
from diagnostics.evidence.judge import judge
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import read_all
from diagnostics.query import NO_DATA, AskedAt, store_query

NOW = 1_700_000_000.0
AT = np.arange(NOW - 5400, NOW + 1, 5.0)
SINCE = NOW - 300
POOL = {"pool": "chat"}

Level = float | Callable[[np.ndarray], np.ndarray]
Series = tuple[str, dict[str, str], Level]


def _then(before: float, after: float, at: float = SINCE) -> Callable[[np.ndarray], np.ndarray]:
    return lambda times: np.where(times < at, before, after)


def _of(number: int, engine: str = "vllm", **more: str) -> dict[str, str]:
    return {"node": f"node-{number}", "pool": "chat", "model": "m", "engine": engine, **more}


def _answer(question: str, *series: Series, scope: dict[str, str] = POOL, since: float = SINCE) -> str:
    store = SeriesStore()
    for name, labels, level in series:
        values = level(AT) if callable(level) else np.full_like(AT, level)
        key = LabelSet.of({METRIC_NAME: name, **labels})
        store.append_matrix([key], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :])
    at = AskedAt(NOW, since, kept_since=NOW - 5400)
    return read_all([builtin_knowledge().questions[question]], scope, store_query(store, NOW), at)[question].answer


def _judged(tree: str, yes: str, unknown: str = "", scope: dict[str, str] = POOL) -> Diagnosis:
    """All other questions of the package answered no."""
    known = builtin_knowledge()
    assert {*yes.split(), *unknown.split()} <= known.questions.keys()
    words = dict.fromkeys(known.questions, "no") | dict.fromkeys(yes.split(), "yes")
    words |= dict.fromkeys(unknown.split(), "unknown")
    readings = {name: Evidence(name, name, word, why_unknown=NO_DATA) for name, word in words.items()}
    return judge(known, [tree] if tree else [], [], scope, SeriesStore(), NOW, known=readings)


@pytest.mark.parametrize(
    ("age_s", "peer", "prompts", "answer"),
    [(300.0, 0.9, 0.04, "yes"), (3000.0, 0.9, 0.04, "no"), (300.0, 0.1, 0.04, "no"), (300.0, 0.9, 0.0, "no")],
    ids=["one of two started", "started long ago", "its peer finds as little", "it has read none since"],
)
def test_an_empty_cache_of_one_node_is_seen_by_a_few_prompts(
    age_s: float, peer: float, prompts: float, answer: str
) -> None:
    told: list[Series] = [("llm:up", _of(number), 1.0) for number in (1, 2)]
    told += [("llm:first_tokens:rate", _of(number), prompts) for number in (1, 2)]
    told += [("llm:prefix_hit_ratio", _of(1), _then(0.9, peer)), ("llm:prefix_hit_ratio", _of(2), _then(0.9, 0.1))]
    told += [("llm:deploy_age_seconds", _of(1), 80000.0), ("llm:deploy_age_seconds", _of(2), age_s)]
    assert _answer("node_finds_less", *told) == answer


def test_a_start_that_left_one_cache_empty_is_a_cold_cache_until_it_has_filled() -> None:
    seen = "node_finds_less node_promise_broken restarted_before prefill_slower"
    assert _judged("", f"{seen} started_lately started_after_peers").cause == "cold_cache"
    assert _judged("", seen, "started_lately started_after_peers").cause == "cold_cache", "twenty minutes, not ten"
