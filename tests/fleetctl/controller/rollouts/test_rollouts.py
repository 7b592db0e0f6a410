"""Rollouts from order to end, on small real nodes: done, caught, never ready, frozen, killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.rollouts.views import rollout_view
from fleetctl.traffic_rule import CanarySpec
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.pool import Pool
from fleetctl.wire.rollout import Rollout
from runbooks.run import Run, RunStatus
from tests.fixtures.controller import make_config, make_provider, running_fleet, stop_all, until

pytestmark = pytest.mark.anyio

QUICK_STEPS = {"step_min_s": 0.0, "judge_every_s": 0.05, "start_backoff_s": 0.05, "max_start_failures": 2}


@pytest.fixture
def state_dir(tmp_path: Path) -> AsyncIterator[Path]:  # type: ignore[misc]
    yield tmp_path
    stop_all(tmp_path)


@asynccontextmanager
async def carrying_runs(controller: Controller) -> AsyncIterator[None]:
    task = asyncio.create_task(controller.executor.run_forever())
    try:
        yield
    finally:
        controller.executor.stop()
        await task


async def order(controller: Controller, command: str, *, override: str = "") -> Run:
    """A person's command, to the end of its run."""
    run = await controller.executor.act(command, reason="a test", requested_by="ann", override=override)

    async def ended() -> Run | None:
        found = await controller.database.call(lambda: controller.journal.get(run.id))
        return found if found.status.is_terminal else None

    return await until(ended, command)


async def turn(controller: Controller) -> Pool:
    for loop in ("fleet", "rollouts", "pools"):
        await controller.loops.run_turn(loop)
    (pool,) = await controller.pools.views()
    return pool


async def latest(controller: Controller) -> Rollout:
    statuses = {one.rollout.id: one for one in await controller.rollouts.statuses()}
    newest = (await controller.rollouts.history())[0]
    return rollout_view(newest, statuses.get(newest.id))


async def until_state(controller: Controller, state: str, seen: Callable[[Pool], None] = lambda _: None) -> Rollout:
    async def reached() -> Rollout | None:
        seen(await turn(controller))
        found = await latest(controller)
        return found if found.state == state else None

    return await until(reached, f"the rollout is {state}")


def share_of(controller: Controller, revision: str) -> float | None:
    """What the gateways are ordered to send to the revision; None: nothing."""
    specs = [rule.spec for rule in controller.routing.table.rules]
    return next((spec.revisions.get(revision) for spec in specs if isinstance(spec, CanarySpec)), None)


async def test_rollout_goes_step_by_step_to_all_nodes_and_back_in_one_action(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=2, **QUICK_STEPS)
    async with running_fleet(config) as controller, carrying_runs(controller):
        (before,) = await controller.pools.views()
        run = await order(controller, "rollout start default --set load-s=0.05 --steps 10%,50% --no-gate")
        assert run.status is RunStatus.SUCCEEDED, run.error
        begun = await latest(controller)
        assert (begun.state, begun.steps, begun.from_revision) == ("canary", [0.1, 0.5, 1.0], before.revision)
        assert share_of(controller, begun.to_revision) == 0.0, "before its first node is there it gets nothing"
        least, most, shares = 2, 0, set()

        def seen(pool: Pool) -> None:
            nonlocal least, most
            least, most = min(least, pool.ready), max(most, pool.nodes)
            shares.add(share_of(controller, begun.to_revision))

        done = await until_state(controller, "done", seen)
        pool = await turn(controller)
        assert (least, most) == (2, 3), "no seat is lost, and one node is there beyond the size"
        assert shares == {0.0, 0.1, 0.5, None}
        assert pool.revisions == {done.to_revision: 2}
        assert [change.state for change in done.history] == ["canary", "canary", "promoting", "done"]
        assert not controller.routing.table.rules
        run = await order(controller, "rollout rollback default")
        assert run.status is RunStatus.SUCCEEDED, run.error
        back = await until_state(controller, "done")
        assert (back.from_revision, back.to_revision) == (done.to_revision, before.revision)
        assert (await turn(controller)).revisions == {before.revision: 2}
        kinds = [entry.kind for entry in await controller.timeline.read(0) if entry.kind.startswith("rollout.")]
        assert kinds == [f"rollout.{kind}" for kind in ("started", "step", "step", "done", "started", "done")]
        rows = await controller.audit.read(target="rollout/default")
        assert {(row.who, row.what) for row in rows} >= {("ann", "run.requested"), ("controller", "rollout.done")}


async def test_revision_that_never_gets_ready_is_rolled_back_by_itself_and_takes_no_old_node_out(
    state_dir: Path,
) -> None:
    config = make_config(state_dir, nodes=2, **QUICK_STEPS)
    async with running_fleet(config) as controller, carrying_runs(controller):
        (before,) = await controller.pools.views()
        await order(controller, "rollout start default --set fail-at-start=true")
        least = 2

        def seen(pool: Pool) -> None:
            nonlocal least
            least = min(least, pool.ready)

        back = await until_state(controller, "rolled_back", seen)
        assert "2 starts in a row ended before the node was ready" in back.why
        assert "no such model directory" in back.why
        assert least == 2
        pool = await turn(controller)
        assert (pool.revision, pool.revisions, pool.wanted) == (before.revision, {before.revision: 2}, 2)
        runs = await controller.database.call(controller.journal.list)
        assert {run.title for run in runs if run.requested_by == "pools"} == {"node stop node-3"}, (
            "stopped, not drained"
        )
        assert not controller.routing.table.rules


async def test_node_that_hangs_while_it_loads_is_rolled_back_by_hand_at_once_also_under_a_freeze(
    state_dir: Path,
) -> None:
    config = make_config(state_dir, nodes=2, **QUICK_STEPS)
    async with running_fleet(config) as controller, carrying_runs(controller):
        (before,) = await controller.pools.views()
        await order(controller, "rollout start default --set load-s=999")

        async def started() -> bool:
            return (await turn(controller)).nodes == 3

        await until(started, "the canary's node starts")
        (pool,) = await controller.pools.views()
        assert pool.reason.startswith(f"{(await latest(controller)).id}: "), "lists and the cockpit name it"
        assert "0 of 1 nodes of the new revision ready" in (await latest(controller)).waits_for
        (status,) = await controller.rollouts.statuses()
        told = rollout_view(status.rollout, status, "drain node-1 was refused: budget of actions").waits_for
        assert told.endswith("ready; held: drain node-1 was refused: budget of actions")
        await controller.freezes.make(FreezeRequest(reason="launch", made_by="bob"))
        refused = await order(controller, "rollout rollback default")
        assert refused.status is RunStatus.REFUSED
        assert "--override REASON" in (refused.error or "")
        run = await order(controller, "rollout rollback default", override="it is broken")
        assert run.status is RunStatus.SUCCEEDED, run.error
        await until_state(controller, "rolled_back")
        pool = await turn(controller)
        assert (pool.revisions, pool.ready) == ({before.revision: 2}, 2)


async def test_freeze_holds_the_next_step_and_says_so(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=1, **QUICK_STEPS)
    async with running_fleet(config) as controller, carrying_runs(controller):
        await order(controller, "rollout start default --set load-s=0.05 --steps 50% --no-gate --by-hand")

        async def waits() -> bool:
            await turn(controller)
            return "rollout promote default" in (await latest(controller)).waits_for

        await until(waits, "it waits for a person")
        await controller.freezes.make(FreezeRequest(reason="launch", made_by="bob", pool="default"))
        assert "pool default is frozen" in (await latest(controller)).waits_for
        assert (await order(controller, "rollout promote default")).status is RunStatus.REFUSED
        await controller.freezes.end(None, "bob")
        assert (await order(controller, "rollout promote default")).status is RunStatus.SUCCEEDED
        await until_state(controller, "done")


async def test_controller_that_is_replaced_in_any_state_goes_on_with_the_same_rollout(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=1, **QUICK_STEPS)
    ids = set()
    async with running_fleet(config) as controller, carrying_runs(controller):
        await order(controller, "rollout start default --set load-s=0.05 --steps 50% --no-gate")
    for _ in range(400):  # each controller lives for a few turns, and is gone without a word
        async with open_controller(config, make_provider(state_dir)) as controller, carrying_runs(controller):
            for _ in range(4):
                await turn(controller)
                await asyncio.sleep(0.1)
            found = await latest(controller)
            ids.add(found.id)
            if found.is_ended:
                break
    assert [step.state for step in found.history] == ["canary", "promoting", "done"]
    assert len(ids) == 1


async def test_pool_takes_one_rollout_at_a_time_and_says_what_is_wrong_with_an_order(state_dir: Path) -> None:
    async with running_fleet(make_config(state_dir, nodes=1, **QUICK_STEPS)) as controller, carrying_runs(controller):
        (pool,) = await controller.pools.views()
        wrong = {
            "rollout start default": "what is to be rolled out",
            "rollout start nowhere --set a=1": "there is no pool nowhere",
            "rollout start default --to rev-0": "there is no revision rev-0",
            "rollout start default --set load-sec=9": "no setting load-sec; did you mean load-s",
            "rollout start default --set load-s=long": "load-s=long: expected a number",
            "rollout start default --unset load-s": "has no such setting; it has model",
            f"rollout start default --to {pool.revision}": "is of revision",
            "rollout promote default": "no rollout of pool default is under way",
            "rollout rollback default": "no earlier revision",
        }
        for command, words in wrong.items():
            with pytest.raises(Exception, match=words):
                await controller.executor.act(command, reason="", requested_by="ann")
        await order(controller, "rollout start default --set load-s=0.05")
        with pytest.raises(Exception, match="is under way: canary"):
            await controller.executor.act("rollout start default --set load-s=7", reason="", requested_by="ann")
        planned = await controller.executor.act("rollout pause default", reason="", requested_by="ann", dry_run=True)
        assert "what fails is rolled back all the same" in planned.steps[0].receipt["predicted"]
