"""A node's answer on its way to the client: whole events only, and how the node's part of it ended.

Nothing is sent to the client until the node has sent something whole. A node that ends its stream with an error of its
own (its core died) is not passed on while another node can go on: its last word is kept until none did.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from fleetctl.gateway.http.event_stream import EventStreamReader, EventTooLongError, StreamError, error_of
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.http.node_client import NodeAnswer, NodeClientError, NodeDisconnectedError
from fleetctl.gateway.metrics import GatewayMetrics
from fleetctl.gateway.nodes.node_watch import Wait
from fleetctl.gateway.requests.continuation import HANDOFF_HEADER, StreamAccount
from fleetctl.gateway.requests.engine_errors import is_clients_own, is_nodes_trouble
from fleetctl.gateway.requests.fates import Fates, Outcome, ProxiedRequest
from fleetctl.gateway.requests.place import Placed
from fleetctl.gateway.requests.stream_part import StreamPart

log = structlog.get_logger()

MAX_ANSWER_BYTES = 64 * 1024 * 1024
SETTLE_S = 0.5
EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"

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
        "request_in_flight",
    }
)
# Of these, what is the node's own trouble: another one may do better.
NODE_TROUBLES = frozenset({"core_dead", "engine_error", "node_stopping", "out_of_memory"})


@dataclass(frozen=True, slots=True)
class Cut:
    """The node stopped before the end. `last_word`: the error event that it ended with, not passed on."""

    reason: str
    last_word: bytes = b""
    error: StreamError | None = None


@dataclass(frozen=True, slots=True)
class ReceivedHandoff:
    """A node wants another one to continue: the object it sent, opaque to us."""

    data: bytes


class Relay:
    """Passes answers on. A method returns None when the client has been told everything, and the request has ended."""

    def __init__(self, fates: Fates, metrics: GatewayMetrics) -> None:
        self._fates = fates
        self._metrics = metrics

    async def relay(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed, account: StreamAccount
    ) -> ReceivedHandoff | Cut | None:
        """Pass one node's answer on; `where.wait.has_forwarded` tells whether the client got anything of it."""
        if where.answer.content_type == EVENT_STREAM:
            return await self._relay_stream(exchange, proxied, where, account)
        return await self._relay_whole(exchange, proxied, where)

    async def end_stream(self, exchange: Exchange, proxied: ProxiedRequest) -> None:
        """Of a stream whose node ended before its last word only, which is always the same."""
        await exchange.end(DONE)
        self._fates.end(proxied, Outcome.FINISHED)

    async def tell_last_word(self, exchange: Exchange, proxied: ProxiedRequest, cut: Cut) -> None:
        """End the stream with the node's own error."""
        assert cut.error is not None
        await exchange.end(cut.last_word)
        self._end_with_error(proxied, cut.error)

    async def _relay_stream(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed, account: StreamAccount
    ) -> ReceivedHandoff | Cut | None:
        answer, wait = where.answer, where.wait
        lines = account.begin_part(answer, where.endpoint)
        reader = EventStreamReader(lines)

        def begin() -> None:
            self._begin_part(exchange, proxied, answer)

        part = StreamPart(exchange, proxied, where, reader, account.text, begin)
        wait.is_movable = account.can_continue
        try:
            with wait:
                while not await answer.hand_to(part.pass_on):
                    if reader.handoff is not None:
                        await self._read_rest(answer)
                        return ReceivedHandoff(reader.handoff)
                    wait.is_paused = True  # a slow client is not the node's silence
                    await exchange.wait_for_room()
                    wait.is_paused = False
            if rest := reader.finish():
                wait.has_forwarded = True
                begin()
                await exchange.write(rest)
        except (NodeClientError, TimeoutError, EventTooLongError) as error:
            log.warning(
                "stream.cut",
                request_id=proxied.request_id,
                node=where.endpoint.node,
                reason=wait.end.value if wait.end else None,
                error=type(error).__name__,
            )
            if not reader.is_done and reader.error is None:
                return Cut(wait.end.value if wait.end else "cut")
        if reader.error is not None:
            cut = Cut(reader.error.code or "node_error", reader.last_word, reader.error)
            if _is_nodes_trouble(reader.error, account) and account.can_continue:
                return cut
            begin()
            await self.tell_last_word(exchange, proxied, cut)
            return None
        if not reader.is_done:
            return Cut("cut")
        await exchange.end()
        self._fates.end(proxied, Outcome.FINISHED)
        return None

    def _end_with_error(self, proxied: ProxiedRequest, error: StreamError) -> None:
        outcome = Outcome.REFUSED if is_clients_own(error) else Outcome.FAILED
        otherwise = f"status_{error.status}" if error.status and outcome is Outcome.REFUSED else "node_error"
        self._fates.end(proxied, outcome, reason=_reason_of(error.code, otherwise))

    def _begin_part(self, exchange: Exchange, proxied: ProxiedRequest, answer: NodeAnswer) -> None:
        """The first event of a node: the stream begins, or goes on after a pause."""
        if proxied.paused_at is not None:
            pause_s = time.monotonic() - proxied.paused_at
            proxied.paused_at = None
            proxied.moves[-1].pause_s = pause_s
            self._metrics.stream_pause.observe(pause_s)
        if exchange.has_begun:
            return
        proxied.status = answer.status
        exchange.begin(answer.status, returned_headers(answer, proxied))
        self._metrics.ttft.observe(self._fates.mark_first_byte(proxied))

    async def _relay_whole(
        self, exchange: Exchange, proxied: ProxiedRequest, where: Placed
    ) -> ReceivedHandoff | Cut | None:
        """An answer that is not a stream is read to its end first, so that a cut can still go elsewhere."""
        answer, wait = where.answer, where.wait
        try:
            body = await _read_limited(answer, wait)
        except (NodeClientError, TimeoutError) as error:
            log.warning(
                "answer.cut",
                request_id=proxied.request_id,
                node=where.endpoint.node,
                reason=wait.end.value if wait.end else None,
                error=type(error).__name__,
            )
            return Cut(wait.end.value if wait.end else "cut")
        if answer.status == 202 and answer.header(HANDOFF_HEADER) == "state":
            return ReceivedHandoff(body)
        if exchange.has_begun:
            # A stream's continuation must be a stream: anything else would be text in the middle of events.
            return Cut("cut")
        status = answer.status
        if status < 400:
            proxied.meter.note_whole(body)
        outcome = Outcome.FINISHED if status < 400 else Outcome.REFUSED if status < 500 else Outcome.FAILED
        await exchange.answer(status, body, returned_headers(answer, proxied))
        reason = "" if status < 400 else f"status_{status}"
        if status >= 500 or status == 409:
            reason = _reason_of(error_of(body).code, reason)
        self._fates.end(proxied, outcome, reason=reason, status=status)
        return None

    async def _read_rest(self, answer: NodeAnswer) -> None:
        """Read the end of a stream that was handed off, so that its node sees an orderly end and not a hang-up."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while await answer.read_any():
                    pass
        except (NodeClientError, TimeoutError) as error:
            log.debug("stream.unsettled", error=type(error).__name__)


def _is_nodes_trouble(error: StreamError, account: StreamAccount) -> bool:
    return error.code in NODE_TROUBLES or (account.text is not None and is_nodes_trouble(error))


def returned_headers(answer: NodeAnswer, proxied: ProxiedRequest) -> list[tuple[bytes, bytes]]:
    """A node's headers as the client gets them: none of those between nodes and us."""
    headers = [
        (name, value)
        for name, value in answer.raw_headers
        if (lower := name.lower()) not in _NOT_RETURNED and not lower.startswith(b"x-fleet-")
    ]
    headers.extend(id_header(proxied))
    return headers


def id_header(proxied: ProxiedRequest) -> list[tuple[bytes, bytes]]:
    """Ours, in every answer."""
    return [(b"x-request-id", proxied.request_id.encode()), *proxied.answer_headers]


async def _read_limited(answer: NodeAnswer, wait: Wait) -> bytes:
    """The whole body.

    Raises NodeDisconnectedError when it is cut or too long, TimeoutError when the wait is ended.
    """
    parts: list[bytes] = []
    size = 0
    with wait:
        while data := await answer.read_any():
            wait.note_heard(time.monotonic())
            parts.append(data)
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise NodeDisconnectedError(f"an answer is longer than {MAX_ANSWER_BYTES} bytes")
    return b"".join(parts)


def _reason_of(code: str | None, otherwise: str) -> str:
    return code if code in _NODE_CODES else otherwise
