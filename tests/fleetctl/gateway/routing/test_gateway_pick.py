"""Filter, score, pick: pure, and with a reason for each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.gateway.routing.pick import (
    KV_SHORT_FACTOR,
    MISSING_ADAPTER_TOKENS,
    SEAT_TOKENS,
    UNCACHED_FACTOR,
    Candidate,
    LeftOut,
    PickReason,
    RequestSize,
    affinity,
    costs_of,
    node_hash,
    pick_node,
    prefix_hash,
    score_all,
)
from fleetctl.gateway.routing.ring import Ring

WEIGHTS = {"a": 18351680807653106814, "b": 9886095326920212755}  # for the prefix "system"
SIZE = RequestSize(1000, 100)


def of(node: str, **facts: Any) -> Candidate:
    return Candidate(node, **facts)


def hashed(*nodes: str, prefix: str) -> list[Candidate]:
    return [Candidate(node, affinity=affinity(node_hash(node), prefix_hash(prefix))) for node in nodes]


def test_the_node_that_holds_the_longest_part_gets_the_request() -> None:
    pick = pick_node([of("a", cached_tokens=200), of("b", cached_tokens=900), of("c")], SIZE)
    assert (pick.node, pick.reason, pick.cached_tokens) == ("b", PickReason.PREFIX, 900)


def test_a_node_that_holds_more_but_has_far_more_to_do_loses_the_request() -> None:
    busy = int(900 * UNCACHED_FACTOR) + 5000
    pick = pick_node([of("a"), of("b", cached_tokens=900, prefill_tokens=busy)], SIZE)
    assert (pick.node, pick.reason, pick.cached_tokens) == ("a", PickReason.LOAD, 0)
    pick = pick_node([of("a"), of("b", cached_tokens=900, prefill_tokens=500)], SIZE)
    assert pick.node == "b", "what it holds outweighs a short wait"


def test_a_prefix_that_nobody_holds_finds_the_same_node_while_loads_are_close() -> None:
    first = pick_node(hashed("a", "b", "c", prefix="system"), SIZE)
    assert first.reason is PickReason.HASH
    for load in (0, 100, 400):
        again = [
            one._replace(prefill_tokens=load if one.node == first.node else 0)
            for one in hashed("a", "b", "c", prefix="system")
        ]
        assert pick_node(again, SIZE).node == first.node
    busy = [
        one._replace(prefill_tokens=5000 if one.node == first.node else 0)
        for one in hashed("a", "b", "c", prefix="system")
    ]
    assert pick_node(busy, SIZE).node != first.node


def test_unseen_prefixes_spread_and_a_node_that_leaves_moves_only_its_own() -> None:
    before = {i: pick_node(hashed("a", "b", "c", prefix=f"p{i}"), SIZE).node for i in range(300)}
    counts = Counter(before.values())
    assert set(counts) == {"a", "b", "c"}
    assert min(counts.values()) > 60
    after = {i: pick_node(hashed("a", "b", prefix=f"p{i}"), SIZE).node for i in range(300)}
    assert all(after[i] == node for i, node in before.items() if node != "c")


def test_a_nodes_affinity_is_the_same_in_every_process_and_release() -> None:
    # Gateways side by side, and one after a restart, must send an unseen prefix to the same node.
    assert {node: affinity(node_hash(node), prefix_hash("system")) for node in "ab"} == WEIGHTS
    assert prefix_hash("\ud800") != prefix_hash("\ud801")


def test_without_a_prompt_the_least_loaded_node_gets_the_request() -> None:
    candidates = [of("a", requests=5), of("b", requests=3), of("c", requests=9)]
    pick = pick_node(candidates, RequestSize())
    assert (pick.node, pick.reason) == ("b", PickReason.LEAST)


def test_nodes_that_were_tried_are_never_picked_and_it_is_told() -> None:
    pick = pick_node([of("a"), of("b")], SIZE, excluded={"a"})
    assert (pick.node, pick.reason, pick.left_out) == ("b", PickReason.ONLY, (("a", LeftOut.TRIED),))
    nobody = pick_node([of("a"), of("b")], SIZE, excluded={"a", "b"})
    assert (nobody.node, nobody.reason) == (None, PickReason.NONE)
    assert pick_node([], SIZE).node is None


def test_suspect_nodes_are_tried_last_but_are_tried() -> None:
    candidates = [of("a", is_suspect=True), of("b", prefill_tokens=99_999)]
    pick = pick_node(candidates, SIZE)
    assert (pick.node, pick.left_out) == ("b", (("a", LeftOut.SUSPECT),))
    assert pick_node(candidates, SIZE, excluded={"b"}).node == "a"
    suspects = [of("a", prefill_tokens=10**9, is_suspect=True), of("b", is_suspect=True)]
    assert pick_node(suspects, SIZE).node == "b", "among suspects cost decides as ever"


def test_a_node_whose_context_is_too_short_is_left_out_while_others_have_a_longer_one() -> None:
    pick = pick_node([of("a", max_model_len=512, cached_tokens=900), of("b", max_model_len=4096)], SIZE)
    assert (pick.node, pick.left_out) == ("b", (("a", LeftOut.TOO_SHORT),))
    assert pick_node([of("a", max_model_len=512)], SIZE).node == "a", "it says so itself"


def test_a_cost_is_the_sum_of_its_parts() -> None:
    one = of("a", prefill_tokens=70, requests=2, cached_tokens=400, kv_free_tokens=500, has_adapter=False)
    (score,) = score_all([one], SIZE)
    assert (score.waiting, score.uncached, score.seats) == (70, int(600 * UNCACHED_FACTOR), 2 * SEAT_TOKENS)
    assert score.kv == KV_SHORT_FACTOR * (1100 - 400 - 500)
    assert score.adapter == MISSING_ADAPTER_TOKENS
    assert score.cost == score.waiting + score.uncached + score.seats + score.kv + score.adapter


def test_what_is_not_known_of_a_cache_is_neither_idle_nor_full() -> None:
    candidates = [of("full", kv_free_tokens=0), of("free", kv_free_tokens=10**6), of("stale")]
    costs = {score.node: score.kv for score in score_all(candidates, SIZE)}
    assert costs["free"] < costs["stale"] < costs["full"]
    assert pick_node(candidates, SIZE).node == "free"
    assert {score.kv for score in score_all([of("a"), of("b")], SIZE)} == {0}


def test_a_node_that_has_the_adapter_is_preferred_and_one_that_may_have_it_is_not_put_off() -> None:
    candidates = [of("without", has_adapter=False), of("with", has_adapter=True), of("unknown")]
    assert {score.node: score.adapter for score in score_all(candidates, SIZE)} == {
        "without": MISSING_ADAPTER_TOKENS,
        "with": 0,
        "unknown": 0,
    }


def test_a_session_stays_where_it_is_but_never_on_an_unfit_node() -> None:
    candidates = [of("a", cached_tokens=1000), of("b", prefill_tokens=9000, is_sticky=True)]
    pick = pick_node(candidates, SIZE)
    assert (pick.node, pick.reason) == ("b", PickReason.STICKY)
    assert pick_node(candidates, SIZE, excluded={"b"}).node == "a"
    suspect = [candidates[0], candidates[1]._replace(is_suspect=True)]
    assert pick_node(suspect, SIZE).node == "a"


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_ring_gives_different_nodes_and_a_node_that_leaves_moves_only_its_own_keys(count: int) -> None:
    names = [f"node-{i}" for i in range(40)]
    ring, smaller = Ring(names), Ring(names[1:])
    keys = [prefix_hash(f"p{i}") for i in range(300)]
    for key in keys:
        nearest = ring.nearest(key, count)
        assert len(set(nearest)) == count
        assert (
            smaller.nearest(key, count)[: len(nearest) - 1] == [one for one in nearest if one != "node-0"][: count - 1]
        )
    assert len({ring.nearest(key, 1)[0] for key in keys}) > 30
    assert Ring(["a"]).nearest(5, 4) == ["a"]


TOKENS = st.integers(0, 5000)
CANDIDATE = st.builds(
    Candidate,
    st.sampled_from("abcdef"),
    TOKENS,
    st.integers(0, 40),
    TOKENS,
    TOKENS,
    st.none() | st.integers(-100, 5000),
    max_model_len=st.none() | st.integers(1000, 5000),
    has_adapter=st.none() | st.booleans(),
)


@given(st.lists(CANDIDATE, max_size=6), st.builds(RequestSize, TOKENS, TOKENS, TOKENS))
def test_what_is_picked_by_and_what_is_explained_are_the_same_costs(
    candidates: list[Candidate], size: RequestSize
) -> None:
    assert costs_of(candidates, size) == [score.cost for score in score_all(candidates, size)]
    pick = pick_node(candidates, size)
    assert [score.cost for score in pick.scores] == costs_of(pick.weighed, size)
