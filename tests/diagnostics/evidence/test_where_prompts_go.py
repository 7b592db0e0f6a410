"""What tells routing from prompts where the prefix cache finds less: a router's own count, load, or nobody."""

from __future__ import annotations

from collections.abc import Callable

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
AT = np.arange(BEGIN - 1800, NOW + 1, 5.0)
ASKED = ("routed_apart", "routing_untold", "hits_lost_under_load")


def _step(before: float, after: float) -> Floats:
    return np.where(AT < BEGIN, before, after)


def _count(before: float, after: float) -> Floats:
    """A counter that rises by so much a second."""
    counted: Floats = np.cumsum(_step(before, after) * 5.0)
    return counted


def _answers(hits_after: float, arrivals_after: float, nodes: int = 3, **router: Floats) -> dict[str, str]:
    """Of a pool whose nodes found 0.7 of two requests' 400 prompt tokens each second; `router`: what a router tells."""
    store = SeriesStore()
    found: Callable[[str, dict[str, str], Floats], None] = lambda name, labels, values: store.append_matrix(  # noqa: E731
        [LabelSet.of({METRIC_NAME: name, **labels})], np.round(AT * 1000).astype(np.int64), values[np.newaxis, :]
    )
    for number in range(nodes):
        labels = {"node": f"node-{number}", "pool": "chat", "engine": "sglang"}
        found("llm:up", labels, _step(1.0, 1.0))
        found("llm:prefix_hit_ratio", labels, _step(0.7, hits_after))
        found("llm:prompt_tokens:rate", labels, _step(800.0, 400.0 * arrivals_after))
        found("llm:arrivals:rate", labels, _step(2.0, arrivals_after))
    for name, values in router.items():
        found(name, {"job": "router"}, values)
    questions = [builtin_knowledge().questions[name] for name in ASKED]
    scope = {"pool": "chat"}
    read = read_all(questions, scope, store_query(store, NOW), AskedAt(NOW, BEGIN, kept_since=BEGIN - 1800))
    return {name: one.answer for name, one in read.items()}


@pytest.mark.parametrize("router", ["sgl_router", "vllm_router"])
@pytest.mark.parametrize(("by_load", "answer"), [(1.2, "yes"), (0.05, "no")])
def test_router_that_counts_what_it_sends_to_the_shortest_queue_tells_whether_it_left_the_prefixes(
    router: str, by_load: float, answer: str
) -> None:
    told = {
        f"{router}_processed_requests_total": _count(2.0, 2.0),
        f"{router}_load_balancing_events_total": _count(0.05, by_load),
    }
    found = _answers(0.3, 2.0, **told)
    assert (found["routed_apart"], found["routing_untold"]) == (answer, "no")


def test_where_no_router_tells_it_is_known_that_nobody_does() -> None:
    assert _answers(0.3, 2.0)["routed_apart"] == "unknown"
    assert _answers(0.3, 2.0)["routing_untold"] == "yes"
    assert _answers(0.3, 2.0, nodes=1)["routing_untold"] == "no", "with one node there is nothing to route"


@pytest.mark.parametrize(
    ("hits", "arrivals", "answer"),
    [
        (0.3, 3.0, "yes"),
        (0.3, 2.0, "no"),  # as many requests as before: prompts may have changed
        (0.5, 3.0, "unknown"),  # others came on top, and what was found is found still
    ],
)
def test_hits_that_are_lost_while_more_requests_come_are_told_from_traffic_that_shares_nothing(
    hits: float, arrivals: float, answer: str
) -> None:
    assert _answers(hits, arrivals)["hits_lost_under_load"] == answer
