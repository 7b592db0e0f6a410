"""A random fleet that is well, and the form of what may happen to it. The same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from diagnostics.bench.case import NodeForm

OUT = ["drain", "replace"]  # what no fault of clients, gateway, routing or load may bring about
RESTART_S, APART_S = 50, 90  # of a rollout, node by node
ENGINES = {
    "vllm": 40,
    "sglang": 20,
    "trtllm": 12,
    "llamacpp": 10,
    "tgi": 9,
    "fleetctl": 9,
}  # as often as one meets them
_NATIVE = {
    "fleetctl": "vllm:*",
    "vllm": "vllm:*",
    "sglang": "sglang:*",
    "trtllm": "trtllm_*",
    "llamacpp": "llamacpp:*",
    "tgi": "tgi_*",
}


@dataclass(slots=True)
class RandomFleet:
    """A fifth to a half of what its nodes can do is asked of them. What a fault needs of it, it changes."""

    nodes: list[NodeForm]
    load: dict[str, float]
    gateway: bool
    controller: bool
    rng: random.Random
    gpu: bool = True  # somebody reads its cards
    is_quiet: bool = False  # a request or a few in a minute: whoever looks after five has seen next to nothing
    series: list[dict[str, Any]] = field(default_factory=list)
    beside: list[NodeForm] = field(default_factory=list)  # nodes of another pool, to which nothing happens
    changes: list[dict[str, Any]] = field(default_factory=list)  # how it is, or was before
    facts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def engine(self) -> str:
        """Of its first node, and of all where nothing else is said."""
        return self.nodes[0].engine

    def has(self, *engines: str) -> bool:
        """Whether one of its nodes is of one of these."""
        return any(one.engine in engines for one in self.nodes)

    def only(self, *engines: str) -> bool:
        """Whether all are."""
        return all(one.engine in engines for one in self.nodes)

    @property
    def tells_cancelled(self) -> bool:
        """Whether anybody counts who hangs up: TGI and llama.cpp do not."""
        return self.gateway or not self.has("tgi", "llamacpp")

    @property
    def names(self) -> list[str]:
        """Of its nodes."""
        return [one.name for one in self.nodes]

    def some_node(self) -> str:
        """One of them."""
        return self.rng.choice(self.names)

    def some(self, *values: float) -> float:
        """One of these."""
        return self.rng.choice(values)


@dataclass(frozen=True, slots=True)
class Happening:
    """What changes, what is told of it, and what it may be called. No cause: all is well."""

    causes: tuple[str, ...] = ()
    changes: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    not_remedies: list[str] = field(default_factory=list)
    judged_at_s: tuple[float, ...] = ()  # where it is over soon


Fault = Callable[[RandomFleet], Happening | None]
"""None: the fleet is not of the kind that this can happen to, or its engine could not tell of it."""


def change(what: str, on: str | list[str] = "all", **how: Any) -> dict[str, Any]:
    """A change as a case has it."""
    return {"what": what, "on": on, **how}


def native(engine: str) -> str:
    """The names of all metrics that an engine gives under its own; ours has vLLM's."""
    return _NATIVE[engine]


def rollout(fleet: RandomFleet, **what: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A new revision on node after node before the onset, and since then a quantity `to` or `times` so much."""
    ((name, to),) = what.items() or (("slow", 1.0),)
    changes, facts = [], []
    for number, node in enumerate(fleet.names):
        at = -(len(fleet.names) - number) * APART_S
        facts.append({"kind": "deploy", "on": node, "at": at, "restart_s": RESTART_S, "revision": "v2"})
        changes.append(change(name, node, to=to, at=at + RESTART_S))
    return changes, facts


def random_fleet(rng: random.Random) -> RandomFleet:
    """Of one engine, with a model, prompts and hardware that go together."""
    engine = rng.choices(list(ENGINES), list(ENGINES.values()))[0]
    count = rng.choice([2, 3, 3, 4, 4, 6, 8])
    nodes = [NodeForm(name=f"node-{i + 1}", zone="ab"[i % 2], engine=engine) for i in range(count)]
    prompt, output = rng.choice([700, 1500, 2400, 4000, 6000]), rng.choice([120, 220, 350, 600])
    hits = rng.choice([0.1, 0.4, 0.6, 0.72, 0.8])
    prefill, step = rng.choice([5000, 8000, 12_000]), rng.choice([0.010, 0.014, 0.020])
    takes_s = output * step * 1.5 + 0.3
    arrivals = min(rng.uniform(0.2, 0.55) * prefill / (prompt * (1 - hits)), 40 / takes_s, 6)
    running = arrivals * takes_s
    held = prompt * (1 - 0.6 * hits) + output / 2
    load = {
        "arrivals": round(arrivals, 2),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "hit_ratio": hits,
        "prefill_tps": prefill,
        "step_seconds": step,
        "kv_tokens": round(max(running * held / rng.uniform(0.15, 0.5), 6 * prompt)),
        "seats": max(8, round(running / rng.uniform(0.15, 0.5))),
        "patience_seconds": rng.choice([30, 60, 120]),
    }
    is_ours = engine == "fleetctl"
    return RandomFleet(nodes, load, is_ours or rng.random() < 0.35, is_ours or rng.random() < 0.35, rng)
