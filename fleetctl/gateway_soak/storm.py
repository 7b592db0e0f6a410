"""A storm of long prompts: what short ones wait for their first token, without and with nodes for the long ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from fleetctl.drill_fleet import NODE_OPTIONS, settings_for_drill_fleet
from fleetctl.first_night.target_fleet import TargetFleet, clear_state, open_target_fleet
from fleetctl.gateway_soak.soak import READY_TIMEOUT_S
from fleetctl.gateway_soak.soak_client import SoakClient
from fleetctl.gateway_soak.soak_request import COMPLETIONS, SoakRequest
from fleetctl.gateway_soak.tally import Answer
from fleetctl.kit.errors import UnreachableError
from fleetctl.load.client import measure_chars_per_token
from fleetctl.load.ledger import Percentiles, Samples
from fleetctl.load.prompt import prompt_text
from fleetctl.load.shape import RequestShape
from fleetctl.settings.load import with_flags
from fleetctl.settings.tree import Settings
from fleetctl.stack import Stack

NORMAL, STORM, REROUTED = "normal", "storm", "storm, rerouted"
SHORT = RequestShape(0.0, prompt_tokens=100, output_tokens=16)
LONG = RequestShape(0.0, prompt_tokens=6000, output_tokens=8)
LONG_OVER = "1k"  # tokens, of the rule
WARM_UP_S = 5.0
RULE_LIMIT_S = 30.0
POLL_S = 0.2

Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class StormPlan:
    """What is sent in each of the three phases. Short prompts come at a steady rate whatever becomes of them."""

    seconds: float = 60.0  # of a phase
    num_nodes: int = 3
    share: float = 0.3  # of the nodes, for long prompts
    short_per_s: float = 4.0
    short: RequestShape = SHORT
    long: RequestShape = LONG
    long_at_once: int = 4
    runner: str = "torch"
    seed: int = 0


@dataclass(slots=True)
class StormPhase:
    """One phase. `long_nodes`: how many long requests each node had, by the gateway's word."""

    name: str
    ttfts: Samples = field(default_factory=Samples)
    short_lost: list[Answer] = field(default_factory=list)
    long_seconds: Samples = field(default_factory=Samples)  # of those that were served, from sent to whole
    long_lost: list[Answer] = field(default_factory=list)
    longest_s: float = 0.0
    long_nodes: Counter[str] = field(default_factory=Counter)

    def note_short(self, answer: Answer) -> None:
        """Count a short request that has ended."""
        if answer.told is None or answer.ttft_s is None:
            self.short_lost.append(answer)
        else:
            self.ttfts.add_value(answer.ttft_s)

    def note_long(self, answer: Answer, node: str) -> None:
        """Count a long request that has ended at `node`."""
        if answer.told is None:
            self.long_lost.append(answer)
            return
        self.long_seconds.add_value(answer.duration_s)
        self.longest_s = max(self.longest_s, answer.duration_s)
        self.long_nodes[node] += 1

    def to_json(self) -> dict[str, Any]:
        """Times in seconds; None: no such request was served."""
        short, long = self.ttfts.percentiles(), self.long_seconds.percentiles()
        lost = self.short_lost + self.long_lost
        return {
            "phase": self.name,
            "short_served": short.count,
            "short_lost": len(self.short_lost),
            "short_ttft_p50_s": _rounded(short.p50),
            "short_ttft_p99_s": _rounded(short.p99),
            "long_served": long.count,
            "long_lost": len(self.long_lost),
            "long_p50_s": _rounded(long.p50),
            "long_longest_s": _rounded(self.longest_s),
            "long_nodes": dict(self.long_nodes),
            "lost_reasons": dict(Counter(answer.problem[:120] for answer in lost)),
        }


@dataclass(slots=True)
class StormResult:
    """The three phases, in order."""

    phases: list[StormPhase] = field(default_factory=list)

    @property
    def is_served(self) -> bool:
        """Whether every request of every phase was served, and each storm had some."""
        storms = [phase for phase in self.phases if phase.name != NORMAL]
        has_lost = any(phase.short_lost or phase.long_lost for phase in self.phases)
        return bool(storms) and not has_lost and all(phase.long_nodes for phase in storms)

    def times_normal(self, phase: StormPhase) -> float | None:
        """Short prompts' p99 TTFT as a multiple of the normal one; None: one of them is not known."""
        normal = next((one.ttfts.percentiles().p99 for one in self.phases if one.name == NORMAL), None)
        p99 = phase.ttfts.percentiles().p99
        return p99 / normal if normal and p99 is not None else None

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        rows = [{**phase.to_json(), "times_normal": _rounded(self.times_normal(phase))} for phase in self.phases]
        return {"served": self.is_served, "phases": rows}

    def table(self) -> str:
        """For people, in Markdown."""
        lines = [
            "| phase | short: served | TTFT p50 | p99 | times normal"
            " | long: served | lost | median | longest | at nodes |",
            f"|{'---|' * 10}",
        ]
        for phase in self.phases:
            short: Percentiles = phase.ttfts.percentiles()
            long = phase.long_seconds.percentiles()
            cells = (
                phase.name,
                f"{short.count} of {short.count + len(phase.short_lost)}",
                _seconds(short.p50),
                _seconds(short.p99),
                "-" if (times := self.times_normal(phase)) is None else f"{times:.2f}",
                str(long.count),
                str(len(phase.long_lost)),
                _seconds(long.p50),
                _seconds(phase.longest_s or None),
                ", ".join(f"{node}: {count}" for node, count in sorted(phase.long_nodes.items())) or "-",
            )
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"


async def run_storm(base: Settings, plan: StormPlan, tell: Tell) -> StormResult:
    """Start a fleet of its own, pass through the phases, stop it. Raises FleetctlError when it does not come up."""
    options = {**NODE_OPTIONS, "runner": plan.runner, "max_model_len": 8192, "num_kv_blocks": 4096}
    settings = settings_for_drill_fleet(
        base, base.state_dir / "gateway-storm", policy="ask", nodes=plan.num_nodes, node_options=options
    )
    stack = Stack(with_flags(settings, fleet={"ready_timeout_s": READY_TIMEOUT_S}))
    clear_state(stack)
    tell("starting a fleet")
    async with open_target_fleet(stack, runner=plan.runner) as fleet:
        gateway = settings.gateway.base_url
        client = SoakClient([gateway], settings.fleet.model)
        try:
            async with httpx.AsyncClient(base_url=gateway, trust_env=False) as http:
                chars_per_token = await measure_chars_per_token(gateway, settings.fleet.model)
                return await _pass_through(fleet, Storm(client, http, plan, chars_per_token), plan, tell)
        finally:
            await client.aclose()


async def _pass_through(fleet: TargetFleet, storm: Storm, plan: StormPlan, tell: Tell) -> StormResult:
    result = StormResult()
    tell("warming up")
    await storm.pass_phase(StormPhase("warm up"), seconds=WARM_UP_S, has_long=True)
    for name in (NORMAL, STORM, REROUTED):
        if name == REROUTED:
            await fleet.act(f"reroute long-context --over {LONG_OVER} --share {plan.share} --for 1h")
            await storm.wait_for_rule()
        tell(f"{name}, {plan.seconds:g} s")
        phase = StormPhase(name)
        await storm.pass_phase(phase, seconds=plan.seconds, has_long=name != NORMAL)
        result.phases.append(phase)
    return result


class Storm:
    """Sends what a phase needs. Each prompt is another one: nothing is found in a prefix cache."""

    def __init__(self, client: SoakClient, http: httpx.AsyncClient, plan: StormPlan, chars_per_token: float) -> None:
        self._client = client
        self._http = http  # of the gateway
        self._plan = plan
        self._chars_per_token = chars_per_token
        self._num_sent = 0

    async def pass_phase(self, phase: StormPhase, *, seconds: float, has_long: bool) -> None:
        """Send for so long, and wait until all that was sent has ended."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_short(phase, until, group))
            if has_long:
                for _ in range(self._plan.long_at_once):
                    group.create_task(self._send_long(phase, until))

    async def wait_for_rule(self) -> None:
        """Until the gateway would keep a short prompt away from where it would send a long one."""
        deadline = time.monotonic() + RULE_LIMIT_S
        body = {"prompt": self._prompt(self._plan.long)}
        while not (await self._http.post("/gateway/route/explain", json=body)).json().get("rules"):
            if time.monotonic() > deadline:
                raise UnreachableError("the gateway does not have the rule", remedy="fleetctl logs gateway")
            await asyncio.sleep(POLL_S)

    async def _send_short(self, phase: StormPhase, until: float, group: asyncio.TaskGroup) -> None:
        async def send() -> None:
            phase.note_short(await self._ask(self._plan.short))

        due = time.monotonic()
        while due < until:
            group.create_task(send())
            due += 1.0 / self._plan.short_per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send_long(self, phase: StormPhase, until: float) -> None:
        while time.monotonic() < until:
            answer = await self._ask(self._plan.long)
            fate = (await self._http.get(f"/gateway/requests/{answer.request_id}")).json()
            phase.note_long(answer, (fate.get("nodes") or ["unknown"])[-1])

    async def _ask(self, shape: RequestShape) -> Answer:
        self._num_sent += 1
        body = {"prompt": self._prompt(shape), "max_tokens": shape.output_tokens, "ignore_eos": True, "stream": True}
        request = SoakRequest("storm", COMPLETIONS, json.dumps(body), is_streamed=True, has_seed=False)
        return await self._client.ask(request, f"storm-{self._plan.seed}-{self._num_sent}")

    def _prompt(self, shape: RequestShape) -> str:
        salt = self._plan.seed * 1_000_003 + self._num_sent
        return prompt_text(shape, salt=salt, chars_per_token=self._chars_per_token)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s" if value < 1 else f"{value:.1f} s"
