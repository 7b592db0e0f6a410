"""What budgets will say to the end of nodes is said before anything begins: counted as Kubernetes counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbooks.command import parse_command
from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer, judge_start
from runbooks.leave import needed
from runbooks.ports import EndBudget, NodeFacts


def fleet(*budgets: EndBudget, healthy: bool = True) -> FleetView:
    nodes = [NodeFacts(f"n{i}", "chat", end_budgets=budgets, counts_healthy=healthy) for i in (1, 2, 3)]
    return FleetView.of(nodes, ["n1", "n2", "n3"])


def ruled(view: FleetView, *commands: str) -> str:
    ruling = judge_start([parse_command(one) for one in commands], view)
    return "" if ruling.allows else ruling.reason


ALL = EndBudget("keep", healthy=3, expected=3, limit=3)
TWO = replace(ALL, limit=2)
NONE_AWAY = replace(ALL, limit=0, is_minimum=False)
ONE_AWAY = replace(ALL, limit=1, is_minimum=False)


@pytest.mark.parametrize("command", ["node stop n1", "restart n1"])
def test_the_end_of_a_node_that_the_others_are_too_few_for_is_refused_with_the_budgets_name(command: str) -> None:
    assert ruled(fleet(ALL), command) == (
        "PodDisruptionBudget keep forbids the end of n1: 3 healthy, 2 would be left, and 3 must stay;"
        " start a node more first, or change the budget"
    )
    assert ruled(fleet(TWO), command) == ""
    assert ruled(fleet(), command) == "", "no budget, or none that anybody can see"
    assert judge_start([parse_command(command)], fleet(ALL)).answer is GuardAnswer.NO


def test_what_ends_nothing_is_asked_of_no_budget() -> None:
    assert ruled(fleet(ALL), "drain n1", "cordon n2") == ""


def test_a_node_that_is_started_before_counts_where_the_budget_is_a_number_that_stays() -> None:
    replace_n1 = ("node start n4 --like n1", "drain n1", "node stop n1")
    assert ruled(fleet(ALL), *replace_n1) == ""
    assert "1 new among them" in ruled(fleet(NONE_AWAY), *replace_n1), "one more is expected then, and none may be away"
    assert ruled(fleet(ONE_AWAY), *replace_n1) == ""


def test_nodes_that_are_ended_one_after_the_other_are_counted_together() -> None:
    assert ruled(fleet(TWO), "node stop n1", "node stop n2") != ""
    assert ruled(fleet(ONE_AWAY), "node stop n1", "node stop n2") == "", "fewer are expected after the first one"
    assert ruled(fleet(TWO), "restart n1", "restart n2") == "", "the first one is back by then"


def test_a_smaller_pool_ends_nodes() -> None:
    command = "scale chat --to 2 --from 3 --nodes n3"
    assert "forbids the end of n3" in ruled(fleet(ALL), command)
    assert ruled(fleet(TWO), command) == ""


def test_a_node_that_is_not_healthy_takes_nothing_from_those_that_are() -> None:
    two_left = replace(TWO, healthy=2)
    assert ruled(fleet(two_left, healthy=False), "node stop n1") == ""
    assert ruled(fleet(two_left), "node stop n1") != ""


def test_shares_are_rounded_up() -> None:
    half = EndBudget("half", healthy=3, expected=3, limit=50, is_percent=True)
    assert [needed(half, expected) for expected in (2, 3, 4)] == [1, 2, 2]
    away = replace(half, is_minimum=False)
    assert [needed(away, expected) for expected in (2, 3, 4)] == [1, 1, 2]
