"""One soak: a quiet run that says what is right, then the same requests again while the fleet is disturbed."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.target_fleet import TargetFleet, clear_state, open_target_fleet
from fleetctl.gateway_soak.disturbances import Disturber
from fleetctl.gateway_soak.drains import Drainer
from fleetctl.gateway_soak.soak_client import SoakClient
from fleetctl.gateway_soak.soak_request import SoakRequest, make_requests
from fleetctl.gateway_soak.tally import FateCheck, Tally, read_fates
from fleetctl.kit.reserved_port import reserve_port
from fleetctl.kit.whole_file import write_whole
from fleetctl.providers.local_gateway import GATEWAY
from fleetctl.providers.process import environment_without_settings
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack

QUIET_AT_ONCE = 12
PAUSE_S = 2.0
SECOND_GATEWAY = "gateway-2"
READY_TIMEOUT_S = 600.0  # of a starved machine
FATES_LIMIT_S = 10.0  # a gateway writes its log many lines at a time
POLL_S = 0.2
TELL_EVERY_S = 10.0

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """How long, how much, and with how many gateways. It ends when `seconds`, disturbances and drains are over."""

    seconds: float = 600.0
    min_disturbances: int = 0
    num_drains: int = 0  # in place of disturbances of all kinds: so many drains, with kills in the middle of some
    num_nodes: int = 4
    num_gateways: int = 1
    at_once: int = 24
    num_requests: int = 56  # different ones; each is asked many times
    pause_s: float = PAUSE_S  # between a mended disturbance and the next
    runner: str = "torch"
    seed: int = 0


@dataclass(slots=True)
class SoakResult:
    """What came of it."""

    tally: Tally = field(default_factory=Tally)
    fates: FateCheck = field(default_factory=FateCheck)
    disturbances: Counter[str] = field(default_factory=Counter)
    drains: Counter[str] = field(default_factory=Counter)  # by how they ended
    receipts: Counter[str] = field(default_factory=Counter)  # of drains: requests by outcome
    wrong_receipts: list[str] = field(default_factory=list)
    had_gateway_killed: bool = False
    problems: list[str] = field(default_factory=list)  # of the harness and of mending; no verdict on the gateway
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """Nothing lost, nothing changed, one fate for each request, and something was disturbed."""
        has_all_fates = not self.fates.twice and (self.had_gateway_killed or not self.fates.missing)
        is_whole = not (self.tally.lost or self.tally.changed or self.wrong_receipts)
        return is_whole and has_all_fates and bool(self.disturbances or self.drains)

    def to_json(self) -> dict[str, Any]:
        """For the report and for scripts."""
        tally = self.tally
        reasons = Counter(answer.problem.partition(" at http")[0][:120] for answer in tally.lost)
        finished = sum(tally.finished.values())
        return {
            "right": self.is_right,
            "seconds": round(self.seconds, 1),
            "finished": finished,
            "streams": tally.streams,
            "plain": finished - tally.streams,
            "finished_by_kind": dict(tally.finished),
            "came_again": tally.retried,
            "lost": len(tally.lost),
            "lost_by_reason": dict(reasons),
            "lost_ids": [answer.request_id for answer in tally.lost[:20]],
            "changed": len(tally.changed),
            "changes": [change._asdict() for change in tally.changed[:20]],
            "longest_pause_s": round(tally.longest_pause_s, 2),
            "fates": dict(self.fates.outcomes),
            "two_fates": self.fates.twice[:20],
            "fates_missing": len(self.fates.missing),
            "fates_missing_ids": self.fates.missing[:20],
            "disturbances": dict(self.disturbances),
            "drains": dict(self.drains),
            "receipts": dict(self.receipts),
            "wrong_receipts": self.wrong_receipts[:20],
            "problems": self.problems[:20],
        }


async def run_soak(base: Settings, plan: SoakPlan, tell: Tell) -> SoakResult:
    """Start a fleet of its own, soak it, stop it. Raises FleetctlError when the fleet does not come up."""
    options = {**NODE_OPTIONS, "runner": plan.runner}
    settings = settings_for_drill_fleet(
        base, base.state_dir / "gateway-soak", policy="ask", nodes=plan.num_nodes, node_options=options
    )
    settings = with_flags(
        settings,
        fleet={"ready_timeout_s": READY_TIMEOUT_S},
        log={"level": "info", "format": "json"},  # fates are read from the gateways' logs
    )
    gateways = {GATEWAY: settings.gateway.base_url}
    if plan.num_gateways > 1:
        gateways[SECOND_GATEWAY] = f"http://127.0.0.1:{reserve_port()}"
        settings = with_flags(settings, controller={"gateways": [gateways[SECOND_GATEWAY]]})
    stack = Stack(settings)
    clear_state(stack)  # names of nodes that an earlier soak added are taken there
    tell("starting a fleet")
    async with open_target_fleet(stack, runner=plan.runner) as fleet:
        if plan.num_gateways > 1:
            _start_second_gateway(stack, gateways[SECOND_GATEWAY])
        return await _soak(fleet, gateways, plan, tell)


async def _soak(fleet: TargetFleet, gateways: Mapping[str, str], plan: SoakPlan, tell: Tell) -> SoakResult:
    requests, result = make_requests(plan.num_requests, plan.seed), SoakResult()
    disturber = (Drainer if plan.num_drains else Disturber)(fleet, gateways, seed=plan.seed, pause_s=plan.pause_s)
    least = max(plan.min_disturbances, plan.num_drains)
    await disturber.wait_until_whole()
    model = fleet.stack.settings.fleet.model
    client = SoakClient(list(gateways.values()), model, disturber.downtimes.was_killed)
    tell("quiet run")
    expected = await _quiet_answers(client, requests, result)
    if result.problems:
        return result
    began = time.monotonic()

    async def ask(request: SoakRequest, request_id: str, told: str | None) -> str | None:
        answer = await client.ask(request, request_id)
        result.tally.note(answer, request.kind, told, is_streamed=request.is_streamed)
        return answer.told

    def is_short_of_disturbances() -> bool:
        return disturber.num_done < least and not disturber.has_given_up

    async def user(number: int) -> None:
        rng, turn = random.Random(f"{plan.seed}-{number}"), 0
        while time.monotonic() - began < plan.seconds or is_short_of_disturbances():
            request = rng.choice(requests)
            request_id = f"soak-{plan.seed}-{number}-{turn}"
            told = expected.get(request)
            if told is None:  # without a seed: asked twice, since one id has one answer, whoever is asked
                told = await ask(request, request_id, None)
            if told is not None:
                await ask(request, request_id, told)
            turn += 1

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
    if isinstance(disturber, Drainer):
        result.drains, result.receipts, result.wrong_receipts = disturber.ends, disturber.receipts, disturber.wrong
    result.had_gateway_killed = disturber.downtimes.any
    logs = [log for name in gateways for log in _logs(fleet.stack.table.observe(name).log_path)]
    deadline = time.monotonic() + FATES_LIMIT_S
    while True:
        result.fates = FateCheck.of(result.tally.attempts, read_fates(logs))
        if not result.fates.missing or time.monotonic() > deadline:
            break
        await asyncio.sleep(POLL_S)
    await client.aclose()
    return result


async def _quiet_answers(client: SoakClient, requests: list[SoakRequest], result: SoakResult) -> dict[SoakRequest, str]:
    """What each request with a seed is answered with; what went wrong is in the result's problems."""
    seats, expected = asyncio.Semaphore(QUIET_AT_ONCE), {}

    async def ask(number: int, request: SoakRequest) -> None:
        async with seats:
            answer = await client.ask(request, f"quiet-{number}")
        if answer.told is None:
            result.problems.append(f"quiet run: {request.kind}: {answer.problem}")
        else:
            expected[request] = answer.told

    seeded = [(number, request) for number, request in enumerate(requests) if request.has_seed]
    await asyncio.gather(*(ask(number, request) for number, request in seeded))
    return expected


async def _tell_progress(result: SoakResult, disturber: Disturber, began: float, tell: Tell) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tally = result.tally
        tell(
            f"{time.monotonic() - began:.0f} s: {sum(tally.finished.values())} right, {len(tally.lost)} lost,"
            f" {len(tally.changed)} changed, {disturber.num_done} {disturber.unit},"
            f" now {disturber.doing}"
        )


def _start_second_gateway(stack: Stack, url: str) -> None:
    """A second gateway of the same fleet, with a port and a run folder of its own."""
    settings = with_flags(stack.settings, gateway={"port": int(url.rpartition(":")[2])})
    config = settings.state_dir / f"{SECOND_GATEWAY}.json"
    write_whole(config, json.dumps(settings.revealed(), indent=1))
    argv = [sys.executable, "-m", "fleetctl.cli", "--config", str(config), "gateway", "run"]
    stack.table.start(SECOND_GATEWAY, argv, url=url, env=environment_without_settings())


def _logs(log: Path) -> list[Path]:
    """The log and what was cut off from its beginning, in order of time."""
    return [one for one in (log.with_suffix(".1"), log) if one.exists()]
