from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import parse_command
from runbooks.fleet_view import FleetView
from runbooks.guard import (
    GuardAnswer,
    Policy,
    capacity_floor,
    judge_capacity,
    judge_names,
    judge_plan,
    needs_person,
)
from runbooks.ports import NodeFacts
from runbooks.target import node_target
from runbooks.verb import PAUSES, REMOVES
from runbooks.verbs import VERBS


def view(wanted: Iterable[str] | None, serving: Iterable[str] | None) -> FleetView:
    return FleetView.of(None if wanted is None else [NodeFacts(name, "default") for name in wanted], serving)


def fleet(wanted: int, serving: int | None = None) -> FleetView:
    names = [f"n{i}" for i in range(1, wanted + 1)]
    return view(names, names[: wanted if serving is None else serving])


@pytest.mark.parametrize(
    ("wanted", "floor"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (10, 6), (15, 9), (100, 60)]
)
def test_floor_is_sixty_percent_and_at_least_one(wanted: int, floor: int) -> None:
    assert capacity_floor(wanted) == floor


CASES = {
    "one of three may go": ("drain n1", fleet(3), GuardAnswer.YES),
    "second of three may not": ("drain n1", fleet(3, serving=2), GuardAnswer.NO),
    "the last one may not": ("node stop n1", fleet(1), GuardAnswer.NO),
    "restart takes capacity too": ("restart n1", fleet(2), GuardAnswer.NO),
    "cordon takes capacity too": ("cordon n1", fleet(2), GuardAnswer.NO),
    "force does not get round it": ("node stop n1 --force", fleet(2), GuardAnswer.NO),
    "a node out of service may go": ("node stop n3", fleet(3, serving=2), GuardAnswer.YES),
    "starting is always allowed": ("node start n9", view(None, None), GuardAnswer.YES),
    "uncordon is always allowed": ("uncordon n1", view(None, None), GuardAnswer.YES),
    "blind means no": ("drain n1", view(fleet(3).wanted, None), GuardAnswer.UNKNOWN),
    "blind on names means no": ("drain n1", view(None, fleet(3).serving), GuardAnswer.UNKNOWN),
}


@pytest.mark.parametrize(("command", "seen", "answer"), CASES.values(), ids=CASES.keys())
def test_capacity_guard(command: str, seen: FleetView, answer: GuardAnswer) -> None:
    ruling = judge_capacity(parse_command(command), seen)
    assert ruling.answer is answer
    assert ruling.allows is (answer is GuardAnswer.YES)
    assert ruling.reason


def test_a_replacement_counts_for_the_node_it_replaces() -> None:
    alone = view({"n1", "n1b"}, {"n1", "n1b"})
    drain = parse_command("drain n1")
    assert judge_capacity(drain, alone, fresh=["n1b"]).allows
    assert not judge_capacity(drain, alone).allows


def test_nodes_that_other_runs_take_out_do_not_count() -> None:
    drain = parse_command("drain n1")
    assert judge_capacity(drain, fleet(3)).allows
    ruling = judge_capacity(drain, fleet(3), leaving=["n2"])
    assert ruling.reason == "without n1 only 1 of 2 nodes would serve, the floor is 2"


def test_plan_is_judged_step_by_step_on_what_the_steps_before_leave() -> None:
    commands = ["node start n1b --like n1", "drain n1", "node stop n1"]
    replace_first = [parse_command(text) for text in commands]
    assert [v.answer for v in judge_plan(replace_first, fleet(1), fresh=["n1b"])] == ["yes"] * 3
    stop_first = [replace_first[1], replace_first[0]]
    assert [v.answer for v in judge_plan(stop_first, fleet(1), fresh=["n1b"])] == ["no", "yes"]
    two_drains = [parse_command("drain n1"), parse_command("drain n2")]
    assert [v.answer for v in judge_plan(two_drains, fleet(3))] == ["yes", "no"]


@given(st.integers(1, 12), st.data())
def test_no_allowed_action_leaves_fewer_than_the_floor(wanted: int, data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(wanted)]
    serving = frozenset(data.draw(st.sets(st.sampled_from(names))))
    verb = data.draw(st.sampled_from([verb for verb in VERBS.values() if verb.capacity in (REMOVES, PAUSES)]))
    target = data.draw(st.sampled_from(names))
    ruling = judge_capacity(parse_command(f"{verb.name} {target}"), view(names, serving))
    if ruling.allows and target in serving:
        assert len(serving - {target}) >= capacity_floor(wanted)


def test_names_must_exist_or_be_free() -> None:
    seen = fleet(2)
    assert judge_names([node_target("n1")], ["n3"], seen).allows
    assert judge_names([node_target("n7")], [], seen).reason == "there is no node n7; nodes: n1, n2"
    assert judge_names([node_target("n1")], ["n2"], seen).reason == "the new node's name n2 is taken: give a free one"
    assert judge_names([node_target("n1")], [], view(None, None)).answer is GuardAnswer.UNKNOWN


def test_only_the_run_policy_starts_unasked_and_never_what_is_risky() -> None:
    assert needs_person(Policy.PROPOSE, "low")
    assert needs_person(Policy.ASK, "low")
    assert not needs_person(Policy.RUN, "medium")
    assert needs_person(Policy.RUN, "high")
