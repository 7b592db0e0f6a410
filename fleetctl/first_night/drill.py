"""One fault on a fresh fleet: normal traffic, the injection, what the fleet makes of it, the account of every request.

The drill only injects, looks and approves, as the person on call would. Alerts, diagnosis, proposals and repair are
the controller's own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.compressed_rules import write_compressed_rules
from fleetctl.first_night.fault import AGES_S, Fault, held
from fleetctl.first_night.outcome import Outcome, Said, failures_of
from fleetctl.first_night.responder import Responder
from fleetctl.first_night.target_fleet import POOL, VICTIM, TargetFleet, clear_state, open_target_fleet
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack
from fleetctl.wire.alert import AlertState
from fleetctl.wire.node import NodePhase

Tell = Callable[[str], None]

LOOK_EVERY_S = 0.5
SIGNALS_TIMEOUT_S = 90.0
PROPOSAL_WITHIN_S = 60.0  # after the first alert; without one a person ends the fault
HELPED_WITHIN_S = 60.0  # after a run ended; else a person ends the fault
QUIET_S = 8.0  # nothing fires for so long: it is over
AFTERGLOW_S = 5.0  # traffic after the end
COMPRESSED_BASELINE_S = 90.0
COMPRESSED_PAGE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """How every fault is run."""

    rate_per_s: float = 2.0
    seed: int = 0
    runner: str = (
        "torch"  # or fake: repeatable tokens and a cost model, where the machine is too busy for three engines
    )
    is_compressed: bool = False  # shorter windows of the slow alerts, and shorter baselines
    hold_s: float | None = None  # nobody approves or ends anything for so long; None: as the fault says


def settings_for_drill(base: Settings, fault: Fault, plan: DrillPlan) -> Settings:
    """A fleet that asks before it acts, with shorter windows from a content folder when compressed."""
    state_dir = base.state_dir / "first-night" / fault.name
    options = {**NODE_OPTIONS, "runner": plan.runner, **fault.node_options}
    settings = settings_for_drill_fleet(base, state_dir, policy="ask", nodes=fault.nodes, node_options=options)
    if fault.has_tenants:
        settings = with_flags(settings, gateway={"tenants_file": state_dir / "tenants.yaml"})
    return with_flags(settings, content=(*base.content, state_dir / "content")) if plan.is_compressed else settings


async def run_fault(base: Settings, fault: Fault, plan: DrillPlan, tell: Tell) -> Outcome:
    """Start a fleet, inject, follow it to the end, stop the fleet. What breaks on the way is the outcome's `problems`.

    Raises BadInputError when a fleet of an earlier run still stands in the state folder and can't be stopped.
    """
    settings = settings_for_drill(base, fault, plan)
    stack = Stack(settings)
    clear_state(stack)
    if plan.is_compressed:
        write_compressed_rules(settings.state_dir / "content")
        fault = replace(
            fault,
            baseline_s=min(fault.baseline_s, COMPRESSED_BASELINE_S),
            page_within_s=min(fault.page_within_s, COMPRESSED_PAGE_WITHIN_S),
        )
    fault = held(fault, plan.hold_s) if plan.hold_s is not None else fault
    tell("starting a fleet")
    rate_per_s = fault.rate_per_s or plan.rate_per_s
    async with open_target_fleet(
        stack,
        runner=plan.runner,
        rate_per_s=rate_per_s,
        seed=plan.seed,
        has_gpus=fault.has_gpus,
        traffic_kind=fault.traffic,
        node_faults=fault.node_faults,
    ) as fleet:
        return await _Drill(fault, plan, fleet, tell).run_drill()


class _Drill:
    def __init__(self, fault: Fault, plan: DrillPlan, fleet: TargetFleet, tell: Tell) -> None:
        self._fault, self._plan, self._fleet, self._tell = fault, plan, fleet, tell
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._said: list[Said] = []
        self._cleared_at: float | None = None
        self._load: float | None = None

    async def run_drill(self) -> Outcome:
        traffic = self._fleet.traffic
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.send_until_stopped())
            try:
                await self._wait_for_baseline()
                responder = await self._inject_and_follow()
                await asyncio.sleep(AFTERGLOW_S)
            finally:
                traffic.stop_sending()
            self._tell("waiting for the last requests")
            await sending
        self._tell("checking every request's tokens")
        if lost := traffic.lost_between(0.0, responder.injected_at):
            self._problems.append(f"{lost} requests were lost before the fault")
        outcome = Outcome(
            fault=self._fault.name,
            title=self._fault.title,
            at=responder.injected_at,
            alerts=tuple(sorted(responder.alerts.values(), key=lambda alert: alert.after_s)),
            incidents=await responder.seen_incidents(traffic, self._fault.expects, self._cleared_at),
            requests=await traffic.account(responder.injected_at),
            said=tuple(self._said),
            ended_by=self._ended_by(responder),
            still_standing=responder.standing,
            over_after_s=None if responder.is_open else self._over_after_s(responder),
            ready_nodes=await self._fleet.ready_nodes(),
            wanted_nodes=self._fault.nodes,
            held_s=self._plan.hold_s,
            windows="compressed" if self._plan.is_compressed else "default",
            runner=self._plan.runner,
            load=self._load,
            notes=tuple(self._notes),
            problems=tuple(self._problems),
        )
        return replace(outcome, wrong=failures_of(outcome, self._fault.expects))

    async def _wait_for_baseline(self) -> None:
        """Until every node has normal traffic in its windows."""
        ready_at = time.time() + self._fault.baseline_s
        deadline = ready_at + SIGNALS_TIMEOUT_S
        while time.time() < deadline:
            self._tell(f"normal traffic for {max(0.0, ready_at - time.time()):.0f} s")
            nodes = [n for n in await self._fleet.client.nodes() if n.phase is NodePhase.READY]
            known = [n for n in nodes if n.step_s.value is not None and n.ttft_s.value is not None]
            if time.time() >= ready_at and len(nodes) == self._fault.nodes and len(known) == len(nodes):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            raise UnreachableError("the nodes' signals did not become known", remedy="fleetctl get nodes")
        alerts = await self._fleet.client.alerts()
        if firing := [alert.name for alert in alerts if alert.state is AlertState.FIRING]:
            self._problems.append(f"{', '.join(firing)} fired before the fault")
        if resolved := [alert.name for alert in alerts if alert.state is AlertState.RESOLVED]:
            self._notes.append(f"in the normal traffic before the fault {', '.join(resolved)} fired, and resolved")

    async def _inject_and_follow(self) -> Responder:
        if self._fault.prepare is not None:
            self._tell("preparing the fault")
            await self._fault.prepare(self._fleet)
        self._load = round(os.getloadavg()[0], 1)
        responder = Responder(
            self._fleet.client, time.time(), self._fault.expects.alerts, rests_s=self._plan.hold_s or 0.0
        )
        injecting = asyncio.create_task(self._fault.inject(self._fleet))
        try:
            await self._follow(responder, injecting)
        finally:
            if not injecting.done():
                injecting.cancel()
        await asyncio.gather(injecting, return_exceptions=True)
        if injecting.cancelled() or injecting.exception() is not None:
            self._problems.append("the fault was not carried out to its end")
        return responder

    async def _follow(self, responder: Responder, injecting: asyncio.Task[None]) -> None:
        """Look until it is over; end the fault as a person would when nothing proposed does."""
        quiet_since: float | None = None
        while (now := time.time()) < responder.injected_at + self._fault.watch_s:
            await responder.look()
            await self._ask(responder, now)
            self._tell(self._news(responder))
            if injecting.done() and injecting.exception() is not None:
                raise FleetctlError(f"{self._fault.name}: {injecting.exception()}")
            if self._cleared_at is None and self._fault.clear is not None and self._needs_person(responder, now):
                self._cleared_at = now
                await self._fault.clear(self._fleet)
            is_quiet = injecting.done() and responder.is_quiet and self._is_due(responder, now)
            is_healthy = is_quiet and await self._fleet.ready_nodes() >= self._fault.nodes
            quiet_since = (quiet_since or now) if is_healthy else None
            if quiet_since is not None and now - quiet_since >= QUIET_S:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ask(self, responder: Responder, now: float) -> None:
        """At each of the ages, while the fault lasts."""
        age_s = now - responder.injected_at
        is_resolved = bool(responder.incidents) and not responder.is_open
        # What a person ends at its age lasts until then, unless a page has ended it: alerts come and go.
        may_last = self._fault.hold_s is not None and responder.last_run_ended_at() is None
        is_over = self._cleared_at is not None or (is_resolved and not may_last)
        if is_over or not any(said_at <= age_s for said_at in AGES_S[len(self._said) :][:1]):
            return
        scope = {"node": VICTIM} if self._fault.place == "node" else {"pool": POOL}
        if (said := await responder.ask(scope, AGES_S[len(self._said)])) is not None:
            self._said.append(said)

    def _is_due(self, responder: Responder, now: float) -> bool:
        """An alert that is expected has fired, or had its time; what is held was ended."""
        if self._fault.hold_s is not None:
            return self._cleared_at is not None or responder.last_run_ended_at() is not None
        return self._was_alerted(responder) or now > responder.injected_at + self._fault.page_within_s

    def _was_alerted(self, responder: Responder) -> bool:
        """An alert that is expected has fired: nothing more needs to be waited for."""
        return any(alert.name in self._fault.expects.alerts for alert in responder.alerts.values())

    def _needs_person(self, responder: Responder, now: float) -> bool:
        """Nobody was woken, nothing is proposed, or what was done did not help."""
        alerted_at = responder.first_fired_at if self._was_alerted(responder) else None
        is_over = bool(responder.incidents) and not responder.is_open
        ended_at = responder.last_run_ended_at()
        if self._fault.hold_s is not None:
            may_help = responder.has_active_run or (ended_at is not None and now - ended_at <= HELPED_WITHIN_S)
            return now - responder.injected_at > self._fault.hold_s and not may_help
        if is_over or responder.has_active_run:
            return False
        if ended_at is not None:
            return now - ended_at > HELPED_WITHIN_S
        if alerted_at is None:
            return now - responder.injected_at > self._fault.page_within_s
        return now - alerted_at > PROPOSAL_WITHIN_S

    def _over_after_s(self, responder: Responder) -> float:
        ends = [incident.resolved_at for incident in responder.incidents if incident.resolved_at is not None]
        return max(ends, default=responder.injected_at) - responder.injected_at

    def _ended_by(self, responder: Responder) -> str:
        if self._cleared_at is not None:
            return "person"
        return "page" if any(run.status.value == "succeeded" for run in responder.runs) else "itself"

    def _news(self, responder: Responder) -> str:
        parts = [f"{time.time() - responder.injected_at:.0f} s after the fault"]
        parts += [alert.name for alert in responder.alerts.values()][:1]
        parts += [f"{run.runbook} {run.status.value}" for run in responder.runs[:1]]
        if self._cleared_at is not None:
            parts.append("a person ended the fault")
        return ", ".join(parts)
