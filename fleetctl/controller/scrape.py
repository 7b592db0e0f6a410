"""Fetching the metrics of nodes and gateway into the series store. Who does not answer is a fact too: `up` is 0."""

from __future__ import annotations

import asyncio

import httpx
import structlog

from alerts.store import SeriesStore
from fleetctl.controller.fleet import Fleet, NodeState
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.node_client import NoAnswerError, describe, read_limited
from fleetctl.kit.clock import Clock
from fleetctl.wire import NodePhase

log = structlog.get_logger()

HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip, identity"}
JOB = "llm-node"
GATEWAY_JOB = "llm-gateway"
_GATEWAY = "(gateway)"  # no node can have this name
MIN_TIMEOUT_S = 2.0
START_GRACE_S = 600.0  # a node that is still starting after this long is scraped, so that rules see it is not up


class Scraper:
    """Scrapes nodes side by side: one that hangs delays nobody else's next scrape."""

    def __init__(
        self,
        fleet: Fleet,
        store: SeriesStore,
        http: httpx.AsyncClient,
        clock: Clock,
        metrics: ControllerMetrics,
        *,
        interval_s: float,
        max_bytes: int,
        gateway_url: str | None = None,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self._http = http
        self._clock = clock
        self._metrics = metrics
        self._interval_s = interval_s
        self._timeout_s = max(MIN_TIMEOUT_S, interval_s)
        self._max_bytes = max_bytes
        self._gateway_url = gateway_url
        self._targets: dict[str, dict[str, str]] = {}
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._errors: dict[str, str] = {}
        self.last_success_at: dict[str, float] = {}

    async def turn(self) -> None:
        now = self._clock.now()
        states = [state for state in self._fleet.nodes.values() if is_target(state, now)]
        wanted = {state.name: (state.url or state.row.url, target_labels(state)) for state in states}
        if self._gateway_url is not None:
            gateway = {"job": GATEWAY_JOB, "instance": _address(self._gateway_url)}
            wanted[_GATEWAY] = self._gateway_url, gateway
        for name in self._targets.keys() - wanted.keys():
            self.forget(name)
        for name, (url, target) in wanted.items():
            if name in self._in_flight:
                continue
            standing = self._targets.get(name)
            if standing is not None and standing != target:
                self.forget(name)
            self._targets[name] = target
            task = asyncio.create_task(self._scrape(name, url, target), name=f"scrape-{name}")
            self._in_flight[name] = task
            task.add_done_callback(lambda _, done=name: self._in_flight.pop(done, None))  # type: ignore[misc]
        if self._in_flight:
            done, _ = await asyncio.wait(list(self._in_flight.values()), timeout=self._interval_s)
            for task in done:
                task.result()  # a bug in ingestion is this loop's failure, not silence

    @property
    def in_flight(self) -> int:
        """Scrapes that were begun and have no answer yet."""
        return len(self._in_flight)

    def forget(self, name: str) -> None:
        """The node is gone by our will: its series end now, and its alerts with them."""
        target = self._targets.pop(name, None)
        self.last_success_at.pop(name, None)
        self._errors.pop(name, None)
        if target is not None:
            self._store.forget(target)

    async def stop(self) -> None:
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _scrape(self, name: str, url: str | None, target: dict[str, str]) -> None:
        text, problem = None, "its address is not known"
        if url is not None:
            text, problem = await self._fetch(f"{url}/metrics")
        if self._targets.get(name) is not target:
            return  # forgotten meanwhile: what it said must not bring its series back
        at = self._clock.now()
        if text is not None:
            self._store.ingest(target, text, at)
            problem = self._store.last_error(target) or ""
        else:
            self._store.ingest(target, None, at)
        if problem:
            if self._errors.get(name) != problem:
                log.warning("scrape.failed", node=name, error=problem)
                self._errors[name] = problem
            self._metrics.scrapes.labels(result="failed").inc()
            return
        self._errors.pop(name, None)
        self.last_success_at[name] = at
        self._metrics.scrapes.labels(result="ok").inc()

    async def _fetch(self, url: str) -> tuple[str | None, str]:
        """The exposition's text, or None and why not."""
        try:
            # httpx limits each read, not the whole: a peer that drips bytes must not hold the scrape for ever.
            async with asyncio.timeout(self._timeout_s):
                async with self._http.stream("GET", url, headers=HEADERS, timeout=self._timeout_s) as response:
                    if response.status_code != 200:
                        return None, f"answered {response.status_code}"
                    return (await read_limited(response, self._max_bytes)).decode("utf-8"), ""
        except UnicodeDecodeError:
            return None, "not in Prometheus' text format: not UTF-8"
        except TimeoutError:
            return None, f"no whole answer within {self._timeout_s:g} s"
        except (httpx.HTTPError, NoAnswerError) as error:
            return None, describe(error)


def is_target(state: NodeState, now: float) -> bool:
    """Whether the node's silence would mean something: it is wanted, and not on its way up by our will."""
    row = state.row
    if not row.wanted or row.is_restarting or (state.url is None and row.url is None):
        return False
    starting = state.phase is NodePhase.STARTING
    return not starting or (state.since is not None and now - state.since > START_GRACE_S)


def target_labels(state: NodeState) -> dict[str, str]:
    spec = state.row.spec
    address = _address(state.url or state.row.url or "")
    return {
        "node": spec.name, "pool": spec.pool, "model": spec.model, "engine": spec.engine, "zone": spec.zone,
        "revision": spec.revision, "instance": address, "job": JOB,
    }  # fmt: skip


def _address(url: str) -> str:
    return url.partition("://")[2]
