"""The order of the queue: classes, aging, fair shares of tokens; nobody lost, nobody twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.gateway.admission.fair_queue import AGED_TURNS, FairQueue, Waiter
from fleetctl.priority_class import PriorityClass

CRITICAL, STANDARD, BATCH = PriorityClass
MAX_TOKENS = 1000.0


def waiter(
    tenant: str = "a",
    priority: PriorityClass = STANDARD,
    *,
    tokens: float = 1.0,
    since: float = 0.0,
    weight: float = 1.0,
) -> Waiter:
    return Waiter(tenant, priority, tokens, since, weight)


def served(queue: FairQueue, count: int, now: float = 0.0) -> list[Waiter]:
    found = [queue.pop(now) for _ in range(count)]
    assert all(found)
    return [one for one in found if one is not None]


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"), st.sampled_from("abcd"), st.sampled_from(list(PriorityClass)), st.floats(1.0, MAX_TOKENS)
        ),
        st.tuples(st.just("first"), st.sampled_from("abcd"), st.sampled_from(list(PriorityClass)), st.floats(1.0, 9.0)),
        st.tuples(st.just("pop"), st.integers(0, 20)),
        st.tuples(st.just("remove"), st.integers(0, 50)),
        st.tuples(st.just("drop"), st.sampled_from("abcd"), st.sampled_from(list(PriorityClass))),
        st.tuples(st.just("cost"), st.sampled_from("abcd"), st.sampled_from(list(PriorityClass)), st.floats(-900, 900)),
    ),
    max_size=120,
)


@given(operations)
def test_whatever_happens_each_waiter_leaves_once(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    queue, inside, left, now = FairQueue(aging_s=5.0), [], [], 0.0
    for step in steps:
        match step:
            case ("push" | "first" as how, tenant, priority, tokens):
                one = waiter(tenant, priority, tokens=tokens, since=now)
                queue.push(one, is_first=how == "first")
                inside.append(one)
            case ("pop", seconds):
                now += seconds
                if (one := queue.pop(now)) is not None:
                    left.append(one)
            case ("remove", number):
                one = inside[number % len(inside)] if inside else waiter()
                if queue.remove(one):
                    left.append(one)
            case ("drop", tenant, priority):
                if (one := queue.drop_for(waiter(tenant, priority))) is not None:
                    assert one.priority.rank >= priority.rank
                    left.append(one)
            case ("cost", tenant, priority, tokens):
                queue.note_cost(tenant, priority, tokens, 1.0)
        queue.check_integrity()
        assert len(queue) == len(inside) - len(left)
    left += served(queue, len(queue), now)
    assert queue.pop(now) is None
    assert Counter(map(id, left)) == Counter(map(id, inside)), "nobody is lost, nobody is served twice"


@given(
    st.lists(st.floats(1.0, MAX_TOKENS), min_size=60, max_size=60),
    st.lists(st.floats(1.0, MAX_TOKENS), min_size=60, max_size=60),
    st.sampled_from([1.0, 2.0, 5.0]),
    st.integers(1, 60),
)
def test_two_tenants_that_wait_get_tokens_by_their_weights(
    first: list[float], second: list[float], weight: float, turns: int
) -> None:
    queue = FairQueue(aging_s=1e9)
    for tokens in first:
        queue.push(waiter("a", tokens=tokens, weight=weight))
    for tokens in second:
        queue.push(waiter("b", tokens=tokens))
    got: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for one in served(queue, turns):
        got[one.tenant] += one.tokens / one.weight
        counts[one.tenant] += 1
        if counts["a"] < 60 and counts["b"] < 60:
            # The bound of start-time fair queueing: one largest request of each.
            assert abs(got["a"] - got["b"]) <= MAX_TOKENS / weight + MAX_TOKENS + 1e-6


def test_who_was_away_saves_nothing_up() -> None:
    queue = FairQueue(aging_s=1e9)
    for _ in range(10):
        queue.push(waiter("busy", tokens=100))
    served(queue, 9)
    for _ in range(10):
        queue.push(waiter("back", tokens=100))
        queue.push(waiter("busy", tokens=100))
    assert Counter(one.tenant for one in served(queue, 10)) == {"busy": 5, "back": 5}


def test_what_a_request_really_cost_counts_for_its_tenants_next_ones() -> None:
    queue = FairQueue(aging_s=1e9)
    for tenant in "ab":
        for _ in range(10):
            queue.push(waiter(tenant, tokens=10))
    assert [one.tenant for one in served(queue, 2)] == ["a", "b"]
    queue.note_cost("a", STANDARD, 40, 1.0)
    assert [one.tenant for one in served(queue, 5)] == ["b", "b", "b", "b", "a"]


def test_classes_are_served_in_their_order() -> None:
    queue = FairQueue(aging_s=1e9)
    for priority in (BATCH, STANDARD, CRITICAL, BATCH, CRITICAL):
        queue.push(waiter(priority.value, priority))
    assert [one.priority for one in served(queue, 5)] == [CRITICAL, CRITICAL, STANDARD, BATCH, BATCH]


def test_a_class_that_has_waited_gets_each_eighth_turn_and_no_more() -> None:
    queue = FairQueue(aging_s=5.0)
    for _ in range(100):
        queue.push(waiter("old", BATCH, since=0.0))
        queue.push(waiter("new", CRITICAL, since=6.0))
    turns = [one.priority for one in served(queue, 10 * AGED_TURNS, now=6.0)]
    assert Counter(turns) == {CRITICAL: 70, BATCH: 10}
    assert turns.index(BATCH) == AGED_TURNS - 1


def test_both_lower_classes_get_their_turns_under_a_flood() -> None:
    queue = FairQueue(aging_s=5.0)
    for priority in PriorityClass:
        for _ in range(200):
            queue.push(waiter("t", priority))
    turns = Counter(one.priority for one in served(queue, 160, now=10.0))
    assert turns == {CRITICAL: 121, STANDARD: 20, BATCH: 19}


def test_one_that_had_its_turn_in_vain_is_its_tenants_next() -> None:
    queue = FairQueue(aging_s=1e9)
    later = waiter()
    queue.push(later)
    again = waiter()
    queue.push(again, is_first=True)
    assert served(queue, 2) == [again, later]


@pytest.mark.parametrize(
    ("inside", "newcomer", "dropped"),
    [
        ([("a", BATCH)], ("b", STANDARD), ("a", BATCH)),
        ([("a", STANDARD)], ("b", BATCH), None),
        ([("a", STANDARD)], ("b", STANDARD), None),
        ([("a", STANDARD)] * 3, ("b", STANDARD), ("a", STANDARD)),
        ([("a", STANDARD)] * 3, ("a", STANDARD), None),
        ([("a", STANDARD)] * 5 + [("b", BATCH)], ("c", STANDARD), ("b", BATCH)),
    ],
)
def test_a_full_queue_gives_the_place_of_who_has_least_right_to_it(
    inside: list[tuple[str, PriorityClass]],
    newcomer: tuple[str, PriorityClass],
    dropped: tuple[str, PriorityClass] | None,
) -> None:
    queue = FairQueue(aging_s=1e9)
    for one in inside:
        queue.push(waiter(*one))
    found = queue.drop_for(waiter(*newcomer))
    assert (None if found is None else (found.tenant, found.priority)) == dropped
    assert len(queue) == len(inside) - (found is not None)


def test_the_oldest_of_any_class_is_told() -> None:
    queue = FairQueue(aging_s=1e9)
    assert queue.oldest_wait_s(7.0) == 0
    queue.push(waiter("a", CRITICAL, since=5.0))
    queue.push(waiter("a", BATCH, since=3.0))
    assert queue.oldest_wait_s(7.0) == 4.0
    assert queue.counts() == {CRITICAL: 1, STANDARD: 0, BATCH: 1}
