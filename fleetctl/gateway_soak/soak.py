"""One soak: a quiet run that says what is right, then the same requests again while the fleet is disturbed."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.target_fleet import TargetFleet, clear_state, open_target_fleet
from fleetctl.gateway_soak.disturbances import Disturber
from fleetctl.gateway_soak.soak_request import SoakClient, SoakRequest, Tally, make_requests
from fleetctl.kit.whole_file import write_whole
from fleetctl.providers.local import free_port
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack

QUIET_AT_ONCE = 8
SETTLE_S = 5.0

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How long, how much, and with how many gateways."""

    seconds: float = 600.0
    num_nodes: int = 4
    num_gateways: int = 1
    at_once: int = 24
    num_kinds: int = 40  # different requests; each is asked many times
    pause_s: float = 2.0  # between a mended disturbance and the next
    runner: str = "fake"
    seed: int = 0


@dataclass(slots=True)
class SoakResult:
    """What came of it. `fates`: of every request, by the gateway's own word."""

    tally: Tally = field(default_factory=Tally)
    disturbances: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)  # of the harness and of mending; no verdict on the gateway
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Nothing lost, nothing changed, no request without an end, and something was disturbed."""
        has_open = self.fates["in_flight"] > 0
        return not (self.tally.lost or self.tally.changed or has_open) and sum(self.disturbances.values()) > 0

    def to_json(self) -> dict[str, Any]:
        """For the report and for scripts."""
        reasons = Counter(answer.problem.partition(" at http")[0][:120] for answer in self.tally.lost)
        return {
            "right": self.is_right,
            "seconds": round(self.seconds, 1),
            "finished": self.tally.finished,
            "came_again": self.tally.retried,
            "lost": len(self.tally.lost),
            "lost_by_reason": dict(reasons),
            "lost_ids": [answer.request_id for answer in self.tally.lost[:20]],
            "changed": len(self.tally.changed),
            "changed_ids": [answer.request_id for answer in self.tally.changed[:20]],
            "longest_pause_s": round(self.tally.longest_pause_s, 2),
            "fates": dict(self.fates),
            "disturbances": dict(self.disturbances),
            "problems": self.problems[:20],
        }


async def run_soak(base: Settings, plan: SoakPlan, tell: Tell) -> SoakResult:
    """Start a fleet of its own, soak it, stop it. Raises FleetctlError when the fleet does not come up."""
    state_dir = base.state_dir / "gateway-soak"
    options = {**NODE_OPTIONS, "runner": plan.runner}
    settings = settings_for_drill_fleet(base, state_dir, policy="ask", nodes=plan.num_nodes, node_options=options)
    stack = Stack(settings)
    clear_state(stack)  # names of nodes that an earlier soak added are taken there
    tell("starting a fleet")
    async with open_target_fleet(stack, runner=plan.runner) as fleet:
        gateways = [settings.gateway.base_url]
        if plan.num_gateways > 1:
            gateways.append(_start_second_gateway(stack))
        return await _soak(fleet, SoakClient(gateways, settings.fleet.model), plan, tell)


async def _soak(fleet: TargetFleet, client: SoakClient, plan: SoakPlan, tell: Tell) -> SoakResult:
    requests, result = make_requests(plan.num_kinds, plan.seed), SoakResult()
    expected = await _quiet_answers(client, requests, result)
    if result.problems:
        return result
    disturber = Disturber(fleet, seed=plan.seed, num_gateways=plan.num_gateways, pause_s=plan.pause_s)
    ids: list[str] = []
    began = time.monotonic()

    async def user(number: int) -> None:
        turn = number
        while time.monotonic() - began < plan.seconds:
            request = requests[turn % len(requests)]
            request_id = f"soak-{plan.seed}-{number}-{turn}"
            ids.append(request_id)
            result.tally.note(await client.ask(request, request_id), expected[request])
            turn += plan.at_once

    disturbing = asyncio.create_task(disturber.disturb_until_cancelled())
    telling = asyncio.create_task(_tell_progress(result, disturber, began, tell))
    try:
        await asyncio.gather(*(user(number) for number in range(plan.at_once)))
    finally:
        for task in (disturbing, telling):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    result.seconds = time.monotonic() - began
    result.disturbances, result.problems = disturber.done, disturber.problems
    await asyncio.sleep(SETTLE_S)
    for request_id in ids:
        result.fates[await client.fate(request_id)] += 1
    await client.aclose()
    return result


async def _quiet_answers(client: SoakClient, requests: list[SoakRequest], result: SoakResult) -> dict[SoakRequest, str]:
    seats, expected = asyncio.Semaphore(QUIET_AT_ONCE), {}

    async def ask(number: int, request: SoakRequest) -> None:
        async with seats:
            answer = await client.ask(request, f"quiet-{number}")
        if answer.text is None:
            result.problems.append(f"quiet run: {answer.problem}")
        else:
            expected[request] = answer.text

    await asyncio.gather(*(ask(number, request) for number, request in enumerate(requests)))
    return expected


async def _tell_progress(result: SoakResult, disturber: Disturber, began: float, tell: Tell) -> None:
    while True:
        await asyncio.sleep(10.0)
        tally = result.tally
        tell(
            f"{time.monotonic() - began:.0f} s: {tally.finished} right, {len(tally.lost)} lost,"
            f" {len(tally.changed)} changed, {sum(disturber.done.values())} disturbances, now {disturber.doing}"
        )


def _start_second_gateway(stack: Stack) -> str:
    """A second gateway of the same fleet, of its own port and run folder. Returns its URL."""
    settings = with_flags(stack.settings, gateway={"host": "127.0.0.1", "port": free_port()})
    config = settings.state_dir / "gateway-2.json"
    write_whole(config, json.dumps(settings.revealed(), indent=1))
    argv = [sys.executable, "-m", "fleetctl.cli", "--config", str(config), "gateway", "run"]
    stack.table.start("gateway-2", argv, url=settings.gateway.base_url)
    return settings.gateway.base_url
