"""The gateway's own pages: how it is, what it did with requests, what it chose and why.

Of several workers each page is of all: the one that is asked asks the others.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import generate_latest

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer, WholeAnswer, json_answer
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.metrics import CONTENT_TYPE, COUNTERS, GatewayMetrics
from fleetctl.gateway.nodes.ejection import Ejections
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.loads import Loads
from fleetctl.gateway.nodes.node_watch import NodeWatch
from fleetctl.gateway.nodes.table import Routing
from fleetctl.gateway.overflow.overflow import Overflow
from fleetctl.gateway.prompts.prefix_lint import joined_report
from fleetctl.gateway.prompts.preparation import PromptPreparation
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import Placer
from fleetctl.gateway.requests.proxy import Proxy
from fleetctl.gateway.requests.shadow import Shadows
from fleetctl.gateway.requests.shadow_report import joined_shadows
from fleetctl.gateway.routing.routing_facts import BadBodyError
from fleetctl.gateway.siblings.fate_store import find_kept_fate
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
from fleetctl.gateway.siblings.siblings import Siblings

log = structlog.get_logger()

EXPLAIN_PATH = "/gateway/route/explain"
DECISIONS_PATH = "/gateway/decisions"
PREFIX_REPORT_PATH = "/gateway/prefix-report"
SHADOW_PATH = "/gateway/shadow"
METRICS_PATH = "/metrics"
STATUS_PATH = "/gateway/status"
TENANTS_PATH = "/gateway/tenants"
FATE_PATH = "/gateway/requests/"
LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class PageSources:
    """What pages tell of. None: the settings want no such part."""

    routing: Routing
    loads: Loads
    fates: Fates
    metrics: GatewayMetrics
    health_metrics: HealthMetrics
    ejections: Ejections
    watch: NodeWatch
    admission: Admission
    placer: Placer
    proxy: Proxy
    shadows: Shadows
    overflow: Overflow | None
    prompts: PromptPreparation | None
    node_token: str  # who has it sees every tenant
    failing_open: Callable[[], Mapping[str, bool]]  # models
    is_draining: Callable[[], bool]
    about_workers: Callable[[], WorkersNow | None]  # what its supervisor says


class GatewayPages:
    """Answers what is asked of the gateway itself."""

    def __init__(self, sources: PageSources, siblings: Siblings | None) -> None:
        """`siblings`: the other workers of this gateway, where it is one."""
        self._from = sources
        self._siblings = siblings
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
        self._tells: dict[str, Callable[[Any], Any]] = {
            METRICS_PATH: lambda _: self.tell_metrics(),
            STATUS_PATH: lambda _: self.status(),
            FATE_PATH: self._tell_fate,
            TENANTS_PATH: self._tell_tenants,
            DECISIONS_PATH: lambda _: self._tell_decisions(),
            SHADOW_PATH: lambda _: self._tell_shadows(),
            PREFIX_REPORT_PATH: lambda _: self._tell_templates(),
            EXPLAIN_PATH: lambda body: self._tell_explanation(b64decode(body)),
        }

    async def answer(self, exchange: Exchange) -> WholeAnswer:
        """The answer to a path not under /v1/. A key of the table that ends with a slash is followed by a name."""
        if exchange.method in ("GET", "HEAD"):
            path = exchange.path
            route = self._routes.get(path) or self._routes.get(path.rpartition("/")[0] + "/")
            if route is not None:
                return await route(exchange)
        return answers.not_found(exchange.path).whole()

    def tell(self, path: str, argument: Any) -> Any:
        """What this worker has to say to a page that another one answers. That may be of another generation, and so of
        other code: a path that is not known here has no answer."""
        return self._tells[path](argument) if path in self._tells else None

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
        status["overflow"] = await self._from.overflow.describe() if self._from.overflow is not None else []
        workers = await asyncio.to_thread(self._from.about_workers)
        return json_answer(200, status if workers is None else {**status, "workers": workers._asdict()})

    def status(self) -> dict[str, object]:
        """What `/gateway/status` says. Nodes that left the table but still hold requests are `removed`.

        `phase` is what the controller saw of a node, `out` why it gets nothing from us: node_silent, core_stuck, or
        `ejected: ` and why; `trial`: it gets few. `failing_open`: models of which the controller sees no node well.
        """
        table, inflight, out = self._from.routing.table, self._from.loads.inflight_requests(), self._why_out()
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
            "table_age_s": self._from.routing.age_s(),
            "controller": "reachable" if self._from.routing.controller_is_reachable else "unreachable",
            "in_flight": self._from.fates.in_flight,
            "outcomes": {outcome.value: count for outcome, count in self._from.fates.counts.items()},
            "failing_open": sorted(model for model, is_open in self._from.failing_open().items() if is_open),
            "retries_left": int(self._from.proxy.retries_left()),
            "nodes": nodes,
        }

    def _why_out(self) -> dict[str, str]:
        now = time.monotonic()
        return {
            **dict.fromkeys(self._from.ejections.on_trial(now), "trial"),
            **{node: f"ejected: {why.value}" for node, why in self._from.ejections.ejected(now).items()},
            **{node: why.value for node, why in self._from.watch.silent_nodes().items()},
        }

    async def _health(self, _: Exchange) -> WholeAnswer:
        if self._from.is_draining():
            return json_answer(503, {"ready": False, "reason": "draining"})
        if self._from.routing.table is None:
            return json_answer(503, {"ready": False, "reason": "no routing table yet"})
        return json_answer(200, {"ready": True, "reason": "ready"})

    async def _metrics(self, _: Exchange) -> WholeAnswer:
        if self._siblings is None:
            self._set_gauges()
            text = generate_latest(self._from.metrics.registry)
        else:
            text = await self._joined_metrics(self._siblings)
        return WholeAnswer(200, text, [(b"content-type", CONTENT_TYPE)])

    async def _joined_metrics(self, siblings: Siblings) -> bytes:
        others = await siblings.ask_all(METRICS_PATH)
        live = {siblings.number: self.tell_metrics(), **others}
        workers = await asyncio.to_thread(self._from.about_workers)
        more = worker_families(workers) if workers is not None else []
        return await asyncio.to_thread(joined_exposition, siblings.folder, live, more)

    def tell_metrics(self) -> Families:
        """What this worker counted; kept where the others find it when it is dead."""
        self._set_gauges()
        families = families_of(self._from.metrics.registry)
        if self._siblings is not None:
            try:
                keep_families(self._siblings.folder, self._siblings.number, families)
            except OSError as error:  # a full disk: what is told now may be forgotten when this worker dies
                log.error("metrics.not_kept", error=str(error))
                self._from.metrics.store_failures.labels(COUNTERS).inc()
        return families

    def _set_gauges(self) -> None:
        """Gauges are what is true now: they are set when somebody asks, not kept up on the way of each request."""
        table = self._from.routing.table
        idle = {e.node: 0 for e in (table.endpoints if table else ())}
        now = time.monotonic()
        self._from.health_metrics.set_gauges(
            ejected=self._from.ejections.ejected(now),
            on_trial=self._from.ejections.on_trial(now),
            fail_open=self._from.failing_open(),
        )
        self._from.metrics.set_gauges(
            inflight=idle | self._from.loads.inflight_requests(),
            silent=self._from.watch.silent_nodes(),
            oldest_waits_s=self._from.watch.oldest_waits_s(),
            table_version=table.version if table else None,
            table_age_s=self._from.routing.age_s(),
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
        found = self._from.fates.get(request_id)
        return found.as_json() if found is not None else {}

    async def _prefix_report(self, _: Exchange) -> WholeAnswer:
        if self._from.prompts is None:
            message = "prompts are not looked at: gateway.prompts.prefix_lint.max_per_s is 0"
            return answers.bad_request(message, status=404, code="not_found").whole()
        parts = [self._tell_templates(), *await self._ask_siblings(PREFIX_REPORT_PATH)]
        return json_answer(200, {"templates": joined_report(parts)})

    def _tell_templates(self) -> list[Json]:
        return self._from.prompts.lint.told() if self._from.prompts is not None else []

    async def _tenants(self, exchange: Exchange) -> WholeAnswer:
        """Everything for who asks from this machine, its own row for a key; names of tenants are no stranger's."""
        given = exchange.header(b"authorization")
        is_local = exchange.address in LOOPBACK and exchange.header(b"x-forwarded-for") is None
        is_controller = given is not None and hmac.compare_digest(given, f"Bearer {self._from.node_token}".encode())
        argument = [None if given is None else given.decode("latin-1"), is_local or is_controller]
        shown = self._tell_tenants(argument)
        if not shown:
            return answers.bad_request(
                "send an API key, or ask on this machine", status=401, code="invalid_api_key"
            ).whole()
        return json_answer(200, joined_tenants([shown, *await self._ask_siblings(TENANTS_PATH, argument)]))

    def _tell_tenants(self, argument: Sequence[Any]) -> Json:
        given, may_see_all = argument
        key = None if given is None else given.encode("latin-1")
        return self._from.admission.as_json(key, may_see_all=may_see_all) or {}

    async def _decisions(self, _: Exchange) -> WholeAnswer:
        return json_answer(200, joined_decisions([self._tell_decisions(), *await self._ask_siblings(DECISIONS_PATH)]))

    def _tell_decisions(self) -> Json:
        return self._from.placer.chooser.decisions.as_json()

    async def _shadow(self, _: Exchange) -> WholeAnswer:
        return json_answer(200, joined_shadows([self._tell_shadows(), *await self._ask_siblings(SHADOW_PATH)]))

    def _tell_shadows(self) -> list[Json]:
        return self._from.shadows.reports.told(time.time())

    async def explain(self, exchange: Exchange) -> None:
        """Each worker knows which prompts it sent where: all are asked."""
        body = await self._from.proxy.read_question(exchange)
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
        return self._from.proxy.explain(body)


def _fate_after_end(folder: Path, request_id: str) -> Json | None:
    """What is known of a request whose worker has ended; little more than that, if it was killed with it in hand."""
    lost = find_lost(folder, request_id)
    if lost is None:
        return find_kept_fate(folder, request_id)
    proxied = ProxiedRequest(request_id, lost.started_at, 0.0)
    return {**proxied.as_json(), "fate": Outcome.FAILED.value, "reason": WORKER_DIED}
