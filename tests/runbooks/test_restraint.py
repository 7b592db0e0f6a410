"""What a freeze, or the end of the trouble, keeps from acting, and how a person acts all the same."""

from __future__ import annotations

import pytest

from runbooks.fleet_view import FleetView
from runbooks.guard import GuardAnswer
from runbooks.ports import Freeze, NodeFacts
from runbooks.restraint import judge_freezes
from runbooks.run import HeldError, RunStatus
from runbooks.schema import metadata
from runbooks.target import parse_target
from tests.fixtures.runbooks import NOW, Controller, World, propose

pytestmark = pytest.mark.anyio

FLEET = FleetView.of([NodeFacts("node-1", pool="chat"), NodeFacts("node-2", pool="batch")], ["node-1", "node-2"])


def freeze(pool: str | None = None, *, until: float | None = None) -> Freeze:
    return Freeze("freeze-1", "launch day", "ann", NOW, pool, until)


@pytest.mark.parametrize(
    ("target", "frozen", "answer"),
    [
        ("node-1", freeze(), GuardAnswer.NO),
        ("route/shed", freeze(), GuardAnswer.NO),
        ("node-1", freeze("chat"), GuardAnswer.NO),
        ("node-2", freeze("chat"), GuardAnswer.YES),
        ("pool/chat", freeze("chat"), GuardAnswer.NO),
        ("node-9", freeze("chat"), GuardAnswer.NO),  # may be of the pool, for all we know
        ("fleet", freeze("chat"), GuardAnswer.NO),
        ("node-1", freeze(until=NOW), GuardAnswer.YES),
        ("node-1", freeze(until=NOW + 1), GuardAnswer.NO),
    ],
)
def test_freeze_covers_what_is_or_may_be_part_of_it(target: str, frozen: Freeze, answer: GuardAnswer) -> None:
    ruling = judge_freezes([parse_target(target)], FLEET, [frozen], NOW)
    assert ruling.answer is answer
    if answer is GuardAnswer.NO:
        assert "by ann (freeze-1): launch day" in ruling.reason


def test_freezes_that_could_not_be_read_are_unknown_and_never_a_yes() -> None:
    assert not judge_freezes([parse_target("node-1")], FLEET, None, NOW).allows


async def test_command_of_a_person_is_refused_with_the_way_round_it_and_done_with_an_override(world: World) -> None:
    world.fleet.frozen = [freeze(until=world.clock.now() + 7200)]
    controller = world.start()
    refused = await controller.executor.act("drain node-2", reason="r", requested_by="bob")
    assert refused.status is RunStatus.REFUSED
    assert "the fleet is frozen until 1970-01-12 15:46Z by ann (freeze-1): launch day" in refused.error
    assert "--override REASON" in refused.error
    run = await controller.executor.act("drain node-2", reason="r", requested_by="bob", override="it burns")
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED
    assert controller.journal.get(run.id).override == "it burns"
    [entry] = [entry for entry in controller.journal.audit(run.id) if entry.what == "override"]
    assert entry.by == "bob"
    assert entry.comment.startswith("it burns (against: the fleet is frozen")


async def test_dry_run_in_a_freeze_says_that_it_would_be_refused(world: World) -> None:
    world.fleet.frozen = [freeze()]
    run = await world.start().executor.act("drain node-2", reason="r", requested_by="bob", dry_run=True)
    assert "would be refused: the fleet is frozen until it is ended" in run.error


async def test_automation_proposes_in_a_freeze_what_it_would_run_and_starts_it_afterwards(world: World) -> None:
    world.fleet.frozen = [freeze()]
    controller = world.start()
    run = await propose(controller, unasked=True, requested_by="policy:slow_node")
    assert (run.status, run.expires_at) == (RunStatus.PROPOSED, None)
    assert ("run.proposed", "Replace node-2 with node-2b: policy:slow_node would run it, but the fleet is frozen") in [
        (kind, text.partition(" until")[0]) for kind, text in world.events
    ]
    assert await controller.executor.release(run.id) is None
    assert not world.fleet.calls
    world.fleet.frozen = []
    released = await controller.executor.release(run.id)
    assert released is not None
    assert (released.status, released.decided_by) == (RunStatus.APPROVED, "policy:slow_node")


async def test_command_of_automation_is_refused_in_a_freeze_and_leaves_no_proposal(world: World) -> None:
    world.fleet.frozen = [freeze()]
    run = await world.start().executor.act("drain node-2", reason="r", requested_by="pools", unasked=True)
    assert (run.status, "the fleet is frozen" in run.error) == (RunStatus.REFUSED, True)


async def test_release_never_starts_what_waits_for_a_person(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    assert await controller.executor.release(run.id) is None
    assert controller.journal.get(run.id).status is RunStatus.PROPOSED


async def test_proposal_stays_when_it_is_approved_in_a_freeze_without_an_override(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    world.fleet.frozen = [freeze()]
    assert "frozen" in await controller.executor.why_held(run)
    with pytest.raises(HeldError, match="the fleet is frozen") as caught:
        await controller.executor.decide(run.id, "approve", "bob")
    assert f"fleetctl runbook approve {run.id} --override" in str(caught.value.remedy)
    assert controller.journal.get(run.id).status is RunStatus.PROPOSED
    assert (await controller.executor.decide(run.id, "approve", "bob", override="it burns")).override == "it burns"
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED


async def test_denying_needs_no_override(world: World) -> None:
    controller = world.start()
    run = await propose(controller)
    world.fleet.frozen = [freeze()]
    assert (await controller.executor.decide(run.id, "deny", "bob")).status is RunStatus.DENIED


async def test_approved_run_does_not_start_in_a_freeze_and_one_under_way_goes_on(world: World) -> None:
    controller = world.start()
    approved = await propose(controller, approve=True)
    world.fleet.frozen = [freeze()]
    ended = await controller.executor.drive(approved.id)
    assert ended.status is RunStatus.REFUSED
    assert "before the start: no: the fleet is frozen" in ended.error

    world.fleet.frozen = []
    run = await propose(controller, approve=True)

    def freeze_at_first_effect(point: str) -> None:
        if point.startswith("effect."):
            world.fleet.frozen = [freeze()]

    world.fleet.at_fault_point = freeze_at_first_effect
    assert (await controller.executor.drive(run.id)).status is RunStatus.SUCCEEDED


async def test_journal_of_the_first_schema_is_taken_up(world: World) -> None:
    with world.engine.begin() as connection:
        metadata.create_all(connection)
        for column in ("override", "approvals"):
            connection.exec_driver_sql(f"ALTER TABLE runs DROP COLUMN {column}")
        connection.exec_driver_sql("INSERT INTO run_meta (id, schema_version, epoch) VALUES (1, 1, 3)")
    controller: Controller = world.start()
    run = await controller.executor.act("cordon node-2", reason="r", requested_by="bob")
    stored = controller.journal.get(run.id)
    assert (stored.override, stored.approvals.given) == ("", ())


async def test_remedy_of_trouble_that_is_over_acts_on_a_persons_override_alone(world: World) -> None:
    controller = world.start()
    run = await propose(controller, incident_id="inc-1")
    world.fleet.cleared["inc-1"] = 1_000_000.0
    with pytest.raises(HeldError, match="every alert of its incident has cleared since 13:46:40Z") as held:
        await controller.executor.decide(run.id, "approve", "bob")
    assert "--override REASON" in str(held.value.remedy)
    assert controller.journal.get(run.id).status is RunStatus.PROPOSED
    approved = await controller.executor.decide(run.id, "approve", "bob", override="it comes back each minute")
    assert approved.status is RunStatus.APPROVED


async def test_what_cleared_and_fires_again_is_approved_as_ever(world: World) -> None:
    controller = world.start()
    run = await propose(controller, incident_id="inc-1")
    world.fleet.cleared["inc-1"] = 1_000_000.0
    del world.fleet.cleared["inc-1"]
    assert (await controller.executor.decide(run.id, "approve", "bob")).status is RunStatus.APPROVED
