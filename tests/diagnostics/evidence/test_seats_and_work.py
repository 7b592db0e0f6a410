"""Too few seats, or too much work: what a person does about the one is nothing against the other."""

from __future__ import annotations

import numpy as np
import pytest

from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import diagnose
from diagnostics.evidence.knowledge import builtin_knowledge
from diagnostics.incident import FiredAlert
from diagnostics.inquiry import diagnose_alerts
from diagnostics.tree_file import builtin_tree_files, load_trees

NOW = 1_700_000_000.0
BEGAN = NOW - 240.0
AT = np.arange(NOW - 3600, NOW + 1, 5.0)


def _said(arrivals: float, full: tuple[str, ...], engine: str = "vllm") -> Diagnosis:
    trees = load_trees(builtin_tree_files())
    store = _store(arrivals, full, engine)
    return diagnose(builtin_knowledge(), [trees["capacity"]], {"pool": "chat"}, store, NOW, BEGAN + 15)


def _store(arrivals: float, full: tuple[str, ...], engine: str = "vllm") -> SeriesStore:
    """Two nodes of four seats that have always had half a request a second; those in `full` are full now, and the
    others are asked for nothing, of which TensorRT-LLM's server tells nothing."""
    noise = np.random.default_rng(3)
    store = SeriesStore()
    for node in ("node-1", "node-2"):
        is_full = node in full
        share = arrivals / len(full) if is_full else 0.0
        levels = {
            "up": (1.0, 1.0),
            "arrivals:rate": (0.5, share),
            "prompt_tokens:rate": (500.0, min(share, 1.0) * 1000),
            "generation_tokens:rate": (100.0, 200 * min(share, 1.0)),
            "served:rate": (0.5, min(share, 1.0)),
            "requests:rate": (0.5, min(share, 1.0)),
            "running": (2.0, 4.0 if is_full else None),
            "seats": (4.0, 4.0),
            "waiting": (0.0, 40.0 if is_full else None),
            "queue_seconds:mean": (0.01, 30.0 if is_full else None),
            "ttft_seconds:mean": (0.3, 30.0 if is_full else None),
            "kv_ratio": (0.1, 0.2 if is_full else 0.0),
        }
        for name, (before, after) in levels.items():
            gone = engine == "trtllm" and after is None
            at = AT[AT < BEGAN] if gone else AT
            values = np.where(at < BEGAN, before, after or 0.0)
            if name not in ("up", "seats"):
                values = values * noise.normal(1, 0.02, len(at))
            values = np.minimum(values, 4.0) if name == "running" else values
            place = {"node": node, "pool": "chat", "model": "m", "engine": engine}
            labels = LabelSet.of({METRIC_NAME: f"llm:{name}", **place})
            store.append_matrix([labels], np.round(at * 1000).astype(np.int64), values[np.newaxis, :])
    return store


@pytest.mark.parametrize(("arrivals", "cause"), [(12.0, "overload"), (1.1, "seats_full")])
def test_many_times_the_usual_work_is_never_a_want_of_seats(arrivals: float, cause: str) -> None:
    assert _said(arrivals, ("node-1", "node-2")).cause == cause


def test_incident_of_a_model_in_two_pools_is_asked_about_the_pool_whose_alerts_are_left() -> None:
    store = _store(12.0, ("node-1", "node-2"))
    idle = LabelSet.of({METRIC_NAME: "llm:up", "node": "node-9", "pool": "batch", "model": "m", "engine": "vllm"})
    store.append_matrix([idle], np.round(AT * 1000).astype(np.int64), np.ones((1, len(AT))))
    places = (("chat", "firing"), ("batch", "resolved"))
    alerts = [
        FiredAlert(pool, "LLMQueueGrowing", "page", state, {"pool": pool, "model": "m"}, active_at=BEGAN + 15)
        for pool, state in places
    ]
    trees = load_trees(builtin_tree_files())
    said = diagnose_alerts(builtin_knowledge(), trees, {}, alerts, {"model": "m"}, store, NOW, BEGAN + 15)
    assert said.cause == "overload"


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_seats_of_one_node_that_are_full_while_its_peer_is_sent_nothing_are_routing(engine: str) -> None:
    said = _said(1.5, ("node-1",), engine)
    assert said.cause == "routing_skew"
    assert all(one.answer != "yes" for one in said.evidence if one.question == "queue_everywhere")
