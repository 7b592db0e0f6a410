from __future__ import annotations

from collections import Counter

import pytest

from fleetctl.gateway.nodes.loads import SUSPECT_S, Loads
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.gateway.routing.pick import Candidate, pick_node, rendezvous_weight
from fleetctl.wire import RouteState

WEIGHTS = {"a": 12155712094771220835, "b": 8615198460984447914}  # for the prefix "system"


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


def test_a_nodes_weight_is_the_same_in_every_process_and_release() -> None:
    # Gateways side by side, and one after a restart, must send a prefix to the same node.
    assert rendezvous_weight("system", "a") == WEIGHTS["a"]
    assert rendezvous_weight("system", "b") == WEIGHTS["b"]
    assert rendezvous_weight("\ud800", "a") != rendezvous_weight("\ud801", "a")


def test_a_favourite_may_hold_a_quarter_more_than_the_least_and_four_requests_of_the_size_at_hand() -> None:
    favourite = max(WEIGHTS, key=lambda node: WEIGHTS[node])
    (other,) = {"a", "b"} - {favourite}
    limit = 1000 + 250 + 4 * 10
    for tokens, picked in ((limit, favourite), (limit + 1, other)):
        candidates = make_candidates(**{other: 1000, favourite: tokens})
        assert pick_node(candidates, prefix="system", tokens=10) == picked


def test_nodes_beyond_the_limit_do_not_come_back_when_several_are_within() -> None:
    loads = {"a": 0, "b": 0, "c": 0, "d": 0}
    first = pick_node(make_candidates(**loads), prefix="system", tokens=1)
    assert first is not None
    second = pick_node(make_candidates(**loads), prefix="system", tokens=1, excluded={first})
    assert pick_node(make_candidates(**loads | {first: 5}), prefix="system", tokens=1) == second


def test_without_a_prefix_nodes_of_equal_load_are_told_apart_the_same_way_each_time() -> None:
    ties = make_candidates(a=3, b=3, c=9)
    heavier = max("ab", key=lambda node: rendezvous_weight("", node))
    assert pick_node(ties, prefix="", tokens=1000) == heavier
    assert pick_node(ties[::-1], prefix="", tokens=1000) == heavier


def test_the_last_node_is_picked_however_loaded_and_suspect_it_is() -> None:
    assert pick_node([Candidate("a", 10**9, is_suspect=True)], prefix="x", tokens=1) == "a"
    suspects = [Candidate("a", 10**9, is_suspect=True), Candidate("b", 0, is_suspect=True)]
    assert pick_node(suspects, prefix="x", tokens=1) == "b", "among suspects load decides as ever"


def test_the_least_load_is_that_of_trusted_nodes() -> None:
    candidates = [Candidate("a", 0, is_suspect=True), Candidate("b", 1000), Candidate("c", 1200)]
    heavier = max("bc", key=lambda node: rendezvous_weight("p", node))
    assert pick_node(candidates, prefix="p", tokens=0) == heavier


def test_a_suspicion_lasts_as_long_as_was_said() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.suspect("a", 1.0)
    loads.suspect("b")
    clock.now += 0.5
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (True, True)
    clock.now += 0.5
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (False, True)
    clock.now += SUSPECT_S - 1.0
    assert not loads.is_suspect("b")


def test_a_probe_makes_a_node_suspect_for_a_whole_time_again_and_no_other_request_does() -> None:
    clock = Clock()
    loads = Loads(clock=clock)
    loads.suspect("a", 1.0)
    loads.begin_request("a", 1)  # it was tried though it is suspect: no probe, the time runs on
    clock.now += 1.0
    assert not loads.is_suspect("a")
    loads.begin_request("a", 1)
    clock.now += SUSPECT_S - 0.25
    assert loads.is_suspect("a")
    clock.now += 0.25
    assert not loads.is_suspect("a")


def test_a_node_that_was_never_suspect_is_none_after_a_request() -> None:
    loads = Loads()
    loads.trust("a")
    loads.begin_request("a", 1)
    loads.suspect("b")
    loads.trust("a")
    assert [c.is_suspect for c in loads.candidates(make_endpoints("a", "b"))] == [False, True]
    assert [c.outstanding_tokens for c in loads.candidates(make_endpoints("a", "b"))] == [1, 0]


def test_ends_take_away_what_their_begins_added() -> None:
    loads = Loads()
    for tokens in (10, 5, 7):
        loads.begin_request("a", tokens)
    loads.begin_request("b", 1)
    loads.end_request("a", 5)
    assert loads.inflight_requests() == {"a": 2, "b": 1}
    assert [c.outstanding_tokens for c in loads.candidates(make_endpoints("a"))] == [17]
    loads.inflight_requests().clear()
    assert loads.inflight_requests() == {"a": 2, "b": 1}, "a copy is given"


def test_suspicions_of_nodes_that_stay_are_kept() -> None:
    loads = Loads()
    loads.suspect("a")
    loads.suspect("b")
    loads.keep_only(iter(["a", "c"]))
    assert (loads.is_suspect("a"), loads.is_suspect("b")) == (True, False)
