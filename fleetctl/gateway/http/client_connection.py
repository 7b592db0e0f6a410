"""One client's connection: requests come in, exchanges are served one after the other, in the order they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import httptools
import structlog

from fleetctl.gateway.http.answers import ErrorAnswer, bad_request
from fleetctl.gateway.http.connection_limits import ConnectionLimits, Limited
from fleetctl.gateway.http.exchange import Exchange
from fleetctl.gateway.http.message_head import BadHeadError, answer_head, read_head

log = structlog.get_logger()

MAX_PIPELINED = 32  # requests of one connection that wait for their turn; whoever sends more is told to come again
_UNREADABLE = bad_request("this is no valid HTTP request", code="bad_http")

Serve = Callable[[Exchange], Awaitable[None]]


class ClientConnection(asyncio.Protocol):
    """Parses requests, bounds them, and hands each to `serve` as an Exchange. See ConnectionLimits for its states."""

    def __init__(self, serve: Serve, limits: ConnectionLimits, *, handshake: Limited | None = None) -> None:
        """`handshake`: what held this connection's place among the limits until TLS stood."""
        self.address = ""
        self.is_full = False
        self._serve = serve
        self._limits = limits
        self._handshake = handshake
        self._settings = limits.settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[Exchange] = deque()  # the first one is being served
        self._receiving: Exchange | None = None  # its body has not come to its end
        self._room: asyncio.Future[None] | None = None
        self._is_in_head = True
        self._head_bytes = 0  # of a head that is not whole
        self._is_deaf = False  # nothing more is read
        self._is_taking_over = False  # a new parser gets the framing of a head that the last one stopped at
        self._refusal: ErrorAnswer | None = None  # told when all before it is answered
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    # -- asyncio's protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        if self._handshake is not None:
            self._limits.leave(self._handshake)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        self._transport.set_write_buffer_limits(high=self._settings.client_buffer_bytes)
        if (reason := self._limits.admit(self)) is not None:
            self._is_deaf = True
            self._write_error(ErrorAnswer(503, reason, "service_unavailable", "too_many_connections", retry_after_s=1))
            self._transport.close()
        else:
            self._limits.begin_head(self, self._loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: whoever still waits is gone."""
        self._limits.leave(self)
        self._transport = None
        self._is_deaf = True
        self._release_room()
        for exchange in self._exchanges:
            exchange.release_body()
            exchange.note_gone()
        self._exchanges.clear()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of requests."""
        if self._is_deaf:
            return
        if self._is_in_head and not self._head_bytes:
            self._limits.end_idle(self)
        while data:
            piece = data
            if self._is_in_head:
                room = self._settings.max_head_bytes - self._head_bytes
                if room <= 0:
                    self._refuse(_head_too_large(self._settings.max_head_bytes))
                    return
                piece = data[:room]
                self._head_bytes += len(piece)
            if not self._feed(piece):
                return
            data = data[len(piece) :]
        if self._is_in_head and self._head_bytes and not self._is_deaf and not self._exchanges:
            self._limits.begin_head(self, self._loop.time())

    def pause_writing(self) -> None:
        """Called by asyncio: the client reads slowly."""
        self.is_full = True
        self._limits.begin_slow(self, self._loop.time())

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read."""
        self._limits.end_slow(self)
        self._release_room()

    # -- httptools' callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by httptools: a request's first byte."""
        if not self._is_taking_over:
            self._url = b""
            self._headers = []

    def on_url(self, url: bytes) -> None:
        """Called by httptools, perhaps several times."""
        if not self._is_taking_over:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each header, and for the trailers of a chunked body, which nobody asked for."""
        if self._is_in_head and not self._is_taking_over:
            self._headers.append((name.lower(), value))
            if len(self._headers) > self._settings.max_headers:
                raise BadHeadError(_too_many_headers(self._settings.max_headers))

    def on_headers_complete(self) -> None:
        """Called by httptools: the request may be served while its body comes."""
        if self._is_taking_over:
            self._is_taking_over = False
            return
        parser, settings = self._parser, self._settings
        self._is_in_head = False
        self._head_bytes = 0
        self._limits.end_head(self)
        if len(self._exchanges) >= MAX_PIPELINED:
            raise BadHeadError(bad_request("too many requests at once", status=429, code="pipelined_too_many"))
        head = read_head(
            parser.get_method(),
            self._url,
            self._headers,
            version=parser.get_http_version(),
            keeps_alive=parser.should_keep_alive(),
        )
        exchange = Exchange(
            *(head, self, self._limits.bodies),
            max_body_bytes=settings.max_body_bytes,
            body_limit_s=settings.body_limit_s,
        )
        self._receiving = exchange
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._start(exchange)

    def on_body(self, part: bytes) -> None:
        """Called by httptools for each part of the body."""
        if self._receiving is not None:
            self._receiving.feed(part)

    def on_message_complete(self) -> None:
        """Called by httptools: the request is whole, and another one may follow."""
        if self._parser.should_upgrade():
            return  # its body is yet to come
        self._is_in_head = True
        if self._receiving is not None:
            self._receiving.feed_end()
            self._receiving = None

    # -- called by the exchange -------------------------------------------------------------------------------------

    @property
    def keeps_alive(self) -> bool:
        """Whether another answer may follow on this connection."""
        if len(self._exchanges) > 1 or self._refusal is not None:
            return True
        return not (self._limits.is_draining or self._is_deaf)

    def write(self, data: bytes) -> None:
        """Send these bytes. Never waits."""
        if self._transport is not None:
            self._transport.write(data)

    async def wait_for_room(self) -> None:
        """Until the client has read most of what is unsent, or has hung up."""
        while self.is_full and self._transport is not None:
            if self._room is None:
                self._room = self._loop.create_future()
            await asyncio.shield(self._room)

    def finish(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        """The whole answer of this exchange was written: the next one's turn."""
        if not self._exchanges or self._exchanges[0] is not exchange:
            return  # the connection has ended
        self._exchanges.popleft()
        exchange.release_body()
        if not exchange.is_received:
            self._linger()
        elif not keeps_alive:
            self._close()
        elif self._exchanges:
            self._start(self._exchanges[0])
        elif self._refusal is not None:
            self._tell_refusal()
        elif self._is_in_head and self._head_bytes:
            self._limits.begin_head(self, self._loop.time())
        else:
            self._limits.begin_idle(self, self._loop.time())

    # -- called by the limits ---------------------------------------------------------------------------------------

    def expire_head(self) -> None:
        """The head took too long: told when there is one, else the connection just ends."""
        if self._head_bytes:
            limit_s = self._settings.head_limit_s
            self._refuse(bad_request(f"no whole request head within {limit_s:g} s", status=408, code="timeout"))
        else:
            self.abort()

    def expire_slow(self) -> None:
        """The client did not read for too long: its node must not wait for it."""
        for exchange in self._exchanges:
            exchange.note_gone("slow_client")
        self.abort()

    def close_unused(self) -> None:
        """Close unless a request has begun."""
        if not self._exchanges and not self._head_bytes:
            self._close()

    def abort(self) -> None:
        """Close at once, without an answer."""
        self._is_deaf = True
        if self._transport is not None:
            self._transport.abort()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> bool:
        """Whether all of it was parsed; if not, the request is refused."""
        while data:
            try:
                self._parser.feed_data(data)
                return True
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserCallbackError as error:
                cause = error.__context__
                self._refuse(cause.answer if isinstance(cause, BadHeadError) else _UNREADABLE)
                return False
            except httptools.HttpParserError:
                self._refuse(_UNREADABLE)
                return False
        return True

    def _without_upgrade(self, rest: bytes) -> bytes:
        """What to parse on with after a head that offered another protocol, as Java's HTTP client's do (h2c).

        The parser stops at such a head. A new one takes over where it stopped: it is given a head of which only the
        framing matters.
        """
        framing = [pair for pair in self._headers if pair[0] in (b"content-length", b"transfer-encoding")]
        lines = [b"POST / HTTP/1.1\r\n", *(b"%b: %b\r\n" % pair for pair in framing), b"\r\n"]
        self._parser = httptools.HttpRequestParser(self)
        self._is_taking_over = True
        return b"".join(lines) + rest

    def _start(self, exchange: Exchange) -> None:
        self._loop.create_task(self._run(exchange))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        except Exception:
            log.exception("exchange.crashed", path=exchange.path[:200])
        finally:
            if not exchange.has_ended:
                if exchange.has_begun or exchange.is_gone:
                    self.abort()
                else:
                    error = ErrorAnswer(500, "gateway error", "server_error", "internal")
                    exchange.answer_at_once(*error.whole())

    def _refuse(self, error: ErrorAnswer) -> None:
        """Answer what can't be read, after all that came before it; then the connection ends."""
        self._is_deaf = True
        self._limits.end_head(self)
        if self._receiving is not None:
            self._receiving.note_broken()  # whoever serves it says so
            self._receiving = None
            return
        self._refusal = error
        if not self._exchanges:
            self._tell_refusal()

    def _tell_refusal(self) -> None:
        error, self._refusal = self._refusal, None
        if error is not None:
            self._write_error(error)
            self._linger()

    def _write_error(self, error: ErrorAnswer) -> None:
        status, body, headers = error.whole()
        framing = b"content-length: %d\r\n" % len(body)
        self.write(answer_head(status, headers, framing, keeps_alive=False) + body)

    def _linger(self) -> None:
        """End it so that the client can read the answer though it is still sending."""
        self._is_deaf = True
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
                self._limits.linger(self, self._loop.time())
            else:
                self._transport.close()

    def _close(self) -> None:
        self._is_deaf = True
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._limits.begin_slow(self, self._loop.time())
            self._transport.close()

    def _release_room(self) -> None:
        self.is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None


def _head_too_large(max_bytes: int) -> ErrorAnswer:
    return bad_request(f"the request's head is larger than {max_bytes} bytes", status=431, code="headers_too_large")


def _too_many_headers(max_headers: int) -> ErrorAnswer:
    return bad_request(f"the request has more than {max_headers} headers", status=431, code="headers_too_large")
