from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import parse_command
from runbooks.fleet_view import Change, FleetView
from runbooks.guard import (
    GuardAnswer,
    Policy,
    Ruling,
    capacity_floor,
    held_text,
    judge_capacity,
    judge_names,
    judge_plan,
    judge_repeat,
    judge_start,
    judge_undo,
    needs_person,
    overlap_by_name,
)
from runbooks.ports import NodeFacts
from runbooks.run import Run, RunStatus
from runbooks.target import Target, TargetKind, node_target
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


def test_an_undo_takes_out_a_serving_node_only_once_what_it_stands_for_serves_again() -> None:
    stop_copy, about = parse_command("node stop n2b"), {"fresh": ["n2b"], "acted_on": ["n2", "n2b"]}
    lost = judge_undo(stop_copy, view(["n1", "n2", "n2b"], ["n1", "n2b"]), **about)
    assert (lost.answer, lost.reason) == (GuardAnswer.NO, "n2b serves and n2 does not: what works stays")
    assert judge_undo(stop_copy, view(["n1", "n2", "n2b"], ["n1", "n2", "n2b"]), **about).allows
    assert judge_undo(stop_copy, view(["n1", "n2", "n2b"], ["n1"]), **about).allows, "it takes no requests itself"
    assert judge_undo(parse_command("uncordon n2"), view(["n1", "n2"], ["n1"]), **about).allows


def test_names_must_exist_or_be_free() -> None:
    seen = fleet(2)
    assert judge_names([node_target("n1")], ["n3"], seen).allows
    assert judge_names([node_target("n7")], [], seen).reason == "there is no node n7; nodes: n1, n2"
    assert judge_names([node_target("n1")], ["n2"], seen).reason == "the new node's name n2 is taken: give a free one"
    assert judge_names([node_target("n1")], [], view(None, None)).answer is GuardAnswer.UNKNOWN


def test_the_floor_ratio_is_the_one_that_is_given() -> None:
    drain = parse_command("drain n1")
    assert judge_capacity(drain, fleet(10), floor_ratio=0.9).allows
    assert not judge_capacity(drain, fleet(10), floor_ratio=0.91).allows
    drains = [drain, parse_command("drain n2")]
    assert [ruling.allows for ruling in judge_plan(drains, fleet(10), floor_ratio=0.9)] == [True, False]


def test_nodes_that_the_run_took_out_do_not_lower_its_floor() -> None:
    seen = view(["n2", "n3", "n4"], ["n2", "n3", "n4"])  # n1 was stopped by the same run
    drain = parse_command("drain n2")
    assert judge_capacity(drain, seen).allows
    ruling = judge_capacity(drain, seen, gone=["n1"])
    assert ruling.reason == "without n2 only 2 of 3 nodes would serve, the floor is 3"


SHRINK = parse_command("scale small --to 3 --from 5 --nodes s1,s2")


def pools(serving: Iterable[str] | None = None) -> FleetView:
    """Five nodes in pool small, twenty in pool large."""
    nodes = [NodeFacts(f"s{i}", "small") for i in range(1, 6)] + [NodeFacts(f"l{i}", "large") for i in range(1, 21)]
    return FleetView.of(nodes, [node.name for node in nodes] if serving is None else serving)


def test_an_action_on_a_pool_leaves_the_pools_floor_too() -> None:
    assert judge_capacity(SHRINK, pools()).reason == "3 nodes of pool small serve without s1, s2, the floor is 3"
    few = pools([*(f"l{i}" for i in range(1, 21)), "s1", "s3", "s4"])
    ruling = judge_capacity(SHRINK, few)
    assert ruling.answer is GuardAnswer.NO
    assert ruling.reason == "without s1, s2 only 2 of 3 nodes of pool small would serve, the floor is 3"
    one = judge_capacity(parse_command("drain s1"), few)
    assert one.reason == "without s1 only 2 of 3 nodes of pool small would serve, the floor is 3"
    assert judge_capacity(parse_command("drain l1"), few).allows, "another pool's floor is its own"
    assert not judge_capacity(SHRINK, pools(["l1", "l2", "s1", "s2", "s3", "s4", "s5"])).allows, "and the fleet's"


def test_the_pools_floor_counts_its_own_nodes_only() -> None:
    gone = judge_capacity(SHRINK, pools(), change=Change(removes=frozenset({"s3"})), gone=["s1", "l1"])
    assert gone.reason == "4 nodes of pool small serve without s3, the floor is 3"
    fresh = judge_capacity(SHRINK, pools(), fresh=["s4", "s5"])
    assert fresh.reason == "3 nodes of pool small serve without s1, s2, the floor is 2"
    leaving = judge_capacity(SHRINK, pools(), leaving=["s5"])
    assert leaving.reason == "without s1, s2 only 2 of 4 nodes of pool small would serve, the floor is 3"


def test_what_takes_no_requests_may_go_whatever_the_floor() -> None:
    one = judge_capacity(parse_command("node stop n3"), fleet(3, serving=1))
    assert one.reason == "n3 takes no requests now; 1 serve, the floor is 2"
    others = pools([f"l{i}" for i in range(1, 21)])
    assert judge_capacity(SHRINK, others).reason == "s1, s2 take no requests now; 0 serve of pool small, the floor is 3"


def test_an_action_that_does_not_say_its_nodes_is_unknown_and_one_without_nodes_is_allowed() -> None:
    ruling = judge_capacity(parse_command("scale small --to -1"), pools())
    assert ruling == Ruling(GuardAnswer.UNKNOWN, "could not look which nodes pool small has")
    same = judge_capacity(parse_command("scale small --to 5 --from 5"), view(None, None))
    assert same == Ruling(GuardAnswer.YES, "changes nothing")
    assert judge_capacity(parse_command("uncordon n1"), view(None, None)).reason == "adds capacity"
    assert judge_capacity(parse_command("node start n9"), view(None, None)).reason == "adds capacity"


def test_pools_and_revisions_must_exist_and_what_has_no_nodes_is_not_asked_for() -> None:
    seen = FleetView.of([NodeFacts("n1", "p", "m", "r1"), NodeFacts("n2", "q", "m", "r1", wanted=False)], ["n1"])
    assert judge_names([Target(TargetKind.POOL, "p"), Target(TargetKind.MODEL, "m")], [], seen).allows
    assert judge_names([Target(TargetKind.POOL, "q")], [], seen).reason == "there is no pool q; pools: p"
    missing = judge_names([Target(TargetKind.REVISION, "r2")], [], seen)
    assert (missing.answer, missing.reason) == (GuardAnswer.NO, "there is no revision r2; revisions: r1")
    nobody = judge_names([node_target("n1")], [], FleetView.of([], []))
    assert nobody.reason == "there is no node n1; nodes: none"
    tenant, pool = Target(TargetKind.TENANT, "acme"), Target(TargetKind.POOL, "q")
    assert judge_names([tenant], [], seen).allows
    assert not judge_names([tenant, pool], [], seen).allows, "what follows is asked for all the same"
    assert judge_names([], ["n2"], seen).allows, "the name of a stopped node is free"


def test_a_plan_that_no_longer_fits_does_not_start() -> None:
    grow = parse_command("scale small --to 6 --from 5 --nodes s6 --like s5")
    assert judge_start([grow], pools()).allows
    twice = judge_start([grow, grow], pools())
    assert twice.answer is GuardAnswer.NO
    assert twice.reason == "pool small had 5 nodes when this was planned and has 6 now"
    assert judge_start([parse_command("drain s1")], pools()).allows


def test_only_a_stopped_node_that_there_is_can_be_forgotten() -> None:
    seen = FleetView.of([NodeFacts("n1"), NodeFacts("n2", wanted=False)], ["n1"])

    def why(name: str, fleet: FleetView = seen) -> str:
        return judge_start([parse_command(f"node forget {name}")], fleet).reason

    assert judge_start([parse_command("node forget n2")], seen).allows
    assert why("n1") == "n1 is wanted: stop it first (fleetctl node stop n1)"
    assert why("n3") == "there is no node named n3; stopped nodes: n2"
    assert why("n2", view(None, None)) == "could not look which nodes there are"


def past_run(**fields: object) -> Run:
    run = Run("run-1", "replace-node", "t", RunStatus.UNDONE, {}, 0, 0, targets=(node_target("n1"), node_target("n2")))
    return replace(run, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("earlier", "allows"),
    [
        (past_run(), False),
        (past_run(status=RunStatus.FAILED), False),
        (past_run(status=RunStatus.SUCCEEDED), True),
        (past_run(status=RunStatus.CANCELLED), True),
        (past_run(dry_run=True), True),
        (past_run(runbook="drain-node"), True),
        (past_run(targets=(node_target("n3"),)), True),
    ],
)
def test_what_did_not_help_on_the_same_target_is_not_repeated(earlier: Run, allows: bool) -> None:
    asked = [node_target("n2"), node_target("n9")]
    assert judge_repeat("replace-node", asked, [past_run(runbook="x"), earlier]).allows is allows
    assert judge_repeat("replace-node", asked, []).allows


def test_a_held_target_says_by_whom_and_what_is_not_known() -> None:
    run, node, pool = past_run(status=RunStatus.RUNNING), node_target("n1"), Target(TargetKind.POOL, "p")
    assert held_text(node, node, run) == "n1 is held by run run-1 (t, running)"
    assert held_text(node, pool, run) == "n1 is not free: pool/p is held by run run-1 (t, running)"
    assert held_text(node, pool, run, is_known=False).endswith(", and whether n1 belongs to it is not known")
    assert overlap_by_name(node, node)
    assert overlap_by_name(node, node_target("n2")) is False
    assert overlap_by_name(node, pool) is None


def test_only_the_run_policy_starts_unasked_and_never_what_is_risky() -> None:
    assert needs_person(Policy.ASK, "low")
    assert not needs_person(Policy.RUN, "medium")
    assert needs_person(Policy.RUN, "high")
