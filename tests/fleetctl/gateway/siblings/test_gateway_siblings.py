"""Several workers as one gateway: status, and metrics of which no counter ever goes back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from fleetctl.gateway.siblings.joined_views import WorkersNow, joined_status, joined_tenants, latest_fate
from fleetctl.gateway.siblings.metric_store import (
    Families,
    families_of,
    find_lost,
    forget_worker,
    joined_exposition,
    keep_families,
    known_workers,
    unfolded_workers,
    worker_families,
)
from fleetctl.gateway.siblings.open_requests import MAX_OPEN, OpenRequests, read_open_requests


class Worker:
    """What one worker has."""

    def __init__(self, requests: float, inflight: float, silent: float, version: float) -> None:
        self.registry = CollectorRegistry()
        Counter("gateway_requests_total", "t", ["node"], registry=self.registry).labels("a").inc(requests)
        Histogram("gateway_ttft_seconds", "t", buckets=(1, 2), registry=self.registry).observe(1.5)
        for name, value in (
            ("gateway_inflight_requests", inflight),
            ("gateway_node_silent", silent),
            ("gateway_table_version", version),
        ):
            Gauge(name, "t", registry=self.registry).set(value)

    def told(self, folder: Path, number: int) -> Families:
        families = families_of(self.registry)
        keep_families(folder, number, families)
        return families


def values(text: bytes) -> dict[str, float]:
    return {s.name: s.value for family in text_string_to_metric_families(text.decode()) for s in family.samples}


def test_counts_are_added_and_of_other_gauges_the_worst_is_told(tmp_path: Path) -> None:
    live = {1: Worker(3, 2, 0, 7).told(tmp_path, 1), 2: Worker(4, 5, 1, 6).told(tmp_path, 2)}
    now = WorkersNow(1, wanted=3, serving=2, retiring=0, deaths=4, reloads=0, reload_error=None)
    got = values(joined_exposition(tmp_path, live, worker_families(now)))
    assert (got["gateway_requests_total"], got["gateway_ttft_seconds_count"]) == (7, 2)
    assert (got["gateway_inflight_requests"], got["gateway_node_silent"], got["gateway_table_version"]) == (7, 1, 6)
    assert (got["gateway_worker_deaths_total"], got["gateway_reload_failed"]) == (4, 0)
    assert "gateway_supervisor_silent_seconds" not in got, "one of older code gives no sign, and is not silent for that"
    told = values(joined_exposition(tmp_path, live, worker_families(now._replace(supervisor_silent_s=90.0))))
    assert told["gateway_supervisor_silent_seconds"] == 90


def test_what_one_worker_does_not_know_all_do_not_know(tmp_path: Path) -> None:
    live = {1: Worker(0, 0, 0, 7).told(tmp_path, 1), 2: Worker(0, 0, 0, math.nan).told(tmp_path, 2)}
    assert math.isnan(values(joined_exposition(tmp_path, live, []))["gateway_table_version"])


def test_no_counter_goes_back_when_a_worker_is_silent_dies_and_is_folded(tmp_path: Path) -> None:
    first = Worker(3, 2, 0, 7).told(tmp_path, 1)
    second = Worker(4, 5, 1, 6).told(tmp_path, 2)
    silent = values(joined_exposition(tmp_path, {1: first}, []))
    assert silent["gateway_requests_total"] == 7
    assert silent["gateway_inflight_requests"] == 2, "what it has now is not known"
    forget_worker(tmp_path, 2)
    assert values(joined_exposition(tmp_path, {1: first}, []))["gateway_requests_total"] == 7
    asked_before_it_died = values(joined_exposition(tmp_path, {1: first, 2: second}, []))
    assert asked_before_it_died["gateway_requests_total"] == 7, "and not twice"
    forget_worker(tmp_path, 1)
    assert (
        values(joined_exposition(tmp_path, {3: Worker(1, 0, 0, 7).told(tmp_path, 3)}, []))["gateway_requests_total"]
        == 8
    )


def test_what_a_killed_worker_carried_is_counted_as_lost_once_and_found_by_its_id(tmp_path: Path) -> None:
    live = {1: Worker(3, 2, 0, 7).told(tmp_path, 1)}
    Worker(4, 5, 1, 6).told(tmp_path, 2)
    carried = OpenRequests(tmp_path, 2)
    for number, name in enumerate(("first", "second", "third")):
        carried.note(name, 100.0 + number)
    carried.forget("second")
    assert [one.request_id for one in forget_worker(tmp_path, 2)] == ["first", "third"]
    assert forget_worker(tmp_path, 2) == [], "not twice"
    told = joined_exposition(tmp_path, live, []).decode()
    assert 'gateway_lost_requests_total{reason="worker_died"} 2.0' in told
    assert 'gateway_requests_total{node="",outcome="failed"} 2.0' in told
    lost = find_lost(tmp_path, "third")
    assert lost is not None
    assert lost.started_at == 102
    assert find_lost(tmp_path, "second") is None
    assert (known_workers(tmp_path), unfolded_workers(tmp_path)) == ({1, 2}, {1}), "a number is never given twice"


def test_open_requests_beyond_the_places_there_are_are_not_noted(tmp_path: Path) -> None:
    requests = OpenRequests(tmp_path, 1)
    for number in range(MAX_OPEN + 5):
        requests.note(f"r{number}", number)
    assert len(read_open_requests(tmp_path, 1)) == MAX_OPEN
    for number in range(MAX_OPEN + 5):
        requests.forget(f"r{number}")
    requests.note("last", 1.0)
    assert [one.request_id for one in read_open_requests(tmp_path, 1)] == ["last"]


def test_the_start_that_is_told_is_that_of_the_counters_and_no_worker_s(tmp_path: Path) -> None:
    folder = tmp_path / "1700000000000000000"
    folder.mkdir()
    registry = CollectorRegistry()
    Gauge("process_start_time_seconds", "t", registry=registry).set(1_700_000_555.0)
    got = values(joined_exposition(folder, {4: families_of(registry)}, []))
    assert got["process_start_time_seconds"] == 1_700_000_000.0


def test_of_one_id_at_two_workers_the_one_in_flight_is_told() -> None:
    ended, going = {"fate": "finished", "started_at": 2.0}, {"fate": "in_flight", "started_at": 1.0}
    assert latest_fate([ended, going]) is going
    assert latest_fate([]) is None


def test_status_adds_counts_and_tells_the_worst_of_the_rest() -> None:
    one = {
        "table_version": 7,
        "table_age_s": 0.5,
        "controller": "reachable",
        "in_flight": 1,
        "outcomes": {"finished": 3},
        "failing_open": [],
        "retries_left": 20,
        "nodes": {"a": {"inflight": 1, "state": "active", "phase": "ready", "out": None}},
    }
    other = {
        **one,
        "table_version": 6,
        "table_age_s": 9.0,
        "controller": "unreachable",
        "outcomes": {"finished": 1, "failed": 2},
        "retries_left": 17,
        "nodes": {"a": {"inflight": 2, "state": "active", "phase": "ready", "out": "node_silent"}},
    }
    got = joined_status([one, other])
    assert (got["table_version"], got["table_age_s"], got["controller"]) == (6, 9.0, "unreachable")
    assert (got["in_flight"], got["outcomes"], got["retries_left"]) == (2, {"finished": 4, "failed": 2}, 17)
    assert (got["nodes"]["a"]["inflight"], got["nodes"]["a"]["out"]) == (3, "node_silent")
    assert joined_status([one, {**one, "table_version": None}])["table_version"] is None, "unknown is not the lowest"


def tenant(running: int, left: int, share: float, *, joint: bool) -> dict[str, Any]:
    row = {"tenant": "shop", "running": running, "share": share, "joint": joint, "admitted": 5}
    row |= {"tokens": {"input": 1, "output": 2}, "left": {"input": left, "output": None}, "refused": {"shed": 1}}
    return {"tenants": [row], "waiting": {}, "lanes": []}


def test_what_is_left_of_a_limit_that_workers_hold_together_is_told_once() -> None:
    (row,) = joined_tenants([tenant(2, 40, 0.5, joint=True), tenant(3, 38, 0.5, joint=True)])["tenants"]
    assert (row["running"], row["left"], row["share"]) == (5, {"input": 38, "output": None}, 0.5)
    (row,) = joined_tenants([tenant(2, 40, 0.25, joint=False), tenant(3, 38, 0.25, joint=False)])["tenants"]
    assert (row["running"], row["left"], row["share"]) == (5, {"input": 78, "output": None}, 0.5)
