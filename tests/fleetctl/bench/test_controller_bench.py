"""Turns of the rules' loop as the controller's bench reads them from two texts of /metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from alerts.promql.histogram import bucket_quantile
from fleetctl.bench.controller_bench import turns_between
from fleetctl.bench.measured import BenchError
from fleetctl.controller.metrics import ControllerMetrics


def text_of(metrics: ControllerMetrics) -> str:
    registry: CollectorRegistry = metrics.registry
    return generate_latest(registry).decode()


def test_quantiles_of_turns_lie_within_the_bucket_that_they_ended_in() -> None:
    metrics = ControllerMetrics()
    with pytest.raises(BenchError):
        turns_between("", text_of(metrics))
    metrics.loop_turns.labels("alerts").observe(30.0)  # before what is measured
    before = text_of(metrics)
    for _ in range(4):
        metrics.loop_turns.labels("alerts").observe(2.0)
        metrics.loop_turns.labels("scrape").observe(5.0)
    turns = turns_between(before, text_of(metrics))
    assert turns[-1] == (float("inf"), 4)
    assert bucket_quantile(0.5, turns) == 2.0  # half of 1.5 to 2.5 s, though no turn ended before 1.5 s
    metrics.loop_turns.labels("alerts").observe(100.0)
    assert bucket_quantile(1.0, turns_between(before, text_of(metrics))) == 60.0, "the last bound that is one"
