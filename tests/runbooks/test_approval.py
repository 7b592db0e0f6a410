"""How many persons a run needs: which rule holds, whose yes counts, and that a second one starts it once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runbooks.approval import (
    DEFAULT_RULES,
    NO_NEED,
    ApprovalFacts,
    ApprovalNeed,
    ApprovalRule,
    identity_of,
    judge_approvals,
)
from runbooks.run import ApprovalRefusedError, Run, RunStatus
from tests.fixtures.runbooks import Controller, World

pytestmark = pytest.mark.anyio

STOP = ApprovalFacts(
    actions=frozenset({"node stop"}),
    pools=frozenset({"decode"}),
    risk="low",
    is_override=False,
    takes_out=True,
    near_floor=False,
    by_automation=False,
)
TWO = ApprovalNeed(2, asker_counts=False, expires_s=600.0, why="rule two")


def need_two(run: Run, near_floor: bool) -> ApprovalNeed:
    return TWO


@pytest.mark.parametrize(
    ("changes", "num_approvers", "wanted"),
    [
        ({}, 5, 0),
        ({"near_floor": True}, 5, 2),
        ({"near_floor": True}, 1, 0),  # nobody alone is locked out
        ({"near_floor": True, "by_automation": True}, 5, 0),
        ({"is_override": True, "actions": {"cordon"}}, 2, 2),
        ({"actions": {"scale"}}, 2, 2),
        ({"actions": {"scale"}, "takes_out": False}, 2, 0),
        ({"actions": {"drain"}, "near_floor": True}, 2, 0),
        ({"actions": {"rollout rollback"}, "takes_out": False}, 2, 0),
    ],
)
def test_dangerous_actions_need_two_persons_once_there_are_two(
    changes: dict[str, Any], num_approvers: int, wanted: int
) -> None:
    facts = replace(
        STOP, **{key: frozenset(value) if isinstance(value, set) else value for key, value in changes.items()}
    )
    assert judge_approvals(facts, DEFAULT_RULES, num_approvers).approvers == wanted


def test_of_several_rules_the_strictest_counts() -> None:
    lax = ApprovalRule("lax", 1, actions=frozenset({"node stop"}), asker_counts=True, expires_s=60)
    strict = ApprovalRule("strict", 3, pools=frozenset({"decode", "chat"}))
    other = ApprovalRule("other", 5, pools=frozenset({"batch"}))
    likely = ApprovalRule("likely", 5, confidences=frozenset({"likely"}))
    found = judge_approvals(STOP, [lax, strict, other, likely], 0)
    assert found == ApprovalNeed(3, asker_counts=False, expires_s=60, why="rule lax, strict")
    assert judge_approvals(STOP, [other], 0) == NO_NEED


def test_identity_is_what_stands_before_a_claim() -> None:
    assert identity_of("admin (says ann)") == identity_of("admin") == "admin"


async def test_two_others_than_the_asker_start_it_and_the_first_is_shown_and_survives_a_restart(world: World) -> None:
    controller = world.start(judge_need=need_two)
    run = await controller.executor.act("drain node-2", reason="r", requested_by="ann")
    assert (run.status, run.to_dict()["approval"]) == (
        RunStatus.PROPOSED,
        "0 of 2; needs 2 approvers, not who asked (rule two)",
    )
    with pytest.raises(ApprovalRefusedError, match="ann asked for it, so another person approves it"):
        await controller.executor.decide(run.id, "approve", "ann (says bob)")
    once = await controller.executor.decide(run.id, "approve", "bob", "looks right")
    assert once.status is RunStatus.PROPOSED
    assert once.approvals.words == "1 of 2: bob; needs one more approver, not who asked (rule two)"
    with pytest.raises(ApprovalRefusedError, match="bob approved it already; needs 1 more approver"):
        await controller.executor.decide(run.id, "approve", "bob (says cat)")
    again = world.start(judge_need=need_two)
    assert again.journal.get(run.id).approvals == once.approvals
    started = await again.executor.decide(run.id, "approve", "cat")
    assert (started.status, started.decided_by) == (RunStatus.APPROVED, "cat")
    assert [entry.by for entry in again.journal.audit(run.id) if entry.what in ("approval_given", "approved")] == [
        "bob",
        "cat",
    ]
    assert "run.approval_given" in world.kinds()
    assert (await again.executor.drive(run.id)).status is RunStatus.SUCCEEDED


async def test_one_approval_alone_expires_with_its_proposal(world: World) -> None:
    controller = world.start(judge_need=need_two)
    run = await controller.executor.act("drain node-2", reason="r", requested_by="ann")
    await controller.executor.decide(run.id, "approve", "bob")
    world.clock.time += 601
    await controller.executor.resume()
    ended = controller.journal.get(run.id)
    assert (ended.status, [one.by for one in ended.approvals.given]) == (RunStatus.EXPIRED, ["bob"])


async def test_two_second_approvals_at_the_same_time_start_it_once(world: World) -> None:
    controller = world.start(judge_need=need_two)
    run = await controller.executor.act("drain node-2", reason="r", requested_by="ann")
    await controller.executor.decide(run.id, "approve", "bob")
    answers = await asyncio.gather(
        *(controller.executor.decide(run.id, "approve", who) for who in ("cat", "dan")), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["AlreadyDecidedError", "Run"]
    approved = [entry for entry in controller.journal.audit(run.id) if entry.what == "approved"]
    assert len(approved) == 1
    assert len(controller.journal.get(run.id).approvals.given) == 2


async def test_asker_is_the_first_of_two_where_the_rule_says_so(world: World) -> None:
    controller = world.start(judge_need=lambda run, near_floor: replace(TWO, asker_counts=True))
    run = await controller.executor.act("drain node-2", reason="r", requested_by="ann")
    assert run.approvals.words == "1 of 2: ann; needs one more approver (rule two)"
    assert (await controller.executor.decide(run.id, "approve", "bob")).status is RunStatus.APPROVED


async def test_approval_against_a_freeze_needs_as_many_persons_as_an_override_does(world: World) -> None:
    def judge(run: Run, near_floor: bool) -> ApprovalNeed:
        return TWO if run.override else NO_NEED

    controller: Controller = world.start(judge_need=judge)
    run = await controller.executor.propose("cordon-node", {"node": "node-2"}, reason="r", requested_by="controller")
    waiting = await controller.executor.decide(run.id, "approve", "bob", override="it burns")
    assert (waiting.status, waiting.override) == (RunStatus.PROPOSED, "it burns")
    assert (await controller.executor.decide(run.id, "approve", "cat")).status is RunStatus.APPROVED
