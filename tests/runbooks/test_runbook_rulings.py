"""Rulings word for word: whose answer, which floor, what is not repeated, who holds what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runbooks.command import parse_command
from runbooks.fleet_view import Change, FleetView
from runbooks.guard import (
    GuardAnswer,
    Ruling,
    held_text,
    judge_capacity,
    judge_names,
    judge_plan,
    judge_repeat,
    judge_start,
    overlap_by_name,
)
from runbooks.ports import NodeFacts
from runbooks.run import Run, RunStatus
from runbooks.target import Target, TargetKind, node_target, parse_target

YES, NO, UNKNOWN = GuardAnswer.YES, GuardAnswer.NO, GuardAnswer.UNKNOWN
NODE_1, NODE_2 = node_target("n1"), node_target("n2")
DRAIN = parse_command("drain n1")
POOL_A = Target(TargetKind.POOL, "a")


def view(pools: dict[str, str], serving: str = "") -> FleetView:
    """A fleet of these nodes with their pools; all serve unless named."""
    return FleetView.of([NodeFacts(name, pool) for name, pool in pools.items()], serving.split() or pools)


FIVE = {"n1": "a", "n2": "a", "n3": "b", "n4": "b", "n5": "b"}


def a_run(**changes: object) -> Run:
    run = Run("run-1", "drain-node", "Drain n1", RunStatus.FAILED, {}, 1.0, 2.0, targets=(NODE_1,))
    return replace(run, **changes)  # type: ignore[arg-type]


def test_floor_follows_the_ratio_asked_for_in_the_fleet_and_in_every_step_of_a_plan() -> None:
    fleet = view(dict.fromkeys(FIVE, "a"))
    assert judge_capacity(DRAIN, fleet) == Ruling(YES, "4 nodes serve without n1, the floor is 3")
    assert judge_capacity(DRAIN, fleet, floor_ratio=1.0) == Ruling(
        NO, "without n1 only 4 of 5 nodes would serve, the floor is 5"
    )
    assert judge_plan([DRAIN], fleet, floor_ratio=1.0) == (judge_capacity(DRAIN, fleet, floor_ratio=1.0),)


def test_nodes_that_a_run_took_out_itself_do_not_lower_the_floor() -> None:
    fleet = view({"n1": "a", "n2": "a", "n3": "a"})
    assert judge_capacity(DRAIN, fleet).reason == "2 nodes serve without n1, the floor is 2"
    ruling = judge_capacity(DRAIN, fleet, gone=["n4", "n5"])
    assert ruling == Ruling(NO, "without n1 only 2 of 3 nodes would serve, the floor is 3")


def test_what_takes_no_requests_out_is_allowed_and_says_why() -> None:
    fleet = view(FIVE)
    assert judge_capacity(parse_command("uncordon n1"), fleet) == Ruling(YES, "adds capacity")
    assert judge_capacity(parse_command("node start n9"), fleet) == Ruling(YES, "adds capacity")
    assert judge_capacity(DRAIN, fleet, change=Change()) == Ruling(YES, "changes nothing")
    assert judge_capacity(DRAIN, view(FIVE, "n2 n3")) == Ruling(
        YES, "n1 takes no requests now; 2 serve, the floor is 3"
    )
    both = Change(removes=frozenset({"n1", "n2"}))
    assert judge_capacity(DRAIN, view(FIVE, "n3"), change=both) == Ruling(
        YES, "n1, n2 take no requests now; 1 serve, the floor is 3"
    )


def test_what_could_not_be_looked_up_is_named() -> None:
    blind = FleetView(None, None)
    assert judge_capacity(DRAIN, blind) == Ruling(
        UNKNOWN, "could not look which nodes serve: n1 is not taken out blindly"
    )
    assert judge_names([NODE_1], [], blind) == Ruling(UNKNOWN, "could not look which nodes exist")
    not_looked_up = parse_command("scale a --to 1")
    assert judge_capacity(not_looked_up, view(FIVE)) == Ruling(UNKNOWN, "could not look which nodes pool a has")


def test_a_pool_keeps_its_own_floor() -> None:
    scale = parse_command("scale a --to 1")
    assert scale.target == POOL_A
    out = Change(removes=frozenset({"n1"}))
    assert judge_capacity(scale, view(FIVE), change=out) == Ruling(
        NO, "without n1 only 1 of 2 nodes of pool a would serve, the floor is 2"
    )
    assert judge_capacity(scale, view(FIVE), change=out, floor_ratio=0.5) == Ruling(
        YES, "1 nodes of pool a serve without n1, the floor is 1"
    )
    assert judge_capacity(scale, view(FIVE), change=out, floor_ratio=1.0).reason.startswith("without n1 only 4 of 5")


def test_a_node_of_the_pool_that_the_run_took_out_still_raises_its_floor() -> None:
    fleet = FleetView.of([NodeFacts("n0", "a", wanted=False), NodeFacts("n1", "a"), NodeFacts("n2", "a")], ["n1", "n2"])
    out = Change(removes=frozenset({"n1"}))
    scale = parse_command("scale a --to 1")
    assert judge_capacity(scale, fleet, change=out, floor_ratio=0.5).allows
    assert judge_capacity(scale, fleet, change=out, floor_ratio=0.5, gone=["n0"]).answer is NO


def test_names_are_looked_for_where_they_belong() -> None:
    fleet = view(FIVE)
    assert judge_names([NODE_1, POOL_A, parse_target("fleet")], ["n6"], fleet) == Ruling(YES, "all names fit")
    assert judge_names([node_target("a")], [], fleet) == Ruling(NO, "there is no node a; nodes: n1, n2, n3, n4, n5")
    assert judge_names([parse_target("fleet"), Target(TargetKind.POOL, "c")], [], fleet) == Ruling(
        NO, "there is no pool c; pools: a, b"
    )
    assert judge_names([NODE_1], [], view({})) == Ruling(NO, "there is no node n1; nodes: none")
    assert judge_names([NODE_1], ["n6", "n2"], fleet) == Ruling(NO, "the new node's name n2 is taken: give a free one")


def test_a_plan_that_fits_starts() -> None:
    assert judge_start([DRAIN], view(FIVE)) == Ruling(YES, "as planned")
    assert judge_start([], view(FIVE)) == Ruling(YES, "as planned")


def test_a_plan_starts_only_on_the_fleet_it_was_made_for() -> None:
    to_three = parse_command("scale a --to 3 --from 2 --nodes n6 --like n1")
    to_four = parse_command("scale a --to 4 --from 3 --nodes n7 --like n1")
    assert judge_start([to_three, to_four], view(FIVE)) == Ruling(YES, "as planned")
    assert judge_start([to_four], view(FIVE)) == Ruling(NO, "pool a had 3 nodes when this was planned and has 2 now")


@pytest.mark.parametrize(
    "earlier",
    [
        pytest.param(a_run(runbook="restart-node"), id="another page"),
        pytest.param(a_run(status=RunStatus.SUCCEEDED), id="it helped"),
        pytest.param(a_run(dry_run=True), id="nothing was done"),
        pytest.param(a_run(targets=(NODE_2,)), id="elsewhere"),
    ],
)
def test_only_what_failed_there_is_not_repeated(earlier: Run) -> None:
    assert judge_repeat("drain-node", [NODE_1], [earlier]) == Ruling(YES, "not tried for this incident")


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.UNDONE])
def test_what_failed_there_is_not_repeated(status: RunStatus) -> None:
    ruling = judge_repeat(
        "drain-node", [NODE_2, NODE_1], [a_run(targets=(NODE_2,), dry_run=True), a_run(status=status)]
    )
    assert ruling.answer is NO
    assert ruling.reason == (
        f"run-1 tried drain-node for this incident and ended {status.value}: it is not repeated;"
        " to insist, start it without naming the incident"
    )


def test_who_holds_a_target_is_said() -> None:
    holder = a_run(status=RunStatus.RUNNING)
    held = "n1 is held by run run-1 (Drain n1, running)"
    assert held_text(NODE_1, NODE_1, holder) == held
    assert held_text(POOL_A, NODE_1, holder) == f"pool/a is not free: {held}"
    assert held_text(POOL_A, NODE_1, holder, is_known=False) == (
        f"pool/a is not free: {held}, and whether pool/a belongs to it is not known"
    )


def test_by_name_alone_a_pool_and_a_node_may_overlap() -> None:
    assert overlap_by_name(NODE_1, NODE_1) is True
    assert overlap_by_name(NODE_1, NODE_2) is False
    assert overlap_by_name(NODE_1, POOL_A) is None


def test_a_ruling_reads_as_answer_and_reason() -> None:
    assert str(Ruling(NO, "the floor is 3")) == "no: the floor is 3"
