"""A request that an endpoint outside answers: its answer to the client, its fate, and what the client is told of it."""

from __future__ import annotations

from contextlib import aclosing

from fleetctl.gateway.admission.tenant import ANONYMOUS
from fleetctl.gateway.admission.tenant_account import Refusal
from fleetctl.gateway.http import answers
from fleetctl.gateway.http.answers import ErrorAnswer
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.overflow.outside import OutsideError
from fleetctl.gateway.overflow.overflow import Exit, Overflow, SentOutside
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import Job, NotPlaced
from fleetctl.gateway.requests.relay import id_header

SERVED_BY = (b"x-fleet-served-by", b"overflow")
STREAM_TYPE = b"text/event-stream; charset=utf-8"
FAILED = "overflow_failed"
QUEUE_REFUSALS = frozenset({Refusal.QUEUE_FULL.value, Refusal.QUEUE_LIMIT.value})


class OutsideRelay:
    """Answers requests from outside, where there is an overflow.

    Each `serve` method returns whether it ended the request; False: it stays in the house.
    """

    def __init__(self, overflow: Overflow | None, fates: Fates, metrics: GatewayMetrics) -> None:
        self._overflow = overflow
        self._fates = fates
        self._metrics = metrics

    def may_leave_when_full(self, job: Job, proxied: ProxiedRequest) -> bool:
        """Whether the request would go out when every node is overloaded: then it does not wait its turn first."""
        return (
            self._overflow is not None and self._exit_after(self._overflow, job, proxied, is_overload=True) is not None
        )

    async def serve_unplaced(self, exchange: Exchange, proxied: ProxiedRequest, job: Job) -> bool:
        """Before any node is asked: its model is not here, or every node is behind."""
        if self._overflow is None:
            return False
        tenant = proxied.tenant or ANONYMOUS
        way = self._overflow.exit_before(model=job.facts.model, tenant=tenant, priority=proxied.priority)
        return way is not None and await self._serve(self._overflow, exchange, proxied, job, way)

    async def serve_not_placed(
        self, exchange: Exchange, proxied: ProxiedRequest, job: Job, not_placed: NotPlaced
    ) -> bool:
        """No node took it. What ended nodes, was begun, or is late stays with us."""
        if self._overflow is None or exchange.has_begun or proxied.deaths or proxied.nodes:
            return False
        if not_placed.given_up is not None:
            return False
        way = self._exit_after(self._overflow, job, proxied, is_overload=not_placed.is_overload)
        return way is not None and await self._serve(self._overflow, exchange, proxied, job, way)

    async def serve_refused(self, exchange: Exchange, proxied: ProxiedRequest, job: Job, refusal: ErrorAnswer) -> bool:
        """The nodes are full and so is the queue. A tenant's own limits and a shed class are no reason to leave."""
        if self._overflow is None or refusal.code not in QUEUE_REFUSALS:
            return False
        way = self._exit_after(self._overflow, job, proxied, is_overload=True)
        return way is not None and await self._serve(self._overflow, exchange, proxied, job, way)

    def _exit_after(self, overflow: Overflow, job: Job, proxied: ProxiedRequest, *, is_overload: bool) -> Exit | None:
        tenant = proxied.tenant or ANONYMOUS
        return overflow.exit_after(
            is_overload=is_overload, model=job.facts.model, tenant=tenant, priority=proxied.priority
        )

    async def _serve(
        self, overflow: Overflow, exchange: Exchange, proxied: ProxiedRequest, job: Job, way: Exit
    ) -> bool:
        result = "client_gone"  # unless it ends in another way
        try:
            sent = await overflow.send(way, job.path, job.body or b"", proxied.request_id)
        except OutsideError as error:
            await self._fail(exchange, proxied, f"overflow/{way.endpoint.name}: {error}")
            return True
        if sent is None:
            return False
        proxied.nodes.append(sent.node)
        proxied.answer_headers.append(SERVED_BY)
        try:
            async with sent:
                result = await self._relay(exchange, proxied, sent)
        except OutsideError as error:
            result = "failed"
            await self._fail(exchange, proxied, f"{sent.node}: {error}")
        finally:
            overflow.metrics.requests.labels(way.endpoint.name, result).inc()
        return True

    async def _relay(self, exchange: Exchange, proxied: ProxiedRequest, sent: SentOutside) -> str:
        """Pass the answer on and end the request. Returns what became of it. Raises OutsideError."""
        answer = sent.answer
        if answer.status >= 400:
            return await self._tell_refusal(exchange, proxied, sent)
        headers = id_header(proxied)
        if answer.content_type != "text/event-stream":
            body = await answer.whole()
            proxied.meter.note_whole(body)
            await exchange.answer(answer.status, body, [(b"content-type", b"application/json"), *headers])
            self._fates.end(proxied, Outcome.FINISHED, status=answer.status)
            return "served"
        async with aclosing(answer.events()) as events:
            async for event in events:
                if not exchange.has_begun:
                    proxied.status = answer.status
                    exchange.begin(answer.status, [(b"content-type", STREAM_TYPE), *headers])
                    self._metrics.ttft.observe(self._fates.mark_first_byte(proxied))
                proxied.meter.note_stream(event)
                await exchange.write(event)
        await exchange.end()
        self._fates.end(proxied, Outcome.FINISHED)
        return "served"

    async def _tell_refusal(self, exchange: Exchange, proxied: ProxiedRequest, sent: SentOutside) -> str:
        """Only what the client can mend is told as its own error: 400 and its kind; keys and quotas are ours."""
        status, said = sent.answer.status, f"{sent.node} answered {sent.answer.status}"
        if status == 429:
            error = answers.overloaded(said, retry_after_s=sent.answer.retry_after_s)
        elif status in (400, 413, 422):
            error = answers.bad_request(said, status=status)
        else:
            await self._fail(exchange, proxied, said)
            return "failed"
        await exchange.fail(error, id_header(proxied))
        self._fates.end(proxied, Outcome.REFUSED, reason=f"status_{status}", status=status)
        return "refused"

    async def _fail(self, exchange: Exchange, proxied: ProxiedRequest, message: str) -> None:
        error: ErrorAnswer = answers.upstream_failed(message, code=FAILED)
        status = None if exchange.has_begun else error.status
        await exchange.fail(error, id_header(proxied))
        if proxied.outcome is None:
            self._fates.end(proxied, Outcome.FAILED, reason=FAILED, status=status)
