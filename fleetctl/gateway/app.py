"""The gateway of one process: what it is built of, and its own routes. How it begins and ends: `life.py`.

One class, longer than others: its parts are made in an order, each route is a few lines over several of them, and what
a request tells in passing is noted in all of them at once.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog
from prometheus_client import generate_latest

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.admission.admission_metrics import AdmissionMetrics
from fleetctl.gateway.admission.shedding import shed_orders
from fleetctl.gateway.admission.tenants_file import read_node_key
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer, WholeAnswer, json_answer
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.http.node_client import NodeClient
from fleetctl.gateway.http.server import HttpServer
from fleetctl.gateway.metrics import CONTENT_TYPE, COUNTERS, ROUTING_TABLE, GatewayMetrics
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
from fleetctl.gateway.prompts.prefix_lint import joined_report
from fleetctl.gateway.prompts.preparation import PromptPreparation
from fleetctl.gateway.prompts.tokenizer_probe import open_preparation
from fleetctl.gateway.requests.cached_answers import CachedAnswers
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import Placer
from fleetctl.gateway.requests.proxy import MOVE_PATIENCE_S, Proxy
from fleetctl.gateway.requests.shadow import Shadows
from fleetctl.gateway.requests.shadow_report import joined_shadows
from fleetctl.gateway.response_cache import ResponseCache
from fleetctl.gateway.routing.routing_facts import WORK_PATHS, BadBodyError
from fleetctl.gateway.siblings.fate_store import find_kept_fate, keep_fates
from fleetctl.gateway.siblings.joined_views import (
    Json,
    WorkersNow,
    joined_decisions,
    joined_explanation,
    joined_status,
    joined_tenants,
    latest_fate,
)
from fleetctl.gateway.siblings.metric_store import (
    WORKER_DIED,
    Families,
    families_of,
    find_lost,
    joined_exposition,
    keep_families,
    outcomes_of_ended,
    worker_families,
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
EXPLAIN_PATH = "/gateway/route/explain"
WORK_METHODS = frozenset({"POST", "OPTIONS"})  # a browser asks with OPTIONS first: that is the node's to answer
DECISIONS_PATH = "/gateway/decisions"
PREFIX_REPORT_PATH = "/gateway/prefix-report"
SHADOW_PATH = "/gateway/shadow"
METRICS_PATH = "/metrics"
STATUS_PATH = "/gateway/status"
TENANTS_PATH = "/gateway/tenants"
FATE_PATH = "/gateway/requests/"
RETRIES_KEY = "retries"
EXCHANGE_EVERY_S = 0.25
LOOPBACK = ("127.0.0.1", "::1")


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
        self.proxy: Proxy | None = None
        self.placer: Placer | None = None
        self.shadows: Shadows | None = None
        self.overflow: Overflow | None = None
        self.prompts: PromptPreparation | None = None
        self.is_draining = False
        self._nodes: NodeClient | None = None
        # GET routes of ours, not under /v1/.
        self._routes: dict[str, Callable[[Exchange], Awaitable[WholeAnswer]]] = {
            "/health": self._health,
            METRICS_PATH: self._metrics,
            STATUS_PATH: self._status,
            FATE_PATH: self._fate,
            TENANTS_PATH: self._tenants,
            PREFIX_REPORT_PATH: self._prefix_report,
            DECISIONS_PATH: self._decisions,
            SHADOW_PATH: self._shadow,
        }

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
                async with self._answering_siblings():
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
    async def _answering_siblings(self) -> AsyncIterator[None]:
        """Where there are any: each route that all workers answer together asks them by its path."""
        siblings = self._siblings
        if siblings is None:
            yield
            return
        tells: dict[str, Callable[[Any], Any]] = {
            METRICS_PATH: lambda _: self._tell_metrics(siblings),
            STATUS_PATH: lambda _: self.status(),
            FATE_PATH: self._tell_fate,
            TENANTS_PATH: self._tell_tenants,
            DECISIONS_PATH: lambda _: self._tell_decisions(),
            SHADOW_PATH: lambda _: self._tell_shadows(),
            PREFIX_REPORT_PATH: lambda _: self._tell_templates(),
            EXPLAIN_PATH: lambda body: self._tell_explanation(b64decode(body)),
        }
        # Of another generation, and so perhaps of other code: a path that is not known here has no answer.
        async with siblings.opened(lambda path, argument: tells[path](argument) if path in tells else None):
            try:
                self._open_requests = OpenRequests(siblings.folder, siblings.number)
            except OSError as error:  # a full disk: what is in flight when this worker dies will not be known
                log.error("requests.not_kept", error=str(error))
            yield
            self._tell_metrics(siblings)  # the last word on what this worker counted
            try:
                keep_fates(siblings.folder, siblings.number, self.fates.ended_as_json())
            except OSError as error:
                log.error("fates.not_kept", error=str(error))

    async def _exchange_counts_forever(self, placer: Placer) -> None:
        while self._counters is not None:
            self.admission.exchange_counts()
            placer.budget.take_up(time.monotonic())
            await asyncio.sleep(EXCHANGE_EVERY_S)

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
        if path == EXPLAIN_PATH and exchange.method == "POST":
            await self._explain(exchange)
        elif not path.startswith("/v1/"):
            await exchange.give(await self._own_answer(exchange))
        elif ".." in path or "//" in path:
            await exchange.fail(answers.bad_request("the path has empty or relative parts"))
        elif path in WORK_PATHS and exchange.method not in WORK_METHODS:
            await exchange.fail(answers.wrong_method(exchange.method, path, "POST"))
        else:
            assert self.proxy is not None
            await self.proxy.serve(exchange)

    async def _own_answer(self, exchange: Exchange) -> WholeAnswer:
        """The answer of a route of ours. A key of the table that ends with a slash is followed by a name."""
        if exchange.method in ("GET", "HEAD"):
            path = exchange.path
            route = self._routes.get(path) or self._routes.get(path.rpartition("/")[0] + "/")
            if route is not None:
                return await route(exchange)
        return answers.not_found(exchange.path).whole()

    async def _ask_siblings(self, path: str, argument: Any = None) -> list[Any]:
        """What the other workers tell, as far as they know something."""
        if self._siblings is None:
            return []
        return [told for told in (await self._siblings.ask_all(path, argument)).values() if told]

    async def _status(self, _: Exchange) -> WholeAnswer:
        others = await self._ask_siblings(STATUS_PATH)
        status = joined_status([self.status(), *others])
        if self._siblings is not None:
            ended = await asyncio.to_thread(outcomes_of_ended, self._siblings.folder)
            status["outcomes"] = dict(ended + Counter(status["outcomes"]))
        status["overflow"] = await self.overflow.describe() if self.overflow is not None else []
        workers = await asyncio.to_thread(self._about_workers)
        return json_answer(200, status if workers is None else {**status, "workers": workers._asdict()})

    def status(self) -> dict[str, object]:
        """What `/gateway/status` says. Nodes that left the table but still hold requests are `removed`.

        `phase` is what the controller saw of a node, `out` why it gets nothing from us: node_silent, core_stuck, or
        `ejected: ` and why; `trial`: it gets few. `failing_open`: models of which the controller sees no node well.
        """
        table, inflight, out = self.routing.table, self.loads.inflight_requests(), self._why_out()
        nodes: dict[str, dict[str, object]] = {
            e.node: {
                "inflight": inflight.pop(e.node, 0),
                "state": e.state.value,
                "phase": e.phase.value if e.phase else None,
                "out": out.get(e.node),
            }
            for e in (table.endpoints if table else ())
        }
        nodes |= {
            node: {"inflight": count, "state": "removed", "phase": None, "out": None}
            for node, count in inflight.items()
        }
        return {
            "table_version": table.version if table else None,
            "table_age_s": self.routing.age_s(),
            "controller": "reachable" if self.routing.controller_is_reachable else "unreachable",
            "in_flight": self.fates.in_flight,
            "outcomes": {outcome.value: count for outcome, count in self.fates.counts.items()},
            "failing_open": sorted(model for model, is_open in self._failing_open().items() if is_open),
            "retries_left": int(self.proxy.retries_left()) if self.proxy else None,
            "nodes": nodes,
        }

    def _why_out(self) -> dict[str, str]:
        now = time.monotonic()
        return {
            **dict.fromkeys(self.ejections.on_trial(now), "trial"),
            **{node: f"ejected: {why.value}" for node, why in self.ejections.ejected(now).items()},
            **{node: why.value for node, why in self.watch.silent_nodes().items()},
        }

    def _failing_open(self) -> dict[str, bool]:
        table = self.routing.table
        return table.failing_open() if table is not None and self._limits.fail_open else {}

    async def _health(self, _: Exchange) -> WholeAnswer:
        if self.is_draining:
            return json_answer(503, {"ready": False, "reason": "draining"})
        if self.routing.table is None:
            return json_answer(503, {"ready": False, "reason": "no routing table yet"})
        return json_answer(200, {"ready": True, "reason": "ready"})

    async def _metrics(self, _: Exchange) -> WholeAnswer:
        if self._siblings is None:
            self._set_gauges()
            text = generate_latest(self.metrics.registry)
        else:
            text = await self._joined_metrics(self._siblings)
        return WholeAnswer(200, text, [(b"content-type", CONTENT_TYPE)])

    async def _joined_metrics(self, siblings: Siblings) -> bytes:
        others = await siblings.ask_all(METRICS_PATH)
        live = {siblings.number: self._tell_metrics(siblings), **others}
        workers = await asyncio.to_thread(self._about_workers)
        more = worker_families(workers) if workers is not None else []
        return await asyncio.to_thread(joined_exposition, siblings.folder, live, more)

    def _tell_metrics(self, siblings: Siblings) -> Families:
        self._set_gauges()
        families = families_of(self.metrics.registry)
        try:
            keep_families(siblings.folder, siblings.number, families)
        except OSError as error:  # a full disk: what is told now may be forgotten when this worker dies
            log.error("metrics.not_kept", error=str(error))
            self.metrics.store_failures.labels(COUNTERS).inc()
        return families

    def _set_gauges(self) -> None:
        """Gauges are what is true now: they are set when somebody asks, not kept up on the way of each request."""
        table = self.routing.table
        idle = {e.node: 0 for e in (table.endpoints if table else ())}
        now = time.monotonic()
        self.health_metrics.set_gauges(
            ejected=self.ejections.ejected(now),
            on_trial=self.ejections.on_trial(now),
            fail_open=self._failing_open(),
        )
        self.metrics.set_gauges(
            inflight=idle | self.loads.inflight_requests(),
            silent=self.watch.silent_nodes(),
            oldest_waits_s=self.watch.oldest_waits_s(),
            table_version=table.version if table else None,
            table_age_s=self.routing.age_s(),
        )

    async def _fate(self, exchange: Exchange) -> WholeAnswer:
        request_id = exchange.path.removeprefix(FATE_PATH)
        others = await self._ask_siblings(FATE_PATH, request_id)
        fate = latest_fate([one for one in (self._tell_fate(request_id), *others) if one])
        if fate is None and self._siblings is not None:
            fate = await asyncio.to_thread(_fate_after_end, self._siblings.folder, request_id)
        if fate is None:
            return answers.bad_request("no such recent request", status=404, code="not_found").whole()
        return json_answer(200, fate)

    def _tell_fate(self, request_id: str) -> Json:
        found = self.fates.get(request_id)
        return found.as_json() if found is not None else {}

    async def _prefix_report(self, _: Exchange) -> WholeAnswer:
        if self.prompts is None:
            message = "prompts are not looked at: gateway.prompts.prefix_lint.max_per_s is 0"
            return answers.bad_request(message, status=404, code="not_found").whole()
        parts = [self._tell_templates(), *await self._ask_siblings(PREFIX_REPORT_PATH)]
        return json_answer(200, {"templates": joined_report(parts)})

    def _tell_templates(self) -> list[Json]:
        return self.prompts.lint.told() if self.prompts is not None else []

    async def _tenants(self, exchange: Exchange) -> WholeAnswer:
        """Everything for who asks from this machine, its own row for a key; names of tenants are no stranger's."""
        given = exchange.header(b"authorization")
        is_local = exchange.address in LOOPBACK and exchange.header(b"x-forwarded-for") is None
        is_controller = given is not None and hmac.compare_digest(given, f"Bearer {self._node_token}".encode())
        argument = [None if given is None else given.decode("latin-1"), is_local or is_controller]
        shown = self._tell_tenants(argument)
        if not shown:
            return answers.bad_request(
                "send an API key, or ask on this machine", status=401, code="invalid_api_key"
            ).whole()
        return json_answer(200, joined_tenants([shown, *await self._ask_siblings(TENANTS_PATH, argument)]))

    def _tell_tenants(self, argument: Sequence[Any]) -> Json:
        given, may_see_all = argument
        return self.admission.as_json(None if given is None else given.encode("latin-1"), may_see_all=may_see_all) or {}

    def _lane_of(self, model: str | None) -> str:
        table = self.routing.table
        return model if model is not None and table is not None and table.has_model(model) else ""

    def _most_outstanding(self, lane: str) -> int | None:
        table, per_node = self.routing.table, self._limits.admission.max_outstanding_per_node
        return None if per_node is None or table is None else per_node * max(1, table.num_active(lane))

    async def _decisions(self, _: Exchange) -> WholeAnswer:
        return json_answer(200, joined_decisions([self._tell_decisions(), *await self._ask_siblings(DECISIONS_PATH)]))

    def _tell_decisions(self) -> Json:
        assert self.placer is not None
        return self.placer.chooser.decisions.as_json()

    async def _shadow(self, _: Exchange) -> WholeAnswer:
        return json_answer(200, joined_shadows([self._tell_shadows(), *await self._ask_siblings(SHADOW_PATH)]))

    def _tell_shadows(self) -> list[Json]:
        assert self.shadows is not None
        return self.shadows.reports.told(time.time())

    async def _explain(self, exchange: Exchange) -> None:
        """Each worker knows which prompts it sent where: all are asked."""
        assert self.proxy is not None
        body = await self.proxy.read_question(exchange)
        if isinstance(body, ErrorAnswer):
            await exchange.fail(body)
            return
        try:
            own = self._tell_explanation(body)
        except BadBodyError as error:
            await exchange.fail(answers.bad_request(str(error)))
            return
        parts = {0: own}
        if self._siblings is not None:
            others = await self._siblings.ask_all(EXPLAIN_PATH, b64encode(body).decode())
            parts = {self._siblings.number: own, **others}
        await exchange.give(json_answer(200, joined_explanation(parts)))

    def _tell_explanation(self, body: bytes) -> Json:
        assert self.proxy is not None
        return self.proxy.explain(body)

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


def _fate_after_end(folder: Path, request_id: str) -> Json | None:
    """What is known of a request whose worker has ended; little more than that, if it was killed with it in hand."""
    lost = find_lost(folder, request_id)
    if lost is None:
        return find_kept_fate(folder, request_id)
    proxied = ProxiedRequest(request_id, lost.started_at, 0.0)
    return {**proxied.as_json(), "fate": Outcome.FAILED.value, "reason": WORKER_DIED}


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
