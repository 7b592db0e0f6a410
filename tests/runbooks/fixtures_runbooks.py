"""A fake fleet at the border of `runbooks.ports`, a clock that never waits, and controllers that can be killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbooks.context import Limits
from runbooks.executor import Executor
from runbooks.journal import Journal
from runbooks.page import Page, load_library
from runbooks.ports import PermanentError, Receipt, TemporaryError
from runbooks.run import Run
from runbooks.schema import metadata, open_engine

LIBRARY = load_library()
FAST = Limits(guard_wait_s=10, poll_s=5, step_margin_s=5)
REPLACE = {"node": "node-2", "replacement": "node-2b"}


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the product catches it."""


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.time = now
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


@dataclass
class FakeFleet:
    """Nodes with idempotent effects. `changes` counts what really changed, `calls` what was asked.

    With a file, the state is stored after each change, so that it outlives the process.
    """

    state: dict[str, str] = field(default_factory=dict)  # node: serving, cordoned, drained, stopped
    held: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    errors: dict[str, list[Exception]] = field(default_factory=dict)  # of the next calls of an effect
    value: Callable[[str], float | None] = lambda _: 1.0
    blind: bool = False
    at_fault_point: Callable[[str], None] = lambda _: None
    hold: dict[str, asyncio.Event] = field(default_factory=dict)  # an effect that waits for the event
    file: Path | None = None

    @classmethod
    def of(cls, *names: str) -> FakeFleet:
        return cls(dict.fromkeys(names, "serving"), dict.fromkeys(names, 3))

    @classmethod
    def stored(cls, file: Path) -> FakeFleet:
        fleet = cls.of("node-1", "node-2", "node-3")
        fleet.file = file
        if file.exists():
            fleet.state, fleet.held, fleet.changes = json.loads(file.read_text())
        return fleet

    async def start_node(self, name: str, *, like: str | None, wait_s: float) -> Receipt:
        await self._enter("start", name)
        if self.state.get(name, "stopped") == "stopped":
            self._change("start", name, "serving")
        return self._left("start", {"node": name, "like": like})

    async def stop_node(self, name: str, *, grace_s: float, force: bool = False) -> Receipt:
        await self._enter("stop", name)
        if self.held.get(name) and not force:
            raise PermanentError(f"{name} holds {self.held[name]} requests")
        if self.state.get(name) != "stopped":
            self._change("stop", name, "stopped")
        return self._left("stop", {"node": name})

    async def cordon(self, name: str) -> Receipt:
        await self._enter("cordon", name)
        if self.state[name] == "serving":
            self._change("cordon", name, "cordoned")
        return self._left("cordon", {"node": name})

    async def uncordon(self, name: str) -> Receipt:
        await self._enter("uncordon", name)
        if self.state[name] != "serving":
            self._change("uncordon", name, "serving")
        return self._left("uncordon", {"node": name})

    async def drain(self, name: str, *, deadline_s: float) -> Receipt:
        await self._enter("drain", name)
        if self.state[name] not in ("drained", "stopped"):
            moved = self.held.get(name, 0)
            self.held[name] = 0
            self._change("drain", name, "drained", moved)
        return self._left("drain", {"node": name})

    async def restart_node(self, name: str, *, wait_s: float) -> Receipt:
        await self._enter("restart", name)
        if self.state[name] != "serving":
            self._change("restart", name, "serving")
        return self._left("restart", {"node": name})

    async def node_names(self) -> list[str]:
        return [name for name, state in self.state.items() if state != "stopped"]

    async def serving_nodes(self) -> list[str] | None:
        return None if self.blind else [name for name, state in self.state.items() if state == "serving"]

    async def evaluate(self, expression: str) -> float | None:
        return self.value(expression)

    async def _enter(self, effect: str, name: str) -> None:
        self.calls.append(f"{effect} {name}")
        self.at_fault_point(f"effect.{effect}.entered")
        if effect in self.hold:
            await self.hold[effect].wait()
        if self.errors.get(effect):
            raise self.errors[effect].pop(0)

    def _change(self, effect: str, name: str, state: str, amount: int = 1) -> None:
        self.state[name] = state
        key = f"{effect} {name}"
        self.changes[key] = self.changes.get(key, 0) + amount
        if self.file is not None:
            partial = self.file.with_suffix(".partial")
            partial.write_text(json.dumps([self.state, self.held, self.changes]))
            partial.replace(self.file)

    def _left(self, effect: str, receipt: Receipt) -> Receipt:
        self.at_fault_point(f"effect.{effect}.left")
        return receipt


@dataclass
class Controller:
    """One life of a controller on a world."""

    journal: Journal
    executor: Executor
    epoch: int


class World:
    """What outlives a controller: the database and the fleet. `start` is the next controller."""

    def __init__(self, database_url: str, fleet: FakeFleet | None = None) -> None:
        self.fleet = fleet or FakeFleet.of("node-1", "node-2", "node-3")
        self.clock = FakeClock()
        self.events: list[tuple[str, str]] = []
        self.points: list[str] = []  # fault points passed
        self.kill_at: set[int] = set()  # indexes into `points` at which the controller dies
        self.kill: Callable[[], None] = _raise_killed
        self.engine = open_engine(database_url)
        self._executors: list[Executor] = []

    def start(self, library: Mapping[str, Page] = LIBRARY, limits: Limits = FAST) -> Controller:
        self.fleet.at_fault_point = self._at_fault_point
        journal = Journal(self.engine, at_fault_point=self._at_fault_point)
        epoch = journal.claim_epoch()
        executor = Executor(
            journal, library, self.fleet, self.fleet, clock=self.clock, on_event=self._on_event, limits=limits
        )
        self._executors.append(executor)
        return Controller(journal, executor, epoch)

    def wipe(self) -> None:
        metadata.drop_all(self.engine)

    def close(self) -> None:
        for executor in self._executors:
            executor.close()
        self.engine.dispose()

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def _on_event(self, kind: str, text: str, run: Run, data: dict[str, Any]) -> None:
        assert text
        assert "\n" not in text
        self.events.append((kind, text))

    def _at_fault_point(self, name: str) -> None:
        self.points.append(name)
        if len(self.points) - 1 in self.kill_at:
            self.kill()


def _raise_killed() -> None:
    raise Killed


async def replace_node(controller: Controller, inputs: Mapping[str, str] = REPLACE) -> Run:
    """What a controller does after each start: go on with what there is, or ask for it, approve and carry."""
    executor = controller.executor
    await executor.resume()
    run = await executor.propose(
        "replace-node", inputs, reason="slow", incident_id="inc-1", requested_by="test", idempotency_key="inc-1"
    )
    if run.status == "proposed":
        run = await executor.decide(run.id, "approve", "ann")
    return await executor.drive(run.id)


async def propose(controller: Controller, runbook: str = "replace-node", **kwargs: Any) -> Run:
    inputs = kwargs.pop("inputs", REPLACE if runbook == "replace-node" else {"node": "node-2"})
    return await controller.executor.propose(runbook, inputs, **{"reason": "r", "requested_by": "bot", **kwargs})


def temporary(text: str = "busy") -> TemporaryError:
    return TemporaryError(text, retry_after_s=0.5)
