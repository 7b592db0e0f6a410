"""A node for a request: joins the table, traffic rules, what is known of nodes, prefixes, and the pure choice.

Of a small fleet every node is weighed, of a large one some: those that hold the prompt's beginning, those that its hash
is nearest to, and some at random. So a choice costs the same at 1,000 nodes as at 30.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from fleetctl.gateway.nodes.loads import IDLE, Loads
from fleetctl.gateway.nodes.node_views import UNKNOWN, NodeView, NodeViews
from fleetctl.gateway.nodes.table import Endpoint, Table
from fleetctl.gateway.requests.decisions import Decision, Decisions
from fleetctl.gateway.routing.orders import ANYWHERE, Order, Size, order_of
from fleetctl.gateway.routing.pick import (
    Candidate,
    LeftOut,
    Pick,
    PickReason,
    RequestSize,
    affinity,
    node_hash,
    pick_node,
    prefix_hash,
)
from fleetctl.gateway.routing.prefix_index import NO_MATCH, PrefixIndex, PrefixMatch
from fleetctl.gateway.routing.ring import Ring
from fleetctl.gateway.routing.routing_facts import RoutingFacts
from fleetctl.settings.gateway_routing import RoutingSettings
from fleetctl.wire.node import NodePhase

WEIGH_ALL = 16  # nodes; of more, a sample is weighed:
HOLDERS = 4
NEAREST = 3
SHARED_BY = 3  # nodes or prompts: what so many have in common tells them not apart
DRAWN = 6
MAX_LANES = 1000
EMPTY_CACHE = frozenset({NodePhase.STARTING, NodePhase.UNREACHABLE, NodePhase.STOPPED})

Sift = Callable[[Sequence[Endpoint]], tuple[Sequence[Endpoint], Mapping[str, str]]]
"""Which of the endpoints may get a request now, and why the others may not."""


class Choice(NamedTuple):
    """The node, and how it was found. `left_out`: by views of health and rules, beside those of the pick."""

    endpoint: Endpoint | None
    pick: Pick
    left_out: Mapping[str, str]
    num_nodes: int  # that serve the model
    order: Order = ANYWHERE

    @property
    def is_long(self) -> bool:
        """Whether a rule for long prompts applies."""
        return self.order.is_long

    @property
    def is_capped(self) -> bool:
        """Whether it has no node because each has as many long requests as a rule allows."""
        return self.endpoint is None and LeftOut.CAP in self.left_out.values()


class Lane:
    """The nodes among which a request's choice is made, as they are looked up."""

    __slots__ = ("_ring", "by_name", "endpoints", "hashes")

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self.endpoints = endpoints
        self.by_name = {one.node: one for one in endpoints}
        self.hashes = {one.node: node_hash(one.node) for one in endpoints}
        self._ring: Ring | None = None

    @property
    def ring(self) -> Ring:
        """The ring of its nodes, made when it is first needed."""
        if self._ring is None:
            self._ring = Ring(self.by_name)
        return self._ring


class Chooser:
    """Chooses nodes and remembers what was sent where. Threading: event loop only."""

    def __init__(
        self,
        loads: Loads,
        registry: CollectorRegistry | None = None,
        *,
        sift: Sift | None = None,
        settings: RoutingSettings | None = None,
        index: PrefixIndex | None = None,
        draw: random.Random | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`sift`: the views of health. `now`: Unix seconds, by which rules expire."""
        self._loads = loads
        self.index = index or PrefixIndex()
        self.views = NodeViews()
        self.decisions = Decisions(registry or CollectorRegistry(), self.index)
        self._sift = sift
        self._settings = settings or RoutingSettings()
        self._draw = draw or random.Random()
        self._now = now
        self._table: Table | None = None
        self._lanes: dict[tuple[str | None, frozenset[str] | None], Lane] = {}

    def choose(
        self, table: Table | None, facts: RoutingFacts, excluded: Collection[str] = (), *, key: str = ""
    ) -> Choice:
        """The node that the request shall go to next; nothing is remembered.

        `key`: the request's id, by which a request without session or user falls into shares.
        """
        self._note_table(table)
        if table is None:
            return Choice(None, Pick(None, PickReason.NONE), {}, 0)
        whole = self._lane(table, facts.model, None)
        order = self._order(table, whole, facts, key) if table.rules else ANYWHERE
        lane = whole if order.nodes is None else self._lane(table, facts.model, order.nodes)
        choice = self._choose_within(lane, facts, excluded, order)
        if choice.endpoint is None and lane is not whole and not choice.is_capped:
            # The rule's nodes are unfit, or were tried: better another node than none.
            note = f"{', '.join(order.rules)}: none of its nodes takes it, sent where all go"
            choice = self._choose_within(whole, facts, excluded, order._replace(note=note, cap=None))
        return choice if lane is whole else choice._replace(num_nodes=len(whole.endpoints))

    def choose_among(self, table: Table, facts: RoutingFacts, nodes: frozenset[str]) -> Choice:
        """One of these nodes, whatever traffic rules say, for a request that no user waits for."""
        self._note_table(table)
        return self._choose_within(self._lane(table, facts.model, nodes), facts, (), ANYWHERE)

    def note_sent(self, choice: Choice, facts: RoutingFacts, request_id: str = "") -> None:
        """The request goes to the chosen node: the next one with its beginning should too."""
        if choice.endpoint is None:
            return
        if facts.blocks:
            self.index.note_routed(choice.endpoint.node, facts.blocks)
        pick = choice.pick
        self.decisions.note(
            Decision(
                self._now(),
                request_id,
                facts.model,
                choice.endpoint.node,
                pick.reason,
                facts.input_tokens,
                pick.cached_tokens,
                choice.num_nodes,
                len(pick.weighed),
                (*choice.left_out.items(), *pick.left_out),
                choice.order.rules,
                choice.order.note,
                max(0, max((one.cached_tokens for one in pick.weighed), default=0) - pick.cached_tokens),
            )
        )

    def _note_table(self, table: Table | None) -> None:
        if table is self._table:
            return
        self._table, self._lanes = table, {}
        if table is not None:
            self.index.keep_only({one.node for one in table.endpoints})
            for one in table.endpoints:
                if one.phase in EMPTY_CACHE:
                    self.index.forget_node(one.node)

    def note_views(self) -> None:
        """The views were replaced: parts of the index get the size of their nodes' caches."""
        for node, tokens in self.views.cache_sizes().items():
            self.index.set_cache_tokens(node, tokens)

    def _order(self, table: Table, lane: Lane, facts: RoutingFacts, key: str) -> Order:
        now = self._now()
        rules = [rule for rule in table.rules if rule.is_in_force(now)]
        if not rules:
            return ANYWHERE
        rate = self._loads.prefill_rate()
        sizes = [tokens for node, tokens in self.views.cache_sizes().items() if node in lane.by_name]
        needed = facts.input_tokens + facts.output_estimate
        size = Size(
            facts.input_tokens,
            facts.input_tokens / rate if rate else None,
            needed / max(sizes) if sizes else None,
        )
        return order_of(rules, lane.endpoints, size, facts.model, facts.session or facts.user or key)

    def _choose_within(self, lane: Lane, facts: RoutingFacts, excluded: Collection[str], order: Order) -> Choice:
        match = self.index.match(facts.blocks) if facts.blocks else NO_MATCH
        shared_tokens = match.shared_tokens(SHARED_BY) if match.path else 0
        key = prefix_hash(facts.key_text(shared_tokens))
        session = self._session(facts)
        nearest: list[str] = []
        if len(lane.endpoints) > WEIGH_ALL:
            nearest = lane.ring.nearest(session or key, NEAREST)
        sample, is_all = self._sample(lane, match, nearest)
        left_out: Mapping[str, str] = {}
        if self._sift is not None and sample:
            fit, left_out = self._sift(sample)
            if not is_all and all(one.node in excluded for one in fit):
                fit, left_out = self._sift(lane.endpoints)
            sample = fit
        elif not is_all and all(one.node in excluded for one in sample):
            sample = lane.endpoints
        if order.cap is not None:
            full = {one.node for one in sample if self._loads.of(one.node).num_long >= order.cap}
            left_out = {**left_out, **dict.fromkeys(full, LeftOut.CAP)}
            sample = [one for one in sample if one.node not in full]
        candidates = self._candidates(sample, match, nearest, facts)
        if session:
            candidates = _with_sticky(candidates, lane, session, nearest)
        pick = pick_node(
            candidates,
            RequestSize(facts.input_tokens, facts.output_estimate, shared_tokens),
            excluded=excluded,
            affinity_of=None if nearest else lambda node: affinity(lane.hashes[node], key),
        )
        endpoint = lane.by_name[pick.node] if pick.node is not None else None
        return Choice(endpoint, pick, left_out, len(lane.endpoints), order)

    def _session(self, facts: RoutingFacts) -> int:
        name = facts.session or (facts.user if self._settings.sticky_users else "")
        return prefix_hash(name)

    def _lane(self, table: Table, model: str | None, nodes: frozenset[str] | None) -> Lane:
        endpoints = table.candidates(model)
        lane_key = (endpoints[0].model if endpoints and table.has_model(model) else None, nodes)
        lane = self._lanes.get(lane_key)
        if lane is None:
            if nodes is not None:
                endpoints = tuple(one for one in endpoints if one.node in nodes)
            if len(self._lanes) >= MAX_LANES:
                self._lanes.clear()
            lane = self._lanes[lane_key] = Lane(endpoints)
        return lane

    def _sample(self, lane: Lane, match: PrefixMatch, nearest: Sequence[str]) -> tuple[Sequence[Endpoint], bool]:
        endpoints = lane.endpoints
        if len(endpoints) <= WEIGH_ALL:
            return endpoints, True
        by_name = lane.by_name
        names = dict.fromkeys(nearest)
        names |= dict.fromkeys(name for name in match.holders(HOLDERS) if name in by_name)
        found = [by_name[name] for name in names]
        chance, size = self._draw.random, len(endpoints)
        for _ in range(DRAWN):
            one = endpoints[int(chance() * size)]
            if one.node not in names:
                names[one.node] = None
                found.append(one)
        return found, False

    def _candidates(
        self,
        endpoints: Sequence[Endpoint],
        match: PrefixMatch,
        nearest: Sequence[str],
        facts: RoutingFacts,
    ) -> list[Candidate]:
        loads = self._loads
        load_of, now, new = loads.by_node().get, loads.now(), tuple.__new__
        held = match.held()
        views = None if self.views.is_empty else self.views
        suspects = loads.suspects()
        adapter = facts.model if self._table is not None and not self._table.has_model(facts.model) else None
        found = []
        for one in endpoints:
            node = one.node
            load = load_of(node, IDLE)
            view = UNKNOWN if views is None else views.of(node, now)
            weight = len(nearest) - nearest.index(node) if node in nearest else 0
            cached_tokens = 0
            for nodes, tokens in held:
                if node in nodes:
                    cached_tokens = tokens
                    break
            found.append(
                new(  # as Candidate(...), without a call of Python for each
                    Candidate,
                    (
                        node,
                        load.prefill_tokens,
                        load.requests,
                        int(load.recent_tokens(now)),
                        cached_tokens,
                        None if view is UNKNOWN else _kv_free(view, load.kv_tokens),
                        view.max_model_len,
                        adapter in view.adapters if adapter is not None and view.adapters is not None else None,
                        weight,
                        node in suspects,
                        False,
                    ),
                )
            )
        return found


def _kv_free(view: NodeView, in_flight: int) -> int | None:
    """Free KV: as it was seen, and less once we sent more since. None: not known."""
    if view.kv_free_tokens is None or view.cache_tokens is None:
        return None
    return min(view.kv_free_tokens, view.cache_tokens - in_flight)


def _with_sticky(candidates: list[Candidate], lane: Lane, session: int, nearest: Sequence[str]) -> list[Candidate]:
    """The candidates with the session's own node marked: of those that are fit, the one that its hash is nearest to."""
    if not candidates:
        return candidates
    if nearest:
        order = {node: len(nearest) - at for at, node in enumerate(nearest)}
        own = max(candidates, key=lambda one: order.get(one.node, 0))
    else:
        own = max(candidates, key=lambda one: (not one.is_suspect, affinity(lane.hashes[one.node], session)))
    return [one._replace(is_sticky=True) if one is own else one for one in candidates]
