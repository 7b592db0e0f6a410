"""In a pool of two engines a node is held against those of its own engine; one without such a peer against nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Evidence
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.evidence.reading import AskedAt, read_all
from diagnostics.query import store_query

BEGIN = 1_700_000_000.0
NOW = BEGIN + 300
AT = np.arange(BEGIN - 2400, NOW + 1, 15.0)
QUICK, SLOW = 0.02, 0.05  # seconds of a step of the one engine and of the other, as ever
POOL = {"pool": "chat"}


def _steps(before: float, after: float | None = None) -> Floats:
    values: Floats = np.where(AT < BEGIN, before, before if after is None else after)
    return values


def _read(question: str, nodes: Sequence[tuple[str, Floats]], scope: Mapping[str, str]) -> Evidence:
    """`nodes`: engine and seconds of a step of each, called node-0 and so on."""
    store = SeriesStore()
    ones = np.ones(len(AT))
    for number, (engine, steps) in enumerate(nodes):
        places = {"node": f"node-{number}", "pool": "chat", "model": "m", "engine": engine}
        of = {
            "llm:step_seconds:mean": steps,
            "llm:ttft_seconds:mean": 10 * steps,
            "llm:up": ones,
            "llm:running": 4 * ones,
            "llm:prompt_tokens:rate": 500 * ones,
        }
        labels = [LabelSet.of({METRIC_NAME: name, **places}) for name in of]
        store.append_matrix(labels, np.round(AT * 1000).astype(np.int64), np.array(list(of.values())))
    asked = AskedAt(NOW, BEGIN, BEGIN, kept_since=BEGIN - 2400)
    known = builtin_knowledge().questions
    return read_all([known[question]], scope, store_query(store, NOW), asked)[question]


QUESTIONS = ("slow_steps", "steps_slower", "fell_behind", "fell_far_behind", "slower_than_peers")
VLLM, SGLANG = ("vllm", _steps(SLOW)), ("sglang", _steps(QUICK))
HEALTHY = (VLLM, VLLM, VLLM, SGLANG, SGLANG, SGLANG)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("scope", [POOL, POOL | {"node": "node-0"}, POOL | {"node": "node-5"}])
def test_nodes_of_the_slower_engine_are_not_slow(question: str, scope: Mapping[str, str]) -> None:
    assert _read(question, HEALTHY, scope).answer == "no"


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("scope", [POOL, POOL | {"node": "node-5"}])
def test_a_node_of_the_quicker_engine_that_falls_to_the_pace_of_the_other_is_slow(
    question: str, scope: Mapping[str, str]
) -> None:
    nodes = (*HEALTHY[:5], ("sglang", _steps(QUICK, SLOW)))
    assert _read(question, nodes, scope).answer == "yes"


@pytest.mark.parametrize("question", QUESTIONS)
def test_of_a_node_without_a_peer_of_its_engine_nobody_knows_whether_it_is_slow(question: str) -> None:
    nodes = (("vllm", _steps(SLOW, 3 * SLOW)), SGLANG, SGLANG, SGLANG)
    assert _read(question, nodes, POOL | {"node": "node-0"}).answer == "unknown"


def test_the_peers_of_a_pool_of_two_engines_are_slower_where_those_of_both_are() -> None:
    slower = (("vllm", _steps(SLOW, 2 * SLOW)), ("sglang", _steps(QUICK, 2 * QUICK)))
    assert _read("peers_slower_than_before", 2 * slower, POOL).answer == "yes"
    assert _read("peers_slower_than_before", (slower[0], slower[0], SGLANG, SGLANG), POOL).answer == "no"
