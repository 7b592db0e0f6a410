"""A controller that does not lead: it keeps its series warm, says who does, and takes over when that one is silent."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleetctl.controller.audit import Audit
from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.content.load import load_content
from fleetctl.controller.database import Database, StorageLostError
from fleetctl.controller.leadership import Leadership, StoredLease, Takeover
from fleetctl.controller.loops import Loop, Loops
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_row import RouteIntent, list_nodes
from fleetctl.controller.opened_state import LedState
from fleetctl.controller.records import Records
from fleetctl.controller.signals.rules_in_force import RulesInForce
from fleetctl.controller.signals.scrape import Scraper
from fleetctl.controller.timeline import Timeline
from fleetctl.kit.clock import Clock
from fleetctl.kit.stall import StallMonitor
from fleetctl.wire.base import Problem
from fleetctl.wire.node import NodePhase
from runbooks.journal import Journal

log = structlog.get_logger()

T = TypeVar("T")
LEADER_PATH = "/health/leader"


@dataclass(frozen=True, slots=True)
class SharedState:
    """What a controller on a shared database keeps for the whole life of its process, leading or not."""

    database: Database
    journal: Journal
    leadership: Leadership
    thread: ThreadPoolExecutor
    """Of the lease alone: a long write of others must not hold up its renewal."""

    async def call(self, work: Callable[..., T], *args: object) -> T:
        """Run one of the leadership's methods on its thread."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, functools.partial(work, *args))


class StoredFleet:
    """Implements `ScrapedFleet`: the nodes that the leader stored, and nothing that was seen of them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.nodes: dict[str, NodeState] = {}

    async def read(self) -> None:
        """One turn."""
        rows = await self._database.read(list_nodes)
        phases = {True: NodePhase.STARTING, False: NodePhase.READY}
        self.nodes = {
            row.name: NodeState(row, phases[row.route is RouteIntent.NONE], "", None, row.url)
            for row in rows
            if row.wanted
        }


class Standby:
    """Waits for its turn to lead. Owner of the series that it hands over then."""

    def __init__(self, config: ControllerConfig, state: SharedState, clock: Clock) -> None:
        settings = config.settings
        self._state = state
        self._clock = clock
        self._settings = settings
        self.config = config
        self.metrics = ControllerMetrics()
        self.metrics.leader.set(0.0)
        self.metrics.storage_ok.set_function(lambda: float(not state.database.storage_error))
        self.metrics.peers_wanted.set(len(settings.controller.other_controllers))
        self.rules = RulesInForce(load_content(settings.content), settings.signals, clock)
        self.leader: StoredLease | None = None

    async def claim(self) -> LedState | None:
        """Lead, if nobody else does; None: another controller leads. Raises StorageLostError."""
        found, is_free = await self._state.call(self._state.leadership.look, self._clock.now())
        self.leader = None if found is None or found.released else found
        if not is_free:
            return None
        takeover: Takeover | None = await self._state.call(self._state.leadership.take, found, self._clock.now())
        if takeover is None:
            return None
        self._state.journal.lead(takeover.epoch)
        self._state.database.lead(takeover.epoch)
        self._state.database.note_stored()
        return LedState(self._state.database, self._state.journal, self._state.leadership, takeover, self.rules)

    async def wait_to_lead(self, stopping: asyncio.Event) -> LedState | None:
        """Keep the series warm until this controller leads; None: it stops first."""
        async with AsyncExitStack() as stack:
            loops = self._warm_loops(stack)
            warming = asyncio.create_task(loops.run_all(), name="warm")
            try:
                return await self._wait(stopping)
            finally:
                warming.cancel()
                await asyncio.gather(warming, return_exceptions=True)

    async def _wait(self, stopping: asyncio.Event) -> LedState | None:
        told = self.leader
        if told is not None:
            log.info("controller.standby", leader=told.url, epoch=told.epoch)
        while not stopping.is_set():
            try:
                if (led := await self.claim()) is not None:
                    return led
            except StorageLostError as error:
                log.warning("standby.blind", error=error.message)
            if self.leader is not None and (told is None or told.epoch != self.leader.epoch):
                told = self.leader
                log.info("controller.standby", leader=told.url, epoch=told.epoch)
            try:
                async with asyncio.timeout(self._state.leadership.pause_s):
                    await stopping.wait()
            except TimeoutError:
                continue
        return None

    def _warm_loops(self, stack: AsyncExitStack) -> Loops:
        limits = self._settings.controller
        fleet = StoredFleet(self._state.database)
        loops = [Loop("stored-fleet", limits.probe_interval_s, fleet.read)]
        stalls = StallMonitor()
        stalls.start()
        stack.callback(stalls.stop)
        if self._settings.signals.prometheus is None:  # that one has the past itself
            timeline = Timeline(self._state.database, self._clock)
            audit = Audit(
                self._state.database,
                timeline,
                self.metrics,
                self._clock,
                self._settings.audit,
                self._settings.audit_dir,
            )
            records = Records(self._clock, self._state.database, timeline, self.metrics, stalls, audit)
            scraper = Scraper(fleet, self.rules.store, records, self._settings, self.config.gateway_urls)
            stack.push_async_callback(scraper.stop)
            loops.append(Loop("scrape", limits.scrape_interval_s, scraper.collect))
        return Loops(self._clock, *loops)


def standby_app(standby: Standby) -> Starlette:
    """Sends everybody to the controller that leads, which asks for tokens; tells of itself its metrics alone."""

    async def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    async def metrics(_: Request) -> Response:
        return Response(standby.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def elsewhere(request: Request) -> Response:
        leader = standby.leader
        if leader is None or request.url.path == LEADER_PATH:
            error = "this controller is a standby" + (f": {leader.url} leads" if leader else ", and nobody leads now")
            problem = Problem(error=error, remedy="ask again in some seconds: it takes over", exit_code=4)
            return JSONResponse(problem.model_dump(), HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "1"})
        query = f"?{request.url.query}" if request.url.query else ""
        problem = Problem(
            error=f"this controller is a standby: {leader.url} leads",
            remedy=f"fleetctl --controller {leader.url}",
            exit_code=4,
        )
        where = f"{leader.url.rstrip('/')}{request.url.path}{query}"
        return JSONResponse(problem.model_dump(), HTTPStatus.TEMPORARY_REDIRECT, {"Location": where})

    any_method = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/metrics", metrics),
            Route("/{path:path}", elsewhere, methods=any_method),
        ],
    )
