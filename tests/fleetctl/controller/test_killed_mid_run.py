"""A controller killed at commits and around process starts and stops of a run: the next one ends it the same.

Killed means: nothing of the old objects acts any more; new ones open the same database over the same nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleetctl.controller.controller import Controller, open_controller
from fleetctl.providers.local import LocalProvider
from fleetctl.providers.process import ProcessTable
from fleetctl.providers.provider import LogChunk, ObservedInstance, ProviderAct
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.routing import RouteState
from runbooks.run import Run, RunStatus
from tests.fixtures.controller import fleet_ready, make_config, make_provider, stop_all, tell_node

pytestmark = [pytest.mark.anyio, pytest.mark.waits]


class KilledError(BaseException):
    """The process is gone. Not an Exception: nothing may catch it and go on."""


class Killer:
    """Counts points once armed, and kills at one of them; from then on everything that would have an effect is dead."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0
        self.is_armed = False
        self.is_dead = False

    def point(self) -> None:
        if self.is_dead:
            raise KilledError
        if not self.is_armed:
            return
        self.count += 1
        if self.count == self.at:
            self.is_dead = True
            raise KilledError


class MortalProvider:
    """The product's provider, with a point before and after whatever it does to the world."""

    def __init__(self, inner: LocalProvider, killer: Killer) -> None:
        self._inner = inner
        self._killer = killer
        self.started: list[str] = []

    def ensure_started(self, spec: NodeSpec) -> None:
        self._around(lambda: self._inner.ensure_started(spec))
        self.started.append(spec.name)

    def stop(self, name: str, grace_s: float) -> None:
        self._around(lambda: self._inner.stop(name, grace_s))

    def forget(self, name: str) -> None:
        self._around(lambda: self._inner.forget(name))

    def why_not(self, act: ProviderAct, spec: NodeSpec) -> str:
        return ""

    def list_instances(self) -> Sequence[ObservedInstance]:
        return self._inner.list_instances()

    def attach(self, spec: NodeSpec) -> ObservedInstance | None:
        return self._inner.attach(spec)

    def observe(self, name: str) -> ObservedInstance:
        return self._inner.observe(name)

    def read_logs(self, name: str, *, lines: int, after: str | None = None) -> LogChunk:
        return self._inner.read_logs(name, lines=lines, after=after)

    def _around(self, act: Callable[[], object]) -> None:
        self._killer.point()
        act()
        self._killer.point()


@asynccontextmanager
async def mortal(state_dir: Path, killer: Killer) -> AsyncIterator[Controller]:
    # Nobody looks while a run goes on: what was seen at the beginning must not grow old meanwhile.
    config = make_config(state_dir, nodes=2, capacity_floor_ratio=0.5, gateway_wait_s=0.05, stale_after_s=3600)
    async with open_controller(config, MortalProvider(make_provider(state_dir), killer)) as controller:
        yield controller


async def carry(controller: Controller, run_id: str) -> Run:
    return await controller.executor.drive(run_id)


COMMAND_RUNS = ["node start node-9 --like node-2 --wait 60s", "drain node-1 --deadline 0.2s", "node stop node-1"]


async def repair(controller: Controller) -> list[Run]:
    """What replace-node does, command by command; each command a run of its own that is asked for once."""
    done = []
    for command in COMMAND_RUNS:
        run = await controller.executor.act(command, reason="", requested_by="test", idempotency_key=command)
        done.append(run if run.status.is_terminal else await carry(controller, run.id))
    return done


async def one_life(state_dir: Path, killer: Killer, held: int | None) -> tuple[list[Run], dict[str, RouteState]] | None:
    """None when it was killed."""
    try:
        async with mortal(state_dir, killer) as controller:
            killer_at_commits(controller, killer)
            if held is None:
                await all_settled(controller)
            else:
                await fleet_ready(controller)
                await tell_node(controller, "node-1", held=held)
            killer.is_armed = True
            done = await repair(controller)
            killer.is_armed = False
            return done, {route.node: route.state for route in controller.routing.table.routes}
    except BaseException as error:
        if killer.is_dead and _is_kill(error):
            return None
        raise


def killer_at_commits(controller: Controller, killer: Killer) -> None:
    @sa.event.listens_for(controller.database.engine, "commit")
    def at_commit(_: sa.Connection) -> None:
        killer.point()


async def all_settled(controller: Controller) -> None:
    """Ready as far as it can be: in a later life a node may be cordoned or gone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            for _ in range(200):
                await controller.loops.run_turn("fleet")
                states = [s for s in controller.fleet.nodes.values() if s.row.wanted and s.row.started]
                if states and all(s.phase.value in ("ready", "cordoned", "draining", "drained") for s in states):
                    return
                await asyncio.sleep(0.02)


def _is_kill(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_kill(one) for one in error.exceptions)
    return isinstance(error, KilledError) or (error.__context__ is not None and _is_kill(error.__context__))


STRIDE = 5  # of the points; each one of them is tried without processes (tests/runbooks/test_crash.py)
NUM_LIVES_AT_ONCE = 2
"""A life mostly waits for its nodes' processes; more than these and it waits for the processor."""


@pytest.mark.e2e
@pytest.mark.timeout(900)
async def test_killed_at_every_fifth_point_the_same_end_is_reached(tmp_path: Path) -> None:
    clean = Killer(None)
    try:
        expected = await one_life(tmp_path / "clean", clean, held=2)
        assert expected is not None
    finally:
        stop_all(tmp_path / "clean")
    assert clean.count > 15
    lives = asyncio.Semaphore(NUM_LIVES_AT_ONCE)

    async def killed_at(at: int) -> bool:
        async with lives:
            return await _killed_at(tmp_path / f"at-{at}", at, expected)

    reached = await asyncio.gather(*(killed_at(at) for at in range(1, clean.count + 1, STRIDE)))
    # How many events of the timeline one commit takes is a matter of time: a life may have a few points fewer.
    assert len(reached) - sum(reached) <= max(len(reached) // 10, 1)


async def _killed_at(state_dir: Path, at: int, expected: tuple[list[Run], dict[str, RouteState]]) -> bool:
    """Whether the life had such a point; the end must be the same either way."""
    try:
        whole = await one_life(state_dir, Killer(at), held=2)
        ended = whole or await one_life(state_dir, Killer(None), held=None)
        assert ended is not None
        runs, routes = ended
        assert [run.status for run in runs] == [RunStatus.SUCCEEDED] * 3, f"killed at {at}: {[r.error for r in runs]}"
        assert routes == expected[1]
        drained = runs[1].steps[0].receipt
        assert (drained["in_flight"], drained["moved"]) == (2, 2), f"killed at {at}: {drained}"
        assert set(ProcessTable(state_dir / "run").running()) == {"node-2", "node-9"}
        return whole is None
    finally:
        stop_all(state_dir)


async def _allowed(_: str) -> None:
    """The guard says yes."""


async def scaled(state_dir: Path, killer: Killer, done: list[str]) -> dict[str, RouteState] | None:
    """Routes after a scaling out and a scaling in on real nodes; None when it was killed.

    `done` outlives the controller, as the journal does: a step that ended is not begun again.
    """
    try:
        async with mortal(state_dir, killer) as controller:
            killer_at_commits(controller, killer)
            await all_settled(controller)
            killer.is_armed = True
            times = {"wait_s": 60.0, "deadline_s": 0.2}
            scale = functools.partial(controller.effects.scale_pool, "default", **times, before_removal=_allowed)
            if not done:
                await scale(start=["node-3", "node-4"], stop=[], like="node-2")
                done.append("out")
            await scale(start=[], stop=["node-1", "node-4"], like=None)
            killer.is_armed = False
            return {route.node: route.state for route in controller.routing.table.routes}
    except BaseException as error:
        if killer.is_dead and _is_kill(error):
            return None
        raise


async def test_a_scaling_that_is_killed_anywhere_goes_on_with_the_same_nodes(tmp_path: Path) -> None:
    expected = {"node-2": RouteState.ACTIVE, "node-3": RouteState.ACTIVE}
    clean = Killer(None)
    try:
        assert await scaled(tmp_path / "clean", clean, []) == expected
    finally:
        stop_all(tmp_path / "clean")
    assert clean.count > 20
    for at in range(2, clean.count, 9):
        state_dir = tmp_path / f"at-{at}"
        try:
            done: list[str] = []
            routes = await scaled(state_dir, Killer(at), done) or await scaled(state_dir, Killer(None), done)
            assert routes == expected, f"killed at {at}"
            assert set(ProcessTable(state_dir / "run").running()) == {"node-2", "node-3"}
        finally:
            stop_all(state_dir)
