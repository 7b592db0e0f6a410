"""One fault on a fresh fleet: normal traffic, the strike, what the fleet makes of it, and the account of every request.

The night only strikes, watches and approves, as the person on call would. Alerts, diagnosis, proposals and repair are
the controller's own.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fleetctl.client import ControllerClient
from fleetctl.first_night.compressed import write_compressed_rules
from fleetctl.first_night.fault import Fault
from fleetctl.first_night.outcome import READY_NODES, Outcome, find_wrong
from fleetctl.first_night.site import Site
from fleetctl.first_night.traffic import NightTraffic
from fleetctl.first_night.watch import Watch
from fleetctl.kit.errors import FleetctlError, UnreachableError
from fleetctl.providers.local import free_port
from fleetctl.providers.process import ProcessTable
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack
from fleetctl.wire import NodePhase

Tell = Callable[[str], None]

LOOK_EVERY_S = 0.5
SIGNALS_TIMEOUT_S = 90.0
PROPOSAL_WITHIN_S = 60.0  # after the first alert; without one a person ends the fault
HELPED_WITHIN_S = 60.0  # after a run ended; else a person ends the fault
QUIET_S = 8.0  # nothing fires for so long: it is over
AFTERGLOW_S = 5.0  # traffic after the end
NODE_OPTIONS = {"max_num_seqs": 16, "max_model_len": 4096, "num_kv_blocks": 1024, "num_threads": 1}


@dataclass(frozen=True, slots=True)
class NightPlan:
    """How every fault is run."""

    rate_per_s: float = 2.0
    seed: int = 0
    runner: str = (
        "torch"  # or fake: repeatable tokens and a cost model, where the machine is too busy for three engines
    )
    is_compressed: bool = False  # shorter windows of the slow alerts, and shorter baselines


def settings_for_night(base: Settings, fault: Fault, plan: NightPlan) -> Settings:
    """A fleet beside any other: own state folder, free ports, faults allowed, policy ask."""
    port = free_port()
    state_dir = base.state_dir / "first-night" / fault.name
    return with_flags(
        base,
        state_dir=state_dir,
        controller={"host": "127.0.0.1", "port": port, "url": f"http://127.0.0.1:{port}", "policy": "ask"},
        gateway={"host": "127.0.0.1", "port": free_port()},
        fleet={"nodes": READY_NODES, "enable_faults": True, "node_options": {**NODE_OPTIONS, "runner": plan.runner}},
        content=(*base.content, state_dir / "content") if plan.is_compressed else None,
    )


async def run_fault(base: Settings, fault: Fault, plan: NightPlan, tell: Tell) -> Outcome:
    """Start a fleet, strike, watch it to the end, stop the fleet. What breaks on the way is the outcome's `problems`.

    Raises BadInputError when a fleet of an earlier run still stands in the state folder and can't be stopped.
    """
    settings = settings_for_night(base, fault, plan)
    stack = Stack(settings)
    _clear(settings.state_dir, stack)
    if plan.is_compressed:
        write_compressed_rules(settings.state_dir / "content")
    try:
        tell("starting a fleet")
        view = await stack.up(lambda _: None)
        async with ControllerClient(view.controller_url, settings.controller_token()) as client:
            traffic = NightTraffic(view.gateway_url, settings.fleet.model, rate_per_s=plan.rate_per_s, seed=plan.seed)
            return await _Night(fault, plan, Site(stack, client, traffic), tell).pass_through()
    finally:
        await asyncio.shield(asyncio.to_thread(stack.down, lambda _: None))


class _Night:
    def __init__(self, fault: Fault, plan: NightPlan, site: Site, tell: Tell) -> None:
        self._fault, self._plan, self._site, self._tell = fault, plan, site, tell
        self._problems: list[str] = []
        self._relieved_at: float | None = None
        self._struck_until = 0.0

    async def pass_through(self) -> Outcome:
        traffic = self._site.traffic
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.send_until_stopped())
            try:
                await self._wait_for_baseline()
                watch = await self._strike_and_watch()
                await asyncio.sleep(AFTERGLOW_S)
            finally:
                traffic.stop_sending()
            self._tell("waiting for the last requests")
            await sending
        self._tell("checking every request's tokens")
        if lost := traffic.lost_between(0.0, watch.struck_at):
            self._problems.append(f"{lost} requests were lost before the fault")
        outcome = Outcome(
            fault=self._fault.name,
            title=self._fault.title,
            at=watch.struck_at,
            alerts=tuple(sorted(watch.alerts.values(), key=lambda alert: alert.after_s)),
            incidents=await watch.seen_incidents(traffic, self._fault.expects.causes),
            requests=await traffic.account(watch.struck_at),
            ended_by=self._ended_by(watch),
            over_after_s=None if self._is_open(watch) else self._over_after_s(watch),
            ready_nodes=await self._site.ready_nodes(),
            windows="compressed" if self._plan.is_compressed else "default",
            runner=self._plan.runner,
            problems=tuple(self._problems),
        )
        return replace(outcome, wrong=find_wrong(outcome, self._fault.expects))

    async def _wait_for_baseline(self) -> None:
        """Until every node has normal traffic in its windows."""
        baseline_s = min(self._fault.baseline_s, 90.0) if self._plan.is_compressed else self._fault.baseline_s
        ready_at = time.time() + baseline_s
        deadline = ready_at + SIGNALS_TIMEOUT_S
        while time.time() < deadline:
            self._tell(f"normal traffic for {max(0.0, ready_at - time.time()):.0f} s")
            nodes = [n for n in await self._site.client.nodes() if n.phase is NodePhase.READY]
            known = [n for n in nodes if n.step_s.value is not None and n.ttft_s.value is not None]
            if time.time() >= ready_at and len(nodes) == READY_NODES and len(known) == len(nodes):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            raise UnreachableError("the nodes' signals did not become known", remedy="fleetctl get nodes")
        if firing := [alert.name for alert in await self._site.client.alerts() if alert.fired_at is not None]:
            self._problems.append(f"{', '.join(firing)} fired before the fault")

    async def _strike_and_watch(self) -> Watch:
        if self._fault.prepare is not None:
            self._tell("preparing the fault")
            await self._fault.prepare(self._site)
        watch = Watch(self._site.client, time.time())
        strike = asyncio.create_task(self._fault.strike(self._site))
        try:
            await self._follow(watch, strike)
        finally:
            if not strike.done():
                strike.cancel()
        await asyncio.gather(strike, return_exceptions=True)
        if strike.cancelled() or strike.exception() is not None:
            self._problems.append("the fault was not carried out to its end")
        return watch

    async def _follow(self, watch: Watch, strike: asyncio.Task[None]) -> None:
        """Look until it is over; end the fault as a person would when nothing proposed does."""
        quiet_since: float | None = None
        while (now := time.time()) < watch.struck_at + self._fault.watch_s:
            await watch.look()
            self._tell(self._news(watch))
            if strike.done() and strike.exception() is not None:
                raise FleetctlError(f"{self._fault.name}: {strike.exception()}")
            if self._relieved_at is None and self._fault.relieve is not None and self._needs_person(watch, now):
                self._relieved_at = now
                await self._fault.relieve(self._site)
            is_quiet = strike.done() and watch.answered and not watch.is_firing and not self._is_open(watch)
            is_quiet = is_quiet and (self._is_heard(watch) or now > watch.struck_at + self._fault.page_within_s)
            is_quiet = is_quiet and await self._site.ready_nodes() >= READY_NODES
            quiet_since = (quiet_since or now) if is_quiet else None
            if quiet_since is not None and now - quiet_since >= QUIET_S:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    def _is_heard(self, watch: Watch) -> bool:
        """An alert that is expected has fired: nothing more needs to be waited for."""
        return any(alert.name in self._fault.expects.alerts for alert in watch.alerts.values())

    def _needs_person(self, watch: Watch, now: float) -> bool:
        """Nobody was woken, nothing is proposed, or what was done did not help."""
        heard_at = watch.first_fired_at if self._is_heard(watch) else None
        if watch.has_active_run:
            return False
        if (ended_at := watch.last_run_ended_at()) is not None:
            return now - ended_at > HELPED_WITHIN_S
        if heard_at is None:
            return now - watch.struck_at > self._fault.page_within_s
        return now - heard_at > PROPOSAL_WITHIN_S

    def _is_open(self, watch: Watch) -> bool:
        return watch.has_open_incident or watch.has_active_run

    def _over_after_s(self, watch: Watch) -> float:
        ends = [incident.resolved_at for incident in watch.incidents if incident.resolved_at is not None]
        return max(ends, default=watch.struck_at) - watch.struck_at

    def _ended_by(self, watch: Watch) -> str:
        if self._relieved_at is not None:
            return "person"
        return "page" if any(run.status.value == "succeeded" for run in watch.runs) else "itself"

    def _news(self, watch: Watch) -> str:
        parts = [f"{time.time() - watch.struck_at:.0f} s after the fault"]
        parts += [alert.name for alert in watch.alerts.values()][:1]
        parts += [f"{run.runbook} {run.status.value}" for run in watch.runs[:1]]
        if self._relieved_at is not None:
            parts.append("a person ended the fault")
        return ", ".join(parts)


def _clear(state_dir: Path, stack: Stack) -> None:
    """Stop what an interrupted night left in its own folder, and begin anew."""
    if ProcessTable(state_dir / "run").running():
        stack.down(lambda _: None)
    shutil.rmtree(state_dir, ignore_errors=True)
