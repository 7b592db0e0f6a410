"""The fleet by pool, zone, model or revision: each group's nodes, and what their signals come to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from alerts.promql import evaluate
from alerts.promql.histogram import Buckets
from alerts.series.store import SeriesStore
from fleetctl.controller.nodes.fleet import Fleet, NodeState
from fleetctl.controller.signals.gpu_cards import gpu_cards, gpus_of_group
from fleetctl.controller.signals.group_load import (
    Aggregate,
    Values,
    highest,
    mean,
    pooled_quantile,
    total,
    weighted_mean,
)
from fleetctl.controller.signals.node_signals import Signals, signals_by_node
from fleetctl.kit.clock import Clock
from fleetctl.providers.cost import NodeCosts
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import GroupBy, GroupLoad, GroupSignal, NodeGroup

FRESH_FOR_S = 1.0  # views asked for within it share one look at the series
SLOW_SERIES_S = 15.0  # the interval of the rules that record histograms
SUMS = ("running", "waiting", "requests_per_s", "tokens_per_s", "prompt_tokens_per_s", "preemptions_per_s")
WEIGHTS = {
    "ttft_s": "first_tokens_per_s",
    "itl_s": "tokens_per_s",
    "prefix_hit_ratio": "prompt_tokens_per_s",
    "preemption_ratio": "requests_per_s",
}
"""Mean to what it is a mean over."""
NO_COSTS = NodeCosts()
TTFT_BUCKETS = "llm:ttft_seconds:bucket_rate"


@dataclass(frozen=True, slots=True)
class Look:
    """What the series told at one time."""

    at: float
    signals: Signals
    values: Mapping[str, Values]  # signal to what each node told lately
    histograms: Sequence[tuple[Mapping[str, str], Buckets]]  # of TTFT, with their labels


@dataclass(frozen=True, slots=True)
class Cards:
    """Every card that somebody told of lately."""

    at: float
    all: Sequence[Gpu]
    of_node: Mapping[str, Sequence[Gpu]]


class NodeGroups:
    """Views of many nodes, from one look at the series."""

    def __init__(
        self, fleet: Fleet, store: SeriesStore, clock: Clock, costs: NodeCosts = NO_COSTS, *, stale_after_s: float
    ) -> None:
        """`stale_after_s`: a value older than this is not known any more."""
        self._costs = costs
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._last: Look | None = None
        self._cards: Cards | None = None

    def look(self) -> Look:
        """The newest look at the series, at most a second old."""
        now = self._clock.now()
        if self._last is None or not 0 <= now - self._last.at < FRESH_FOR_S:
            self._last = self._look(now)
        return self._last

    def cards(self) -> Cards:
        """As `look`, of cards alone: who asks every other second needs no signals and histograms."""
        now = self._clock.now()
        if self._cards is None or not 0 <= now - self._cards.at < FRESH_FOR_S:
            found = list(gpu_cards(self._store, now, self._stale_after_s).values())
            of_node: dict[str, list[Gpu]] = {}
            for card in found:
                of_node.setdefault(card.node, []).append(card)
            self._cards = Cards(now, found, of_node)
        return self._cards

    def gpus(self) -> list[Gpu]:
        """Every card, with its node's place in the fleet."""
        found = []
        for card in self.cards().all:
            state = self._fleet.nodes.get(card.node)
            if state is not None:
                spec = state.row.spec
                told = {key: spec.facts[key] for key in ("host", "sku") if spec.facts.get(key)}
                found.append(
                    card.model_copy(update={"pool": spec.pool, "model": spec.model, "zone": spec.zone, **told})
                )
        return found

    def cost_of(self, name: str) -> float | None:
        """What the node costs in an hour; None: not known."""
        state = self._fleet.nodes.get(name)
        if state is None or not self._costs.per_hour:
            return None
        return self._costs.of(state.row.spec, (card.card for card in self.cards().of_node.get(name, ())))

    def groups(self, by: GroupBy) -> list[NodeGroup]:
        """Every group of wanted nodes, by name."""
        look = self.look()
        of_group: dict[str, list[NodeState]] = {}
        for state in self._fleet.nodes.values():
            if state.row.wanted:
                of_group.setdefault(getattr(state.row.spec, by), []).append(state)
        return [self._group(by, name, of_group[name], look) for name in sorted(of_group)]

    def _group(self, by: GroupBy, name: str, states: Sequence[NodeState], look: Look) -> NodeGroup:
        known = [one for one in states if look.at - self._fleet.seen_at(one.name) <= self._stale_after_s]
        return NodeGroup(
            by=by,
            name=name,
            nodes=len(states),
            ready=sum(one.is_serving for one in known),
            unknown=len(states) - len(known),
            load=self._load(by, name, sorted(one.name for one in states), look),
        )

    def _load(self, by: GroupBy, name: str, members: Sequence[str], look: Look) -> GroupLoad:
        values = look.values
        nothing: Values = {}

        def of(signal: str) -> Values:
            return values.get(signal, nothing)

        found: dict[str, Aggregate] = {signal: total(members, of(signal)) for signal in SUMS}
        found |= {signal: weighted_mean(members, of(signal), of(weight)) for signal, weight in WEIGHTS.items()}
        found["kv_ratio"] = mean(members, of("kv_ratio"))
        found["kv_ratio_max"] = highest(members, of("kv_ratio"))
        costs = (
            {name: cost for name in members if (cost := self.cost_of(name)) is not None} if self._costs.per_hour else {}
        )
        found["cost_per_hour"] = total(members, costs)
        found["cost_per_mtok"] = per_million(found["cost_per_hour"], total(list(costs), of("tokens_per_s")))
        own = [buckets for labels, buckets in look.histograms if labels.get(by, "") == name]
        found["ttft_p95_s"] = pooled_quantile(0.95, members, own, of("first_tokens_per_s"))
        cards = self.cards().of_node
        return GroupLoad(
            gpus=gpus_of_group(members, [card for name in members for card in cards.get(name, ())]),
            **{signal: GroupSignal(**asdict(one)) for signal, one in found.items()},
        )

    def _look(self, now: float) -> Look:
        signals = signals_by_node(self._store, now)
        values: dict[str, dict[str, float]] = {}
        for node, told in signals.items():
            for name, signal in told.items():
                if signal.value is not None and signal.age_s is not None and signal.age_s <= self._stale_after_s:
                    values.setdefault(name, {})[node] = signal.value
        slow_s = self._stale_after_s + SLOW_SERIES_S
        return Look(now, signals, values, _histograms(self._store, now, slow_s))


def per_million(cost: Aggregate, tokens_per_s: Aggregate) -> Aggregate:
    """Cost of a million tokens at the present rates, of the nodes whose cost is known. None while they make none, and
    where some of them do not tell."""
    if cost.value is None or not tokens_per_s.value or tokens_per_s.known < tokens_per_s.of:
        return Aggregate(None, cost.known, cost.of)
    return Aggregate(cost.value / 3600 / tokens_per_s.value * 1e6, cost.known, cost.of)


def _histograms(store: SeriesStore, now: float, stale_after_s: float) -> list[tuple[Mapping[str, str], Buckets]]:
    """TTFT's buckets as they are recorded: summed over the nodes of one pool, model, engine, zone and revision."""
    found: dict[tuple[tuple[str, str], ...], Buckets] = {}
    for sample in evaluate(TTFT_BUCKETS, store, now):
        if now - sample.at > stale_after_s or math.isnan(sample.value):
            continue
        try:
            bound = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        labels = {name: value for name, value in sample.labels.items() if name not in ("le", "__name__")}
        found.setdefault(tuple(sorted(labels.items())), []).append((bound, sample.value))
    return [(dict(labels), buckets) for labels, buckets in found.items()]
