from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import VERBS, Capacity, parse_command
from runbooks.guard import (
    Answer,
    Fleet,
    Policy,
    capacity_floor,
    judge_capacity,
    judge_names,
    judge_plan,
    needs_person,
)


def fleet(wanted: int, serving: int | None = None) -> Fleet:
    names = [f"n{i}" for i in range(1, wanted + 1)]
    return Fleet(frozenset(names), frozenset(names[: wanted if serving is None else serving]))


@pytest.mark.parametrize(
    ("wanted", "floor"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (10, 6), (15, 9), (100, 60)]
)
def test_floor_is_sixty_percent_and_at_least_one(wanted: int, floor: int) -> None:
    assert capacity_floor(wanted) == floor


CASES = {
    "one of three may go": ("drain n1", fleet(3), Answer.YES),
    "second of three may not": ("drain n1", fleet(3, serving=2), Answer.NO),
    "the last one may not": ("node stop n1", fleet(1), Answer.NO),
    "restart takes capacity too": ("restart n1", fleet(2), Answer.NO),
    "cordon takes capacity too": ("cordon n1", fleet(2), Answer.NO),
    "force does not get round it": ("node stop n1 --force", fleet(2), Answer.NO),
    "a node out of service may go": ("node stop n3", fleet(3, serving=2), Answer.YES),
    "starting is always allowed": ("node start n9", Fleet(None, None), Answer.YES),
    "uncordon is always allowed": ("uncordon n1", Fleet(None, None), Answer.YES),
    "blind means no": ("drain n1", Fleet(fleet(3).wanted, None), Answer.UNKNOWN),
    "blind on names means no": ("drain n1", Fleet(None, fleet(3).serving), Answer.UNKNOWN),
}


@pytest.mark.parametrize(("command", "seen", "answer"), CASES.values(), ids=CASES.keys())
def test_capacity_guard(command: str, seen: Fleet, answer: Answer) -> None:
    verdict = judge_capacity(parse_command(command), seen)
    assert verdict.answer is answer
    assert verdict.allows is (answer is Answer.YES)
    assert verdict.reason


def test_a_replacement_counts_for_the_node_it_replaces() -> None:
    alone = Fleet(frozenset({"n1", "n1b"}), frozenset({"n1", "n1b"}))
    drain = parse_command("drain n1")
    assert judge_capacity(drain, alone, fresh=["n1b"]).allows
    assert not judge_capacity(drain, alone).allows


def test_nodes_that_other_runs_take_out_do_not_count() -> None:
    drain = parse_command("drain n1")
    assert judge_capacity(drain, fleet(3)).allows
    verdict = judge_capacity(drain, fleet(3), leaving=["n2"])
    assert verdict.reason == "without n1 only 1 of 2 nodes would serve, the floor is 2"


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
    verb = data.draw(st.sampled_from([verb for verb in VERBS.values() if verb.capacity is not Capacity.ADDS]))
    target = data.draw(st.sampled_from(names))
    verdict = judge_capacity(parse_command(f"{verb.name} {target}"), Fleet(frozenset(names), serving))
    if verdict.allows and target in serving:
        assert len(serving - {target}) >= capacity_floor(wanted)


def test_names_must_exist_or_be_free() -> None:
    seen = fleet(2)
    assert judge_names(["n1"], ["n3"], seen).allows
    assert judge_names(["n7"], [], seen).reason == "there is no node n7; nodes: n1, n2"
    assert judge_names(["n1"], ["n2"], seen).reason == "the new node's name n2 is taken: give a free one"
    assert judge_names(["n1"], [], Fleet(None, None)).answer is Answer.UNKNOWN


def test_only_the_run_policy_starts_unasked_and_never_what_is_risky() -> None:
    assert needs_person(Policy.PROPOSE, "low")
    assert needs_person(Policy.ASK, "low")
    assert not needs_person(Policy.RUN, "medium")
    assert needs_person(Policy.RUN, "high")
