"""What counts as one failure, and which time counts: looks at nodes, one after the other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.controller.failures.failure_watch import (
    END_AFTER_S,
    EPISODE_GAP_S,
    MAX_GAP_S,
    FailureWatch,
    Placement,
    Seen,
)
from fleetctl.controller.failures.failures import without_common_cause
from fleetctl.wire.failure import FailureKind

CRASH, XID, HUNG = FailureKind.CRASH, FailureKind.XID, FailureKind.HUNG


def place(node: str = "a", **more: str) -> Placement:
    return Placement(**{"node": node, "host": "h1", "pool": "chat", **more})


def seen(node: str = "a", *kinds: FailureKind, **more: Any) -> Seen:
    return Seen(place(node), dict.fromkeys(kinds, "why"), **more)


def watch(**options: Any) -> FailureWatch:
    numbers = itertools.count(1)
    return FailureWatch(lambda: f"f{next(numbers)}", **options)


def test_a_sign_that_stands_is_one_failure_with_a_beginning_and_an_end() -> None:
    made = watch()
    (record,) = made.look([seen("a", CRASH)], 100.0).begun
    assert (record.kind, record.at, record.place.host, record.episode) == (CRASH, 100.0, "h1", record.id)
    assert made.look([seen("a", CRASH)], 130.0).begun == ()
    assert made.look([seen()], 130.0 + END_AFTER_S).ended == {}, "it may come back"
    assert made.look([seen()], 131.0 + END_AFTER_S).ended == {record.id: 130.0}


def test_a_sign_that_comes_and_goes_within_a_minute_is_one_failure() -> None:
    made = watch()
    begun = [
        len(made.look([seen("a", *([HUNG] if at % 40 == 0 else []))], float(at)).begun) for at in range(0, 400, 20)
    ]
    assert sum(begun) == 1


def test_what_follows_within_minutes_on_one_node_is_one_episode_and_on_another_is_not() -> None:
    made = watch()
    (first,) = made.look([seen("a", XID), seen("b")], 0.0).begun
    crash, other = made.look([seen("a", CRASH), seen("b", CRASH)], 100.0).begun
    assert crash.episode == first.id
    assert other.episode == other.id
    for at in range(200, 700, 100):
        made.look([seen("a"), seen("b")], float(at))
    (later,) = made.look([seen("a", CRASH), seen("b")], 101.0 + EPISODE_GAP_S + 300).begun
    assert later.episode == later.id


def test_a_failure_from_before_a_restart_is_not_told_again_and_ends_when_it_is_over() -> None:
    (record,) = watch().look([seen("a", CRASH)], 0.0).begun
    made = watch(standing=[record], now=500.0)
    assert made.look([seen("a", CRASH)], 501.0).begun == ()
    assert made.look([seen("a")], 502.0 + END_AFTER_S).ended == {record.id: 501.0}


def test_a_node_that_nobody_could_look_at_neither_fails_nor_recovers_and_its_time_does_not_count() -> None:
    made = watch()
    (record,) = made.look([seen("a", HUNG)], 0.0).begun
    stint = made.stints["a"].id
    for at in (50.0, 100.0, 150.0):
        assert made.look([], at, unknown={"a"}).ended == {}
    assert "a" not in made.stints
    changes = made.look([seen("a", HUNG)], 200.0)
    assert (changes.begun, changes.ended) == ((), {})
    assert changes.stints_begun[0].id != stint
    assert made.look([], 210.0).ended == {record.id: 200.0}, "it left the fleet"


def test_watched_time_is_cut_where_a_node_moves_or_is_at_no_risk_or_nobody_looked() -> None:
    made = watch()
    (first,) = made.look([seen()], 0.0).stints_begun
    assert made.look([seen()], 60.0).stints_begun == ()
    moved = made.look([Seen(place(revision="r2"))], 90.0)
    assert moved.stints_ended == {first.id: 60.0}
    (second,) = moved.stints_begun
    assert made.look([Seen(place(revision="r2"), is_at_risk=False)], 100.0).stints_ended == {second.id: 90.0}
    (third,) = made.look([seen()], 110.0).stints_begun
    (fourth,) = made.look([seen()], 111.0 + MAX_GAP_S).stints_begun
    assert fourth.id != third.id


@given(st.lists(st.tuples(st.floats(0.5, 200.0), st.sets(st.sampled_from([CRASH, XID, HUNG]))), max_size=30))
def test_every_failure_ends_once_after_it_began_and_no_two_of_a_kind_stand_at_once(
    looks: list[tuple[float, set[FailureKind]]],
) -> None:
    made, now = watch(), 0.0
    standing: dict[str, FailureKind] = {}
    for pause, kinds in looks:
        now += pause
        changes = made.look([seen("a", *kinds)], now)
        for record_id, at in changes.ended.items():
            assert record_id in standing
            assert at <= now
        begun_and_ended = {one.id: one.kind for one in changes.begun}
        standing |= begun_and_ended
        for record_id in changes.ended:
            del standing[record_id]
        assert len(set(standing.values())) == len(standing)
        assert kinds <= set(standing.values())


@pytest.mark.parametrize(("silent", "nodes", "blamed"), [(2, 3, 2), (3, 6, 3), (4, 6, 0), (3, 3, 0)])
def test_when_most_of_the_fleet_is_silent_at_once_no_node_is_blamed(silent: int, nodes: int, blamed: int) -> None:
    fleet = [seen(f"n{i}", *([FailureKind.UNREACHABLE] if i < silent else [])) for i in range(nodes)]
    assert sum(bool(one.signs) for one in without_common_cause(fleet)) == blamed
