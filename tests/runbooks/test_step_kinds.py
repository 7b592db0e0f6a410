"""Steps that branch, ask, wait, run a page or mean several nodes; and runs that a person pauses, resumes or steers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runbooks.errors import BadCommandError, BadInputError
from runbooks.page import Page, parse_page
from runbooks.ports import PermanentError
from runbooks.run import ConflictError, Run, RunStatus, StepStatus
from tests.fixtures.runbooks import LIBRARY, Controller, FakeFleet, World

pytestmark = pytest.mark.anyio

HEAD = """\
---
name: {name}
title: Mend pool {{{{pool}}}}
risk: low
causes: []
inputs:
  pool:
    type: pool
    default: default
    description: the pool
---

# Mend
"""


def page_of(body: str, name: str = "mend") -> Page:
    return parse_page(HEAD.format(name=name) + body, f"{name}.md")


async def start(controller: Controller, runbook: str = "mend", **inputs: str) -> Run:
    return await controller.executor.propose(runbook, inputs, reason="r", requested_by="ann", approve=True)


async def carry_until(controller: Controller, run: Run, look: Any) -> tuple[asyncio.Task[Run], Run]:
    """The task that carries the run, once `look` is true of it."""
    carried = asyncio.create_task(controller.executor.drive(run.id))
    while not look(found := controller.journal.get(run.id)):
        assert not carried.done(), carried.result()
        await asyncio.sleep(0)
    return carried, found


BRANCH = """
## 1. Empty it

```when
max(llm:waiting{pool="{{pool}}"}) > bool 10
```

```fleetctl
fleetctl cordon node-1
fleetctl drain node-1
```

## 2. And this one

```fleetctl
fleetctl cordon node-2
```

## Undo

### 2. Back

```fleetctl
fleetctl uncordon node-2
```

### 1. Back

```fleetctl
fleetctl uncordon node-1
```
"""


@pytest.mark.parametrize(
    ("value", "status", "steps"),
    [
        (1.0, RunStatus.SUCCEEDED, ["done", "done", "done"]),
        (0.0, RunStatus.SUCCEEDED, ["skipped", "skipped", "done"]),
        (None, RunStatus.REFUSED, ["skipped", "skipped", "skipped"]),
    ],
)
async def test_a_step_is_left_out_when_its_condition_does_not_hold_and_nothing_goes_on_when_it_is_unknown(
    world: World, value: float | None, status: RunStatus, steps: list[str]
) -> None:
    world.fleet = FakeFleet.of("node-1", "node-2", "node-3", "node-4", "node-5")
    world.fleet.value = lambda expression: value if "waiting" in expression else 1.0
    controller = world.start({"mend": page_of(BRANCH)})
    run = await controller.executor.drive((await start(controller)).id)
    assert (run.status, [step.status.value for step in run.steps]) == (status, steps)
    if value is None:
        assert "could not tell whether max(llm:waiting" in run.error
        assert world.fleet.changes == {}


ASK = """
## 1. See for yourself

```fleetctl
fleetctl cordon node-1
fleetctl ask --question 'Is it well without node-1?' --within 10m
```

## Undo

### 1. Back

```fleetctl
fleetctl uncordon node-1
```
"""


@pytest.mark.parametrize(
    ("decision", "status", "state"),
    [("approve", RunStatus.SUCCEEDED, "cordoned"), ("deny", RunStatus.UNDONE, "serving")],
)
async def test_a_question_waits_for_a_persons_answer_also_beyond_the_death_of_the_controller(
    world: World, decision: Any, status: RunStatus, state: str
) -> None:
    controller = world.start({"mend": page_of(ASK)})
    carried, run = await carry_until(controller, await start(controller), lambda run: run.question)
    assert run.question == "Is it well without node-1?"
    carried.cancel()
    await asyncio.gather(carried, return_exceptions=True)
    answered = await controller.executor.decide(run.id, decision, "bob", "looked")
    assert answered.question == ""
    with pytest.raises(ConflictError):
        await controller.executor.decide(run.id, decision, "eve")
    run = await world.start({}).executor.drive(run.id)
    assert run.status is status
    assert world.fleet.state["node-1"] == state
    assert "bob" in f"{run.step('do', 1).receipt} {run.error}"


async def test_a_question_that_nobody_answers_ends_the_run_and_is_undone(world: World) -> None:
    controller = world.start({"mend": page_of(ASK)})
    run = await controller.executor.drive((await start(controller)).id)
    assert run.status is RunStatus.UNDONE
    assert "nobody answered within 600 s" in run.error


async def test_a_wait_goes_on_once_its_signal_has_held(world: World) -> None:
    values = iter([0.0, None, 1.0, 1.0, 1.0])
    world.fleet.value = lambda _: next(values)
    run = await world.start().executor.act(
        "wait --until 'max(llm:up)' --within 1m --settle 5s", reason="", requested_by="ann"
    )
    run = await world.start().executor.drive(run.id)
    assert run.status is RunStatus.SUCCEEDED
    assert "held for 5 s" in run.steps[0].receipt["waited"]


async def test_a_paused_run_begins_nothing_until_it_is_resumed_and_a_skipped_step_is_passed(world: World) -> None:
    world.fleet = FakeFleet.of("node-1", "node-2", "node-3", "node-4", "node-5")
    controller = world.start({"mend": page_of(BRANCH)})
    executor = controller.executor
    run = await start(controller)
    assert (await executor.order(run.id, "pause", "ann")).paused_by == "ann"
    with pytest.raises(ConflictError, match="is paused already, by ann"):
        await executor.order(run.id, "pause", "bob")
    carried, _ = await carry_until(controller, run, lambda _: len(world.clock.sleeps) > 20)
    assert world.fleet.calls == []
    await executor.order(run.id, "skip", "bob", "did it by hand")
    await executor.order(run.id, "resume", "bob")
    run = await carried
    assert run.status is RunStatus.SUCCEEDED
    assert run.step("do", 0).receipt["skipped"] == "by bob: did it by hand"
    assert world.fleet.calls == ["drain node-1", "cordon node-2"]
    assert {"run.paused", "run.resumed", "run.step_skipped"} <= set(world.kinds())
    with pytest.raises(ConflictError, match="does not go on: it is succeeded"):
        await executor.order(run.id, "pause", "ann")


OTHERS = ",".join(f"name!=node-{i}" for i in range(5, 12))


async def test_labels_mean_nodes_that_are_named_in_the_dry_run_and_kept_with_the_run(world: World) -> None:
    world.fleet = FakeFleet.of(*(f"node-{i}" for i in range(1, 12)))
    world.fleet.pools = {"node-2": "chat", "node-10": "chat", "node-3": "chat"}
    executor = world.start().executor
    asked = {"reason": "", "requested_by": "ann"}
    dry = await executor.act("cordon --pool chat -l name!=node-3", dry_run=True, **asked)
    assert [step.command for step in dry.steps] == ["cordon node-2", "cordon node-10"]
    command = f"uncordon --pool chat -l {OTHERS} --limit 3"
    world.fleet.state |= {"node-2": "cordoned", "node-3": "cordoned"}
    run = await executor.act(command, idempotency_key="k", **asked)
    del world.fleet.pools["node-2"], world.fleet.pools["node-3"]  # it means nobody any more
    assert (await executor.act(command, idempotency_key="k", **asked)).id == run.id
    executor = world.start().executor
    run = await executor.drive(run.id)
    assert [str(target) for target in run.targets] == ["node-2", "node-3"]
    assert run.status is RunStatus.SUCCEEDED
    assert world.fleet.changes == {"uncordon node-2": 1, "uncordon node-3": 1}
    for command, message in {
        "cordon --pool cat": "no node is meant by pool=cat; pools: chat, default",
        "cordon --pool default --limit 2": "means 10 nodes",
    }.items():
        with pytest.raises(BadInputError, match=message):
            await executor.act(command, **asked)
    with pytest.raises(BadCommandError, match="nodes have no such label"):
        await executor.act("cordon -l phase=ready", **asked)
    refused = await executor.act("cordon --pool default", **asked)
    assert refused.status is RunStatus.REFUSED, "guards judge all of them before the first"


async def test_at_most_so_many_nodes_are_acted_on_at_once_and_guards_are_asked_before_each(world: World) -> None:
    world.fleet = FakeFleet.of(*(f"node-{i}" for i in range(1, 12)))
    world.fleet.hold["drain"] = asyncio.Event()
    controller = world.start()
    run = await controller.executor.act(f"drain -l {OTHERS} --at-once 2", reason="", requested_by="ann")
    carried, _ = await carry_until(controller, run, lambda _: len(world.fleet.calls) == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.fleet.calls == ["drain node-1", "drain node-2"]
    world.fleet.state |= {"node-10": "cordoned", "node-11": "cordoned"}  # somebody else took these out meanwhile
    world.fleet.hold["drain"].set()
    run = await carried
    assert [step.status for step in run.steps] == [
        StepStatus.DONE,
        StepStatus.DONE,
        StepStatus.SKIPPED,
        StepStatus.SKIPPED,
    ]
    assert "the floor is 7" in run.error


INNER = """
## 1. Empty it

```fleetctl
fleetctl cordon node-1
```

## Undo

### 1. Back

```fleetctl
fleetctl uncordon node-1
```
"""

OUTER = """
## 1. Empty all

```fleetctl
fleetctl runbook run inner pool={{pool}}
```

## 2. Stop one

```fleetctl
fleetctl node stop node-1
```

## Undo

### 2. Start it

```fleetctl
fleetctl node start node-1
```
"""


async def test_a_page_within_a_page_is_part_of_the_run_and_undone_with_it(world: World) -> None:
    library = {"mend": page_of(OUTER), "inner": page_of(INNER, "inner")}
    world.fleet.held["node-1"] = 3
    controller = world.start(library)
    run = await controller.executor.drive((await start(controller)).id)
    assert [step.command for step in run.do_steps] == ["cordon node-1", "node stop node-1"]
    assert run.status is RunStatus.UNDONE
    assert [step.command for step in run.undo_steps] == ["node start node-1", "uncordon node-1"]
    assert world.fleet.state["node-1"] == "serving"


async def test_pages_that_run_each_other_are_refused(world: World) -> None:
    around = OUTER.replace("run inner", "run mend")
    controller = world.start({"mend": page_of(OUTER), "inner": page_of(around, "inner")})
    with pytest.raises(BadInputError, match="mend -> inner -> mend: a page that runs itself"):
        await start(controller)


async def test_a_page_is_repeated_for_each_node_that_labels_mean(world: World) -> None:
    each = page_of(OUTER.replace("inner pool={{pool}}", "drain-node --pool {{pool}}"))
    controller = world.start({"mend": each, "drain-node": LIBRARY["drain-node"]})
    run = await controller.executor.propose("mend", {}, reason="r", requested_by="ann", dry_run=True)
    drains = [step.command.split()[:2] for step in run.steps if step.command.startswith("drain")]
    waits = [step.command for step in run.steps if step.command.startswith("wait")]
    assert drains == [["drain", "node-1"], ["drain", "node-2"], ["drain", "node-3"]]
    assert len(waits) == 3, "each is held to its own expectation"


async def test_a_page_without_steps_is_read_and_not_run(world: World) -> None:
    by_hand = page_of("\n## What to check\n\nPool {{pool}}.\n")
    assert by_hand.is_by_hand
    controller = world.start({"mend": by_hand})
    with pytest.raises(BadInputError, match="mend has no step that could be run"):
        await start(controller)


async def test_a_node_that_fails_ends_the_run_and_those_that_were_begun_are_undone(world: World) -> None:
    world.fleet = FakeFleet.of(*(f"node-{i}" for i in range(1, 12)))
    cordon = world.fleet.cordon

    async def fails(name: str) -> Any:
        if name == "node-2":
            raise PermanentError("no")
        return await cordon(name)

    world.fleet.cordon = fails  # type: ignore[method-assign]
    body = INNER.replace("cordon node-1", "cordon --pool {{pool}} -l " + OTHERS)
    controller = world.start({"mend": page_of(body)})
    run = await controller.executor.drive((await start(controller)).id)
    assert run.status is RunStatus.UNDONE
    assert [step.command for step in run.undo_steps] == ["uncordon node-2", "uncordon node-1"]
