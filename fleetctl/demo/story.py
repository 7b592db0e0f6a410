"""The demo's story: traffic, a fault, and what the controller makes of it, told as it happens.

The story only watches: it injects the fault and sends traffic. Detection, diagnosis, approval by policy and repair are
the controller's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleetctl.client import ControllerClient
from fleetctl.demo.progress import Act, Progress, Watch
from fleetctl.demo.report import DemoReport, RequestCounts
from fleetctl.demo.traffic import DemoTraffic
from fleetctl.drill_fleet import change_faults, settings_for_drill_fleet
from fleetctl.kit.errors import UnreachableError
from fleetctl.load.trace import load_trace
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack, StackView
from fleetctl.wire.incident import Incident, IncidentStatus
from fleetctl.wire.node import NodePhase
from fleetctl.wire.timeline import TimelineEntry

Tell = Callable[[str], None]


# Alert windows are 20 s: before they are full of normal traffic there is nothing to compare with.
BASELINE_S = 25.0
# Time for the pool to serve normally again before the story ends, so that "after" has requests in it.
AFTERGLOW_S = 8.0
REPAIR_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo does: its traffic, and the fault that it injects."""

    trace: Path | None = None
    rate_per_s: float = 4.0
    seed: int = 0
    fault_node: str = "node-2"
    slow_factor: float = 10.0
    repair_timeout_s: float | None = REPAIR_TIMEOUT_S  # None: until it is mended, however long a person thinks

    def check(self) -> None:
        """Raises BadInputError before anything is started."""
        if self.trace is not None:
            load_trace(self.trace)


def settings_for_demo(base: Settings, *, nodes: int, policy: str = "run") -> Settings:
    """A fleet of its own. Policy `run` approves its runbooks, `ask` leaves that to a person."""
    return settings_for_drill_fleet(base, base.state_dir / "demo", policy=policy, nodes=nodes)


async def run_demo(stack: Stack, plan: DemoPlan, tell: Tell) -> DemoReport:
    """Start the fleet, tell the story, return what it proved. The caller stops the fleet."""
    tell("starting a controller, a gateway and the engine nodes")
    return await tell_story(stack, await stack.up(tell), plan, tell)


async def tell_story(
    stack: Stack, view: StackView, plan: DemoPlan, tell: Tell, watch: Watch = lambda _: None
) -> DemoReport:
    """The story over a fleet that is up. `watch` hears where it is."""
    token = stack.settings.controller_token()
    async with ControllerClient(view.controller_url, token) as client:
        return await _Story(stack, plan, tell, watch, view, client).run()


class _Story:
    def __init__(
        self, stack: Stack, plan: DemoPlan, tell: Tell, watch: Watch, view: StackView, client: ControllerClient
    ) -> None:
        self._stack, self._plan, self._view, self._client = stack, plan, view, client
        self._say, self._watch_progress = tell, watch
        self._progress = Progress()
        self._began = time.time()
        self._events: list[TimelineEntry] = []

    async def run(self) -> DemoReport:
        plan = self._plan
        traffic = DemoTraffic(
            self._view.gateway_url,
            self._stack.settings.fleet.model,
            rate_per_s=plan.rate_per_s,
            seed=plan.seed,
            trace=plan.trace,
        )
        self._tell(
            time.time(),
            "traffic.started",
            f"{plan.rate_per_s:g} streamed requests a second through the gateway",
        )
        async with asyncio.TaskGroup() as tasks:
            events = tasks.create_task(self._follow_events())
            sending = tasks.create_task(traffic.send_until_stopped())
            await self._wait_for_signals()
            fault_at = await self._inject_fault()
            incident = await self._wait_for_repair(fault_at)
            if incident is not None:
                self._goes_on(act=Act.MENDED, incident=incident)
                await asyncio.sleep(AFTERGLOW_S)
            traffic.stop_sending()
            await sending
            events.cancel()
        self._tell(time.time(), "traffic.stopped", "checking every request's tokens")
        self._goes_on(act=Act.CHECKING)
        counts = await traffic.account()
        report = self._report(fault_at, incident, counts, traffic)
        self._goes_on(act=Act.OVER, report=report)
        return report

    def _goes_on(self, **news: Any) -> None:
        self._progress = replace(self._progress, **news)
        self._watch_progress(self._progress)

    async def _wait_for_signals(self) -> None:
        """Until every node has normal traffic in its windows."""
        ready_at = time.time() + BASELINE_S
        self._goes_on(act=Act.NORMAL, breaks_at=ready_at)
        deadline = ready_at + 60.0
        while time.time() < deadline:
            nodes = [n for n in await self._client.nodes() if n.phase is NodePhase.READY]
            known = [n for n in nodes if n.step_s.value is not None and n.ttft_s.value is not None]
            if time.time() >= ready_at and nodes and len(known) == len(nodes):
                return
            await asyncio.sleep(0.5)
        raise UnreachableError("the nodes' signals did not become known", remedy="fleetctl get nodes")

    async def _inject_fault(self) -> float:
        plan = self._plan
        await change_faults(self._stack, plan.fault_node, {"slow_steps": plan.slow_factor})
        now = time.time()
        self._tell(
            now,
            "fault.injected",
            f"{plan.fault_node}: every step takes {plan.slow_factor:g}x as long, as when a GPU throttles",
        )
        self._goes_on(act=Act.BROKEN, fault_at=now)
        return now

    async def _follow_events(self) -> None:
        """Tell every timeline entry as the controller writes it."""
        after = 0
        while True:
            try:
                entries = await self._client.events(after=after, wait_s=5.0)
            except UnreachableError:
                await asyncio.sleep(0.5)
                continue
            for entry in entries:
                after = max(after, entry.seq)
                self._events.append(entry)
                self._tell(entry.at, entry.kind, entry.text)

    async def _wait_for_repair(self, fault_at: float) -> Incident | None:
        """The incident of the faulty node once it is resolved, or as it is when the time is over; None without one."""
        waits_s = self._plan.repair_timeout_s
        deadline = float("inf") if waits_s is None else time.time() + waits_s
        found: Incident | None = None
        while time.time() < deadline:
            for incident in await self._client.incidents():
                if not self._is_about_fault(incident, fault_at):
                    continue
                found = await self._client.incident(incident.id)
                self._goes_on(incident=found)
                if found.status is IncidentStatus.RESOLVED and found.blackbox is not None:
                    return found
            await asyncio.sleep(0.5)
        return found

    def _is_about_fault(self, incident: Incident, fault_at: float) -> bool:
        named = incident.scope.get("node")
        return incident.opened_at >= fault_at and named in (None, self._plan.fault_node)

    def _report(
        self, fault_at: float, incident: Incident | None, counts: RequestCounts, traffic: DemoTraffic
    ) -> DemoReport:
        def after_fault(kinds: Sequence[str]) -> float | None:
            times = [e.at - fault_at for e in self._events if e.kind in kinds and e.at >= fault_at]
            return min(times, default=None)

        is_resolved = incident is not None and incident.status is IncidentStatus.RESOLVED
        succeeded, resolved = after_fault(["run.succeeded"]), after_fault(["incident.resolved"])  # by a run; by hand
        mitigated = (resolved if succeeded is None else succeeded) if is_resolved else None
        diagnosis = incident.diagnosis if incident else None
        to_monotonic = time.monotonic() - time.time()
        broke = fault_at + to_monotonic
        mended = broke + (REPAIR_TIMEOUT_S if mitigated is None else mitigated)
        report = DemoReport(
            detected_s=after_fault(["alert.fired", "incident.opened"]),
            diagnosed=diagnosis.cause if diagnosis else None,
            diagnosed_s=after_fault(["diagnosis.named"]),
            mitigated_s=mitigated,
            requests=counts,
            ttft_before_s=traffic.ttft_p95_s(0.0, broke),
            ttft_during_s=traffic.ttft_p95_s(broke, mended),
            ttft_after_s=traffic.ttft_p95_s(mended, float("inf")),
            false_alarms=sum(1 for e in self._events if e.kind == "incident.opened" and e.at < fault_at),
        )
        if incident is None:
            return report
        return replace(report, postmortem=incident.postmortem, blackbox=incident.blackbox)

    def _tell(self, at: float, kind: str, text: str) -> None:
        self._say(f"{max(0.0, at - self._began):7.1f}s  {kind:<20} {text}")
