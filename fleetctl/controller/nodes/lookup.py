"""What guards and verification may ask of the fleet. "Could not look" is None, never a guess."""

from __future__ import annotations

import math

import structlog

from alerts.series.store import SeriesStore
from diagnostics.query import store_query
from fleetctl.controller.database import Database
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.controller.nodes.node_row import NodeRow, RouteIntent, list_nodes
from fleetctl.kit.clock import Clock
from fleetctl.wire import NodePhase

log = structlog.get_logger()


class FleetLookup:
    """Implements `runbooks.ports.Lookup`."""

    def __init__(
        self, database: Database, fleet: Fleet, store: SeriesStore, clock: Clock, *, stale_after_s: float
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self._stale_after_s = stale_after_s

    async def node_names(self) -> list[str]:
        return [row.name for row in await self._wanted()]

    async def serving_nodes(self) -> list[str] | None:
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

    async def evaluate(self, expression: str) -> float | None:
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
