"""Find a node that takes a request: pick, try, and go on to the next one while nothing has been sent to the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import structlog

from fleetctl.gateway.fates import ProxiedRequest
from fleetctl.gateway.loads import REFUSED_S, SUSPECT_S, Loads
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.pick import pick_node
from fleetctl.gateway.routing_facts import RoutingFacts
from fleetctl.gateway.table import Endpoint, Routing

log = structlog.get_logger()

MAX_TRIES = 8  # nodes asked for one new request; a hand-off asks every node, because losing it is worse than waiting
MAX_RESENDS = 2  # after a node died with the request in hand: it may be the request that kills nodes
MAX_RETRY_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Job:
    """What is sent to a node: a client's request, or the continuation of one that another node handed off."""

    method: str
    path: str
    body: bytes | None
    headers: list[tuple[str, str]]
    facts: RoutingFacts
    excluded: frozenset[str] = frozenset()
    is_continuation: bool = False


@dataclass(slots=True)
class NotPlaced:
    """No node took it. `reasons` holds each node's last word."""

    reasons: dict[str, str] = field(default_factory=dict)
    retry_after_s: int = 1
    is_overload: bool = False  # at least one node is well and only has too much to do


class Placed:
    """A node that took the request, and its open answer. `close()` is owed exactly once."""

    __slots__ = ("_release", "endpoint", "job", "response")

    def __init__(
        self, job: Job, endpoint: Endpoint, response: aiohttp.ClientResponse, release: Callable[[], None]
    ) -> None:
        self.job = job
        self.endpoint = endpoint
        self.response = response
        self._release = release

    def close(self) -> None:
        """Give the connection back if its answer was read to the end, else close it: that tells the node to stop."""
        self.response.release()  # aiohttp closes a connection whose answer is not at its end
        self._release()


class Placer:
    """Tries nodes for jobs, and keeps loads, suspicions and retry counts true while it does."""

    def __init__(self, session: aiohttp.ClientSession, routing: Routing, loads: Loads, metrics: GatewayMetrics) -> None:
        self._session = session
        self._routing = routing
        self._loads = loads
        self._metrics = metrics

    async def place(self, job: Job, proxied: ProxiedRequest) -> Placed | NotPlaced:
        """The first node that takes the job. Every 429, 502, 503, refused connection or early death tries another."""
        not_placed = NotPlaced()
        tried = set(job.excluded)
        resends = 0
        while job.is_continuation or len(not_placed.reasons) < MAX_TRIES:
            endpoint = self._choose(job.facts, tried)
            if endpoint is None:
                break
            tried.add(endpoint.node)
            tried_again = endpoint.node in not_placed.reasons
            placed = await self._try_node(job, endpoint, not_placed, proxied.request_id)
            if placed is not None:
                proxied.nodes.append(endpoint.node)
                return placed
            proxied.retries += 1
            if not_placed.reasons[endpoint.node] == "disconnected":
                resends += 1
                if resends > MAX_RESENDS:
                    break
                if not tried_again:
                    # Perhaps only an idle connection that the node closed as we wrote: it may be asked once more,
                    # after the others, because it is now suspect.
                    tried.discard(endpoint.node)
        return not_placed

    def _choose(self, facts: RoutingFacts, excluded: set[str]) -> Endpoint | None:
        table = self._routing.table
        if table is None:
            return None
        endpoints = table.candidates(facts.model)
        node = pick_node(self._loads.candidates(endpoints), prefix=facts.prefix, tokens=facts.tokens, excluded=excluded)
        return next((e for e in endpoints if e.node == node), None)

    async def _try_node(self, job: Job, endpoint: Endpoint, not_placed: NotPlaced, request_id: str) -> Placed | None:
        node, tokens = endpoint.node, job.facts.tokens
        self._loads.begin_request(node, tokens)

        def release() -> None:
            self._loads.end_request(node, tokens)

        placed: Placed | None = None
        try:
            response = await self._session.request(
                job.method, endpoint.url(job.path), data=job.body, headers=job.headers, allow_redirects=False
            )
            placed = self._judge(Placed(job, endpoint, response, release), not_placed)
            return placed
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = "connect" if _is_before_sending(error) else "disconnected"
            self._loads.suspect(node, SUSPECT_S)
            self._note(not_placed, node, reason)
            log.warning("node.unreached", request_id=request_id, node=node, reason=reason, error=type(error).__name__)
            return None
        finally:
            if placed is None:
                release()

    def _judge(self, placed: Placed, not_placed: NotPlaced) -> Placed | None:
        response, node = placed.response, placed.endpoint.node
        status = response.status
        if status < 400 or (status not in (429, 502, 503) and not placed.job.is_continuation):
            self._loads.trust(node)
            return placed
        reason = _refusal(status, response.headers.get("X-Fleet-Refused"))
        self._loads.suspect(node, REFUSED_S)
        self._note(not_placed, node, reason)
        if status == 429:
            after = _retry_after_s(response.headers.get("Retry-After"))
            not_placed.retry_after_s = min(not_placed.retry_after_s, after) if not_placed.is_overload else after
            not_placed.is_overload = True
        response.release()
        return None

    def _note(self, not_placed: NotPlaced, node: str, reason: str) -> None:
        not_placed.reasons[node] = reason
        self._metrics.retries.labels(reason).inc()


def _refusal(status: int, said: str | None) -> str:
    """One of a closed set of words, whatever the node said: it becomes a metric label."""
    if said in ("draining", "not_ready", "overloaded"):
        return said
    return "overloaded" if status == 429 else f"status_{status}" if status in (502, 503) else "not_continued"


def _is_before_sending(error: BaseException) -> bool:
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL)


def _retry_after_s(value: str | None) -> int:
    if value is None or not value.isdigit():
        return 1
    return max(1, min(int(value[:6]), MAX_RETRY_AFTER_S))
