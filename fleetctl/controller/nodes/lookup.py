"""What guards and verification may ask of the fleet. "Could not look" is None, never a guess."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import astuple

import structlog

from alerts.promql import evaluate
from alerts.series.store import SeriesStore
from diagnostics.query import store_query
from fleetctl.controller.database import Database
from fleetctl.controller.nodes.abilities import lacking
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.freezes import Freezes
from fleetctl.controller.nodes.node_row import NodeRow, RouteIntent, list_nodes
from fleetctl.controller.nodes.node_values import fresh_values
from fleetctl.controller.nodes.wanted_history import WantedHistory
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import FleetctlError
from fleetctl.providers.provider import EndTerms, NodeProvider, capacity_of, end_terms_of
from fleetctl.providers.spec import NodeSpec
from fleetctl.wire.node import NodePhase
from fleetctl.wire.routing import RouteSignals
from runbooks.ports import Capacity, EndBudget, Freeze, NodeFacts, NodeRoom, RevisionFacts, WantedChange, WayOut

log = structlog.get_logger()

END_TERMS_LIMIT_S = 3.0  # less than the limit of a whole look at the nodes

SEATS = 'max by (node) (engine_limit{limit="max_num_seqs"})'
PROGRESS = ("llm:steps:rate", "llm:generation_tokens:rate")
HELD_REQUESTS = "sum by (node) (llm:running) + sum by (node) (llm:waiting)"


class FleetLookup:
    """Implements `runbooks.ports.Lookup`."""

    def __init__(
        self,
        database: Database,
        fleet: Fleet,
        provider: NodeProvider,
        store: SeriesStore,
        clock: Clock,
        *,
        stale_after_s: float,
        freezes: Freezes,
        revisions: Callable[[], Awaitable[RevisionFacts]],
        priority_classes: frozenset[str] | None = None,
        ways_out: Callable[[], Sequence[WayOut] | None] = lambda: None,
        cleared_at: Callable[[str], float | None] = lambda _: None,
        route_signals: Callable[[Iterable[str], float], Sequence[RouteSignals]] = lambda nodes, now: (),
    ) -> None:
        """`priority_classes`: of the gateways' tenants; None: a tenants file says, or it is not known.

        `ways_out`: endpoints outside that gateways told of; None: no gateway answers. `cleared_at`: of an incident.
        `route_signals`: KV use and size of nodes now.
        """
        self._database = database
        self._fleet = fleet
        self._provider = provider
        self._store = store
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._freezes = freezes
        self._revisions = revisions
        self._priority_classes = priority_classes
        self._ways_out = ways_out
        self._cleared_at = cleared_at
        self._route_signals = route_signals
        self._history = WantedHistory(database, clock)

    async def nodes(self) -> list[NodeFacts]:
        """Every node ever wanted, with what it holds as far as that is known now."""
        held = self.held_requests()
        rows = await self._database.read(list_nodes)
        # Asked once for nodes that are alike, as each answer may look at all places: a second, for a thousand nodes.
        alike = {_kind_of(row.spec): row.spec for row in rows}
        rooms = {kind: Capacity(*astuple(capacity_of(self._provider, spec))) for kind, spec in alike.items()}
        terms = await self._end_terms()
        return [
            NodeFacts(
                name=row.name,
                pool=row.spec.pool,
                model=row.spec.model,
                revision=row.spec.revision,
                created_at=row.created_at,
                wanted=row.wanted,
                held=held.get(row.name),
                zone=row.spec.zone,
                engine=row.spec.engine,
                host=row.spec.facts.get("host", ""),
                cannot=lacking(row.spec, self._provider),
                capacity=rooms[_kind_of(row.spec)],
                end_budgets=tuple(EndBudget(*astuple(one)) for one in terms[row.name].budgets)
                if row.name in terms
                else (),
                counts_healthy=row.name not in terms or terms[row.name].counts_healthy,
            )
            for row in rows
        ]

    async def _end_terms(self) -> Mapping[str, EndTerms]:
        """Not known in time: nothing is refused beforehand, and the platform is asked when a node is ended."""
        try:
            async with asyncio.timeout(END_TERMS_LIMIT_S):
                return await asyncio.to_thread(end_terms_of, self._provider)
        except (FleetctlError, TimeoutError) as error:
            log.info("lookup.end_terms_unknown", error=str(error))
            return {}

    async def wanted_changes(self) -> list[WantedChange]:
        """What began and ended to be wanted, stored with each change."""
        return await self._history.changes()

    async def rooms(self) -> dict[str, NodeRoom]:
        """Seats and KV of each node, from its last scrape; what is stale or not exported is left out."""
        now, held = self._clock.now(), self.held_requests()
        seats = fresh_values(evaluate(SEATS, self._store, now), now, self._stale_after_s)
        told = self._route_signals(self._fleet.nodes, now)
        rooms = {}
        for one in told:
            is_fresh = one.age_s is not None and one.age_s <= self._stale_after_s
            ratio, size = (one.kv_ratio, one.cache_tokens) if is_fresh else (None, None)
            used = None if ratio is None or size is None else round(ratio * size)
            rooms[one.node] = NodeRoom(held.get(one.node), _whole(seats.get(one.node)), used, size)
        return rooms

    async def freezes(self) -> tuple[Freeze, ...]:
        """What people froze."""
        return self._freezes.in_force

    async def revisions(self) -> RevisionFacts:
        """Revisions, and the rollouts of pools, as they are stored."""
        return await self._revisions()

    async def priority_classes(self) -> frozenset[str] | None:
        """Classes that tenants may be of, where that is known."""
        return self._priority_classes

    async def ways_out(self) -> Sequence[WayOut] | None:
        """Endpoints outside that gateways may send requests to."""
        return self._ways_out()

    async def cleared_at(self, incident_id: str) -> float | None:
        """Since when no alert of the incident stands."""
        return self._cleared_at(incident_id)

    async def serving_nodes(self) -> list[str] | None:
        """Nodes that are ready and routed; None when the last look at the fleet is too old."""
        seen_at = self._fleet.looked_at
        if seen_at is None or self._clock.now() - seen_at > self._stale_after_s:
            return None
        # Routes from the database and not from the last look: an effect may have changed one since.
        return [
            row.name
            for row in await self._wanted()
            if row.route is RouteIntent.ACTIVE
            and (state := self._fleet.nodes.get(row.name)) is not None
            and state.phase is NodePhase.READY
        ]

    def held_requests(self) -> dict[str, int]:
        """Node name to requests that run or wait there. A node whose value is missing or stale is left out."""
        now = self._clock.now()
        held = fresh_values(evaluate(HELD_REQUESTS, self._store, now), now, self._stale_after_s)
        return {node: round(value) for node, value in held.items()}

    async def evaluate(self, expression: str) -> float | None:
        """The expression's one value now; None when it has none, is stale or not finite."""
        now = self._clock.now()
        answer = store_query(self._store, now)(expression)
        if answer.value is None or not math.isfinite(answer.value) or answer.at is None:
            log.info("lookup.unknown", expression=expression, why=answer.why_unknown or "not a finite value")
            return None
        if now - answer.at > self._stale_after_s:
            log.info("lookup.stale", expression=expression, age_s=round(now - answer.at, 1))
            return None
        return answer.value

    async def _wanted(self) -> list[NodeRow]:
        return [row for row in await self._database.read(list_nodes) if row.wanted]


def held_since(store: SeriesStore, node: str, since: float, now: float) -> int | None:
    """Requests that run or wait at a node, scraped at `since` or later; None: no such scrape yet."""
    query = f'sum(llm:running{{node="{node}"}}) + sum(llm:waiting{{node="{node}"}})'
    answer = store_query(store, now)(query)
    if answer.value is None or answer.at is None or answer.at < since or not math.isfinite(answer.value):
        return None
    return round(answer.value)


def _kind_of(spec: NodeSpec) -> tuple[str, str, str, str]:
    """What capacity may depend on: `NodeProvider`s are asked for more nodes like one, and not for this one."""
    return spec.provider, spec.pool, spec.model, spec.facts.get("sku", "")


def progress_of(store: SeriesStore, node: str, now: float, stale_after_s: float) -> float | None:
    """Steps or tokens a second that a node computes, whichever is more; None: it does not say, or not lately."""
    answers = [store_query(store, now)(f'max({series}{{node="{node}"}})') for series in PROGRESS]
    values = [
        one.value
        for one in answers
        if one.value is not None and one.at is not None and now - one.at <= stale_after_s and math.isfinite(one.value)
    ]
    return max(values, default=None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
