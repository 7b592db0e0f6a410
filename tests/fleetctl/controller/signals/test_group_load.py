"""What a group of nodes tells as a whole: never a mean of p95s, never zero for what is not known."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.promql.histogram import Buckets, bucket_quantile
from fleetctl.controller.signals.group_load import (
    Aggregate,
    highest,
    mean,
    merged,
    pooled_quantile,
    total,
    weighted_mean,
)
from tests.alerts.promql.test_prometheus_differential import PROMTOOL
from tests.fixtures.alertmanager import HTTP, NEEDS_PROMETHEUS, PROMETHEUS, server

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
OTHER_BOUNDS = (0.01, 0.1, 0.3, 1.0, 10.0)

times = st.lists(st.floats(0.001, 9.0), min_size=1, max_size=40)
fleets = st.lists(times, min_size=1, max_size=6)


def histogram(observed: Sequence[float], bounds: Sequence[float] = BOUNDS) -> Buckets:
    return [(bound, float(sum(one <= bound for one in observed))) for bound in (*bounds, math.inf)]


def names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


@given(fleets, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_pooled_quantile_is_that_of_all_observations_in_one_histogram(fleet: list[list[float]], q: float) -> None:
    together = [one for node in fleet for one in node]
    found = pooled_quantile(q, names(len(fleet)), map(histogram, fleet), dict.fromkeys(names(len(fleet)), 1.0))
    assert found.value == pytest.approx(bucket_quantile(q, histogram(together)))
    assert (found.known, found.of) == (len(fleet), len(fleet))


@given(fleets, fleets)
def test_engines_with_other_bounds_are_pooled_between_the_neighbours_of_each_bound(
    fleet: list[list[float]], others: list[list[float]]
) -> None:
    pooled = merged([*map(histogram, fleet), *(histogram(one, OTHER_BOUNDS) for one in others)])
    together = [one for node in (*fleet, *others) for one in node]
    counts = [count for _, count in pooled]
    assert counts == sorted(counts)
    assert counts[-1] == len(together)
    # At a bound that all have the count is exact.
    for bound in {bound for bound, _ in pooled} & set(BOUNDS) & set(OTHER_BOUNDS):
        assert dict(pooled)[bound] == sum(one <= bound for one in together)


def test_a_quantile_above_the_highest_bound_is_said_to_be_at_least_that() -> None:
    slow = histogram([0.1] * 5 + [60.0] * 5)
    found = pooled_quantile(0.95, ["a"], [slow], {"a": 1.0})
    assert found == Aggregate(5.0, 1, 1, at_least=True)
    # Another engine's higher bounds say nothing of the observations that this one could not place.
    found = pooled_quantile(0.95, ["a", "b"], [slow, histogram([0.1], OTHER_BOUNDS)], {"a": 1.0, "b": 1.0})
    assert found == Aggregate(5.0, 2, 2, at_least=True)


def test_the_mean_of_quantiles_is_not_what_is_told() -> None:
    busy, idle = [4.0] * 90, [0.07] * 10
    found = pooled_quantile(0.5, ["a", "b"], [histogram(busy), histogram(idle)], {"a": 9.0, "b": 1.0})
    apart = [bucket_quantile(0.5, histogram(one)) for one in (busy, idle)]
    assert found.value is not None
    assert abs(found.value - sum(apart) / 2) > 1.0


@given(
    st.lists(st.tuples(st.none() | st.floats(0.001, 1e3), st.none() | st.just(0.0) | st.floats(0.001, 1e4)), max_size=8)
)
def test_a_weighted_mean_lies_between_what_is_known_and_counts_it(
    nodes: list[tuple[float | None, float | None]],
) -> None:
    members = names(len(nodes))
    values = {name: one for name, (one, _) in zip(members, nodes, strict=True) if one is not None}
    weights = {name: one for name, (_, one) in zip(members, nodes, strict=True) if one is not None}
    found = weighted_mean(members, values, weights)
    told = [value for value, weight in nodes if value is not None and weight]
    assert found.known == len(told)
    assert found.of == sum(weight != 0.0 for _, weight in nodes), "nothing to average is nothing not known"
    if told:
        assert found.value is not None
        assert min(told) * (1 - 1e-9) <= found.value <= max(told) * (1 + 1e-9)
    else:
        assert found.value is None


def test_what_nobody_told_is_not_known_and_not_zero() -> None:
    for fold in (total, mean, highest):
        assert fold(["a", "b"], {}) == Aggregate(None, 0, 2)
        assert fold(["a", "b"], {"b": 0.0, "other": 7.0}) == Aggregate(0.0, 1, 2)
    assert total(["a", "b"], {"a": 2.0, "b": 3.0}).value == 5.0
    assert mean(["a", "b"], {"a": 2.0, "b": 3.0}).value == 2.5
    assert pooled_quantile(0.95, ["a"], [], {"a": 3.0}) == Aggregate(None, 1, 1)
    assert pooled_quantile(0.95, ["a"], [histogram([])], {"a": 0.0}) == Aggregate(None, 0, 0)


@pytest.mark.e2e
@NEEDS_PROMETHEUS
def test_a_real_prometheus_gives_the_same_sums_means_and_quantiles(tmp_path: Path) -> None:
    """The same numbers as series of a real Prometheus, asked in PromQL."""
    dice = random.Random(11)
    at = (int(time.time()) // 7200 - 2) * 7200 + 600
    pools = {pool: [f"{pool}-{index}" for index in range(1, 6)] for pool in ("chat", "code")}
    running, itl, tokens, counts = {}, {}, {}, {}
    for node in (node for nodes in pools.values() for node in nodes):
        running[node] = float(dice.randrange(40))
        itl[node], tokens[node] = dice.uniform(0.01, 0.2), dice.uniform(1, 900)
        counts[node] = histogram([dice.expovariate(2.0) for _ in range(dice.randrange(5, 300))])
    lines = []
    for family, values in (("running", running), ("itl", itl), ("tokens", tokens)):
        lines += [f"# TYPE {family} gauge"]
        lines += [f'{family}{{node="{node}",pool="{node[:4]}"}} {value!r} {at}' for node, value in values.items()]
    lines += ["# TYPE ttft_rate gauge"]
    for node, buckets in counts.items():
        for bound, count in buckets:
            le = "+Inf" if math.isinf(bound) else f"{bound}"
            lines.append(f'ttft_rate{{node="{node}",pool="{node[:4]}",le="{le}"}} {count!r} {at}')
    text = tmp_path / "series.om"
    text.write_text("\n".join([*lines, "# EOF", ""]))
    data = tmp_path / "data"
    blocks = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)]
    subprocess.run(blocks, check=True, capture_output=True, timeout=60)
    (tmp_path / "prometheus.yml").write_text("{}")
    places = (f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={data}")
    with server(PROMETHEUS, tmp_path, *places, "--storage.tsdb.retention.time=10y") as url:

        def theirs(query: str) -> dict[str, float]:
            answer = HTTP.get(f"{url}/api/v1/query", params={"query": query, "time": at + 1}, timeout=20).json()
            return {one["metric"]["pool"]: float(one["value"][1]) for one in answer["data"]["result"]}

        asked = {
            "sum": theirs("sum by (pool) (running)"),
            "mean": theirs("sum by (pool) (itl * tokens) / sum by (pool) (tokens)"),
            "p95": theirs("histogram_quantile(0.95, sum by (le, pool) (ttft_rate))"),
        }
    for pool, nodes in pools.items():
        assert total(nodes, running).value == pytest.approx(asked["sum"][pool])
        assert weighted_mean(nodes, itl, tokens).value == pytest.approx(asked["mean"][pool])
        found = pooled_quantile(0.95, nodes, [counts[node] for node in nodes], tokens)
        assert found.value == pytest.approx(asked["p95"][pool])
