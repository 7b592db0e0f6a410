"""Each client has its share of what work costs, and nothing that waits is lost."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.node.fair_queue import FairQueue


def test_who_comes_late_is_served_next_but_has_no_credit_for_the_time_before() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for number in range(10):
        queue.push("early", number)
    for _ in range(4):
        assert queue.pop()[0] == "early"
        queue.charge("early", 1.0)
    for number in range(10):
        queue.push("late", number)
    served = []
    for _ in range(8):
        client, _number = queue.pop()
        queue.charge(client, 1.0)
        served.append(client)
    assert served[0] == "late"
    assert Counter(served) == {"late": 4, "early": 4} or Counter(served) == {"late": 5, "early": 3}


def test_shares_are_of_cost_and_not_of_turns() -> None:
    queue: FairQueue[int] = FairQueue(1000)
    for number in range(100):
        queue.push("costly", number)
        queue.push("cheap", number)
    served: Counter[str] = Counter()
    for _ in range(88):
        client, _number = queue.pop()
        queue.charge(client, 10.0 if client == "costly" else 1.0)
        served[client] += 1
    assert served["cheap"] == 10 * served["costly"]


def test_of_a_full_queue_the_newest_of_the_client_with_the_most_has_no_place() -> None:
    queue: FairQueue[str] = FairQueue(3)
    assert [queue.push("a", name) for name in ("a1", "a2", "a3")] == [None, None, None]
    assert queue.push("a", "a4") == "a4"
    assert queue.push("b", "b1") == "a3"
    assert queue.push("b", "b2") == "b2", "of equals the one who brought one more"
    assert queue.push("c", "c1") == "a2"
    assert sorted(queue.pop()[1] for _ in range(3)) == ["a1", "b1", "c1"]
    with pytest.raises(IndexError):
        queue.pop()


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 10)), max_size=200), st.integers(1, 9))
def test_everything_pushed_is_served_or_handed_back_once_in_its_clients_order(
    steps: list[tuple[int, float]], max_waiting: int
) -> None:
    """0: serve one; else a client brings one."""
    queue: FairQueue[int] = FairQueue(max_waiting)
    pushed: list[int] = []
    ended: list[int] = []
    served: dict[str, list[int]] = {}
    for number, (client, cost) in enumerate(steps):
        if client:
            pushed.append(number)
            dropped = queue.push(str(client), number)
            ended += [] if dropped is None else [dropped]
        elif queue:
            name, item = queue.pop()
            queue.charge(name, cost)
            served.setdefault(name, []).append(item)
        assert len(queue) <= max_waiting
    while queue:
        name, item = queue.pop()
        served.setdefault(name, []).append(item)
    assert sorted([*ended, *itertools.chain.from_iterable(served.values())]) == pushed
    assert all(items == sorted(items) for items in served.values())
