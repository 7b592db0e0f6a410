"""Pools are brought to what is wanted of them, on small real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.nodes.pool_row import begin_scaling, store_revision, want_revision
from fleetctl.controller.nodes.revision import Revision
from fleetctl.wire.freeze import FreezeRequest
from fleetctl.wire.pool import Pool, PoolState
from tests.fixtures.controller import (
    fleet_ready,
    make_config,
    make_provider,
    make_spec,
    running_fleet,
    stop_all,
    until,
)

pytestmark = pytest.mark.anyio


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


async def turn(controller: Controller) -> Pool:
    """One turn of the loops that pools need; the pool as it is afterwards."""
    await controller.loops.run_turn("fleet")
    await controller.loops.run_turn("pools")
    (pool,) = await controller.pools.views()
    return pool


async def test_a_start_that_fails_again_and_again_waits_longer_each_time_and_says_so(state_dir: Path) -> None:
    config = make_config(
        state_dir, node_specs=[make_spec("node-1", "--fail-at-start")], start_backoff_s=0.05, start_backoff_max_s=0.2
    )
    async with open_controller(config, make_provider(state_dir)) as controller:

        async def failed_thrice() -> Pool | None:
            pool = await turn(controller)
            return pool if pool.start_failures >= 3 else None

        pool = await until(failed_thrice, "three starts failed")
        assert pool.state is PoolState.BACKING_OFF
        assert "no such model directory" in pool.start_error
        assert (pool.wanted, pool.nodes, pool.ready) == (1, 1, 0)
        told = [entry.text for entry in await controller.timeline.read(0) if entry.kind == "pool.start_failed"]
        assert [text.partition("; ")[2] for text in told[:3]] == [
            f"starts again in {pause_s:g} s" for pause_s in (0.05, 0.1, 0.2)
        ]
        failures = f'controller_pool_start_failures{{pool="default"}} {pool.start_failures}.0'
        assert failures in controller.exposition().decode()
    # Another controller knows how often it failed: it does not begin anew.
    async with open_controller(config, make_provider(state_dir)) as controller:
        assert (await turn(controller)).start_failures >= 3


async def test_an_exchange_for_another_revision_keeps_every_seat_and_is_made_of_runs(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=2)
    new = Revision.of(make_spec("any", "--load-s", "0.1"))
    async with running_fleet(config) as controller, carrying_runs(controller):
        await controller.database.write(lambda c: store_revision(c, new, 1.0))
        await controller.database.write(lambda c: want_revision(c, "default", new.id, 2, "ann", 1.0))
        most, least = 0, 2

        async def exchanged() -> bool:
            nonlocal most, least
            pool = await turn(controller)
            most, least = max(most, pool.nodes), min(least, pool.ready)
            return pool.state is PoolState.CONVERGED and pool.revisions == {new.id: 2}

        await until(exchanged, "both nodes are of the new revision")
        assert (most, least) == (3, 2)
        assert {route.node for route in controller.routing.table.routes} == {"node-3", "node-4"}
        assert {route.revision for route in controller.routing.table.routes} == {new.id}
        runs = await controller.database.call(controller.journal.list)
        assert {(run.title, run.requested_by, run.status.value) for run in runs} == {
            (f"{command} {node}", "pools", "succeeded")
            for command in ("drain", "node stop")
            for node in ("node-1", "node-2")
        }
        (pool,) = await controller.pools.views()
        assert pool.wanted == 2


async def test_what_a_guard_refuses_is_held_and_said_and_not_asked_each_second(state_dir: Path) -> None:
    config = make_config(state_dir, nodes=2, capacity_floor_ratio=1.0)
    async with running_fleet(config) as controller, carrying_runs(controller):
        await fleet_ready(controller)
        await controller.database.write(
            lambda c: begin_scaling(c, "default", start=(), stop=("node-1",), by="ann", now=1.0)
        )

        async def held() -> bool:
            return (await turn(controller)).state is PoolState.HELD

        await until(held, "the guard's answer is known")
        for _ in range(3):
            pool = await turn(controller)
        assert pool.state is PoolState.HELD
        assert "drain node-1 was refused" in pool.reason
        assert "the floor is 2" in pool.reason
        assert len(await controller.database.call(controller.journal.list)) == 1
        assert (pool.wanted, pool.nodes, pool.ready) == (1, 2, 2)


async def test_pool_that_is_frozen_stays_as_it_is_until_the_freeze_is_ended(state_dir: Path) -> None:
    async with running_fleet(make_config(state_dir, nodes=1)) as controller:
        await controller.freezes.make(FreezeRequest(reason="launch", made_by="ann", pool="default"))
        now = controller.clock.now()
        await controller.database.write(
            lambda c: begin_scaling(c, "default", start=["node-2"], stop=[], by="ann", now=now)
        )
        pool = await turn(controller)
        assert (pool.state, pool.wanted, pool.nodes) == (PoolState.HELD, 2, 1)
        assert "pool default is frozen until it is ended by ann" in pool.reason
        await controller.freezes.end(None, "ann")
        await turn(controller)
        assert (await turn(controller)).nodes == 2
