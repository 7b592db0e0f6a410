"""What TTFT, queue and KV will be once something is done to a group of nodes: asked of the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.controller.autoscaler.observation import Observation
from fleetctl.controller.autoscaler.simulator import Simulator
from fleetctl.controller.autoscaler.unknown import Unknown

MAX_ARRIVALS = 2000  # about 2 s of CPU time
MIN_ARRIVALS = 1000  # of fewer, p95 is too much a matter of chance
PART_ARRIVALS = 250  # after each, what is known so far is told
WARM_UP_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class LongReroute:
    """Prompts over `over_tokens` go to `nodes`, others to the rest."""

    over_tokens: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Nodes that leave, how many come, and a rule."""

    leave: frozenset[str] = frozenset()
    add: int = 0
    reroute: LongReroute | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a fleet does with its traffic. `queue`: waiting requests, p95. `kv_ratio`: the fullest node's most."""

    ttft_p50_s: float
    ttft_p95_s: float
    queue: int
    kv_ratio: float
    attained_ratio: float  # of the TTFT objective


@dataclass(frozen=True, slots=True)
class Prediction:
    """Figures as things stand and once the change is made, of the same traffic."""

    now: Figures
    after: Figures

    @property
    def words(self) -> str:
        """In one line."""
        return (
            f"predicted p95 TTFT {_seconds(self.after.ttft_p95_s)} (now {_seconds(self.now.ttft_p95_s)}), "
            f"queue {self.after.queue}, KV {self.after.kv_ratio:.0%}".replace("%", " %")
        )


async def predict(
    simulator: Simulator, seen: Observation, change: FleetChange, *, slo_ttft_s: float = 0.0
) -> Prediction | Unknown:
    """Simulate the traffic of the last minutes on the nodes as they are and as they will be."""
    after = scenario_of(seen, change, slo_ttft_s=slo_ttft_s)
    if not after["nodes"]:
        return Unknown("no node would be left")
    before = scenario_of(seen, FleetChange(), slo_ttft_s=slo_ttft_s)
    lines = _parts(before["arrivals"]["at_s"])
    answers = await asyncio.gather(simulator.simulate(before, *lines), simulator.simulate(after, *lines))
    figures = [figures_of(answer) for answer in answers]
    now, then = figures
    if isinstance(now, Unknown):
        return now
    if isinstance(then, Unknown):
        return then
    return Prediction(now, then)


def scenario_of(
    seen: Observation, change: FleetChange, *, slo_ttft_s: float = 0.0, factor: float = 1.0
) -> dict[str, Any]:
    """The first line for the simulator: the fleet with the change made. A node that comes is like the others."""
    traffic = seen.traffic.columns(MAX_ARRIVALS, factor, least=MIN_ARRIVALS)
    nodes = [
        {"name": name, "limits": limits.to_json(), "cost": seen.costs.of(name).to_json()}
        for name, limits in sorted(seen.limits.items())
        if name not in change.leave
    ]
    like = max(seen.limits.items())[1]
    nodes += [
        {"name": f"new-{number}", "limits": like.to_json(), "cost": seen.costs.of("").to_json()}
        for number in range(change.add)
    ]
    at = traffic["at_s"]
    scenario: dict[str, Any] = {
        "nodes": nodes,
        "arrivals": traffic,
        "measured_from_s": at[-1] * WARM_UP_SHARE if at else 0.0,
        "slo_ttft_s": slo_ttft_s,
    }
    if change.reroute is not None:
        scenario["reroute"] = {"over_tokens": change.reroute.over_tokens, "nodes": list(change.reroute.nodes)}
    return scenario


def _parts(at_s: list[float]) -> list[dict[str, float]]:
    """Lines for the simulator that each tell figures of a part: where time runs out, these are what there is."""
    return [*({"until_s": at_s[index]} for index in range(PART_ARRIVALS, len(at_s), PART_ARRIVALS)), {}]


def figures_of(answer: Mapping[str, Any] | Unknown) -> Figures | Unknown:
    """The figures in a simulator's answer."""
    if isinstance(answer, Unknown):
        return answer
    if answer["ttft_p95_s"] is None or answer["queue_p95"] is None:
        return Unknown("too few requests came to tell")
    if answer["refused"]:
        return Unknown(f"{answer['refused']} of the requests fit on none of the nodes")
    return Figures(
        ttft_p50_s=answer["ttft_p50_s"],
        ttft_p95_s=answer["ttft_p95_s"],
        queue=answer["queue_p95"],
        kv_ratio=answer["kv_ratio_max"],
        attained_ratio=answer["attained"] / answer["measured"],
    )


def serving_of_models(models: Mapping[str, str], serving: Collection[str], nodes: Collection[str]) -> frozenset[str]:
    """Serving nodes of the models that `nodes` have: the traffic of one goes to the others. `models`: of each node."""
    meant = {models[name] for name in nodes if name in models}
    return frozenset(name for name in serving if models.get(name) in meant)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
