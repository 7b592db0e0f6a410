"""A run: rounds of traffic with disturbances in it, each followed by a rest in which everything must be given back."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from engine.soak.accounting import MAX_PROBLEMS, RequestAccounting, compare_metrics, values_of
from engine.soak.client import Client, Outcome
from engine.soak.disturbances import Disturbances, NotRecoveredError
from engine.soak.leak_check import IdleReading, find_growth
from engine.soak.node_process import NodeError, NodeProcess, read_usage
from engine.soak.request import SoakRequest, draw_request, known_requests

CLIENTS = 24
REST_S = 30.0
WARM_ROUNDS = 2  # not compared: caches fill, pools grow, malloc finds its size


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How long a run takes, in rounds of `round_s`; the seed draws requests and disturbances."""

    seconds: float
    round_s: float
    seed: int


@dataclass(slots=True)
class SoakResult:
    """What a run found; without `problems` it passed."""

    problems: list[str] = field(default_factory=list)
    readings: list[IdleReading] = field(default_factory=list)  # after warm-up
    seconds: float = 0.0
    requests: int = 0
    disturbances: int = 0
    leak_detected: bool | None = None  # None: it did not come to that


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    done: float
    doing: str
    requests: int
    problems: int


class Soak:
    """Drives one node. `report_progress` is called a few times a second."""

    def __init__(
        self,
        node: NodeProcess,
        plan: SoakPlan,
        report_progress: Callable[[Progress], None],
        must_rise: tuple[str, ...] = (),
    ) -> None:
        """`must_rise`: counters that are above 0 in the end, or what was switched on did nothing."""
        self._node = node
        self._plan = plan
        self._report_progress = report_progress
        self._must_rise = must_rise
        self._rng = random.Random(plan.seed)
        self._disturbances = Disturbances(node, self._rng)
        self._ids = itertools.count()
        self.accounting = RequestAccounting()
        self.result = SoakResult()

    async def run_soak(self) -> SoakResult:
        """Rounds of traffic until the time is over. Never raises for what the node did.

        Ends early at the first round with a problem: what follows would only repeat it.
        """
        started = time.monotonic()
        try:
            await self._ask_alone()
            for number in itertools.count():
                elapsed = time.monotonic() - started
                if elapsed >= self._plan.seconds and number > WARM_ROUNDS + 1:
                    break
                await self._round(started, is_warm=number >= WARM_ROUNDS)
                if self.result.problems:
                    break
            if not self.result.problems:
                await self._look_at_what_was_used()
            if not self.result.problems:
                await self._prove_leak_detection()
        except (NodeError, NotRecoveredError, aiohttp.ClientError) as error:
            self.result.problems.append(f"{type(error).__name__}: {error}")
        self.result.seconds = time.monotonic() - started
        return self.result

    async def _ask_alone(self) -> None:
        """Each known request while nothing else runs: the answers that it must get from then on."""
        client = Client(self._node.url, self._node.token)
        try:
            for request in known_requests():
                await self._ask(client, request)
        finally:
            await client.close()

    async def _look_at_what_was_used(self) -> None:
        client = Client(self._node.url, self._node.token)
        try:
            _, exposition = await client.admin("GET", "/metrics")
        finally:
            await client.close()
        found = values_of(str(exposition), self._must_rise)
        self.result.problems += [
            f"{name} is 0: it was on and did nothing" for name in self._must_rise if not found.get(name)
        ]

    async def _round(self, started: float, *, is_warm: bool) -> None:
        client = Client(self._node.url, self._node.token)
        stop_at = time.monotonic() + self._plan.round_s
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(self._one_client(client, stop_at))
                group.create_task(self._disturb(client, stop_at))
                group.create_task(self._report(started, stop_at))
        except* (NotRecoveredError, aiohttp.ClientError, NodeError) as failed:
            raise NotRecoveredError("; ".join(str(e) for e in failed.exceptions)) from failed
        finally:
            self.result.disturbances = self._disturbances.count
            await client.close()
        reading = await self._rest(started)
        if reading is not None and is_warm:
            self.result.readings.append(reading)
            self.result.problems += find_growth(self.result.readings)

    async def _one_client(self, client: Client, stop_at: float) -> None:
        while time.monotonic() < stop_at:
            if await self._ask(client, draw_request(self._rng)) == "refused":
                await self._until_taking_work(client)

    async def _ask(self, client: Client, request: SoakRequest) -> str:
        """One request to its end, wherever that is; how it ended."""
        before = self._disturbances.num_wrong_times
        outcome = await self._send(client, request)
        while outcome.ending == "moved":
            await self._until_taking_work(client)
            outcome = await client.continue_handoff(outcome)
            self._note(outcome)
        if request.answer is not None and before == self._disturbances.num_wrong_times and before % 2 == 0:
            self.accounting.compare_answer(request.answer, outcome)
        return outcome.ending

    async def _until_taking_work(self, client: Client) -> None:
        """A little longer than it takes, or not at all: some requests must come while the node refuses them."""
        for _ in range(self._rng.randint(1, 10)):
            await asyncio.sleep(0.2)
            status, _ = await client.admin("GET", "/health/ready")
            if status == 200:
                return

    async def _send(self, client: Client, request: SoakRequest) -> Outcome:
        self.result.requests += 1
        outcome = await client.send(request, f"soak-{next(self._ids)}")
        self._note(outcome)
        return outcome

    def _note(self, outcome: Outcome) -> None:
        self.accounting.record_outcome(outcome)

    async def _disturb(self, client: Client, stop_at: float) -> None:
        while time.monotonic() < stop_at - 1.0:
            await self._disturbances.disturb_next(client)
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))

    async def _report(self, started: float, stop_at: float) -> None:
        while time.monotonic() < stop_at:
            self._say(started, self._disturbances.last or "traffic")
            await asyncio.sleep(0.2)

    def _say(self, started: float, doing: str) -> None:
        done = min(1.0, (time.monotonic() - started) / self._plan.seconds)
        self._report_progress(Progress(done, doing, self.result.requests, len(self.result.problems)))

    async def _rest(self, started: float) -> IdleReading | None:
        """A reading once everything was given back; None, with problems, when it is not."""
        self._say(started, "rest")
        deadline = time.monotonic() + REST_S
        problems: list[str] = []
        while time.monotonic() < deadline:
            # A connection for each look: none may be left over to be counted.
            client = Client(self._node.url, self._node.token)
            try:
                status, exposition = await client.admin("GET", "/metrics")
            finally:
                await client.close()
            self._read_log()
            problems = compare_metrics(self.accounting, str(exposition)) if status == 200 else [f"/metrics: {status}"]
            tasks = values_of(str(exposition), ("engine_asyncio_tasks",)).get("engine_asyncio_tasks", 0)
            if not problems and not self._grew_in_tasks(int(tasks)):
                break
            await asyncio.sleep(0.2)
        checked = self.accounting.reconcile()
        integrity = values_of(str(exposition), ("engine_integrity_ok",)).get("engine_integrity_ok")
        if integrity == 0:
            problems.append("the core's check of its KV blocks failed")
        self.result.problems += (problems + checked)[:MAX_PROBLEMS]
        if self.result.problems:
            return None
        core = read_usage(self._node.core_pid())
        return IdleReading(time.monotonic() - started, self.result.requests, self._node.usage(), core, int(tasks))

    def _grew_in_tasks(self, tasks: int) -> bool:
        """A connection that was just closed may still have its task."""
        return bool(self.result.readings) and tasks > self.result.readings[0].tasks

    def _read_log(self) -> None:
        for event in self._node.new_events():
            if event.get("event") == "request.finished":
                self.accounting.record_log_line(event)
            elif event.get("level") in ("error", "critical") and not _was_done_to_it(event):
                self.result.problems.append(f"the node's log has an error: {str(event)[:500]}")

    async def _prove_leak_detection(self) -> None:
        """The check that found no leak all along must find one that is there."""
        client = Client(self._node.url, self._node.token)
        try:
            await self._disturbances.leak(client)
            deadline = time.monotonic() + REST_S
            while time.monotonic() < deadline:
                _, exposition = await client.admin("GET", "/metrics")
                if values_of(str(exposition), ("engine_integrity_ok",)).get("engine_integrity_ok") == 0:
                    self.result.leak_detected = True
                    return
                await asyncio.sleep(0.3)
        finally:
            await client.close()
        self.result.leak_detected = False
        self.result.problems.append("KV blocks were lost on purpose and the node did not tell")


def _was_done_to_it(event: Mapping[str, Any]) -> bool:
    """A killed core, wrong numbers that were told, a step that ran out of memory because a fault said so."""
    if event.get("event") == "step.failed":
        return event.get("is_injected") is True
    return event.get("event") in ("core.lost", "golden.result_changed")
