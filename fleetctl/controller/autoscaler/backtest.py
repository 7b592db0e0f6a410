"""What an autoscaler would have done with recorded traffic: its judgement in a closed loop with the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleetctl.controller.autoscaler.judgement import Bounds, Direction, Judgement, Memory, PoolLoad, judge
from fleetctl.controller.autoscaler.simulator import Simulation, Simulator
from fleetctl.controller.autoscaler.trace import TracedRequest, columns_of
from fleetctl.controller.autoscaler.unknown import Unknown
from fleetctl.kit.errors import FleetctlError
from fleetctl.settings.autoscaler import AutoscalerSettings

TURN_S = 5.0  # as the controller
RATE_TURNS = 4  # over which requests that come and end are counted: 20 s, as the signals
CHECK_WINDOW_S = 300.0
MAX_CHECKED = 2000  # requests in the simulation of a scale-in
CHECK_AGAIN_S = 60.0
EPOCH_S = 1_000_000.0  # what the trace's begin counts as: judgements want times above zero

SMALL_GPU: Mapping[str, Any] = {
    "limits": {"num_kv_blocks": 4096, "max_num_seqs": 32, "max_num_batched_tokens": 2048, "prefix_caching": False},
    "cost": {"fixed_s": 0.03, "prompt_token_s": 0.0002, "decode_s": 0.0005, "context_token_s": 2e-8},
}
"""An assumed node: 5,000 prompt tokens a second, 32 seats, KV for 64k tokens. A measured one: `--node`."""


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """How one way to size a pool did. `attained_ratio`: requests whose TTFT kept the objective."""

    name: str
    attained_ratio: float
    node_hours: float
    largest: int
    scalings: int
    ttft_p95_s: float


@dataclass(frozen=True, slots=True)
class BacktestSetup:
    """What all ways have in common."""

    requests: Sequence[TracedRequest]
    node: Mapping[str, Any]
    limits: AutoscalerSettings
    bounds: Bounds
    start_s: float
    begin_nodes: int  # at the trace's begin


async def run_backtest(
    setup: BacktestSetup, simulator: Simulator, progress: Callable[[str], None] = lambda _: None
) -> list[BacktestResult]:
    """The autoscaler; the KV rule alone, as it is and with the autoscaler's node hours as its minimum; and fixed pools.

    Fixed: of the autoscaler's node hours, as large as it was at its largest, and as large as the pool was at the begin.
    Raises FleetctlError when there is no simulator, or it fails.
    """
    progress("autoscaler")
    found = [await _run_judged(setup, simulator, "autoscaler", sees_all=True)]
    hours = max(request.at_s for request in setup.requests) / 3600
    same = max(1, round(found[0].node_hours / hours)) if hours else 1
    for least in dict.fromkeys((setup.bounds.least, same)):
        name = "KV rule alone" if least == setup.bounds.least else f"KV rule alone, {least} nodes at least"
        progress(name)
        bounds = replace(setup.bounds, least=least, most=max(least, setup.bounds.most))
        begin = max(least, setup.begin_nodes) if least == setup.bounds.least else least
        found.append(
            await _run_judged(replace(setup, bounds=bounds, begin_nodes=begin), simulator, name, sees_all=False)
        )
    for size in dict.fromkeys((same, found[0].largest, setup.begin_nodes)):
        progress(f"fixed, {size} nodes")
        found.append(await _run_fixed(setup, simulator, size))
    return found


async def _run_fixed(setup: BacktestSetup, simulator: Simulator, size: int) -> BacktestResult:
    async with simulator.session() as simulation:
        await _begin(simulation, setup, size)
        answer = _known(await simulation.ask({}))
    return _result(f"fixed, {size} nodes", answer, size, 0)


async def _run_judged(setup: BacktestSetup, simulator: Simulator, name: str, *, sees_all: bool) -> BacktestResult:
    end_s = max(request.at_s for request in setup.requests)
    nodes = {f"node-{number}": 0.0 for number in range(1, setup.begin_nodes + 1)}  # to when they are ready
    named = largest = len(nodes)
    scalings = 0
    memory, now_s = Memory(), 0.0
    checked = (-CHECK_AGAIN_S, True)
    line: dict[str, Any] = {}
    counts: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # time, requests that had come and ended
    async with simulator.session() as simulation:
        await _begin(simulation, setup, len(nodes))
        while now_s < end_s:
            now_s = min(end_s, now_s + TURN_S)
            answer = _known(await simulation.ask({**line, "until_s": now_s}))
            line = {}
            counts = [*counts[-RATE_TURNS:], (now_s, answer["arrived"], answer["ended"])]
            load = _load(answer, nodes, now_s, setup, counts, sees_all=sees_all)
            judgement = judge(load, setup.bounds, setup.limits, memory, EPOCH_S + now_s)
            memory = judgement.memory
            if judgement.needs_check and sees_all:
                if now_s - checked[0] >= CHECK_AGAIN_S:
                    checked = now_s, await _may_shrink(setup, simulator, now_s, judgement.size)
                if not checked[1]:
                    continue
            if judgement.direction is Direction.HOLD:
                continue
            line, named = _change(judgement, nodes, named, now_s, setup)
            memory = memory.with_move(judgement.direction, EPOCH_S + now_s)
            scalings += 1
            largest = max(largest, len(nodes))
        answer = _known(await simulation.ask(line))
    return _result(name, answer, largest, scalings)


def _change(
    judgement: Judgement, nodes: dict[str, float], named: int, now_s: float, setup: BacktestSetup
) -> tuple[dict[str, Any], int]:
    """The line for the simulator; `nodes` follows. Who leaves is the newest, as a node that is wanted last is."""
    if judgement.direction is Direction.IN:
        leave = sorted(nodes, key=lambda name: nodes[name])[judgement.size :]
        for name in leave:
            del nodes[name]
        return {"leave": leave}, named
    add = []
    while len(nodes) < judgement.size:
        named += 1
        nodes[f"node-{named}"] = now_s + setup.start_s
        add.append({"name": f"node-{named}", "ready_at_s": now_s + setup.start_s, **setup.node})
    return {"add": add}, named


def _load(
    answer: Mapping[str, Any],
    nodes: Mapping[str, float],
    now_s: float,
    setup: BacktestSetup,
    counts: Sequence[tuple[float, int, int]],
    *,
    sees_all: bool,
) -> PoolLoad:
    (first_s, *first), (last_s, *last) = counts[0], counts[-1]
    arriving, ending = ((after - before) / (last_s - first_s) for before, after in zip(first, last, strict=True))
    ready = [node for node in answer["nodes"] if nodes[node["name"]] <= now_s]
    load = PoolLoad(
        wanted=len(nodes),
        serving=len(ready),
        kv_ratio=sum(node["kv_ratio"] for node in ready) / len(ready),
        seat_ratio=sum(node["running"] / node["seats"] for node in ready) / len(ready),
        waiting=sum(node["waiting"] for node in ready),
        start_s=setup.start_s,
        arriving_per_s=arriving,
        ending_per_s=ending,
    )
    return load if sees_all else replace(load, seat_ratio=None, tells_seats=False, waiting=0, start_s=0.0)


async def _may_shrink(setup: BacktestSetup, simulator: Simulator, now_s: float, size: int) -> bool:
    """The N-1 check, with the last minutes of the trace on what is left and one node less."""
    since = now_s - CHECK_WINDOW_S
    recent = [row for row in setup.requests if since <= row.at_s <= now_s][-MAX_CHECKED:]
    if len(recent) < 2:
        return True
    moved = [replace(row, at_s=row.at_s - recent[0].at_s) for row in recent]
    answer = await simulator.simulate(_scenario(setup, max(1, size - 1), moved))
    if isinstance(answer, Unknown) or answer["ttft_p95_s"] is None:
        return False
    return bool(answer["ttft_p95_s"] <= setup.limits.ttft_slo_s)


async def _begin(simulation: Simulation, setup: BacktestSetup, size: int) -> None:
    await simulation.tell(_scenario(setup, size, setup.requests))


def _scenario(setup: BacktestSetup, size: int, requests: Sequence[TracedRequest]) -> dict[str, Any]:
    return {
        "nodes": [{"name": f"node-{number}", **setup.node} for number in range(1, size + 1)],
        "arrivals": columns_of(requests),
        "slo_ttft_s": setup.limits.ttft_slo_s,
    }


def _known(answer: dict[str, Any] | Unknown) -> dict[str, Any]:
    if isinstance(answer, Unknown):
        raise FleetctlError(f"not simulated: {answer.why}")
    return answer


def _result(name: str, answer: Mapping[str, Any], largest: int, scalings: int) -> BacktestResult:
    return BacktestResult(
        name=name,
        attained_ratio=answer["attained"] / answer["measured"],
        node_hours=answer["node_seconds"] / 3600,
        largest=largest,
        scalings=scalings,
        ttft_p95_s=answer["ttft_p95_s"],
    )
