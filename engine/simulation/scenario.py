"""What a simulation is told and what it answers: plain data, one JSON document a line."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

MAX_NODES = 256
MAX_ARRIVALS = 200_000
MAX_PROMPT_TOKENS = 200_000_000  # of all arrivals together, as ids are made of them

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class StepCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step: a fixed part, and a price for each prompt token, decoding sequence and KV position read."""

    fixed_s: Seconds
    prompt_token_s: Seconds = 0.0
    decode_s: Seconds = 0.0
    context_token_s: Seconds = 0.0


class NodeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scheduler's limits, named as the engine's options are."""

    num_kv_blocks: Positive
    block_size: Positive = 16
    max_model_len: Positive = 131_072
    max_num_seqs: Positive = 64
    max_num_batched_tokens: Positive = 2048
    prefill_chunk_tokens: Positive | None = 512
    prefix_caching: bool = True


class SimNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that takes requests from `ready_at_s` on."""

    name: Name
    limits: NodeLimits
    cost: StepCost
    pool: str = ""
    ready_at_s: Seconds = 0.0


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests as columns of equal length, `at_s` rising.

    `prefix_tokens` of a prompt are the same in all prompts of one `prefix_id`; empty: none are shared.
    """

    at_s: tuple[Seconds, ...]
    prompt_tokens: tuple[Positive, ...]
    output_tokens: tuple[Positive, ...]
    prefix_tokens: tuple[Count, ...] = ()
    prefix_ids: tuple[Count, ...] = ()


class Reroute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompts over `over_tokens` go to `nodes`, all others to the rest, as far as there are any."""

    over_tokens: Count
    nodes: tuple[Name, ...]


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line. What arrives before `measured_from_s` warms up and is in no figure.

    `coarse`: decode steps in which nothing else can happen are taken together.
    """

    nodes: tuple[SimNode, ...]
    arrivals: Arrivals
    reroute: Reroute | None = None
    measured_from_s: Seconds = 0.0
    slo_ttft_s: Seconds = 0.0
    coarse: bool = True


class Advance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A further line: nodes that come and leave now, then go on until `until_s`; None: until all requests have ended.

    What waits on a node that leaves is routed anew; what runs there goes on elsewhere, with its tokens so far.
    """

    until_s: Seconds | None = None
    add: tuple[SimNode, ...] = ()
    leave: tuple[Name, ...] = ()


class NodeState(msgspec.Struct, frozen=True):
    """A node at the end of an advance. `kv_ratio`: blocks held by running sequences."""

    name: str
    running: int
    waiting: int
    kv_ratio: float
    seats: int


class Outcome(msgspec.Struct, frozen=True):
    """The answer to a line: figures of all measured requests so far, None where there is none yet.

    `queue_p95` and `kv_ratio_max` are taken at arrivals: requests that wait in the fleet, the fullest node. `attained`:
    measured requests with a TTFT within `slo_ttft_s`. `refused`: longer than any node takes, or no node was there.
    """

    now_s: float
    arrived: int
    measured: int
    ended: int
    refused: int
    preemptions: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    queue_p95: int | None
    kv_ratio_max: float | None
    attained: int
    node_seconds: float
    steps: int
    nodes: tuple[NodeState, ...]


class Failed(msgspec.Struct, frozen=True):
    """The answer to a line that can't be simulated."""

    error: str


class BadScenarioError(ValueError):
    """The scenario contradicts itself, or is larger than a simulation may be."""


def check_scenario(scenario: Scenario) -> None:
    """Raises BadScenarioError naming the field."""
    arrivals = scenario.arrivals
    count = len(arrivals.at_s)
    columns = (arrivals.prompt_tokens, arrivals.output_tokens)
    if any(len(column) != count for column in columns):
        raise BadScenarioError("arrivals: columns of different lengths")
    if any(len(column) not in (0, count) for column in (arrivals.prefix_tokens, arrivals.prefix_ids)):
        raise BadScenarioError("arrivals: prefix columns of another length")
    if count > MAX_ARRIVALS:
        raise BadScenarioError(f"arrivals: {count}, at most {MAX_ARRIVALS}")
    if sum(arrivals.prompt_tokens) > MAX_PROMPT_TOKENS:
        raise BadScenarioError(f"arrivals: more than {MAX_PROMPT_TOKENS} prompt tokens")
    if any(later < earlier for earlier, later in zip(arrivals.at_s, arrivals.at_s[1:], strict=False)):
        raise BadScenarioError("arrivals.at_s: must rise")
    if not all(map(math.isfinite, arrivals.at_s)):
        raise BadScenarioError("arrivals.at_s: must be finite")
    check_nodes(scenario.nodes, 0)


def check_nodes(nodes: tuple[SimNode, ...], present: int) -> None:
    """Raises BadScenarioError. `present`: nodes that are there already."""
    if present + len(nodes) > MAX_NODES:
        raise BadScenarioError(f"nodes: more than {MAX_NODES}")
    for node in nodes:
        cost = node.cost
        prices = (cost.fixed_s, cost.prompt_token_s, cost.decode_s, cost.context_token_s)
        if not all(map(math.isfinite, prices)) or cost.fixed_s <= 0.0:
            raise BadScenarioError(f"node {node.name}: a step must cost a finite time above 0")
