"""One fleet, one tired person, fault after fault for half an hour.

The first night makes each fault on a fresh fleet and answers it well. Here the fleet keeps its past: incidents join or
stay apart, pages act on what earlier pages left, and the person reads slowly, drains the wrong node, forgets to take
one back, and restarts the controller in the middle of a repair. At the end every post-mortem is held to what the
clients saw.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.fault import Expectation
from fleetctl.first_night.outcome import SeenIncident
from fleetctl.first_night.progress import Step
from fleetctl.first_night.report import machine
from fleetctl.first_night.responder import Responder
from fleetctl.first_night.target_fleet import TargetFleet, clear_state, open_target_fleet
from fleetctl.kit.errors import FleetctlError
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack
from fleetctl.wire.node import NodePhase
from fleetctl.wire.run import Run, RunStatus

FOLDER = "long-night"
NUM_NODES = 4
BASELINE_S = 90.0
LOOK_EVERY_S = 0.5
QUIET_S = 8.0
BETWEEN_S = 20.0  # normal traffic after a scene, so that the next one begins in a fleet that is well
SLOWDOWN = 6.0
TIRED_S = 20.0  # from the proposal to the approval
CONTROLLER = "controller"

Act = Callable[[TargetFleet, Sequence[str]], Coroutine[Any, Any, None]]
"""What is done to the fleet, given its ready nodes in order."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Something that happens, and what a reader of its post-mortems may expect."""

    name: str
    title: str
    act: Act
    causes: tuple[str, ...] = ()  # that incidents may name; empty: no incident is to open
    may_lose: bool = False  # its faults end what the gateway carries
    limit_s: float = 420.0


@dataclass(slots=True)
class SceneReport:
    """What came of it. Seconds count from its begin."""

    scene: Scene
    incidents: tuple[SeenIncident, ...] = ()
    over_after_s: float | None = None
    lost: int = 0
    sent: int = 0
    wrong: list[str] = field(default_factory=list)


async def _kill(fleet: TargetFleet, nodes: Sequence[str]) -> None:
    fleet.send_signal(nodes[1], signal.SIGKILL)


async def _hang_and_slow(fleet: TargetFleet, nodes: Sequence[str]) -> None:
    """A core stands still, and twenty seconds later another node is slow for a reason of its own."""
    fleet.signal_core(nodes[0], signal.SIGSTOP)
    await asyncio.sleep(20.0)
    await fleet.set_faults(nodes[2], slow_steps=SLOWDOWN * fleet.pace)


async def _mend_by_hand(fleet: TargetFleet, nodes: Sequence[str]) -> None:
    """A slow node: the person drains its neighbour first, sees the mistake, mends the right one and forgets a while."""
    await fleet.set_faults(nodes[1], slow_steps=SLOWDOWN * fleet.pace)
    await asyncio.sleep(25.0)
    await fleet.act(f"drain {nodes[2]} --deadline 2s", timeout_s=60.0)
    await asyncio.sleep(5.0)
    await fleet.act(f"uncordon {nodes[2]}")
    await fleet.act(f"cordon {nodes[1]}")
    await fleet.clear_faults(nodes[1], "slow_steps")
    await asyncio.sleep(30.0)
    if fleet.is_running(nodes[1]):  # else the page that was approved meanwhile has replaced it
        await fleet.act(f"uncordon {nodes[1]}")


async def _kill_and_lose_the_controller(fleet: TargetFleet, nodes: Sequence[str]) -> None:
    """The controller is killed once the repair has begun, and somebody starts it again half a minute later."""
    fleet.send_signal(nodes[0], signal.SIGKILL)
    for _ in range(600):
        if any(run.incident_id and run.status is RunStatus.RUNNING for run in await _runs(fleet)):
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(3.0)
    fleet.send_signal(CONTROLLER, signal.SIGKILL)
    await asyncio.sleep(30.0)
    await fleet.start_missing()


async def _runs(fleet: TargetFleet) -> Sequence[Run]:
    try:
        return await fleet.client.runs()
    except FleetctlError:
        return ()


async def _burst(fleet: TargetFleet, _: Sequence[str]) -> None:
    fleet.traffic.send_burst(200, prompt_tokens=600, output_tokens=200)


async def _resize(fleet: TargetFleet, _: Sequence[str]) -> None:
    """A healthy change: one node more, and away again."""
    await fleet.act("scale default --to +1", timeout_s=180.0)
    await asyncio.sleep(30.0)
    await fleet.act(f"scale default --to {NUM_NODES}", timeout_s=180.0)


async def _kill_gateway(fleet: TargetFleet, _: Sequence[str]) -> None:
    fleet.send_signal("gateway", signal.SIGKILL)


_DEAD = ("node_down",)
_SLOW = ("slow_node", "straggler", "busy_host")
SCENES: tuple[Scene, ...] = (
    Scene("killed", "SIGKILL of a node", _kill, _DEAD),
    Scene("two-at-once", "a core hangs, and another node is slow", _hang_and_slow, ("core_hung", *_DEAD, *_SLOW)),
    Scene("resized", "one node more, and away again", _resize),
    Scene("by-hand", "a slow node, mended by hand and not without a mistake", _mend_by_hand, _SLOW),
    Scene("controller-lost", "SIGKILL of a node, then of the controller", _kill_and_lose_the_controller, _DEAD),
    Scene("burst", "200 long requests at once", _burst, ("overload",)),
    Scene("gateway", "SIGKILL of the gateway", _kill_gateway, ("gateway_crash",), may_lose=True, limit_s=720.0),
)


class LongNight:
    """Plays the scenes on one fleet."""

    def __init__(self, fleet: TargetFleet, report: Step) -> None:
        self._fleet, self._report = fleet, report

    async def play(self, scenes: Sequence[Scene]) -> list[SceneReport]:
        """All of them, one after the other, under traffic."""
        reports: list[SceneReport] = []
        traffic = self._fleet.traffic
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.send_until_stopped())
            try:
                self._report(scenes[0].name, 0, f"normal traffic for {BASELINE_S:.0f} s")
                await asyncio.sleep(BASELINE_S)
                for done, scene in enumerate(scenes):
                    reports.append(await self._play(scene, done))
                    await asyncio.sleep(BETWEEN_S)
            finally:
                traffic.stop_sending()
            await sending
        return reports

    async def _play(self, scene: Scene, done: int) -> SceneReport:
        report, began = SceneReport(scene), time.time()
        nodes = sorted(one.name for one in await self._fleet.client.nodes() if one.phase is NodePhase.READY)
        if len(nodes) != NUM_NODES:
            report.wrong.append(f"{len(nodes)} nodes were ready when it began")
        responder = Responder(self._fleet.client, began, (), reading_s=TIRED_S)
        acting = asyncio.create_task(scene.act(self._fleet, nodes))
        quiet_since: float | None = None
        while (now := time.time()) < began + scene.limit_s:
            await responder.look()
            self._report(scene.name, done, f"{now - began:.0f} s, {', '.join(responder.standing) or 'no alert'}")
            is_seen = bool(responder.incidents) or not scene.causes or now > began + scene.limit_s / 2
            is_well = acting.done() and is_seen and responder.is_quiet
            is_well = is_well and await self._fleet.ready_nodes() == NUM_NODES
            quiet_since = (quiet_since or now) if is_well else None
            if quiet_since is not None and now - quiet_since >= QUIET_S:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            report.wrong.append(f"not over after {scene.limit_s:.0f} s: {', '.join(responder.standing) or 'no alert'}")
        if not acting.done():
            acting.cancel()
        for problem in await asyncio.gather(acting, return_exceptions=True):
            if isinstance(problem, BaseException):
                report.wrong.append(f"it was not carried out to its end: {problem or type(problem).__name__}")
        await self._judge(report, responder, began)
        return report

    async def _judge(self, report: SceneReport, responder: Responder, began: float) -> None:
        scene, traffic, now = report.scene, self._fleet.traffic, time.time()
        report.over_after_s = None if responder.is_open else now - QUIET_S - began
        expects = Expectation(causes=scene.causes, onset_within_s=90.0)
        report.incidents = await responder.seen_incidents(traffic, expects)
        report.lost = traffic.lost_between(began, now)
        report.sent = sum(began <= one.ended_at <= now for one in traffic.seen)
        if report.lost and not scene.may_lose:
            report.wrong.append(f"{report.lost} requests were lost")
        if scene.causes and not report.incidents:
            report.wrong.append("no incident opened")
        for one in report.incidents:
            if not scene.causes:
                report.wrong.append(f"{one.id} opened: {one.title}")
            elif one.cause not in scene.causes:
                report.wrong.append(f"{one.id}: the cause is {one.cause or 'not named'}")
            report.wrong += [f"{one.id}: its post-mortem {false}" for false in one.false]


def story(reports: Sequence[SceneReport]) -> str:
    """What happened, as Markdown."""
    lines = [f"{machine()}; load average {os.getloadavg()[0]:.1f} at the end.", ""]
    lines += ["| scene | incidents: title, cause | what was done | requests: ended, lost | over after | right |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in reports:
        said = "; ".join(f"{i.title}: {i.cause or 'none named'} ({i.confidence})" for i in one.incidents) or "none"
        runs = ", ".join(f"{r.runbook or r.title} {r.status}" for i in one.incidents for r in i.runs) or "-"
        over = "not" if one.over_after_s is None else f"{one.over_after_s:.0f} s"
        is_right = "yes" if not one.wrong else "**no**"
        lines += [f"| {one.scene.title} | {said} | {runs} | {one.sent}, {one.lost} | {over} | {is_right} |"]
    lines += [""] + [f"- {one.scene.name}: {wrong}" for one in reports for wrong in one.wrong]
    return "\n".join(lines).rstrip() + "\n"


def run_long_night(
    base: Settings, scenes: Sequence[Scene], *, runner: str, rate_per_s: float, report: Step
) -> list[SceneReport]:
    """Start a fleet, play the scenes, stop it; incidents stay in `<state>/long-night`. Raises FleetctlError."""
    options = {**NODE_OPTIONS, "runner": runner}
    folder = base.state_dir / FOLDER
    stack = Stack(settings_for_drill_fleet(base, folder, policy="ask", nodes=NUM_NODES, node_options=options))
    clear_state(stack)

    async def night() -> list[SceneReport]:
        async with open_target_fleet(stack, runner=runner, rate_per_s=rate_per_s) as fleet:
            return await LongNight(fleet, report).play(scenes)

    return asyncio.run(night())
