"""Requests that end nodes: told from chance by where in the answer the nodes ended, and remembered for a while."""

from __future__ import annotations

import pytest

from fleetctl.gateway.requests.fates import Death
from fleetctl.gateway.requests.poison import Poisoned, PoisonMemory, body_key, is_poison


def deaths(*places: int) -> list[Death]:
    return [Death(f"n{i}", "disconnected", place) for i, place in enumerate(places)]


@pytest.mark.parametrize(
    ("places", "max_resends", "expected"),
    [
        ((), 1, False),
        ((0,), 1, False),
        ((0, 0), 1, True),
        ((50, 57), 1, True),
        ((50, 400), 1, False),
        ((50, 400, 401), 1, True),
        ((50, 400, 800), 1, False),
        ((50, 400, 800, 1200), 1, True),
        ((0,), 0, True),
        ((0, 0), 2, False),
        ((0, 0, 0), 2, True),
    ],
    ids=str,
)
def test_nodes_that_end_at_one_place_are_the_requests_doing(
    places: tuple[int, ...], max_resends: int, expected: bool
) -> None:
    assert is_poison(deaths(*places), max_resends) is expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (("core_dead", 0.4), ("core_dead", 2.1), True),
        (("core_dead", 12.0), ("out_of_memory", 20.0), True),
        (("core_stuck", 9.0), ("node_silent", 11.5), True),
        (("core_dead", 0.4), ("core_dead", 6.0), False),
        (("disconnected", 20.0), ("core_dead", 8.0), False),
        (("core_dead", 9.0), ("core_stuck", 9.0), False),
    ],
    ids=str,
)
def test_a_request_without_events_ended_two_nodes_if_they_failed_alike_after_as_long(
    first: tuple[str, float], second: tuple[str, float], expected: bool
) -> None:
    both = [Death("a", first[0], held_s=first[1]), Death("b", second[0], held_s=second[1])]
    assert is_poison(both, 1) is expected
    assert is_poison([*both, Death("c", *second[:1], held_s=second[1])], 1), "the third tells"


@pytest.mark.parametrize(("unheard_s", "expected"), [(0.4, True), (4.0, False)])
def test_a_node_that_was_silent_before_it_got_the_request_did_not_fall_silent_by_it(
    unheard_s: float, expected: bool
) -> None:
    first = Death("a", "node_silent", 7, held_s=6.0)
    then = [Death(name, "node_silent", 7, held_s=5.0, unheard_s=unheard_s) for name in "bc"]
    assert is_poison([first, then[0]], 1) is expected
    assert is_poison([first, *then], 1) is expected


def test_a_body_is_known_by_its_path_and_bytes_until_its_time_is_over() -> None:
    memory = PoisonMemory(60.0)
    memory.note(body_key("/v1/completions", b"evil"), Poisoned("r1", ("a", "b"), 100.0))
    found = memory.find("/v1/completions", b"evil", 160.0)
    assert found is not None
    assert (found.request_id, found.nodes) == ("r1", ("a", "b"))
    assert memory.find("/v1/completions", b"good", 100.0) is None
    assert memory.find("/v1/chat/completions", b"evil", 100.0) is None
    assert memory.find("/v1/completions", b"evil", 160.1) is None
    assert memory.find("/v1/completions", b"evil", 100.0) is None, "forgotten"


def test_only_so_many_are_remembered() -> None:
    memory = PoisonMemory(60.0, max_remembered=2)
    for name in ("a", "b", "c"):
        memory.note(body_key("/p", name.encode()), Poisoned(name, (), 0.0))
    assert [memory.find("/p", name, 0.0) is not None for name in (b"a", b"b", b"c")] == [False, True, True]


def test_with_a_memory_of_zero_nothing_is_remembered() -> None:
    memory = PoisonMemory(0.0)
    memory.note(body_key("/p", b"a"), Poisoned("a", (), 0.0))
    assert memory.find("/p", b"a", 0.0) is None
