from __future__ import annotations

from collections import Counter

import pytest

from fleetctl.gateway.loads import SUSPECT_S, Loads
from fleetctl.gateway.pick import Candidate, pick_node
from fleetctl.gateway.table import Endpoint
from fleetctl.wire import RouteState


def make_candidates(**tokens: int) -> list[Candidate]:
    return [Candidate(node, count) for node, count in tokens.items()]


def make_endpoints(*names: str) -> list[Endpoint]:
    return [Endpoint(name, f"http://{name}", RouteState.ACTIVE, "default", "demo") for name in names]


def test_same_prefix_goes_to_the_same_node_while_loads_are_close() -> None:
    first = pick_node(make_candidates(a=0, b=0, c=0), prefix="system", tokens=100)
    assert first is not None
    for load in (0, 100, 400):
        loads = {"a": 0, "b": 0, "c": 0} | {first: load}
        assert pick_node(make_candidates(**loads), prefix="system", tokens=100) == first


def test_a_favourite_loaded_well_beyond_the_least_loses_the_request() -> None:
    first = pick_node(make_candidates(a=0, b=0, c=0), prefix="system", tokens=100)
    assert first is not None
    loads = {"a": 1000, "b": 1000, "c": 1000} | {first: 1000 * 2}
    assert pick_node(make_candidates(**loads), prefix="system", tokens=100) != first


def test_prefixes_spread_over_nodes() -> None:
    picks = Counter(pick_node(make_candidates(a=0, b=0, c=0), prefix=f"p{i}", tokens=1) for i in range(300))
    assert set(picks) == {"a", "b", "c"}
    assert min(picks.values()) > 60


def test_a_node_that_leaves_moves_only_its_own_prefixes() -> None:
    before = {i: pick_node(make_candidates(a=0, b=0, c=0), prefix=f"p{i}", tokens=1) for i in range(200)}
    after = {i: pick_node(make_candidates(a=0, b=0), prefix=f"p{i}", tokens=1) for i in range(200)}
    assert all(after[i] == node for i, node in before.items() if node != "c")


def test_without_a_prefix_the_least_loaded_node_gets_the_request() -> None:
    assert pick_node(make_candidates(a=5, b=3, c=9), prefix="", tokens=10) == "b"


def test_excluded_nodes_are_never_picked() -> None:
    candidates = make_candidates(a=0, b=0)
    assert pick_node(candidates, prefix="x", tokens=1, excluded={"a"}) == "b"
    assert pick_node(candidates, prefix="x", tokens=1, excluded={"a", "b"}) is None
    assert pick_node([], prefix="x", tokens=1) is None


def test_suspect_nodes_are_tried_last_but_are_tried() -> None:
    candidates = [Candidate("a", 0, is_suspect=True), Candidate("b", 99_999)]
    assert pick_node(candidates, prefix="x", tokens=1) == "b"
    assert pick_node(candidates, prefix="x", tokens=1, excluded={"b"}) == "a"


def test_odd_text_in_a_prefix_is_no_error() -> None:
    assert pick_node(make_candidates(a=0, b=0), prefix="\ud800 lone surrogate", tokens=1) in ("a", "b")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_suspect_is_probed_by_one_request_and_cleared_by_its_success() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    endpoints = make_endpoints("a", "b")
    loads.suspect("a")
    assert [c.is_suspect for c in loads.candidates(endpoints)] == [True, False]
    clock.now += SUSPECT_S
    assert [c.is_suspect for c in loads.candidates(endpoints)] == [False, False]
    loads.begin_request("a", 10)  # the probe
    assert loads.is_suspect("a"), "others keep away while one request probes"
    loads.trust("a")
    assert not loads.is_suspect("a")


def test_loads_count_requests_and_tokens_until_they_stop() -> None:
    loads = Loads()
    loads.begin_request("a", 10)
    loads.begin_request("a", 5)
    assert loads.inflight_requests() == {"a": 2}
    assert [c.outstanding_tokens for c in loads.candidates(make_endpoints("a", "b"))] == [15, 0]
    loads.end_request("a", 10)
    loads.end_request("a", 5)
    assert loads.inflight_requests() == {}
    loads.check_integrity()


@pytest.mark.parametrize("gone", ["a", "b"])
def test_suspicions_of_nodes_that_left_are_forgotten(gone: str) -> None:
    loads = Loads()
    loads.suspect(gone)
    loads.keep_only([])
    assert not loads.is_suspect(gone)
