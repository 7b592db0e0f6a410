"""What the choice of a node is worth and costs: `make bench-routing`. Traces over simulated nodes; no threshold.

Hit ratio: prompt tokens that the chosen node had cached, of all prompt tokens. The ideal: one infinite cache.
Balance: the busiest node's work (prefilled prompt and output tokens) over the mean.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import random
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.table import Endpoint, Table
from fleetctl.gateway.requests.chooser import Chooser
from fleetctl.gateway.routing.pick import affinity, node_hash, prefix_hash
from fleetctl.gateway.routing.prefix_blocks import NUM_SMALL, SMALL_TOKENS, text_blocks
from fleetctl.gateway.routing.prefix_index import PrefixIndex
from fleetctl.gateway.routing.routing_facts import RoutingFacts
from fleetctl.wire.routing import RouteState

TRACE = Path(__file__).parents[2] / "data/traces/mooncake_synthetic_trace.jsonl.gz"
BLOCK_TOKENS = 512
PREFILL_TOKENS_PER_S = 12_000.0
SECONDS_PER_OUTPUT_TOKEN = 0.025


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when, its prompt as chained blocks of 512 tokens, its lengths."""

    at: float
    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def index_blocks(self) -> tuple[int, ...]:
        """The same chain in the gateway's own block sizes."""
        found: list[int] = []
        for number, block in enumerate(self.blocks):
            parts = BLOCK_TOKENS // SMALL_TOKENS if number * BLOCK_TOKENS // SMALL_TOKENS < NUM_SMALL else 2
            found += [hash((block, part)) for part in range(parts)]
        return tuple(found)


def mooncake(speed: float) -> list[Arrival]:
    """The recorded trace, `speed` times as fast."""
    with gzip.open(TRACE, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [
        Arrival(
            row["timestamp"] / 1000 / speed,
            tuple(row["hash_ids"][: row["input_length"] // BLOCK_TOKENS]),
            row["input_length"],
            row["output_length"],
        )
        for row in rows
    ]


def chats(
    seed: int, *, users: int = 400, turns: int = 6, system_tokens: int = 2048, span_s: float = 600.0
) -> list[Arrival]:
    """Multi-turn chats that all begin with one long system prompt."""
    draw, arrivals = random.Random(seed), []
    system = tuple(hash(("system", i)) for i in range(system_tokens // BLOCK_TOKENS))
    for user in range(users):
        at, tokens, chain = draw.uniform(0, span_s), system_tokens, list(system)
        for _ in range(turns):
            tokens += draw.randint(64, 512)
            while len(chain) < tokens // BLOCK_TOKENS:
                chain.append(hash((user, len(chain))))
            output = draw.randint(64, 400)
            arrivals.append(Arrival(at, tuple(chain), tokens, output))
            tokens += output
            at += draw.expovariate(1 / 30) + output * SECONDS_PER_OUTPUT_TOKEN
    return sorted(arrivals, key=lambda one: one.at)


@dataclass
class SimulatedNode:
    """Prefill one after the other, an LRU cache of blocks, seats without end."""

    name: str
    cache_blocks: int
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    free_at: float = 0.0
    work: int = 0

    def serve(self, one: Arrival, now: float) -> tuple[int, float, float]:
        """Tokens that were cached, when the first token comes, and the last."""
        cached = 0
        for block in one.blocks:
            if block not in self.cache:
                break
            cached += BLOCK_TOKENS
        for block in reversed(one.blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.cache_blocks:
            self.cache.popitem(last=False)
        uncached = one.prompt_tokens - cached
        self.free_at = max(now, self.free_at) + uncached / PREFILL_TOKENS_PER_S
        self.work += uncached + one.output_tokens
        return cached, self.free_at, self.free_at + one.output_tokens * SECONDS_PER_OUTPUT_TOKEN


Choose = Callable[[Arrival, Loads], str]


@dataclass
class Outcome:
    """What a policy came to over a trace."""

    hit_ratio: float
    balance: float
    ttft_p50_s: float
    ttft_p99_s: float


def simulate(
    arrivals: Sequence[Arrival], nodes: int, cache_tokens: int, gateways: Sequence[tuple[Choose, Loads]]
) -> Outcome:
    """Requests go to the gateways in turn; each knows only the load that it made."""
    clock = [0.0]
    for _, loads in gateways:
        loads._clock = lambda: clock[0]
    fleet = {f"node-{i}": SimulatedNode(f"node-{i}", cache_tokens // BLOCK_TOKENS) for i in range(nodes)}
    ends: list[tuple[float, int, Callable[[], None]]] = []
    cached_tokens, ttfts = 0, []
    for number, one in enumerate(arrivals):
        while ends and ends[0][0] <= one.at:
            heapq.heappop(ends)[2]()
        clock[0] = one.at
        choose, loads = gateways[number % len(gateways)]
        name = choose(one, loads)
        held = loads.begin(name, one.prompt_tokens, one.output_tokens)
        cached, first_at, last_at = fleet[name].serve(one, one.at)
        cached_tokens += cached
        ttfts.append(first_at - one.at)
        heapq.heappush(ends, (first_at, 2 * number, held.end_prefill))
        heapq.heappush(ends, (last_at, 2 * number + 1, held.end))
    work = [node.work for node in fleet.values()]
    marks = statistics.quantiles(ttfts, n=100)
    return Outcome(
        cached_tokens / sum(one.prompt_tokens for one in arrivals),
        max(work) / statistics.mean(work),
        marks[49],
        marks[98],
    )


def ideal_hit_ratio(arrivals: Sequence[Arrival]) -> float:
    """Of one cache without end."""
    seen: set[int] = set()
    cached = 0
    for one in arrivals:
        for block in one.blocks:
            if block not in seen:
                break
            cached += BLOCK_TOKENS
        seen.update(one.blocks)
    return cached / sum(one.prompt_tokens for one in arrivals)


def make_table(nodes: int) -> Table:
    """A fleet of one model."""
    names = [f"node-{i}" for i in range(nodes)]
    return Table(1, tuple(Endpoint(name, f"http://{name}", RouteState.ACTIVE, "default", "m") for name in names))


def facts_of(one: Arrival) -> RoutingFacts:
    """What the gateway would read of it."""
    head = "".join((f"{block}|" * 2048)[: 4 * BLOCK_TOKENS] for block in one.blocks[:16])
    tokens = one.prompt_tokens + one.output_tokens
    return RoutingFacts("m", True, head, tokens, one.prompt_tokens, one.output_tokens, None, one.index_blocks)


def by_index(nodes: int, cache_tokens: int, seed: int) -> Choose:
    """The gateway's own choice."""
    table, index = make_table(nodes), PrefixIndex()
    for endpoint in table.endpoints:
        index.set_cache_tokens(endpoint.node, cache_tokens)

    choosers: dict[int, Chooser] = {}

    def choose(one: Arrival, loads: Loads) -> str:
        chooser = choosers.setdefault(id(loads), Chooser(loads, index=index, draw=random.Random(seed)))
        facts = facts_of(one)
        choice = chooser.choose(table, facts)
        chooser.note_sent(choice, facts)
        assert choice.endpoint is not None
        return choice.endpoint.node

    return choose


def by_rendezvous(nodes: int) -> Choose:
    """What the gateway did before: the node that the first 512 characters hash to, unless it has far more to do."""
    names = [f"node-{i}" for i in range(nodes)]

    def choose(one: Arrival, loads: Loads) -> str:
        tokens = {name: loads.of(name).kv_tokens for name in names}
        limit = min(tokens.values()) * 1.25 + 4 * (one.prompt_tokens + one.output_tokens)
        key = prefix_hash(f"{one.blocks[:1]}")
        return max((name for name in names if tokens[name] <= limit), key=lambda name: affinity(node_hash(name), key))

    return choose


def by_chance(nodes: int, seed: int) -> Choose:
    """Any node."""
    draw = random.Random(seed)
    return lambda one, loads: f"node-{draw.randrange(nodes)}"


def by_load(nodes: int) -> Choose:
    """The node that holds the fewest tokens."""
    names = [f"node-{i}" for i in range(nodes)]
    return lambda one, loads: min(names, key=lambda name: loads.of(name).kv_tokens)


def policies(nodes: int, cache_tokens: int) -> Iterator[tuple[str, list[tuple[Choose, Loads]]]]:
    """Every policy by name, each with its gateways."""
    yield "random", [(by_chance(nodes, 1), Loads())]
    yield "least tokens", [(by_load(nodes), Loads())]
    yield "hash of 512 characters", [(by_rendezvous(nodes), Loads())]
    yield "blocks sent", [(by_index(nodes, cache_tokens, 1), Loads())]
    yield "blocks sent, 2 gateways", [(by_index(nodes, cache_tokens, seed), Loads()) for seed in (1, 2)]


def measure_traces(nodes: int, cache_tokens: int) -> None:
    """Print hit ratio and balance of every policy on every trace."""
    traces = {
        "Mooncake": mooncake(1.0),
        "chats, system prompt of 2,048 tokens": chats(7),
        "chats, system prompt of 256 tokens": chats(8, system_tokens=256),
    }
    print(f"{nodes} nodes, KV cache of {cache_tokens:,} tokens each\n")
    print("| trace | choice | hit ratio | of ideal | max/mean work | TTFT p50, s | p99, s |")
    print("|---|---|---|---|---|---|---|")
    for name, arrivals in traces.items():
        ideal = ideal_hit_ratio(arrivals)
        print(f"| {name} | one infinite cache | {ideal:.1%} | 100 % | | | |")
        for policy, gateways in policies(nodes, cache_tokens):
            out = simulate(arrivals, nodes, cache_tokens, gateways)
            print(
                f"| {name} | {policy} | {out.hit_ratio:.1%} | {out.hit_ratio / ideal:.0%} | {out.balance:.2f}"
                f" | {out.ttft_p50_s:.3f} | {out.ttft_p99_s:.2f} |"
            )


def measure_cost(nodes: int, rounds: int = 3000) -> None:
    """Print what one choice costs among so many nodes, with an index and loads in use."""
    table, loads, index = make_table(nodes), Loads(), PrefixIndex()
    chooser = Chooser(loads, index=index, draw=random.Random(3))
    draw = random.Random(5)
    system = "You are a helpful assistant. " * 100
    texts = [system + f"user {i} " + "x" * draw.randint(100, 4000) for i in range(500)]
    asked = [
        RoutingFacts("m", True, text[:512], len(text) // 4 + 256, len(text) // 4, 256, None, text_blocks(text, "m"))
        for text in texts
    ]
    spent = []
    for number in range(rounds):
        facts = asked[number % len(asked)]
        before = time.thread_time()
        choice = chooser.choose(table, facts)
        chooser.note_sent(choice, facts)
        spent.append(time.thread_time() - before)
        assert choice.endpoint is not None
        loads.begin(choice.endpoint.node, facts.input_tokens).end_prefill()
    marks = statistics.quantiles(spent, n=100)
    print(f"{nodes} nodes: {marks[49] * 1e6:.0f} us a choice, p99 {marks[98] * 1e6:.0f} us")


def main() -> None:
    """Traces, then costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cache-tokens", type=int, default=1_000_000)
    given = parser.parse_args()
    measure_traces(given.nodes, given.cache_tokens)
    print()
    for nodes in (3, 24, 100, 1000):
        measure_cost(nodes)
    text = "word " * 80_000
    before = time.thread_time()
    blocks = text_blocks(text, "m")
    print(f"{len(blocks)} blocks of a prompt of 100,000 tokens: {(time.thread_time() - before) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
