"""New nodes are started where there is room for them: refused where it is known that there is none, else tried."""

from __future__ import annotations

import pytest

from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer, judge_start
from runbooks.plan import plan_command, resolve_plan
from runbooks.ports import Capacity, NodeFacts
from runbooks.verb import Action

WHY = "spare places of pool chat: spare-1"


def fleet(capacity: Capacity) -> FleetView:
    nodes = [
        NodeFacts(name, "chat", "demo", created_at=float(i), capacity=capacity) for i, name in enumerate(("a-1", "a-2"))
    ]
    return FleetView.of(nodes, ["a-1", "a-2"])


def planned(command: str, capacity: Capacity) -> Action:
    plan = resolve_plan(plan_command(command), fleet(capacity), {})
    (action,) = (one for one in plan.actions if one.change is not None)
    return action


def ruled(command: str, capacity: Capacity) -> tuple[GuardAnswer, str]:
    ruling = judge_start([planned(command, capacity)], fleet(capacity))
    return ruling.answer, ruling.reason


@pytest.mark.parametrize("command", ["scale chat --to +2", "node start b --like a-1"])
def test_where_nothing_is_left_a_start_is_refused_with_what_decides_it(command: str) -> None:
    answer, reason = ruled(command, Capacity(0, "spare places of pool chat: none"))
    assert answer is GuardAnswer.NO
    assert "can't be started, only 0: spare places of pool chat: none" in reason


@pytest.mark.parametrize("capacity", [Capacity(), Capacity(None, "the host can't be looked at"), Capacity(2, "enough")])
def test_what_is_not_known_or_enough_is_tried(capacity: Capacity) -> None:
    assert ruled("scale chat --to +2", capacity)[0] is GuardAnswer.YES


def test_more_than_there_is_room_for_is_refused_and_less_is_not() -> None:
    room = Capacity(1, WHY, ("spare-1",))
    assert ruled("scale chat --to +2", room) == (
        GuardAnswer.NO,
        f"2 more like a-2 can't be started, only 1: {WHY}",
    )
    assert ruled("scale chat --to +1", room)[0] is GuardAnswer.YES


def test_a_new_node_gets_a_name_that_can_be_had_and_another_one_is_refused() -> None:
    room = Capacity(2, WHY, ("spare-1", "spare-2"))
    assert planned("scale chat --to +2", room).args["nodes"] == ("spare-1", "spare-2")
    assert ruled("node start a-3 --like a-1", room) == (GuardAnswer.NO, f"no node can be started as a-3: {WHY}")


def test_taking_nodes_out_asks_for_no_room() -> None:
    assert ruled("scale chat --to 1", Capacity(0, "none"))[0] is GuardAnswer.YES
