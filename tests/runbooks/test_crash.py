"""A controller that dies at any point, any number of times: same end, and each effect's net result once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbooks.page import parse_page
from runbooks.ports import PermanentError
from runbooks.run import Run, RunStatus
from tests.fixtures.runbooks import FAST, FakeFleet, Killed, World, replace_node, temporary

ALL_POINTS = "FLEETCTL_TEST_ALL_CRASH_POINTS"  # `make crash-points`: a few minutes
FEW_LOOKS = replace(FAST, poll_s=15, guard_wait_s=15)
Prepare = Callable[[FakeFleet], None]


def all_goes_well(fleet: FakeFleet) -> None:
    pass


def it_does_not_help(fleet: FakeFleet) -> None:
    fleet.value = lambda _: 0.0


def the_drain_fails(fleet: FakeFleet) -> None:
    drain = fleet.drain

    async def fails(name: str, *, deadline_s: float) -> Any:
        if name == "node-2":
            await fleet.cordon(name)
            raise PermanentError("the node says no")
        return await drain(name, deadline_s=deadline_s)

    fleet.drain = fails  # type: ignore[method-assign]


def the_old_node_does_not_come_back(fleet: FakeFleet) -> None:
    it_does_not_help(fleet)
    start = fleet.start_node

    async def fails(name: str, **kwargs: Any) -> Any:
        if name == "node-2":
            raise PermanentError("no room")
        return await start(name, **kwargs)

    fleet.start_node = fails  # type: ignore[method-assign]


SCENARIOS = {
    all_goes_well: (RunStatus.SUCCEEDED, {"start node-2b": 1, "drain node-2": 3, "stop node-2": 1}),
    it_does_not_help: (
        RunStatus.UNDONE,
        {
            "start node-2b": 1,
            "drain node-2": 3,
            "stop node-2": 1,
            "start node-2": 1,
            "drain node-2b": 0,
            "stop node-2b": 1,
        },
    ),
    the_drain_fails: (
        RunStatus.UNDONE,
        {"start node-2b": 1, "cordon node-2": 1, "uncordon node-2": 1, "drain node-2b": 0, "stop node-2b": 1},
    ),
    the_old_node_does_not_come_back: (
        RunStatus.FAILED,
        # The replacement stays: what works is not taken out for what does not.
        {"start node-2b": 1, "drain node-2": 3, "stop node-2": 1},
    ),
}


Live = Callable[[World], Coroutine[Any, Any, Run]]


def live_until_done(world: World, live: Live | None = None) -> Run:
    """Controllers, one after the other, until one lives to see the run's end."""
    for _ in range(20):
        try:
            return asyncio.run((live or _live)(world))
        except Killed:
            continue
    raise AssertionError("no controller lived")


async def _live(world: World) -> Run:
    return await replace_node(world.start(limits=FEW_LOOKS))


def outcome(run: Run, fleet: FakeFleet) -> dict[str, Any]:
    """All that must not depend on crashes: not times, ids and numbers of attempts."""
    return {
        "status": run.status,
        "steps": [(s.phase, s.index, s.command, s.status, s.receipt, s.error) for s in run.steps],
        "verification": run.verification,
        "error": run.error,
        "fleet": fleet.state,
        "changes": fleet.changes,
    }


def points_to_die_at(database_url: str, undisturbed: World, scenario: int, *, every: int = 3) -> list[tuple[int, str]]:
    """Every third on SQLite, each scenario from another one on; all of them for `make crash-points`.

    On PostgreSQL, where a life takes many times longer, a third of these: the journal is the same code, and whoever
    dies holds no lock there either way.
    """
    every = 1 if os.environ.get(ALL_POINTS) else every
    every *= 1 if database_url.startswith("sqlite") else 3
    return list(enumerate(undisturbed.points))[scenario % every :: every]


def one_life(database_url: str, prepare: Prepare, kill_at: set[int], live: Live | None = None) -> tuple[World, Run]:
    fleet = FakeFleet.of("node-1", "node-2", "node-3")
    prepare(fleet)
    world = World(database_url, fleet)
    world.wipe()
    world.kill_at = kill_at
    try:
        return world, live_until_done(world, live)
    finally:
        world.close()


@pytest.mark.parametrize("prepare", SCENARIOS, ids=lambda prepare: prepare.__name__)
def test_dying_at_any_point_changes_nothing_in_the_end(database_url: str, prepare: Prepare) -> None:
    status, changes = SCENARIOS[prepare]
    undisturbed, run = one_life(database_url, prepare, set())
    expected = outcome(run, undisturbed.fleet)
    assert run.status is status
    assert undisturbed.fleet.changes == changes
    assert len(undisturbed.points) >= 28
    for index, point in points_to_die_at(database_url, undisturbed, list(SCENARIOS).index(prepare)):
        world, run = one_life(database_url, prepare, {index})
        assert world.points[index] == point, "the way up to the crash must be the same"
        assert outcome(run, world.fleet) == expected, f"died at {index}: {point}"


SCALINGS = {
    "out": ("+2", all_goes_well, RunStatus.SUCCEEDED, {"start node-4": 1, "start node-5": 1}),
    "in": ("2", all_goes_well, RunStatus.SUCCEEDED, {"drain node-3": 3, "stop node-3": 1}),
    "out that does not help": (
        "+1",
        it_does_not_help,
        RunStatus.UNDONE,
        {"start node-4": 1, "drain node-4": 0, "stop node-4": 1},
    ),
    "in that does harm": (
        "-1",
        it_does_not_help,
        RunStatus.UNDONE,
        {"drain node-3": 3, "stop node-3": 1, "start node-3": 1},
    ),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_dying_at_any_point_of_a_scaling_means_the_same_nodes(database_url: str, name: str) -> None:
    size, prepare, status, changes = SCALINGS[name]

    async def scale(world: World) -> Run:
        executor = world.start(limits=FEW_LOOKS).executor
        await executor.resume()
        run = await executor.act(f"scale default --to {size}", reason="", requested_by="ann", idempotency_key="k")
        return await executor.drive(run.id)

    undisturbed, run = one_life(database_url, prepare, set(), scale)
    expected = outcome(run, undisturbed.fleet)
    assert run.status is status
    assert undisturbed.fleet.changes == changes
    assert len(undisturbed.points) >= 12
    for index, point in points_to_die_at(database_url, undisturbed, list(SCALINGS).index(name)):
        world, run = one_life(database_url, prepare, {index}, scale)
        assert world.points[index] == point, "the way up to the crash must be the same"
        assert outcome(run, world.fleet) == expected, f"died at {index}: {point}"


@pytest.mark.parametrize("seed", range(8))
def test_dying_many_times_changes_nothing_in_the_end(database_url: str, seed: int) -> None:
    prepare = list(SCENARIOS)[seed % len(SCENARIOS)]
    undisturbed, run = one_life(database_url, prepare, set())
    kills = set(random.Random(seed).sample(range(60), 12))
    world, again = one_life(database_url, prepare, kills)
    assert outcome(again, world.fleet) == outcome(run, undisturbed.fleet)
    assert sum(step.attempts for step in again.steps) >= sum(step.attempts for step in run.steps)


def test_counts_of_temporary_errors_survive_a_crash(database_url: str) -> None:
    world = World(database_url)
    world.fleet.errors["drain"] = [temporary() for _ in range(100)]
    kill_each_retry = 0

    def kill_after_retry(name: str) -> None:
        nonlocal kill_each_retry
        if name == "step_retried.do.1.after_commit":
            kill_each_retry += 1
            raise Killed

    world._at_fault_point = kill_after_retry  # type: ignore[method-assign]
    world.wipe()
    run = live_until_done(world)
    world.close()
    assert kill_each_retry == 4
    assert run.step("do", 1).failures == 4
    assert "tried 5 times" in run.step("do", 1).error


def test_crashes_do_not_use_up_the_attempts_of_a_step(database_url: str) -> None:
    world = World(database_url)
    world.wipe()
    world.fleet.errors["drain"] = [temporary()]
    left = 6

    def kill_in_drain(name: str) -> None:
        nonlocal left
        if name == "effect.drain.entered" and left:
            left -= 1
            raise Killed

    world._at_fault_point = kill_in_drain  # type: ignore[method-assign]
    run = live_until_done(world)
    world.close()
    assert run.status is RunStatus.SUCCEEDED
    assert (run.step("do", 1).attempts, run.step("do", 1).failures) == (8, 1)


def test_a_step_that_kills_its_controller_each_time_ends_too(database_url: str) -> None:
    world = World(database_url)
    world.wipe()

    def kill_in_drain(name: str) -> None:
        if name == "effect.drain.entered" and "node-2" in world.fleet.calls[-1].split():
            raise Killed

    world._at_fault_point = kill_in_drain  # type: ignore[method-assign]
    run = None
    for _ in range(60):
        try:
            run = asyncio.run(_live(world))
            break
        except Killed:
            continue
    world.close()
    assert run is not None
    assert run.status is RunStatus.UNDONE
    assert "50 times without an end" in run.error


KILLED_CONTROLLER = "tests.runbooks.killed_controller"


@pytest.mark.e2e
@pytest.mark.parametrize("first_kill", [0, 7, 16, 25])
def test_survives_sigkill_of_the_process(tmp_path: Path, first_kill: int) -> None:
    """SQLite on disk and real SIGKILLs, the later ones too, at every fifth point after the first."""
    codes = []
    for life in range(12):
        kill_at = first_kill if life == 0 else 5
        done = subprocess.run(
            [sys.executable, "-m", KILLED_CONTROLLER, str(tmp_path), str(kill_at if life < 4 else -1)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        codes.append(done.returncode)
        if done.returncode != -signal.SIGKILL:
            break
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0, done.stderr
    assert (tmp_path / "end").read_text() == "succeeded done done done"
    fleet = FakeFleet.stored(tmp_path / "fleet.json")
    assert fleet.changes == {"start node-2b": 1, "drain node-2": 3, "stop node-2": 1}


OTHER_VERBS = parse_page(
    """---
name: others
title: Others
risk: low
causes: []
verify: {expect: "up", within: 30s, settle: 15s}
---
## 1. Limits, and what lies around

```fleetctl
fleetctl evidence collect node-2
fleetctl limits node-2 --max-num-seqs 4
fleetctl reset-prefix-cache node-2
fleetctl silence alert --alert LLMNodeSlow --node node-2 --for 30m
fleetctl notify --receiver oncall --text 'it is done'
fleetctl exec reset-gpu --args node-2
```

## 2. Sleep

```fleetctl
fleetctl sleep node-2
```

## Undo

### 2. Wake

```fleetctl
fleetctl wake node-2
```

### 1. As before

```fleetctl
fleetctl limits node-2 --before
```
""",
    "others.md",
)


def test_dying_at_any_point_of_the_other_verbs_does_each_once(database_url: str) -> None:
    async def others(world: World) -> Run:
        executor = world.start({"others": OTHER_VERBS}, limits=FEW_LOOKS).executor
        await executor.resume()
        run = await executor.propose("others", {}, reason="", requested_by="ann", idempotency_key="k", approve=True)
        return await executor.drive(run.id)

    def holds_nothing_and_does_not_help(fleet: FakeFleet) -> None:
        fleet.held["node-2"] = 0
        it_does_not_help(fleet)

    undisturbed, run = one_life(database_url, holds_nothing_and_does_not_help, set(), others)
    expected = outcome(run, undisturbed.fleet)
    assert run.status is RunStatus.UNDONE
    assert set(undisturbed.fleet.changes.values()) == {1}
    assert len(undisturbed.fleet.changes) == 9
    for index, point in points_to_die_at(database_url, undisturbed, 0, every=1):
        if not point.startswith("effect."):
            continue  # what is the same for every page is killed above
        world, run = one_life(database_url, holds_nothing_and_does_not_help, {index}, others)
        assert outcome(run, world.fleet) == expected, f"died at {index}: {point}"
