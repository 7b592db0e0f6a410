"""What several queries of one look read alike is read once; their answers are those of queries asked alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from alerts.promql import evaluate
from alerts.promql.known_answers import Reads
from alerts.series.store import SeriesStore
from diagnostics.query import store_query

BEGIN, NOW = 1000.0, 1600.0
QUERIES = (
    'sum(waiting{pool="chat"})',
    'max(waiting{pool="chat"}) - min(waiting{pool="chat"})',
    'sum(waiting{pool="chat"} offset 5m)',
    'sum(waiting{pool="chat"} @ 1200)',
    'max(max_over_time(waiting{pool="chat"}[5m]))',
    'max(max_over_time(waiting{pool="chat"}[10m]))',
    'max(min_over_time(waiting{pool="chat"}[5m])) + sum(waiting{pool="chat"})',
    'max(quantile_over_time(0.5, waiting{pool="chat"}[5m])) / max(quantile_over_time(0.9, waiting{pool="chat"}[5m]))',
    "max(max_over_time((waiting > 3 and on (node) waiting offset 15s < 3)[10m:15s])) or 0 * max(waiting)",
    "count(max_over_time((waiting > 3 and on (node) waiting offset 15s < 3)[10m:15s])) or 0 * max(waiting)",
    'sum(-waiting{pool="chat"}) or vector(1)',
    "sum(no_such_series) or 0 * sum(waiting)",
)


class CountingStore(SeriesStore):
    """Tells how often its series were selected."""

    num_selects = 0

    def select(self, matchers: Sequence[Any]) -> Any:
        self.num_selects += 1
        return super().select(tuple(matchers))


def filled(store: SeriesStore) -> SeriesStore:
    for step in range(121):
        for node in range(3):
            labels = {"__name__": "waiting", "pool": "chat", "node": f"node-{node}"}
            store.append(labels, BEGIN + 5 * step, float((step * (node + 3)) % 11))
    return store


@pytest.mark.parametrize("query", QUERIES)
def test_answer_is_the_same_after_everything_else_was_read(query: str) -> None:
    store, reads = filled(SeriesStore()), Reads()
    for other in QUERIES:
        evaluate(other, store, NOW, shared=reads)
    assert evaluate(query, store, NOW, shared=reads) == evaluate(query, store, NOW)


def test_look_reads_what_several_queries_say_alike_once() -> None:
    store = CountingStore()
    filled(store)
    ask = store_query(store, NOW)
    ask('sum(waiting{pool="chat"})')
    ask('max(max_over_time(waiting{pool="chat"}[5m]))')
    known = store.num_selects
    ask('max(waiting{pool="chat"}) + max(max_over_time(waiting{pool="chat"}[5m]))')
    assert store.num_selects == known > 0
    ask('max(max_over_time(waiting{pool="chat"}[6m]))')
    assert store.num_selects > known


def test_one_set_of_reads_tells_moments_apart() -> None:
    store, reads = filled(SeriesStore()), Reads()
    query = "sum(waiting) + max(max_over_time(waiting[1m]))"
    asked = [evaluate(query, store, at, shared=reads)[0].value for at in (NOW - 300, NOW)]
    assert asked == [evaluate(query, store, at)[0].value for at in (NOW - 300, NOW)]
    assert asked[0] != asked[1]


def test_next_look_sees_what_came_since() -> None:
    store = filled(SeriesStore())
    before = store_query(store, NOW + 5)("max(waiting)").value
    store.append({"__name__": "waiting", "pool": "chat", "node": "node-0"}, NOW + 5, 99.0)
    assert (before, store_query(store, NOW + 5)("max(waiting)").value) == (8.0, 99.0)
