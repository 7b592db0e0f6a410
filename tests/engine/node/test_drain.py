"""The drain's bookkeeping: every held request is in the receipt once."""

import random

import pytest

from engine.node.drain import Drain, DrainedRequest, DrainState
from engine.node.inflight import Fate


def make_drain() -> Drain:
    return Drain(since=100.0)


def test_an_idle_node_is_drained_at_once() -> None:
    drain = make_drain()
    drain.begin(0, 30.0, now=200.0)
    assert drain.state is DrainState.DRAINED
    assert drain.since == 200.0


def test_held_requests_are_accounted_for_by_how_they_end() -> None:
    drain = make_drain()
    drain.begin(4, 30.0, now=200.0)
    for held, fate in ((3, Fate.FINISHED), (2, Fate.MOVED), (1, Fate.ABORTED), (0, Fate.FAILED)):
        assert drain.state is DrainState.DRAINING
        drain.note(fate, held, now=210.0)
    status = drain.status(running=0, waiting=0)
    assert status["state"] == "drained"
    assert status["receipt"] == {"in_flight": 4, "finished": 1, "moved": 1, "refused": 0, "aborted": 2}


def test_refused_arrivals_are_no_part_of_what_was_held() -> None:
    drain = make_drain()
    drain.begin(1, 30.0, now=200.0)
    drain.note(Fate.REFUSED, 1, now=201.0)
    drain.note(Fate.FINISHED, 0, now=202.0)
    assert drain.state is DrainState.DRAINED
    assert drain.receipt.refused == 1


def test_a_second_drain_only_moves_the_deadline() -> None:
    drain = make_drain()
    drain.begin(2, 30.0, now=200.0)
    drain.note(Fate.FINISHED, 1, now=201.0)
    drain.begin(1, 5.0, now=202.0)
    assert (drain.deadline_at, drain.since, drain.receipt.in_flight) == (207.0, 200.0, 2)


def test_draining_a_drained_node_changes_nothing() -> None:
    drain = make_drain()
    drain.begin(0, 30.0, now=200.0)
    drain.begin(0, 5.0, now=300.0)
    assert drain.since == 200.0


def test_ends_after_resuming_are_not_in_the_receipt() -> None:
    drain = make_drain()
    drain.begin(2, 30.0, now=200.0)
    drain.resume(now=201.0)
    drain.note(Fate.FINISHED, 1, now=202.0)
    assert (drain.state, drain.receipt.finished, drain.deadline_at) == (DrainState.SERVING, 0, None)


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_ends_adds_up(seed: int) -> None:
    rng = random.Random(seed)
    drain = make_drain()
    held = rng.randint(0, 20)
    drain.begin(held, 1.0, now=0.0)
    while held:
        fate = rng.choice(list(Fate))
        held -= fate not in (Fate.REFUSED, Fate.INVALID)
        drain.note(fate, held, now=1.0)
    assert drain.state is DrainState.DRAINED
    drain.check_integrity()


def test_each_request_has_its_row_with_tokens_before_and_after() -> None:
    drain = make_drain()
    drain.begin(2, 30.0, now=200.0, requests=[DrainedRequest("a", 7, 3, 3), DrainedRequest("b", 5, 0, 0)])
    drain.note(Fate.FINISHED, 1, 201.0, DrainedRequest("a", 7, tokens_out=9))
    drain.note(Fate.REFUSED, 1, 202.0, DrainedRequest("c"))
    drain.note(Fate.MOVED, 0, 203.0, DrainedRequest("b", 5, tokens_out=4))
    assert list(drain.requests.values()) == [
        DrainedRequest("a", 7, 3, 9, Fate.FINISHED),
        DrainedRequest("b", 5, 0, 4, Fate.MOVED),
        DrainedRequest("c", 0, 0, 0, Fate.REFUSED),
    ]
    drain.resume(now=300.0)
    drain.begin(0, 30.0, now=400.0)
    assert drain.requests == {}
