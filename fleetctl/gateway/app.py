"""The gateway of one process: what it is built of. Its own pages: `pages.py`; how it begins and ends: `life.py`.

Its parts are made in an order, and what a request tells in passing is noted in all of them at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import structlog

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.admission.admission_metrics import AdmissionMetrics
from fleetctl.gateway.admission.shedding import shed_orders
from fleetctl.gateway.admission.tenants_file import read_node_key
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.http.node_client import NodeClient
from fleetctl.gateway.http.server import HttpServer
from fleetctl.gateway.metrics import ROUTING_TABLE, GatewayMetrics
from fleetctl.gateway.nodes.ejection import Ejection, Ejections
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.held_requests import ask_held_requests
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_keys import NodeKeys
from fleetctl.gateway.nodes.node_watch import NodeWatch, ProbeAnswer, ask_readiness
from fleetctl.gateway.nodes.signals_sync import SignalsSync
from fleetctl.gateway.nodes.sync import TableSync
from fleetctl.gateway.nodes.table import Endpoint, Routing, Table
from fleetctl.gateway.overflow.overflow import Overflow
from fleetctl.gateway.overflow.overflow_metrics import OverflowMetrics
from fleetctl.gateway.pages import EXPLAIN_PATH, GatewayPages, PageSources
from fleetctl.gateway.prompts.preparation import PromptPreparation
from fleetctl.gateway.prompts.tokenizer_probe import open_preparation
from fleetctl.gateway.requests.cached_answers import CachedAnswers
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import Placer
from fleetctl.gateway.requests.proxy import MOVE_PATIENCE_S, Proxy
from fleetctl.gateway.requests.shadow import Shadows
from fleetctl.gateway.response_cache import ResponseCache
from fleetctl.gateway.routing.routing_facts import WORK_PATHS
from fleetctl.gateway.siblings.fate_store import keep_fates
from fleetctl.gateway.siblings.joined_views import (
    WorkersNow,
)
from fleetctl.gateway.siblings.open_requests import OpenRequests
from fleetctl.gateway.siblings.siblings import Siblings
from fleetctl.kit.key_ring import NO_KEYS, KeyRing
from fleetctl.kit.shared_counters import SharedCounters
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.gateway_tracing import traces_wanted
from fleetctl.wire.routing import RouteState

if TYPE_CHECKING:
    from fleetctl.gateway.requests.tracing import RequestTraces

log = structlog.get_logger()

NODES_FAULT = frozenset({"engine_error", "node_error"})  # within a stream: the node's word, not the client's doing
WORK_METHODS = frozenset({"POST", "OPTIONS"})  # a browser asks with OPTIONS first: that is the node's to answer
RETRIES_KEY = "retries"
EXCHANGE_EVERY_S = 0.25


class Gateway:
    """What answers requests. Everything it owns lives as long as `opened()`."""

    def __init__(
        self,
        *,
        controller_url: str,
        controller_token: str | None,
        node_token: str,
        run_dir: Path,
        limits: GatewaySettings | None = None,
        move_patience_s: float = MOVE_PATIENCE_S,
        keys: KeyRing = NO_KEYS,
        siblings: Siblings | None = None,
        counters: SharedCounters | None = None,
        about_workers: Callable[[], WorkersNow | None] = lambda: None,
    ) -> None:
        """`keys`: of nodes that want one, by the names that routes have; `siblings`: the other workers of this gateway,
        where it is one; `about_workers`: what its supervisor says.

        `counters`: what limits are held by together with them; None: each worker holds its part.
        """
        self._keys = NodeKeys(keys)
        self._limits = _share_of_worker(limits or GatewaySettings())
        self._siblings = siblings
        self._counters = counters
        self._about_workers = about_workers
        self._controller_url = controller_url
        self._controller_token = controller_token
        self._node_token = node_token
        self._run_dir = run_dir
        self._move_patience_s = move_patience_s
        self.metrics = GatewayMetrics()
        self.routing = Routing()
        self.loads = Loads()
        self._open_requests: OpenRequests | None = None  # where a supervisor finds them when this worker is killed
        self.fates = Fates(on_begin=self._note_begun, on_rename=self._note_renamed, on_end=self._count)
        self.health_metrics = HealthMetrics(self.metrics.registry)
        self.ejections = Ejections(
            self._limits.ejection, on_eject=lambda why: self.health_metrics.ejections.labels(why.value).inc()
        )
        self.watch = NodeWatch(
            self.loads,
            self._limits,
            self._probe,
            on_probe=self.metrics.count_probe,
            on_back=lambda node: self.ejections.begin_trial(node, time.monotonic()),
            ask_held=self._ask_held if node_token else None,
        )
        self.admission = Admission(
            self._limits.admission,
            tenants_file=self._limits.tenants_file,
            node_key=read_node_key(self._limits.node_key_file),
            lane_of=self._lane_of,
            most_outstanding=self._most_outstanding,
            counters=counters,
            num_workers=self._limits.workers,
        )
        AdmissionMetrics(self.admission, self.metrics.registry)
        self.pages: GatewayPages | None = None
        self.proxy: Proxy | None = None
        self.placer: Placer | None = None
        self.shadows: Shadows | None = None
        self.overflow: Overflow | None = None
        self.prompts: PromptPreparation | None = None
        self.is_draining = False
        self._nodes: NodeClient | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Gateway]:
        """Load the last good table and keep it current until the block ends."""
        nodes = self._nodes = NodeClient(connect_limit_s=self._limits.connect_limit_s)
        async with aclosing(nodes), aiohttp.ClientSession() as control:
            placer = Placer(
                nodes,
                self.routing,
                self.loads,
                self.metrics,
                self.watch,
                self.ejections,
                self.health_metrics,
                self._limits,
                keys=self._keys,
            )
            overflow, traces = self._open_overflow(), _open_traces(self._limits)
            self.overflow = overflow
            self.placer = placer
            if self._counters is not None and (row := self._counters.row(RETRIES_KEY)) is not None:
                placer.budget.join(row)
            shadows = self.shadows = Shadows(nodes, self.loads, placer.chooser, self.metrics.registry, keys=self._keys)
            self.prompts = open_preparation(
                self._limits.prompts, self.metrics.registry, nodes, self.routing, self._keys
            )
            self.proxy = Proxy(
                placer,
                self.routing,
                self.fates,
                self.metrics,
                self.health_metrics,
                self.watch,
                self.admission,
                shadows,
                self._limits,
                node_token=self._node_token,
                move_patience_s=self._move_patience_s,
                prompts=self.prompts,
                overflow=overflow,
                cached=self._make_cache(),
                begin_trace=traces.begin if traces is not None else None,
            )
            self.pages = self._make_pages(placer, self.proxy, shadows)
            sync = TableSync(
                control,
                self.routing,
                controller_url=self._controller_url,
                controller_token=self._controller_token,
                run_dir=self._run_dir,
                on_table=self._note_table,
                on_not_stored=self.metrics.store_failures.labels(ROUTING_TABLE).inc,
            )
            sync.load_last_good()
            signals = SignalsSync(
                control,
                placer.chooser.views,
                controller_url=self._controller_url,
                controller_token=self._controller_token,
                on_change=placer.chooser.note_views,
            )
            loops = (
                asyncio.create_task(sync.run_forever(), name="gateway.sync"),
                asyncio.create_task(signals.run_forever(), name="gateway.signals"),
                asyncio.create_task(self.watch.watch_forever(), name="gateway.watch"),
                asyncio.create_task(self.admission.run_forever(), name="gateway.admission"),
                asyncio.create_task(self._exchange_counts_forever(placer), name="gateway.counts"),
            )
            try:
                async with self._answering_siblings(self.pages):
                    yield self
            finally:
                for loop in loops:
                    loop.cancel()
                    with suppress(asyncio.CancelledError):
                        await loop
                await shadows.aclose()
                if overflow is not None:
                    await overflow.aclose()
                if traces is not None:
                    await asyncio.to_thread(traces.close)

    @asynccontextmanager
    async def _answering_siblings(self, pages: GatewayPages) -> AsyncIterator[None]:
        """Where there are any: each page that all workers answer together asks them by its path."""
        siblings = self._siblings
        if siblings is None:
            yield
            return
        async with siblings.opened(pages.tell):
            try:
                self._open_requests = OpenRequests(siblings.folder, siblings.number)
            except OSError as error:  # a full disk: what is in flight when this worker dies will not be known
                log.error("requests.not_kept", error=str(error))
            yield
            pages.tell_metrics()  # the last word on what this worker counted
            try:
                keep_fates(siblings.folder, siblings.number, self.fates.ended_as_json())
            except OSError as error:
                log.error("fates.not_kept", error=str(error))

    async def _exchange_counts_forever(self, placer: Placer) -> None:
        while self._counters is not None:
            self.admission.exchange_counts()
            placer.budget.take_up(time.monotonic())
            await asyncio.sleep(EXCHANGE_EVERY_S)

    def _make_pages(self, placer: Placer, proxy: Proxy, shadows: Shadows) -> GatewayPages:
        sources = PageSources(
            routing=self.routing,
            loads=self.loads,
            fates=self.fates,
            metrics=self.metrics,
            health_metrics=self.health_metrics,
            ejections=self.ejections,
            watch=self.watch,
            admission=self.admission,
            placer=placer,
            proxy=proxy,
            shadows=shadows,
            overflow=self.overflow,
            prompts=self.prompts,
            node_token=self._node_token,
            failing_open=self._failing_open,
            is_draining=lambda: self.is_draining,
            about_workers=self._about_workers,
        )
        return GatewayPages(sources, self._siblings)

    def _make_cache(self) -> CachedAnswers | None:
        settings = self._limits.response_cache
        if not settings.max_bytes:
            return None
        return CachedAnswers(ResponseCache(settings, self.metrics.registry), self.routing, self.fates, self.metrics)

    def _open_overflow(self) -> Overflow | None:
        settings = self._limits.overflow
        if not settings.endpoints:
            return None
        metrics = OverflowMetrics(self.metrics.registry, [one.name for one in settings.endpoints])
        return Overflow(
            settings, metrics, self._run_dir, wait_s=self._least_wait_s, is_served_here=self._is_served_here
        )

    def _least_wait_s(self, model: str | None) -> float | None:
        """How long the oldest request without a first byte waits at the node of the model where that is least."""
        table = self.routing.table
        candidates = table.candidates(model) if table is not None else ()
        waits = self.watch.oldest_waits_s()
        return min((waits.get(one.node, 0.0) for one in candidates), default=None)

    def _is_served_here(self, model: str | None) -> bool:
        """Without a table nothing is known, and what is not known is no reason to leave the house."""
        table = self.routing.table
        return table is None or any(one.model == model for one in table.endpoints)

    async def _ask_held(self, endpoint: Endpoint) -> frozenset[str] | None:
        assert self._nodes is not None
        return await ask_held_requests(self._nodes, endpoint, self._node_token)

    async def _probe(self, endpoint: Endpoint) -> ProbeAnswer | None:
        assert self._nodes is not None
        return await ask_readiness(self._nodes, endpoint, self._limits.probe_limit_s)

    @property
    def retire_limit_s(self) -> float:
        """How long it may go on for its open streams once another process serves."""
        return self._limits.retire_limit_s

    def make_server(self) -> HttpServer:
        """The HTTP server for it. Raises BadInputError: TLS files that can't be used."""
        server = HttpServer(self.serve, self._limits.http, count=self.metrics.count_connection)
        self.metrics.receiving_body_bytes.set_function(lambda: server.limits.bodies.num_bytes)
        return server

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request, whatever it is."""
        path = exchange.path
        assert self.pages is not None
        if path == EXPLAIN_PATH and exchange.method == "POST":
            await self.pages.explain(exchange)
        elif not path.startswith("/v1/"):
            await exchange.give(await self.pages.answer(exchange))
        elif ".." in path or "//" in path:
            await exchange.fail(answers.bad_request("the path has empty or relative parts"))
        elif path in WORK_PATHS and exchange.method not in WORK_METHODS:
            await exchange.fail(answers.wrong_method(exchange.method, path, "POST"))
        else:
            assert self.proxy is not None
            await self.proxy.serve(exchange)

    def _lane_of(self, model: str | None) -> str:
        table = self.routing.table
        return model if model is not None and table is not None and table.has_model(model) else ""

    def _most_outstanding(self, lane: str) -> int | None:
        table, per_node = self.routing.table, self._limits.admission.max_outstanding_per_node
        return None if per_node is None or table is None else per_node * max(1, table.num_active(lane))

    def _failing_open(self) -> dict[str, bool]:
        table = self.routing.table
        return table.failing_open() if table is not None and self._limits.fail_open else {}

    def _note_table(self, table: Table) -> None:
        assert self.shadows is not None
        self.shadows.note_table(table)
        assert self.placer is not None
        self.admission.use_num_gateways(table.num_gateways)
        self.placer.budget.use_num_sharing(table.num_gateways * (self._limits.workers if self._counters is None else 1))
        self.admission.use_orders(shed_orders(table.rules))
        if self.overflow is not None:
            self.overflow.use_rules(table.rules)
        self.admission.queue.keep_lanes({e.model for e in table.active} | {""})
        self.loads.keep_only(e.node for e in table.endpoints)
        self.watch.keep_only(table.endpoints)
        self.watch.leave(e for e in table.endpoints if e.state is RouteState.LEAVING)
        self.ejections.note_table(table.endpoints, time.monotonic())
        if failing_open := sorted(model for model, is_open in self._failing_open().items() if is_open):
            log.error("gateway.failing_open", models=failing_open, reason="the controller sees no node well")

    def _note_begun(self, proxied: ProxiedRequest) -> None:
        if self._open_requests is not None:
            self._open_requests.note(proxied.request_id, proxied.started_at)

    def _note_renamed(self, proxied: ProxiedRequest, before: str) -> None:
        if self._open_requests is not None:
            self._open_requests.forget(before)
            self._open_requests.note(proxied.request_id, proxied.started_at)

    def _count(self, proxied: ProxiedRequest) -> None:
        assert proxied.outcome is not None
        if self._open_requests is not None:
            self._open_requests.forget(proxied.request_id)
        self.metrics.ended.add(proxied.outcome, proxied.last_node)
        if proxied.trace is not None:
            proxied.trace.end(proxied)
        if proxied.outcome.is_lost:
            self.metrics.lost.labels(proxied.reason).inc()
        self._judge_node(proxied)

    def _judge_node(self, proxied: ProxiedRequest) -> None:
        """What an ended request says of the node that answered it, as far as its placing has not told yet."""
        if proxied.ttft_s is None or len(proxied.nodes) != 1 or proxied.deaths or proxied.failed_at:
            return  # no stream began, several nodes share in what it took, or its placing told
        now = time.monotonic()
        if proxied.outcome is Outcome.FINISHED and not proxied.retries:
            self.ejections.note_first_token(proxied.nodes[0], proxied.ttft_s, now)
        elif proxied.outcome is Outcome.FAILED and proxied.reason in NODES_FAULT:
            self.ejections.note_failed(proxied.nodes[0], Ejection.SERVER_ERROR, now, had_answered=True)


def _share_of_worker(settings: GatewaySettings) -> GatewaySettings:
    """What all workers may hold together, divided by them."""
    num, http, cache = settings.workers, settings.http, settings.response_cache
    return settings.model_copy(
        update={
            "http": http.model_copy(
                update={
                    "max_connections": max(1, http.max_connections // num),
                    "max_receiving_bytes": max(http.max_body_bytes, http.max_receiving_bytes // num),
                }
            ),
            "response_cache": cache.model_copy(update={"max_bytes": cache.max_bytes // num}),
        }
    )


def _open_traces(settings: GatewaySettings) -> RequestTraces | None:
    if not traces_wanted(settings.traces_endpoint, os.environ):
        return None
    from fleetctl.gateway.requests.tracing import RequestTraces  # half a second and 20 MB that most need not spend

    return RequestTraces(settings.traces_endpoint)
