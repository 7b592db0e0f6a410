"""One request from its first byte to its fate: place it, relay the answer, move it when its node hands it off.

Nothing is sent to the client until a node has sent something whole; until then another node may take over. After that
only a hand-off moves a stream. A stream that can't go on ends with an error event: never a silent cut, never a wait
without end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import structlog

from fleetctl.gateway.admission.admission import Admission
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.gateway.http.event_stream import EventStreamReader, EventTooLongError, error_code_of
from fleetctl.gateway.http.exchange import (
    BadDeadlineError,
    BodyTooLargeError,
    ClientGoneError,
    Exchange,
    new_request_id,
)
from fleetctl.gateway.http.node_client import NodeAnswer, NodeClientError, NodeDisconnectedError
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.health_metrics import HealthMetrics
from fleetctl.gateway.nodes.node_watch import NodeWatch, Wait, WaitEnd
from fleetctl.gateway.prompts.preparation import PromptOverBudgetError, PromptPreparation
from fleetctl.gateway.requests.entry import Entry
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import DEADLINE_HEADER, Job, NotPlaced, Placed, Placer
from fleetctl.gateway.requests.poison import Poisoned, PoisonMemory
from fleetctl.gateway.routing.routing_facts import GENERATION_PATHS, BadBodyError, RoutingFacts, read_routing_facts

log = structlog.get_logger()

CONTINUE_PATH = "/internal/continue"
MAX_BODY_BYTES = 16 * 1024 * 1024
ANONYMOUS = "anonymous"  # the tenant of who gave no key
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_IN_FLIGHT = 4096
MOVE_PATIENCE_S = 10.0  # a stream without a node waits this long for one: a pause is better than a loss
MOVE_PAUSE_S = 0.2
MAX_MOVES = 32  # nodes that hand a request round in a circle must come to an end
SETTLE_S = 0.5
POISON = "poison"

_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})  # W3C trace context
# Of a node's answer these stay between us and it.
_NOT_RETURNED = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"date",
        b"server",
        b"upgrade",
        b"trailer",
        b"x-request-id",
    }
)


# Error codes of nodes that become reasons of fates as they are: a closed set, because reasons are metric labels.
_NODE_CODES = frozenset(
    {
        "aborted",
        "core_dead",
        "deadline_exceeded",
        "engine_error",
        "exported",
        "grammar_failed",
        "node_stopping",
        "out_of_memory",
        "queue_timeout",
    }
)


class RelayEnd(Enum):
    """How one node's part of an answer ended, when it was not a hand-off."""

    TOLD = "told"  # the client has everything, or the node's own error
    CUT = "cut"  # the node stopped before the end


@dataclass(frozen=True, slots=True)
class ReceivedHandoff:
    """A node wants another one to continue: the object it sent, opaque to us."""

    data: bytes


class Proxy:
    """Serves proxied requests. `node_token` opens the nodes' internal routes."""

    def __init__(
        self,
        placer: Placer,
        fates: Fates,
        metrics: GatewayMetrics,
        watch: NodeWatch,
        *,
        node_token: str,
        prompts: PromptPreparation | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        move_patience_s: float = MOVE_PATIENCE_S,
        poison: PoisonMemory | None = None,
        health: HealthMetrics | None = None,
        admission: Admission | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._placer = placer
        self._entry = Entry(admission, placer)
        self._fates = fates
        self._metrics = metrics
        self._watch = watch
        self._node_token = node_token
        self._prompts = prompts
        self._max_body_bytes = max_body_bytes
        self._max_in_flight = max_in_flight
        self._move_patience_s = move_patience_s
        self._poison = poison or PoisonMemory(0)
        self._health = health or HealthMetrics(metrics.registry)
        self._clock = clock
        self._exchanges: set[Exchange] = set()

    async def serve(self, exchange: Exchange) -> None:
        """Proxy one request and end it, whatever happens."""
        given = exchange.request_id()
        is_taken = given is not None and self._fates.is_in_flight(given)
        request_id = new_request_id() if given is None or is_taken else given
        proxied = self._fates.begin(request_id)
        self._exchanges.add(exchange)
        try:
            if is_taken:
                await self._refuse(exchange, proxied, answers.in_flight(f"request {given} is in flight here"))
            else:
                await self._serve(exchange, proxied)
        except asyncio.CancelledError:
            if not (exchange.is_gone or exchange.is_aborted):
                raise
            await self._end_cancelled(exchange, proxied)
        except Exception:
            log.exception("request.crashed", request_id=request_id)
            await self._fail(
                exchange, proxied, ErrorAnswer(500, "gateway error", "server_error", "internal"), "internal"
            )
        finally:
            self._exchanges.discard(exchange)
            exchange.close()
            self._entry.leave(proxied)
            if proxied.outcome is None:
                self._fates.end(proxied, Outcome.FAILED, reason="interrupted")

    def retries_left(self) -> float:
        """Of the retry budget, now."""
        return self._placer.budget.left(self._clock())

    def abort_all(self) -> int:
        """End every request now, each with an error that its client sees. Returns how many there were."""
        aborted = list(self._exchanges)
        for exchange in aborted:
            exchange.abort()
        return len(aborted)

    async def _serve(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        account = self._entry.authenticate(exchange, proxied)
        if isinstance(account, ErrorAnswer):
            await self._refuse(exchange, proxied, account)
            return
        read = await self._read_job(exchange, proxied)
        if read is None:
            return
        if (known := self._poison.find(read.path, read.body, self._clock())) is not None:
            await self._refuse_poison(exchange, proxied, known)
            return
        exchange.watch()
        job = await self._entry.admit(read, proxied, account)
        if isinstance(job, ErrorAnswer):
            await self._refuse(exchange, proxied, job)
            return
        where = await self._entry.place(job, proxied)
        while True:
            if isinstance(where, NotPlaced):
                await self._tell_not_placed(exchange, proxied, where)
                return
            try:
                end, has_forwarded = await self._relay(exchange, proxied, where)
            finally:
                where.close()
            if isinstance(end, ReceivedHandoff):
                stuck = frozenset() if has_forwarded else where.job.excluded
                if proxied.moved >= MAX_MOVES:
                    await self._fail(exchange, proxied, answers.upstream_failed("moved too often"), "moved_too_often")
                    return
                where = await self._move(self._continuation(end, where, proxied, stuck), proxied)
                if isinstance(where, Placed):
                    proxied.moved += 1
                    self._metrics.handoffs.labels("moved").inc()
                else:
                    self._metrics.handoffs.labels("failed").inc()
            elif end is not RelayEnd.CUT:
                return
            elif where.wait.end is not None and not where.wait.end.is_nodes_failure:
                await self._tell_given_up(exchange, proxied, where.wait.end)
                return
            else:
                reason = where.wait.end.value if where.wait.end else "cut"
                self._placer.note_death(proxied, where.job, where.endpoint.node, reason)
                if has_forwarded or not self._placer.may_resend(proxied):
                    await self._tell_node_lost(exchange, proxied)
                    return
                # The client has nothing of this node's part, so the same job may go to another one.
                proxied.retries += 1
                self._metrics.retries.labels(reason).inc()
                job = replace(where.job, excluded=where.job.excluded | {where.endpoint.node})
                where = await (self._move if job.is_continuation else self._placer.place)(job, proxied)

    async def _read_job(self, exchange: Exchange, proxied: ProxiedRequest) -> Job | None:
        """The client's request as a job; None when it was answered, or left, already."""
        path = exchange.path
        if self._fates.in_flight > self._max_in_flight:
            await self._refuse(exchange, proxied, answers.overloaded("the gateway holds too many requests"))
            return None
        try:
            body = await exchange.read_body(self._max_body_bytes)
            deadline_s = exchange.deadline_s()
            is_generation = path in GENERATION_PATHS and exchange.method == "POST"
            if is_generation and self._prompts is not None:
                prepared = self._prompts.prepare(body, ANONYMOUS)
                body = prepared.body
                proxied.answer_headers.extend(prepared.headers)
            facts = read_routing_facts(path, body) if is_generation else RoutingFacts()
        except PromptOverBudgetError as error:
            await self._refuse(exchange, proxied, answers.bad_request(str(error), code="prompt_over_budget"))
        except BodyTooLargeError:
            message = f"the body is larger than {self._max_body_bytes} bytes"
            await self._refuse(exchange, proxied, answers.bad_request(message, status=413, code="too_large"))
        except TimeoutError:
            await self._refuse(
                exchange, proxied, answers.bad_request("the body did not come", status=408, code="timeout")
            )
        except BadBodyError as error:
            await self._refuse(exchange, proxied, answers.bad_request(str(error)))
        except BadDeadlineError:
            message = f"{DEADLINE_HEADER}: must be seconds, above 0"
            refusal = answers.bad_request(message, param=DEADLINE_HEADER, code="invalid_value")
            await self._refuse(exchange, proxied, refusal)
        except ClientGoneError:
            self._fates.end(proxied, Outcome.CLIENT_GONE)
        else:
            headers = exchange.forwarded_headers()
            headers.append(("X-Request-Id", proxied.request_id))
            if is_generation:
                headers.append(("X-Fleet-Handoff", "accept"))
            given = [limit for limit in (deadline_s, facts.deadline_s) if limit is not None]
            deadline_at = proxied.started + min(given) if given else None
            return Job(exchange.method, exchange.target, body or None, headers, facts, deadline_at=deadline_at)
        return None

    async def _relay(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed
    ) -> tuple[RelayEnd | ReceivedHandoff, bool]:
        """Pass one node's answer on. Returns how it ended, and whether the client got anything of it."""
        if where.answer.content_type == "text/event-stream":
            return await self._relay_stream(exchange, proxied, where)
        return await self._relay_whole(exchange, proxied, where), False

    async def _relay_stream(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed
    ) -> tuple[RelayEnd | ReceivedHandoff, bool]:
        answer, reader, wait = where.answer, EventStreamReader(), where.wait
        read, clock = answer.read_any, self._clock
        has_forwarded = False
        try:
            async with wait:
                while data := await read():
                    wait.note_heard(clock())
                    events = reader.feed(data)
                    if events.forward:
                        wait.is_paused = True  # a slow client is not the node's silence
                        proxied.pieces += 1
                        if not has_forwarded:
                            has_forwarded = wait.has_forwarded = True
                            await self._begin_stream(exchange, proxied, answer)
                        proxied.meter.note_stream(events.forward)
                        await exchange.write(events.forward)
                        wait.is_paused = False
                    if events.handoff is not None:
                        await self._read_rest(answer)
                        return ReceivedHandoff(events.handoff), has_forwarded
            if rest := reader.finish():
                has_forwarded = True
                await self._begin_stream(exchange, proxied, answer)
                await exchange.write(rest)
        except (NodeClientError, TimeoutError, EventTooLongError) as error:
            log.warning(
                "stream.cut",
                request_id=proxied.request_id,
                node=where.endpoint.node,
                reason=wait.end.value if wait.end else None,
                error=type(error).__name__,
            )
            if not reader.is_done:
                return RelayEnd.CUT, has_forwarded
        if reader.error is not None:
            await exchange.end()
            is_clients = reader.error.kind == "invalid_request_error"
            outcome = Outcome.REFUSED if is_clients else Outcome.FAILED
            self._fates.end(proxied, outcome, reason=_reason_of(reader.error.code, "node_error"))
            return RelayEnd.TOLD, True
        if not reader.is_done:
            return RelayEnd.CUT, has_forwarded
        await exchange.end()
        self._fates.end(proxied, Outcome.FINISHED)
        return RelayEnd.TOLD, True

    async def _begin_stream(self, exchange: Exchange, proxied: ProxiedRequest, answer: NodeAnswer) -> None:
        if exchange.has_begun:
            return
        proxied.status = answer.status
        await exchange.begin(answer.status, _returned_headers(answer, proxied))
        self._metrics.ttft.observe(self._fates.mark_first_byte(proxied))

    async def _relay_whole(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed
    ) -> RelayEnd | ReceivedHandoff:
        """An answer that is not a stream is read to its end first, so that a cut can still go elsewhere."""
        answer, wait = where.answer, where.wait
        try:
            body = await _read_limited(answer, wait, self._clock)
        except (NodeClientError, TimeoutError) as error:
            log.warning(
                "answer.cut",
                request_id=proxied.request_id,
                node=where.endpoint.node,
                reason=wait.end.value if wait.end else None,
                error=type(error).__name__,
            )
            return RelayEnd.CUT
        if answer.status == 202 and answer.header("X-Fleet-Handoff") == "state":
            return ReceivedHandoff(body)
        if exchange.has_begun:
            # A stream's continuation must be a stream: anything else would be text in the middle of events.
            return RelayEnd.CUT
        status = answer.status
        if status < 400:
            proxied.meter.note_whole(body)
        outcome = Outcome.FINISHED if status < 400 else Outcome.REFUSED if status < 500 else Outcome.FAILED
        await exchange.answer(status, body, _returned_headers(answer, proxied))
        reason = "" if status < 400 else f"status_{status}"
        if status >= 500:
            reason = _reason_of(error_code_of(body), reason)
        self._fates.end(proxied, outcome, reason=reason, status=status)
        return RelayEnd.TOLD

    def _continuation(
        self, handoff: ReceivedHandoff, source: Placed, proxied: ProxiedRequest, stuck: frozenset[str]
    ) -> Job:
        """The job that goes to another node. `stuck`: nodes that passed it on without a single event of their own."""
        return Job(
            method="POST",
            path=CONTINUE_PATH,
            body=handoff.data,
            headers=[
                ("Content-Type", "application/json"),
                ("Authorization", f"Bearer {self._node_token}"),
                ("X-Request-Id", proxied.request_id),
                ("X-Fleet-Handoff", "accept"),
                # The rest of the request is part of the same trace.
                *((name, value) for name, value in source.job.headers if name.lower() in _TRACE_HEADERS),
            ],
            facts=source.job.facts,
            deadline_at=source.job.deadline_at,
            excluded=stuck | {source.endpoint.node},
            is_continuation=True,
        )

    async def _move(self, job: Job, proxied: ProxiedRequest) -> Placed | NotPlaced:
        """A node's answer to the continuation. Asks all of them, and again while there is patience."""
        deadline = self._clock() + self._move_patience_s
        while True:
            where = await self._placer.place(job, proxied)
            if isinstance(where, Placed):
                log.info(
                    "request.moved", request_id=proxied.request_id, node=where.endpoint.node, moved=proxied.moved + 1
                )
                return where
            if self._clock() >= deadline or where.given_up is not None or not self._placer.may_resend(proxied):
                return where
            await asyncio.sleep(MOVE_PAUSE_S)
            job = replace(job, excluded=frozenset())  # by now the source may serve again

    async def _read_rest(self, answer: NodeAnswer) -> None:
        """Read the end of a stream that was handed off, so that its node sees an orderly end and not a hang-up."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while await answer.read_any():
                    pass
        except (NodeClientError, TimeoutError) as error:
            log.debug("stream.unsettled", error=type(error).__name__)

    async def _tell_not_placed(self, exchange: Exchange, proxied: ProxiedRequest, not_placed: NotPlaced) -> None:
        said = ", ".join(f"{node}: {reason}" for node, reason in sorted(not_placed.reasons.items())) or "no active node"
        if not_placed.given_up is not None:
            await self._tell_given_up(exchange, proxied, not_placed.given_up)
        elif not self._placer.may_resend(proxied):
            await self._tell_node_lost(exchange, proxied)
        elif proxied.nodes:
            error = answers.unavailable(f"no node could continue the request ({said})", code="not_continued")
            await self._fail(exchange, proxied, error, "not_continued")
        elif proxied.deaths:
            death = proxied.deaths[-1]
            error = answers.unavailable(f"no other node takes the request ({said})", code=death.fate)
            await self._fail(exchange, proxied, error, death.fate)
        elif not_placed.is_overload:
            error = answers.overloaded(f"every node is overloaded ({said})", retry_after_s=not_placed.retry_after_s)
            await self._refuse(exchange, proxied, error)
        else:
            await self._refuse(exchange, proxied, answers.unavailable(f"no node takes requests ({said})"))

    async def _tell_node_lost(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """A node died or fell silent with the request, and no other one may have it."""
        death = proxied.deaths[-1]
        if len(proxied.deaths) > 1 and not self._placer.may_resend(proxied):
            await self._tell_poison(exchange, proxied)
            return
        if exchange.has_begun:
            message = f"node {death.node} stopped before the answer was complete ({death.reason})"
            await self._fail(exchange, proxied, answers.upstream_failed(message, code=death.fate), death.fate)
            return
        message = f"node {death.node} stopped before the answer was complete ({death.reason}); no other one is asked"
        await self._fail(exchange, proxied, answers.final(message, code=death.fate), death.fate)

    async def _tell_poison(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """The request has ended its nodes: no other one gets it, nor the same body again for a while."""
        nodes = tuple(death.node for death in proxied.deaths)
        if proxied.body_key is not None:
            self._poison.note(proxied.body_key, Poisoned(proxied.request_id, nodes, self._clock()))
        self._health.poison.labels("found").inc()
        had = ", ".join(f"{death.node}: {death.reason}" for death in proxied.deaths)
        log.error("request.poison", request_id=proxied.request_id, nodes=list(nodes), deaths=had)
        message = f"{len(nodes)} nodes ended with this request in hand ({had}); no other one is asked"
        await self._fail(exchange, proxied, answers.poison(message), POISON)

    async def _refuse_poison(self, exchange: Exchange, proxied: ProxiedRequest, known: Poisoned) -> None:
        """The same body ended nodes a short while ago."""
        self._health.poison.labels("refused").inc()
        log.warning("request.poison_refused", request_id=proxied.request_id, first=known.request_id)
        message = f"the same request ended {len(known.nodes)} nodes a short while ago (request {known.request_id})"
        await self._refuse(exchange, proxied, answers.poison(message))

    async def _tell_given_up(self, exchange: Exchange, proxied: ProxiedRequest, why: WaitEnd) -> None:
        """A limit on the wait passed, though nothing is known to be wrong with the node."""
        node = f"node {proxied.wait.node}" if proxied.wait else "no node"
        message = {
            WaitEnd.DEADLINE: "the deadline passed",
            WaitEnd.FIRST_BYTE_LIMIT: f"{node} did not begin its answer in time",
        }.get(why, f"{node} sent nothing more for too long")
        await self._fail(exchange, proxied, answers.timed_out(message, code=why.value), why.value)

    async def _refuse(self, exchange: Exchange, proxied: ProxiedRequest, error: ErrorAnswer) -> None:
        await exchange.fail(error, _id_header(proxied))
        self._fates.end(proxied, Outcome.REFUSED, reason=error.code, status=error.status)

    async def _fail(self, exchange: Exchange, proxied: ProxiedRequest, error: ErrorAnswer, reason: str) -> None:
        status = None if exchange.has_begun else error.status
        await exchange.fail(error, _id_header(proxied))
        if proxied.outcome is None:
            self._fates.end(proxied, Outcome.FAILED, reason=reason, status=status)

    async def _end_cancelled(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """The client hung up, or we shut down and still owe it a word."""
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        if not exchange.is_gone:
            error = answers.unavailable("the gateway is shutting down", code="shutting_down")
            await self._fail(exchange, proxied, error, "shutting_down")
        elif proxied.outcome is None:
            trouble = self._watch.trouble_of(proxied.wait) if proxied.wait else None
            if trouble is not None:
                self._fates.end(proxied, Outcome.GAVE_UP, reason=trouble.value)
            else:
                reason = "" if exchange.has_begun else "before_first_byte"
                self._fates.end(proxied, Outcome.CLIENT_GONE, reason=reason)


def _returned_headers(answer: NodeAnswer, proxied: ProxiedRequest) -> list[tuple[bytes, bytes]]:
    headers = [
        (name, value)
        for name, value in answer.raw_headers
        if (lower := name.lower()) not in _NOT_RETURNED and not lower.startswith(b"x-fleet-")
    ]
    headers.extend(_id_header(proxied))
    return headers


def _id_header(proxied: ProxiedRequest) -> list[tuple[bytes, bytes]]:
    return [(b"x-request-id", proxied.request_id.encode()), *proxied.answer_headers]


async def _read_limited(answer: NodeAnswer, wait: Wait, clock: Callable[[], float]) -> bytes:
    """The whole body.

    Raises NodeDisconnectedError when it is cut or too long, TimeoutError when the wait is ended.
    """
    parts: list[bytes] = []
    size = 0
    async with wait:
        while data := await answer.read_any():
            wait.note_heard(clock())
            parts.append(data)
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise NodeDisconnectedError(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _reason_of(code: str | None, otherwise: str) -> str:
    return code if code in _NODE_CODES else otherwise
