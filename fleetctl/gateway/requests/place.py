"""Find a node that takes a request: pick, try, and go on to the next one while nothing has been sent to the client.

Longer than others by its reasons for another try, which are told apart here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from fleetctl.gateway.http.answers import read_retry_after_s
from fleetctl.gateway.http.node_client import HungUpError, NodeAnswer, NodeClient, NodeClientError, NodeConnectError
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.ejection import Ejection, Ejections
from fleetctl.gateway.nodes.fitness import Fitness
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.held_requests import late_after_s
from fleetctl.gateway.nodes.loads import REFUSED_S, SUSPECT_S, Loads, RequestLoad
from fleetctl.gateway.nodes.node_keys import NO_NODE_KEYS, NodeKeys
from fleetctl.gateway.nodes.node_watch import NodeWatch, Wait, WaitEnd
from fleetctl.gateway.nodes.retry_budget import RetryBudget
from fleetctl.gateway.nodes.table import Endpoint, Routing
from fleetctl.gateway.requests.chooser import Choice, Chooser
from fleetctl.gateway.requests.engine_errors import Refusal, read_refusal
from fleetctl.gateway.requests.fates import Death, ProxiedRequest
from fleetctl.gateway.requests.model_names import OWN_ENGINE
from fleetctl.gateway.requests.poison import body_key, is_poison
from fleetctl.gateway.routing.routing_facts import GENERATION_PATHS, WORK_PATHS, RoutingFacts
from fleetctl.settings.gateway import GatewaySettings

log = structlog.get_logger()

ENDED_KEPT_S = 60.0  # who asks which nodes ended besides looks back a few seconds
MAX_TRIES = 8  # nodes asked for one new request; a hand-off asks every node, because losing it is worse than waiting
DEADLINE_HEADER = "X-Fleet-Deadline-S"
REVISION_HEADER = b"x-fleet-revision"
CORE_DEAD = "core_dead"
# What a node says that had the request in hand: it may be what ends its holders, so few nodes get it again.
ENDED_WITH_IT = frozenset({CORE_DEAD, "out_of_memory"})
# Retries that live in the budget: the next node may have as little room. Refused connections, nodes that leave and
# nodes that died do not: the first two cost nothing, and of the last each request has `max_resends`.
BUDGETED = frozenset({"overloaded", "status_500", "status_502", "status_503", "bad_answer"})
MAX_BUDGETED = 2  # for one request
OWN_ERRORS = frozenset({500, 502, 503})  # of a node that did not say why: it counts as failing


class Job(NamedTuple):
    """What is sent to a node: a client's request, or the continuation of one that another node handed off."""

    method: str
    target: str  # path and query as the client encoded them
    body: bytes | None
    headers: list[tuple[bytes, bytes]]
    facts: RoutingFacts
    excluded: frozenset[str] = frozenset()
    is_continuation: bool = False
    deadline_at: float | None = None  # monotonic seconds: the client wants no answer after it

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def is_generation(self) -> bool:
        """Whether a client asks for a completion by it."""
        return self.method == "POST" and self.path in GENERATION_PATHS

    @property
    def is_work(self) -> bool:
        """Whether a model is asked: for a completion, a response, vectors or scores."""
        return self.method == "POST" and self.path in WORK_PATHS


@dataclass(slots=True)
class NotPlaced:
    """No node took it. `reasons` holds each node's last word."""

    reasons: dict[str, str] = field(default_factory=dict)
    retry_after_s: int = 1
    is_overload: bool = False  # at least one node is well and only has too much to do
    given_up: WaitEnd | None = None  # a limit on the wait has passed: no other node is asked
    budgeted: int = 0  # retries that were taken out of the budget


class Placed:
    """A node that took the request, and its open answer. `close()` is owed exactly once."""

    __slots__ = ("_release", "answer", "endpoint", "job", "load", "wait")

    def __init__(
        self,
        job: Job,
        endpoint: Endpoint,
        answer: NodeAnswer,
        wait: Wait,
        load: RequestLoad,
        release: Callable[[], None],
    ) -> None:
        self.job = job
        self.endpoint = endpoint
        self.answer = answer
        self.wait = wait
        self.load = load
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
        ejections: Ejections,
        health: HealthMetrics,
        limits: GatewaySettings,
        *,
        keys: NodeKeys = NO_NODE_KEYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keys = keys
        self._routing = routing
        self._loads = loads
        self._metrics = metrics
        self._watch = watch
        self._ejections = ejections
        self._health = health
        self._max_resends = limits.max_resends
        self._lost_request_after_s = limits.lost_request_after_s
        self._clock = clock
        self._fitness = Fitness(watch, ejections, loads, fail_open=limits.fail_open, clock=clock)
        self._ended_at: dict[str, float] = {}  # when each node last ended or fell silent, by what requests found
        self._refusing: set[str] = set()  # nodes that refuse connections since then
        self.chooser = Chooser(loads, metrics.registry, sift=self._fitness.sift, settings=limits.routing)
        self.budget = RetryBudget(share=limits.retries.budget_ratio, floor=limits.retries.floor)

    def may_resend(self, proxied: ProxiedRequest) -> bool:
        """Whether one more node may get a request that nodes died with: it may be what ends them."""
        return not is_poison(proxied.deaths, self._max_resends)

    def other_revisions(self, endpoint: Endpoint) -> frozenset[str]:
        """Nodes whose weights are known to be others than this one's."""
        table = self._routing.table
        if table is None or not endpoint.revision:
            return frozenset()
        return frozenset(e.node for e in table.active if e.revision and e.revision != endpoint.revision)

    def other_kinds(self, endpoint: Endpoint) -> frozenset[str]:
        """Nodes of another engine or model than this one: they can't go on with text of its."""
        table = self._routing.table
        if table is None:
            return frozenset()
        same = (endpoint.engine, endpoint.model)
        return frozenset(e.node for e in table.active if (e.engine, e.model) != same)

    def foreign_nodes(self) -> frozenset[str]:
        """Nodes of engines that are not ours: a continuation, and the token that opens it, is not for them."""
        table = self._routing.table
        return frozenset(e.node for e in table.active if e.engine not in ("", OWN_ENGINE)) if table else frozenset()

    def note_death(self, proxied: ProxiedRequest, job: Job, node: str, reason: str) -> None:
        """A node ended, or fell silent, with the request in hand."""
        wait = proxied.wait
        held_s = 0.0 if wait is None else self._clock() - wait.began
        unheard_s = 0.0 if wait is None else max(0.0, wait.began - wait.state.heard_at)
        proxied.deaths.append(Death(node, reason, proxied.meter.num_events, held_s, unheard_s))
        self._note_ended(node)
        if proxied.body_key is None and not job.is_continuation and job.body is not None:
            proxied.body_key = body_key(job.path, job.body)
        self._note_failed(proxied, node, Ejection.RESET)

    def ended_besides(self, nodes: Sequence[str], since: float) -> bool:
        """Whether others than these nodes ended since then: with requests in hand, or found gone by the next one."""
        return any(at >= since for node, at in self._ended_at.items() if node not in nodes)

    def _note_ended(self, node: str) -> None:
        """Nodes come and go by new names for months: what nobody asks about any more goes with the next one."""
        now = self._clock()
        self._ended_at = {name: at for name, at in self._ended_at.items() if now - at < ENDED_KEPT_S}
        self._ended_at[node] = now
        if self._routing.table is not None:
            self._refusing &= {endpoint.node for endpoint in self._routing.table.active}

    async def place(self, job: Job, proxied: ProxiedRequest) -> Placed | NotPlaced:
        """The first node that takes the job. A refusal, refused connection, death or silence tries another."""
        not_placed = NotPlaced()
        tried = set(job.excluded)
        if not job.is_continuation:  # which goes on behind the place where they died
            tried.update(death.node for death in proxied.deaths)
        last_reason: str | None = None
        while self.may_resend(proxied) and (job.is_continuation or len(not_placed.reasons) < MAX_TRIES):
            choice = self._choose(job.facts, tried, not_placed, proxied.request_id)
            endpoint = choice.endpoint
            if endpoint is None:
                break
            if job.deadline_at is not None and job.deadline_at <= self._clock():
                not_placed.given_up = WaitEnd.DEADLINE
                break
            if last_reason in BUDGETED and not self._may_retry(job, endpoint, not_placed):
                break
            tried.add(endpoint.node)
            self.chooser.note_sent(choice, job.facts, proxied.request_id)
            load = self._loads.begin(
                endpoint.node,
                max(0, job.facts.input_tokens - choice.pick.cached_tokens),
                job.facts.output_estimate,
                is_long=choice.is_long,
            )
            placed = await self._try_node(job, endpoint, load, not_placed, proxied)
            if placed is not None:
                proxied.nodes.append(endpoint.node)
                if endpoint.revision:
                    proxied.set_header(REVISION_HEADER, endpoint.revision)
                return placed
            if not_placed.given_up is not None:
                break
            proxied.retries += 1
            last_reason = not_placed.reasons[endpoint.node]
        return not_placed

    def _may_retry(self, job: Job, endpoint: Endpoint, not_placed: NotPlaced) -> bool:
        """Whether one more node may be asked after one had no room, or failed: only where that is likely to help."""
        if job.is_continuation:
            return True  # its client waits in the middle of a stream
        if not_placed.budgeted >= MAX_BUDGETED or self._loads.is_suspect(endpoint.node):
            return False
        if not self.budget.withdraw(self._clock()):
            self._health.retries_refused.inc()
            return False
        not_placed.budgeted += 1
        return True

    def _has_other(self, job: Job, node: str, not_placed: NotPlaced) -> bool:
        """Whether a node that is well could be asked after this one."""
        table = self._routing.table
        return table is not None and any(
            e.node != node
            and e.node not in job.excluded
            and e.node not in not_placed.reasons
            and not self._loads.is_suspect(e.node)
            for e in self._fitness.sift(table.candidates(job.facts.model)).fit
        )

    def _choose(self, facts: RoutingFacts, excluded: set[str], not_placed: NotPlaced, request_id: str) -> Choice:
        choice = self.chooser.choose(self._routing.table, facts, excluded, key=request_id)
        if choice.endpoint is None:
            for one, why in choice.left_out.items():
                not_placed.reasons.setdefault(one, why)
            not_placed.is_overload = not_placed.is_overload or choice.is_capped
        return choice

    async def _try_node(
        self, job: Job, endpoint: Endpoint, load: RequestLoad, not_placed: NotPlaced, proxied: ProxiedRequest
    ) -> Placed | None:
        node = endpoint.node
        wait = proxied.wait = self._watch.begin(
            endpoint,
            job.deadline_at,
            request_id=proxied.request_id,
            late_after_s=self._late_after_s(job, endpoint),
        )

        def release() -> None:
            load.end()
            self._watch.finish(wait)

        placed: Placed | None = None
        try:
            with wait:
                answer = await self._client.request(
                    job.method, endpoint.base, job.target, headers=self._headers(job, endpoint), body=job.body
                )
                try:
                    refusal = await _read_refusal(job, endpoint, answer)
                except BaseException:
                    answer.release()
                    raise
            wait.note_heard(self._clock())
            placed = self._judge(Placed(job, endpoint, answer, wait, load, release), refusal, not_placed, proxied)
            if placed is None:
                if (reason := not_placed.reasons[node]) in ENDED_WITH_IT:
                    self.note_death(proxied, job, node, reason)
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
            # Ours keeps a connection for longer than we do: where one of its ends, what stood behind it has ended.
            is_well = isinstance(error, HungUpError) and endpoint.engine not in ("", OWN_ENGINE)
            if reason == "connect":
                proxied.wait = None
                if node not in self._refusing:
                    self._refusing.add(node)
                    self._note_ended(node)
            elif not is_well and (wait.end is None or not wait.end.is_of_a_node_that_is_well):
                self.note_death(proxied, job, node, reason)
            if not is_well:
                self._loads.suspect(node, SUSPECT_S)
            self._note(not_placed, node, reason)
            log.warning(
                "node.unreached", request_id=proxied.request_id, node=node, reason=reason, error=type(error).__name__
            )
            return None
        finally:
            if proxied.trace is not None:
                result = "answered" if placed is not None else not_placed.reasons.get(node, "given_up")
                proxied.trace.note_phase("gateway.node", wait.began, self._clock(), node=node, result=result)
            if placed is None:
                release()

    def _late_after_s(self, job: Job, endpoint: Endpoint) -> float | None:
        """When the node is asked for the request; None: its engine can't be asked, or nothing is predicted."""
        if endpoint.engine != OWN_ENGINE or not job.facts.tokens:
            return None
        waiting, rate = self._loads.of(endpoint.node).prefill_tokens, self._loads.prefill_rate()
        facts = job.facts
        return late_after_s(
            waiting, rate, facts.output_tokens, is_stream=facts.stream, least_s=self._lost_request_after_s
        )

    def _headers(self, job: Job, endpoint: Endpoint) -> list[tuple[bytes, bytes]]:
        headers = self._keys.headers(job.headers, endpoint)
        if job.deadline_at is None:
            return headers
        left_s = max(0.001, job.deadline_at - self._clock())
        return [*headers, (DEADLINE_HEADER.encode(), b"%.3f" % left_s)]

    def _judge(self, placed: Placed, refusal: Refusal, not_placed: NotPlaced, proxied: ProxiedRequest) -> Placed | None:
        """The answer as it is, or None: another node is asked."""
        answer, job, node = placed.answer, placed.job, placed.endpoint.node
        status, said = refusal
        now = self._clock()
        is_shapeless = _is_shapeless(job, answer)
        if status < 400 and not is_shapeless:
            self._loads.trust(node)
            self._refusing.discard(node)
            self._ejections.note_answered(node, now)
            self.budget.note_answered(now)
            return placed
        is_refused_key = bool(placed.endpoint.api_key) and status in (401, 403)  # ours: no client can mend that
        is_own_error = is_shapeless or is_refused_key or (status in OWN_ERRORS and said is None)
        if is_own_error:
            self._note_failed(proxied, node, Ejection.BAD_ANSWER if is_shapeless else Ejection.SERVER_ERROR)
        if not (job.is_continuation or is_refused_key) and not self._is_retried(
            placed, status, not_placed, proxied, is_shapeless=is_shapeless
        ):
            if not is_own_error:
                self._loads.trust(node)
            return placed
        reason = "bad_answer" if is_shapeless else _refusal(status, said, job.is_continuation)
        reason = "key_refused" if is_refused_key else reason
        self._loads.suspect(node, SUSPECT_S if is_own_error else REFUSED_S)
        self._note(not_placed, node, reason)
        if status == 429 or reason == "overloaded":
            after = read_retry_after_s(answer.header(b"retry-after"))
            not_placed.retry_after_s = min(not_placed.retry_after_s, after) if not_placed.is_overload else after
            not_placed.is_overload = True
        answer.release()
        return None

    def _is_retried(
        self, placed: Placed, status: int, not_placed: NotPlaced, proxied: ProxiedRequest, *, is_shapeless: bool
    ) -> bool:
        """Whether the answer is kept from the client and another node is asked."""
        node = placed.endpoint.node
        if status in (429, 502, 503):
            return True
        if status != 500 and not is_shapeless:
            return False
        # A node's own error is an answer, but one other node may do better; the second answer stands.
        may_retry = len(proxied.failed_at) < 2 and self.budget.left(self._clock()) >= 1
        return may_retry and self._has_other(placed.job, node, not_placed)

    def _note_failed(self, proxied: ProxiedRequest, node: str, why: Ejection) -> None:
        """Hold a failure against the node; when the request has failed at another one too, it is the request's."""
        now = self._clock()
        if not proxied.failed_at:
            self._ejections.note_failed(node, why, now)
        elif len(proxied.failed_at) == 1 and proxied.failed_at[0] != node:
            self._ejections.forgive(proxied.failed_at[0], now)
        proxied.failed_at.append(node)

    def _note(self, not_placed: NotPlaced, node: str, reason: str) -> None:
        not_placed.reasons[node] = reason
        self._metrics.retries.labels(reason).inc()


async def _read_refusal(job: Job, endpoint: Endpoint, answer: NodeAnswer) -> Refusal:
    """What the node refuses it with, if it does. A node of ours says so in its head."""
    if endpoint.engine in ("", OWN_ENGINE) or not (job.is_work or job.is_continuation):
        return Refusal(answer.status, answer.header(b"x-fleet-refused"))
    return await read_refusal(answer)


def _refusal(status: int, said: str | None, is_continuation: bool) -> str:
    """One of a closed set of words, whatever the node said: it becomes a metric label."""
    if said in ENDED_WITH_IT or said in ("draining", "not_ready", "overloaded", "node_stopping"):
        return said
    if status == 429:
        return "overloaded"
    if status in (502, 503) or (status == 500 and not is_continuation):
        return f"status_{status}"
    return "not_continued"


def _is_shapeless(job: Job, answer: NodeAnswer) -> bool:
    """Whether a node answers what asks its model with something that is no answer, e.g. a page of HTML."""
    if answer.status != 200 or answer.content_type in ("text/event-stream", "application/json"):
        return False
    return job.is_continuation or job.is_work
