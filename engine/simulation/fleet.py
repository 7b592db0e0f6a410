"""A simulated fleet: who gets which request, and what becomes of it. Deterministic: the same scenario, the same answer.

Requests are routed as the gateway routes them without sessions: by prompt tokens in front, seats and KV that is short;
of the nodes that cost about the same, by a hash.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from engine.simulation.node import Arrival, SimulatedNode
from engine.simulation.scenario import Advance, NodeState, Outcome, Reroute, Scenario, check_nodes, check_scenario

# The gateway's, `fleetctl.gateway.routing.pick`: held equal by a test.
SEAT_TOKENS = 64
KV_SHORT_FACTOR = 4
UNCACHED_FACTOR = 4.0
TIE_SHARE = 0.35

_MASK = (1 << 64) - 1


class SimulatedFleet:
    """All nodes and the requests that are yet to come. Raises BadScenarioError when built."""

    def __init__(self, scenario: Scenario) -> None:
        check_scenario(scenario)
        self._scenario = scenario
        self._arrivals = _read_arrivals(scenario)
        self._next = 0
        self._now = 0.0
        self._nodes: dict[str, SimulatedNode] = {}
        self._left_steps = 0
        self._left_preemptions = 0
        self._ttft_s: list[float] = []
        self._queue: list[int] = []
        self._kv_max: float | None = None
        self._measured = 0
        self._ended = 0
        self._refused = 0
        self._attained = 0
        self._node_seconds = 0.0
        self._change(Advance(add=scenario.nodes))

    def advance(self, line: Advance) -> Outcome:
        """Apply the changes, then simulate on. Raises BadScenarioError."""
        self._change(line)
        end = math.inf if line.until_s is None else max(line.until_s, self._now)
        while self._next < len(self._arrivals) and self._arrivals[self._next].at_s <= end:
            arrival = self._arrivals[self._next]
            self._next += 1
            self._move_to(arrival.at_s)
            self._observe(arrival)
            self._route(arrival)
        if math.isfinite(end):
            self._move_to(end)
        else:
            for node in self._nodes.values():
                node.advance(math.inf)
            self._pass_time(max([self._now, *(node.now for node in self._nodes.values())]))
        self._collect()
        return self._outcome()

    def _change(self, line: Advance) -> None:
        check_nodes(line.add, len(self._nodes))
        for node in line.add:
            self._nodes[node.name] = SimulatedNode(node, self._now, coarse=self._scenario.coarse)
        moved: list[Arrival] = []
        for name in line.leave:
            leaver = self._nodes.pop(name, None)
            if leaver is not None:
                self._left_steps += leaver.steps
                self._left_preemptions += leaver.preemptions
                moved += leaver.take_all(self._now)
        for arrival in sorted(moved, key=attrgetter("number")):
            self._route(arrival)

    def _move_to(self, now: float) -> None:
        for node in self._nodes.values():
            node.advance(now)
        self._pass_time(now)
        self._collect()

    def _pass_time(self, now: float) -> None:
        # A node is paid for from the moment it is asked for, not from when it is ready.
        self._node_seconds += len(self._nodes) * (now - self._now)
        self._now = now

    def _collect(self) -> None:
        for node in self._nodes.values():
            for number, at_s in node.first_tokens:
                arrival = self._arrivals[number]
                if arrival.at_s >= self._scenario.measured_from_s:
                    self._ttft_s.append(at_s - arrival.at_s)
                    self._attained += at_s - arrival.at_s <= self._scenario.slo_ttft_s
            self._ended += len(node.ended)
            node.first_tokens.clear()
            node.ended.clear()

    def _observe(self, arrival: Arrival) -> None:
        if arrival.at_s < self._scenario.measured_from_s:
            return
        self._measured += 1
        self._queue.append(sum(node.scheduler.num_waiting for node in self._nodes.values()))
        fullest = max([node.kv_ratio(arrival.at_s) for node in self._nodes.values()], default=0.0)
        self._kv_max = fullest if self._kv_max is None else max(self._kv_max, fullest)

    def _route(self, arrival: Arrival) -> None:
        nodes = [node for node in self._nodes.values() if node.ready_at_s <= self._now and node.takes(arrival)]
        nodes = _meant(nodes, self._scenario.reroute, arrival)
        if not nodes:
            self._refused += 1
            return
        _pick(nodes, arrival, self._now).add(arrival, self._now)

    def _outcome(self) -> Outcome:
        nodes = list(self._nodes.values())
        waiting = self._queue
        return Outcome(
            now_s=self._now,
            arrived=self._next,
            measured=self._measured,
            ended=self._ended,
            refused=self._refused,
            preemptions=self._left_preemptions + sum(node.preemptions for node in nodes),
            ttft_p50_s=_percentile(self._ttft_s, 0.50),
            ttft_p95_s=_percentile(self._ttft_s, 0.95),
            queue_p95=None if not waiting else int(_percentile(waiting, 0.95) or 0),
            kv_ratio_max=self._kv_max,
            attained=self._attained,
            node_seconds=self._node_seconds,
            steps=self._left_steps + sum(node.steps for node in nodes),
            nodes=tuple(
                NodeState(
                    name=node.name,
                    running=node.scheduler.num_running,
                    waiting=node.scheduler.num_waiting,
                    kv_ratio=node.kv_ratio(self._now),
                    seats=node.config.max_num_seqs,
                )
                for node in nodes
            ),
        )


def _read_arrivals(scenario: Scenario) -> list[Arrival]:
    columns = scenario.arrivals
    none = (0,) * len(columns.at_s)
    rows = zip(
        columns.at_s,
        columns.prompt_tokens,
        columns.output_tokens,
        columns.prefix_tokens or none,
        columns.prefix_ids or none,
        strict=True,
    )
    return [
        Arrival(number, at_s, prompt, output, min(prefix, prompt), prefix_id)
        for number, (at_s, prompt, output, prefix, prefix_id) in enumerate(rows)
    ]


def _meant(nodes: list[SimulatedNode], rule: Reroute | None, arrival: Arrival) -> list[SimulatedNode]:
    """Where a rule sends the request: long ones to its nodes, others away from there; all, if nobody is left."""
    if rule is None:
        return nodes
    is_long = arrival.prompt_tokens > rule.over_tokens
    meant = [node for node in nodes if (node.name in rule.nodes) == is_long]
    return meant or nodes


def _pick(nodes: Sequence[SimulatedNode], arrival: Arrival, now: float) -> SimulatedNode:
    if len(nodes) == 1:
        return nodes[0]
    needed = arrival.prompt_tokens + arrival.output_tokens
    costs = [
        node.unstarted_tokens
        + node.num_held * SEAT_TOKENS
        + KV_SHORT_FACTOR * max(0, needed - node.free_kv_tokens(now))
        for node in nodes
    ]
    own = int((arrival.prompt_tokens - arrival.prefix_tokens) * UNCACHED_FACTOR)
    limit = min(costs) + int(TIE_SHARE * own)
    tied = [node for node, cost in zip(nodes, costs, strict=True) if cost <= limit]
    return tied[_mix(arrival.number) % len(tied)]


def _mix(value: int) -> int:
    """Spread a number over 64 bits (splitmix64's finaliser)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share does not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
