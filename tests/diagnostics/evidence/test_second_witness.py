"""What does not answer us is named at once, and treated once somebody else, or a minute, says that it is gone."""

from __future__ import annotations

import numpy as np
import pytest

from alerts.arrays import Floats
from alerts.labels import METRIC_NAME, LabelSet
from alerts.series.store import SeriesStore
from diagnostics.diagnosis import Diagnosis
from diagnostics.evidence.judge import judge
from diagnostics.evidence.knowledge import builtin_knowledge

NOW = 1_700_000_000.0
AT = np.arange(NOW - 2400, NOW + 1, 5.0)
ALWAYS = np.ones(len(AT))
KIND = {"fleet_provider_reasons": {"reason": "Unhealthy", "kind": "liveness"}}


def _until(age_s: float) -> Floats:
    """1 until so long ago, and 0 since then."""
    values: Floats = np.where(NOW - age_s < AT, 0.0, 1.0)
    return values


def _diagnosis(silent_s: float, **told: Floats) -> Diagnosis:
    """Of one of three nodes that has been silent for so long. `told`: other series of it."""
    store = SeriesStore()
    ms = np.round(AT * 1000).astype(np.int64)
    for number in range(3):
        places = {"node": f"node-{number}", "pool": "chat", "model": "m", "engine": "vllm"}
        of = {"llm:up": _until(silent_s) if number == 0 else ALWAYS}
        of |= told if number == 0 else {name: ALWAYS for name in told if name == "fleet_node_process_up"}
        labels = [LabelSet.of({METRIC_NAME: name, **places, **KIND.get(name, {})}) for name in of]
        store.append_matrix(labels, ms, np.array(list(of.values())))
    return judge(builtin_knowledge(), ["node"], [], {"node": "node-0", "pool": "chat"}, store, NOW)


def test_scrapes_that_fail_for_half_a_minute_alone_are_named_and_not_treated() -> None:
    found = _diagnosis(30.0)
    assert found.cause == "node_down"
    assert "only its scrapes fail" in found.awaits


@pytest.mark.parametrize(
    ("silent_s", "told"),
    [
        (75.0, {}),
        (30.0, {"gateway_node_ejected": 1 - _until(20.0)}),
        (10.0, {"fleet_node_process_up": _until(5.0)}),
    ],
    ids=["silent for more than a minute", "the gateway left it out too", "who started it saw it end"],
)
def test_a_second_witness_or_a_minute_is_enough(silent_s: float, told: dict[str, Floats]) -> None:
    found = _diagnosis(silent_s, **told)
    assert found.cause == "node_down"
    assert found.awaits == ""


def test_a_process_whose_scrapes_fail_while_it_runs_is_not_treated_within_the_minute() -> None:
    assert _diagnosis(30.0, fleet_node_process_up=ALWAYS).awaits != ""


def test_what_its_platform_ends_by_a_probe_and_starts_again_is_not_replaced() -> None:
    found = _diagnosis(10.0, fleet_node_process_up=_until(5.0), fleet_provider_reasons=1 - _until(20.0))
    assert "liveness probe failed" in found.awaits


@pytest.mark.parametrize(
    ("arrivals", "running", "others", "started", "is_treated"),
    [
        (4.0, 1.0, (), "a", False),
        (0.2, 1.0, (), "a", True),
        (4.0, 0.0, (), "a", True),
        (4.0, 1.0, (ALWAYS,), "a", True),
        (4.0, 1.0, (ALWAYS,), "b0", False),
        (None, 1.0, (), "a", True),
    ],
    ids=[
        "parted from us",
        "it hangs",
        "its process ended",
        "another one serves",
        "another machine's",
        "nobody used it",
    ],
)
def test_a_gateway_that_only_we_do_not_reach_is_not_restarted_nor_one_that_serves_in_its_place(
    arrivals: float | None, running: float, others: tuple[Floats, ...], started: str, is_treated: bool
) -> None:
    """A restart would have ended every stream of a gateway that served, for a way to it that was cut."""
    store = SeriesStore()
    told = [({METRIC_NAME: "up", "job": "llm-gateway", "instance": "a"}, _until(40.0))]
    told += [({METRIC_NAME: "up", "job": "llm-gateway", "instance": f"b{i}"}, up) for i, up in enumerate(others)]
    told += [({METRIC_NAME: "fleet_gateway_process_up", "instance": started}, np.where(AT > NOW - 70, running, 1.0))]
    for number in range(3):
        of = {"node": f"node-{number}", "pool": "chat", "model": "m", "engine": "vllm"}
        told += [({METRIC_NAME: "llm:up", **of}, ALWAYS)]
        if arrivals is not None:
            told += [({METRIC_NAME: "llm:arrivals:rate", **of}, np.where(AT > NOW - 30, arrivals / 3, 4.0 / 3))]
    ms = np.round(AT * 1000).astype(np.int64)
    store.append_matrix([LabelSet.of(labels) for labels, _ in told], ms, np.array([values for _, values in told]))
    found = judge(builtin_knowledge(), ["gateway"], [], {}, store, NOW)
    assert found.cause == "gateway_down"
    assert (found.awaits == "") is is_treated, found.awaits
