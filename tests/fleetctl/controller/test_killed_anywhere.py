"""A controller killed before any commit and around any effect of a rollout, a scaling or a replacement: same end.

Nodes are in memory (`tests/fixtures/mortal_fleet.py`). `make crash-points` tries every point, the suite one in a few.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleetctl.controller.controller import Controller
from fleetctl.controller.nodes.node_row import list_nodes
from fleetctl.controller.rollouts.rollout_row import list_rollouts
from fleetctl.controller.tables import audit, events
from fleetctl.wire.pool import PoolState
from runbooks.run import RunStatus
from tests.fixtures.controller import make_config
from tests.fixtures.mortal_fleet import Killer, MortalWorld, carry_runs, look, turn, turn_until
from tests.fixtures.postgres import PostgresCluster

SETTINGS = {
    "nodes": 1,
    "step_min_s": 0.0,
    "start_backoff_s": 0.05,
    "max_start_failures": 2,
    "gateway_wait_s": 0.0,
    "capacity_floor_ratio": 0.5,
}
ALL_POINTS = "FLEETCTL_TEST_ALL_CRASH_POINTS"  # `make crash-points`: a few minutes
STRIDES = {"sqlite": 13, "postgres": 61}
NUM_KILLS = 6
MAX_LIVES = 40


async def order(controller: Controller, command: str) -> None:
    """A person's command, asked for again with its key until it is answered."""
    await look(controller)
    await carry_runs(controller)  # what an earlier controller left
    run = await controller.executor.act(command, reason="a test", requested_by="ann", idempotency_key=command)
    if not run.status.is_terminal:
        run = await controller.executor.drive(run.id)
    assert run.status is RunStatus.SUCCEEDED, run.error


async def is_converged(controller: Controller) -> bool:
    (pool,) = await controller.pools.views()
    return pool.state is PoolState.CONVERGED and pool.ready == pool.wanted


def rollout_is(controller: Controller, *states: str) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        newest = (await controller.rollouts.history())[0]
        return newest.state in states and (not newest.state.is_end or await is_converged(controller))

    return reached


async def roll_out(controller: Controller) -> None:
    await order(controller, "rollout start default --set load-s=0.05 --steps 50% --no-gate")
    await turn_until(controller, rollout_is(controller, "done"))


async def roll_back_by_hand(controller: Controller) -> None:
    await order(controller, "rollout start default --set load-s=0.05 --steps 50% --no-gate --by-hand")

    async def canary_serves() -> bool:
        newest = (await controller.rollouts.history())[0]
        return newest.ready_at is not None or newest.state != "canary"

    await turn_until(controller, canary_serves)
    await order(controller, "rollout rollback default")
    await turn_until(controller, rollout_is(controller, "rolled_back"))


async def roll_out_what_never_gets_ready(controller: Controller) -> None:
    await order(controller, "rollout start default --set fail-at-start=true")
    await turn_until(controller, rollout_is(controller, "rolled_back"))


async def scale_out_and_in(controller: Controller) -> None:
    await order(controller, "scale default --to 2")
    await order(controller, "scale default --to 1")
    await turn_until(controller, lambda: is_converged(controller))


async def replace(controller: Controller) -> None:
    for command in ("node start node-9 --like node-1", "drain node-1 --deadline 1s", "node stop node-1"):
        await order(controller, command)
    await turn_until(controller, lambda: is_converged(controller))


SCENARIOS = (roll_out, roll_back_by_hand, roll_out_what_never_gets_ready, scale_out_and_in, replace)
Scenario = Callable[[Controller], Awaitable[None]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> MortalWorld:
    """Two nodes that serve, on SQLite."""
    world = MortalWorld(make_config(tmp_path_factory.mktemp("prepared"), **SETTINGS))
    asyncio.run(world.life(serving, Killer()))
    return world


async def serving(controller: Controller) -> None:
    await turn_until(controller, lambda: is_converged(controller))


def copy_of(world: MortalWorld, folder: Path) -> MortalWorld:
    shutil.copytree(world.config.settings.state_dir, folder)
    return MortalWorld(make_config(folder, **SETTINGS), copy.deepcopy(world.fleet))


def fresh(prepared: MortalWorld, folder: Path, cluster: PostgresCluster | None) -> MortalWorld:
    """The prepared world in a database of its own: SQLite's is a copy, PostgreSQL's is brought to the same state."""
    if cluster is None:
        return copy_of(prepared, folder)
    world = MortalWorld(make_config(folder, database_url=cluster.new_url(), **SETTINGS))
    asyncio.run(world.life(serving, Killer()))
    return world


def lived(world: MortalWorld, scenario: Scenario, kills: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
    """What is in the end, and the points of the first life. Each life but the last ends at its number in `kills`."""
    end: dict[str, Any] = {}

    async def live(controller: Controller) -> None:
        await scenario(controller)
        for _ in range(2):
            await turn(controller)  # nothing is left to do
        end.update(await end_of(controller), processes=sorted(world.fleet.nodes), done=dict(world.fleet.done))

    points: list[str] = []
    for life in range(MAX_LIVES):
        killer = Killer(kills[life] if life < len(kills) else None)
        is_alive = asyncio.run(world.life(live, killer))
        points = points or killer.points
        if is_alive:
            return end, points
    raise AssertionError("no controller lived")


async def end_of(controller: Controller) -> dict[str, Any]:
    """All that must not depend on kills: neither times and ids nor how often something was asked."""

    def read(connection: sa.Connection) -> dict[str, Any]:
        told = connection.execute(sa.select(events.c.kind).order_by(events.c.seq)).scalars()
        rows = connection.execute(sa.select(audit.c.what).order_by(audit.c.seq)).scalars()
        return {
            "nodes": {n.name: (n.wanted, n.route, n.spec.revision) for n in list_nodes(connection) if n.wanted},
            "rollouts": [(r.state, [(h.state, h.share, h.by) for h in r.history]) for r in list_rollouts(connection)],
            "timeline": [kind for kind in told if kind.startswith("rollout.")],
            "audit": [what for what in rows if what.startswith("rollout.")],
        }

    (pool,) = await controller.pools.views()
    runs = await controller.database.call(controller.journal.list)
    return {
        **await controller.database.read(read),
        "pool": (pool.wanted, pool.nodes, pool.ready, pool.state, dict(pool.revisions), pool.owner),
        "rules": [rule.id for rule in controller.routing.table.rules],
        "runs": Counter((run.title, run.status.value, run.requested_by) for run in runs),
        "receipts": Counter((one.node, one.summary) for one in await controller.receipts.listing()),
        "is_audit_intact": (await controller.audit.verify()).intact,
    }


def points_to_die_at(scenario: Scenario, points: Sequence[str], database: str) -> list[int]:
    """All of them where that is asked for; else one in a few, for each scenario others."""
    if os.environ.get(ALL_POINTS):
        return list(range(len(points)))
    return list(range(SCENARIOS.index(scenario), len(points), STRIDES[database]))


@pytest.mark.parametrize("database", sorted(STRIDES))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_killed_at_any_point_the_end_is_the_same_and_nothing_is_done_twice(
    prepared: MortalWorld, tmp_path: Path, scenario: Scenario, database: str, request: pytest.FixtureRequest
) -> None:
    cluster = request.getfixturevalue("postgres_cluster") if database == "postgres" else None
    expected, points = lived(copy_of(prepared, tmp_path / "clean"), scenario, [])
    assert len(points) >= 25
    for at in points_to_die_at(scenario, points, database):
        end, passed = lived(fresh(prepared, tmp_path / f"at-{at}", cluster), scenario, [at])
        assert passed == points[: at + 1], "the way up to the kill must be the same"
        assert_same(end, expected, f"killed at {at}: {points[at]}")
        shutil.rmtree(tmp_path / f"at-{at}")


@pytest.mark.parametrize("scenario", [roll_out, scale_out_and_in], ids=lambda scenario: scenario.__name__)
def test_killed_again_and_again_on_postgresql_the_end_is_that_of_sqlite(
    prepared: MortalWorld, postgres_cluster: PostgresCluster, tmp_path: Path, scenario: Scenario
) -> None:
    expected, points = lived(copy_of(prepared, tmp_path / "sqlite"), scenario, [])
    rng = random.Random(scenario.__name__)
    kills = [rng.randrange(2, 9) for _ in range(NUM_KILLS)]
    world = MortalWorld(make_config(tmp_path, database_url=postgres_cluster.new_url(), **SETTINGS))
    asyncio.run(world.life(serving, Killer()))
    end, passed = lived(world, scenario, kills)
    assert passed == points[: kills[0] + 1]
    assert_same(end, expected, f"killed at {kills}")


def test_woken_node_that_was_drained_before_it_slept_serves_again(prepared: MortalWorld, tmp_path: Path) -> None:
    world = copy_of(prepared, tmp_path / "copy")

    async def drain_and_wake(controller: Controller) -> None:
        for command in ("scale default --to 2", "drain node-1", "wake node-1 --wait 20s"):
            await order(controller, command)
        assert await is_converged(controller)

    assert asyncio.run(world.life(drain_and_wake, Killer()))
    assert world.fleet.done["/admin/resume node-1"] == 1


def assert_same(end: dict[str, Any], expected: dict[str, Any], when: str) -> None:
    wrong = [(key, end[key], expected[key]) for key in expected if end[key] != expected[key]]
    assert not wrong, f"{when}: {wrong}"
