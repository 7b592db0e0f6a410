"""What range queries of a Prometheus say becomes what our own scrapes would have put into the store."""

from __future__ import annotations

import numpy as np

from alerts.history.mirror import Mirror, relabelling
from alerts.history.prometheus_source import RangeSeries
from alerts.labels import METRIC_NAME, LabelSet
from alerts.promql import evaluate
from alerts.series.store import SeriesStore

TARGET = {"job": "llm", "instance": "a:1"}


def row(name: str, points: dict[int, float], **labels: str) -> RangeSeries:
    """Points by second."""
    times = np.array([at * 1000 for at in points], dtype=np.int64)
    own = TARGET if not labels else {}
    return RangeSeries(LabelSet.of({METRIC_NAME: name, **own, **labels}), times, np.array(list(points.values())))


def number(store: SeriesStore, expression: str, at: float) -> float | None:
    found = evaluate(expression, store, at)
    assert len(found) <= 1
    return found[0].value if found else None


def test_points_keep_their_own_time() -> None:
    store = SeriesStore()
    assert Mirror(store).add_scrapes([row("up", {3: 1.0})], [row("x", {3: 7.0})], 10_000) == 2
    (sample,) = evaluate("x", store, 10.0)
    assert (sample.value, sample.at) == (7.0, 3.0)


def test_what_was_read_before_is_not_taken_twice() -> None:
    store = SeriesStore()
    mirror = Mirror(store)
    mirror.add_scrapes([row("up", {1: 1.0, 2: 1.0})], [row("x", {1: 1.0, 2: 2.0})], 2000)
    assert mirror.add_scrapes([row("up", {1: 1.0, 2: 1.0, 3: 1.0})], [row("x", {2: 2.0, 3: 3.0})], 3000) == 2
    assert number(store, "count_over_time(x[10s])", 3.0) == 3.0
    assert store.dropped_samples == 0


def test_series_that_a_scrape_lacks_ends_then() -> None:
    store = SeriesStore()
    mirror = Mirror(store)
    mirror.add_scrapes([row("up", {1: 1.0})], [row("x", {1: 1.0}), row("y", {1: 1.0})], 1000)
    mirror.add_scrapes([row("up", {1: 1.0, 2: 1.0})], [row("x", {1: 1.0, 2: 1.0}), row("y", {1: 1.0})], 2000)
    assert number(store, "y", 1.9) == 1.0
    assert number(store, "y", 2.0) is None
    mirror.add_scrapes([row("up", {2: 1.0, 3: 0.0})], [row("x", {2: 1.0})], 3000)
    assert number(store, "x", 3.0) is None
    assert number(store, "up", 3.0) == 0.0


def test_scrape_whose_up_is_not_there_yet_waits_for_it() -> None:
    store = SeriesStore()
    mirror = Mirror(store)
    # Between the two queries a scrape was stored: half of it would look as if the other half had ended.
    mirror.add_scrapes([row("up", {1: 1.0})], [row("x", {1: 1.0, 2: 2.0}), row("y", {1: 1.0})], 2000)
    assert number(store, "x", 2.0) == 1.0
    assert number(store, "y", 2.0) == 1.0
    mirror.add_scrapes([row("up", {1: 1.0, 2: 1.0})], [row("x", {1: 1.0, 2: 2.0}), row("y", {1: 1.0, 2: 5.0})], 3000)
    assert number(store, "x", 3.0) == 2.0
    assert number(store, "y", 3.0) == 5.0


def test_recorded_series_end_after_missed_intervals_whatever_the_others_do() -> None:
    store = SeriesStore()
    mirror = Mirror(store)
    for at in range(0, 60, 10):
        slow = {at: 1.0} if at <= 20 else {}
        rows = [row("llm:x", {at: 1.0}, node="a")] + ([row("llm:x", slow, node="b")] if slow else [])
        mirror.add_scrapes([], rows, at * 1000)
        assert number(store, 'llm:x{node="a"}', at) == 1.0
    assert number(store, 'llm:x{node="b"}', 45.0) == 1.0
    assert number(store, 'llm:x{node="b"}', 50.0) is None


def test_labels_that_are_missing_are_given_and_others_stay() -> None:
    relabel = relabelling({"node": "$instance", "engine": "vllm", "job": "other", "zone": "$nothing"})
    labels = relabel(LabelSet.of({METRIC_NAME: "x", **TARGET}))
    assert labels.as_dict() == {METRIC_NAME: "x", "node": "a:1", "engine": "vllm", **TARGET}
