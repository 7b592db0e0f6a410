"""Find a node that takes a request: pick, try, and go on to the next one while nothing has been sent to the client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from fleetctl.gateway.http.node_client import NodeAnswer, NodeClient, NodeClientError, NodeConnectError
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.loads import REFUSED_S, SUSPECT_S, Loads
from fleetctl.gateway.nodes.node_watch import NodeWatch, Wait, WaitEnd
from fleetctl.gateway.nodes.table import Endpoint, Routing
from fleetctl.gateway.requests.fates import Death, ProxiedRequest
from fleetctl.gateway.routing.pick import pick_node
from fleetctl.gateway.routing.routing_facts import RoutingFacts

log = structlog.get_logger()

MAX_TRIES = 8  # nodes asked for one new request; a hand-off asks every node, because losing it is worse than waiting
MAX_RETRY_AFTER_S = 60
DEADLINE_HEADER = "X-Fleet-Deadline-S"
CORE_DEAD = "core_dead"
# What a node says that had the request in hand: it may be what ends its holders, so few nodes get it again.
ENDED_WITH_IT = frozenset({CORE_DEAD, "out_of_memory"})


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
    deadline_at: float | None = None  # monotonic seconds: the client wants no answer after it


@dataclass(slots=True)
class NotPlaced:
    """No node took it. `reasons` holds each node's last word."""

    reasons: dict[str, str] = field(default_factory=dict)
    retry_after_s: int = 1
    is_overload: bool = False  # at least one node is well and only has too much to do
    given_up: WaitEnd | None = None  # a limit on the wait has passed: no other node is asked


class Placed:
    """A node that took the request, and its open answer. `close()` is owed exactly once."""

    __slots__ = ("_release", "answer", "endpoint", "job", "wait")

    def __init__(
        self, job: Job, endpoint: Endpoint, answer: NodeAnswer, wait: Wait, release: Callable[[], None]
    ) -> None:
        self.job = job
        self.endpoint = endpoint
        self.answer = answer
        self.wait = wait
        self._release = release

    def close(self) -> None:
        """Give the connection back if its answer was read to the end, else close it: that tells the node to stop."""
        self.answer.release()
        self._release()


class Placer:
    """Tries nodes for jobs, and keeps loads, suspicions and retry counts true while it does."""

    def __init__(
        self,
        client: NodeClient,
        routing: Routing,
        loads: Loads,
        metrics: GatewayMetrics,
        watch: NodeWatch,
        *,
        max_resends: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_resends`: other nodes that get a request after one died or fell silent with it in hand."""
        self._client = client
        self._routing = routing
        self._loads = loads
        self._metrics = metrics
        self._watch = watch
        self._max_resends = max_resends
        self._clock = clock

    def may_resend(self, proxied: ProxiedRequest) -> bool:
        """Whether one more node may get a request that nodes died with: it may be what ends them."""
        return len(proxied.deaths) <= self._max_resends

    async def place(self, job: Job, proxied: ProxiedRequest) -> Placed | NotPlaced:
        """The first node that takes the job. A refusal, refused connection, death or silence tries another."""
        not_placed = NotPlaced()
        tried = set(job.excluded)
        while self.may_resend(proxied) and (job.is_continuation or len(not_placed.reasons) < MAX_TRIES):
            endpoint = self._choose(job.facts, tried, not_placed)
            if endpoint is None:
                break
            if job.deadline_at is not None and job.deadline_at <= self._clock():
                not_placed.given_up = WaitEnd.DEADLINE
                break
            tried.add(endpoint.node)
            tried_again = endpoint.node in not_placed.reasons
            placed = await self._try_node(job, endpoint, not_placed, proxied)
            if placed is not None:
                proxied.nodes.append(endpoint.node)
                return placed
            if not_placed.given_up is not None:
                break
            proxied.retries += 1
            if not_placed.reasons[endpoint.node] == "disconnected" and not tried_again:
                # Perhaps only an idle connection that the node closed as we wrote: it may be asked once more, after
                # the others, because it is now suspect.
                tried.discard(endpoint.node)
        return not_placed

    def _choose(self, facts: RoutingFacts, excluded: set[str], not_placed: NotPlaced) -> Endpoint | None:
        table = self._routing.table
        if table is None:
            return None
        endpoints = table.candidates(facts.model)
        why_out = {e.node: why for e in endpoints if (why := self._watch.why_out(e)) is not None}
        if why_out:
            endpoints = tuple(e for e in endpoints if e.node not in why_out)
        node = pick_node(self._loads.candidates(endpoints), prefix=facts.prefix, tokens=facts.tokens, excluded=excluded)
        if node is None:
            for one, why in why_out.items():
                not_placed.reasons.setdefault(one, why.value)
        return next((e for e in endpoints if e.node == node), None)

    async def _try_node(
        self, job: Job, endpoint: Endpoint, not_placed: NotPlaced, proxied: ProxiedRequest
    ) -> Placed | None:
        node, tokens = endpoint.node, job.facts.tokens
        self._loads.begin_request(node, tokens)
        wait = proxied.wait = self._watch.begin(endpoint, job.deadline_at)

        def release() -> None:
            self._loads.end_request(node, tokens)
            self._watch.finish(wait)

        placed: Placed | None = None
        try:
            async with wait:
                answer = await self._client.request(
                    job.method, endpoint.base, job.path, headers=self._headers(job), body=job.body
                )
            wait.note_heard(self._clock())
            placed = self._judge(Placed(job, endpoint, answer, wait, release), not_placed)
            if placed is None:
                if (reason := not_placed.reasons[node]) in ENDED_WITH_IT:
                    proxied.deaths.append(Death(node, reason))
                else:
                    proxied.wait = None  # it never had the request
            return placed
        except (NodeClientError, TimeoutError) as error:
            if wait.end is not None and not wait.end.is_nodes_failure:
                not_placed.given_up = wait.end
                log.warning("request.given_up", request_id=proxied.request_id, node=node, reason=wait.end.value)
                return None
            reason = (
                wait.end.value if wait.end else "connect" if isinstance(error, NodeConnectError) else "disconnected"
            )
            if reason == "connect":
                proxied.wait = None
            else:
                proxied.deaths.append(Death(node, reason))
            self._loads.suspect(node, SUSPECT_S)
            self._note(not_placed, node, reason)
            log.warning(
                "node.unreached", request_id=proxied.request_id, node=node, reason=reason, error=type(error).__name__
            )
            return None
        finally:
            if placed is None:
                release()

    def _headers(self, job: Job) -> list[tuple[str, str]]:
        if job.deadline_at is None:
            return job.headers
        left_s = max(0.001, job.deadline_at - self._clock())
        return [*job.headers, (DEADLINE_HEADER, f"{left_s:.3f}")]

    def _judge(self, placed: Placed, not_placed: NotPlaced) -> Placed | None:
        answer, node = placed.answer, placed.endpoint.node
        status = answer.status
        if status < 400 or (status not in (429, 502, 503) and not placed.job.is_continuation):
            self._loads.trust(node)
            return placed
        reason = _refusal(status, answer.header("X-Fleet-Refused"))
        self._loads.suspect(node, REFUSED_S)
        self._note(not_placed, node, reason)
        if status == 429:
            after = _retry_after_s(answer.header("Retry-After"))
            not_placed.retry_after_s = min(not_placed.retry_after_s, after) if not_placed.is_overload else after
            not_placed.is_overload = True
        answer.release()
        return None

    def _note(self, not_placed: NotPlaced, node: str, reason: str) -> None:
        not_placed.reasons[node] = reason
        self._metrics.retries.labels(reason).inc()


def _refusal(status: int, said: str | None) -> str:
    """One of a closed set of words, whatever the node said: it becomes a metric label."""
    if said in ENDED_WITH_IT or said in ("draining", "not_ready", "overloaded", "node_stopping"):
        return said
    return "overloaded" if status == 429 else f"status_{status}" if status in (502, 503) else "not_continued"


def _retry_after_s(value: str | None) -> int:
    if value is None or not value.isdigit():
        return 1
    return max(1, min(int(value[:6]), MAX_RETRY_AFTER_S))
