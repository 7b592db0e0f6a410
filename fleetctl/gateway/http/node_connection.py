"""One connection to a node: a request goes out, the answer's head comes back, and its body as it comes."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
HUNG_UP_WITHIN_S = 0.25  # of the request: later, the node had taken it
MAX_HELD_BYTES = 256 * 1024  # of a body that nobody reads: then the node has to wait
JOIN_BYTES = 64 * 1024  # a body up to this size is copied behind its head: one write costs less than two
_TCP_INFO_BYTES = 128
_BYTES_ACKED_AT = 120  # `tcpi_bytes_acked` in Linux's struct tcp_info, 64 bits


Consume = Callable[[bytes], bool]
"""Gets a part of a body; whether it wants more."""


class NodeClientError(Exception):
    """A node gave no whole answer."""


class NodeConnectError(NodeClientError):
    """The node never had the request: no connection was made."""


class NodeDisconnectedError(NodeClientError):
    """The connection ended, or what came was no HTTP, with the request sent: the node may have had it in hand."""


class HungUpError(NodeDisconnectedError):
    """The node ended a connection that it had kept, right as the request came, and takes new ones: it is well.

    Servers that close after so many requests, or so many seconds, do this (llama.cpp's: 5 s). Whether it had read the
    request is not known.
    """


class StaleConnectionError(NodeClientError):
    """The node closed an idle connection before the request reached it: it never had the request."""


class NodeAnswer:
    """A node's status and headers, and its body as it comes. `release()` is owed once."""

    __slots__ = (
        "_connection",
        "_consume",
        "_content_type",
        "_error",
        "_failure",
        "_held",
        "_is_stopped",
        "_parts",
        "_waiter",
        "is_paused",
        "is_whole",
        "raw_headers",
        "status",
    )

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection
        self._content_type: str | None = None  # once it was asked for
        self._parts: list[bytes] = []
        self._held = 0  # bytes in `_parts`
        self.is_paused = False  # the connection does not read on until what is held is read
        self._error: NodeClientError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._consume: Consume | None = None  # gets each part as it comes
        self._is_stopped = False  # it wants no more
        self._failure: Exception | None = None  # that it raised
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []  # as the node wrote them
        self.is_whole = False  # the whole body has come

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty when none is given."""
        if self._content_type is None:
            self._content_type = _media_type(self.header(b"content-type") or "")
        return self._content_type

    def header(self, name: bytes) -> str | None:
        """The first header of this name (in lower case); None without one."""
        size = len(name)
        for each, value in self.raw_headers:
            if len(each) == size and each.lower() == name:
                return value.decode("latin-1")
        return None

    async def read_any(self) -> bytes:
        """The next part of the body as soon as there is one; empty at its end. Raises NodeDisconnectedError."""
        parts = self._parts
        while not parts:
            if self.is_whole:
                return b""
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._joined()

    async def peek(self) -> bytes:
        """The first part of the body, which stays to be read; empty without a body. Raises NodeDisconnectedError."""
        data = await self.read_any()
        if data:
            self._parts.insert(0, data)
            self._held += len(data)
        return data

    async def hand_to(self, consume: Consume) -> bool:
        """Give the body to `consume` part by part, as it comes and without a turn of the event loop in between.

        Returns True at the end of the body; False once `consume` returned False: what comes after stays here. Raises
        NodeDisconnectedError, and what `consume` raises.
        """
        while True:
            if self._parts:
                if not consume(self._joined()):
                    return False
            elif self.is_whole:
                return True
            elif self._error is not None:
                raise self._error
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                self._consume = consume
                try:
                    await self._waiter
                finally:
                    self._waiter = self._consume = None
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._is_stopped:
                    self._is_stopped = False
                    return False

    def release(self) -> None:
        """Give the connection back when the whole body has come, else close it: that tells the node to stop."""
        self._connection.release(self)

    # -- called by the connection -----------------------------------------------------------------------------------

    def add_part(self, part: bytes) -> bool:
        """Whether more may come before this is read."""
        self._parts.append(part)
        self._held += len(part)
        if self._consume is None:
            self._wake()
        if self._held > MAX_HELD_BYTES and not self.is_paused:
            self.is_paused = True
            return False
        return True

    def deliver(self) -> None:
        """All parts of one read have come: whoever gets them as they come gets them now."""
        consume = self._consume
        if consume is None or not self._parts:
            return
        try:
            if consume(self._joined()):
                return
            self._is_stopped = True
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            self._failure = error
        self._consume = None
        self._wake()

    def finish(self) -> None:
        """The body is whole."""
        self.is_whole = True
        self._wake()

    def fail(self, error: NodeClientError) -> None:
        """No more of the body will come."""
        if not self.is_whole:
            self._error = error
            self._wake()

    def _joined(self) -> bytes:
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._held = 0
        if self.is_paused:
            self.is_paused = False
            self._connection.resume_reading()
        return data

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


@lru_cache(maxsize=64)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


class NodeConnection(asyncio.Protocol):
    """One request at a time. `give_back` gets it when it may be used again, `on_close` when it has ended."""

    def __init__(self, give_back: Callable[[NodeConnection], None], on_close: Callable[[NodeConnection], None]) -> None:
        self.is_open = False
        self.idle_since_s = 0.0  # loop time, kept by the pool
        self._give_back = give_back
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None  # of a connection whose bytes are ours alone: not of TLS
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[NodeAnswer] | None = None  # for the head
        self._answer: NodeAnswer | None = None
        self._is_in_body = False
        self._is_until_end = True  # without a length the end of the connection is the end of the answer
        self._is_bodiless = False  # the answer to a HEAD
        self._is_reusable = False
        self._has_heard = False  # any byte since the request
        self._has_served = False  # a whole answer came before this request
        self._head_bytes = 0
        self._written = 0
        self._written_at = 0.0

    async def request(self, head: bytes, body: bytes | None, *, is_head: bool = False) -> NodeAnswer:
        """Send a request; its answer once the head is there.

        Raises StaleConnectionError, NodeDisconnectedError. Whoever stops waiting has to `abort()`.
        """
        transport = self._transport
        if transport is None or not self.is_open:
            raise StaleConnectionError("closed while idle")
        self._begin_answer()
        self._is_bodiless = is_head
        self._is_reusable = self._has_heard = False
        self._waiter = asyncio.get_running_loop().create_future()
        if body is None:
            transport.write(head)
        elif len(body) <= JOIN_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))
        self._written_at = time.monotonic()
        self._written += len(head) + (len(body) if body else 0)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def release(self, answer: NodeAnswer) -> None:
        """`answer` is no longer wanted."""
        if answer is not self._answer:
            return
        self._answer = None
        if answer.is_whole and self._is_reusable and self.is_open and not answer.is_paused:
            self._has_served = True
            self._give_back(self)
        else:
            self.abort()

    def resume_reading(self) -> None:
        """There is room for more of the body."""
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once; a request in flight fails."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if transport.get_extra_info("sslcontext") is None:
            self._socket = transport.get_extra_info("socket")
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of the answer."""
        if self._waiter is None and self._answer is None:
            self.abort()  # nobody asked
            return
        self._has_heard = True
        if not self._is_in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NodeDisconnectedError(f"no valid HTTP answer: {error}"))
            return
        if self._answer is not None:
            self._answer.deliver()
        if not self._is_in_body and self._head_bytes > MAX_HEAD_BYTES:
            self._fail(NodeDisconnectedError(f"the answer's headers are longer than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: without a length this is the end of the answer."""
        self.is_open = False
        self._on_close(self)
        answer = self._answer
        if exc is None and answer is not None and self._is_in_body and self._is_until_end:
            answer.finish()
        elif exc is None and self._has_served and not self._has_heard and self._is_unread():
            self._fail(StaleConnectionError("closed as the request was written"))
        elif self._has_served and not self._has_heard and time.monotonic() - self._written_at < HUNG_UP_WITHIN_S:
            self._fail(HungUpError("the connection ended as the request came"))
        else:
            self._fail(NodeDisconnectedError("the connection ended before the whole answer had come"))
        self._transport = None

    # -- httptools' callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by httptools. More than was asked for would be taken for the answer to another request."""
        if self._is_in_body or self._waiter is None:
            raise NodeDisconnectedError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each header, and for the trailers of a chunked body."""
        if self._is_in_body or self._answer is None:
            return
        self._answer.raw_headers.append((name, value))
        if len(name) in (14, 17) and name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_until_end = False

    def on_headers_complete(self) -> None:
        """Called by httptools: the status is known, and a body follows."""
        status = self._parser.get_status_code()
        answer = self._answer
        if status < 200 or answer is None:
            return
        answer.status = status
        self._is_in_body = True
        if self._is_bodiless:
            answer.finish()  # the parser waits for a body, so this connection can't be used again
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def on_body(self, part: bytes) -> None:
        """Called by httptools for each part of the body."""
        answer = self._answer
        if answer is not None and not answer.add_part(part) and self._transport is not None:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Called by httptools: the answer is whole."""
        if self._parser.get_status_code() < 200:
            self._begin_answer()  # "continue" and the like: the answer is still to come
        elif self._answer is not None:
            self._is_reusable = self._parser.should_keep_alive()
            self._answer.finish()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        self._answer = NodeAnswer(self)
        self._is_in_body = False
        self._is_until_end = True
        self._head_bytes = 0

    def _is_unread(self) -> bool:
        """Whether the node's kernel did not take the whole request before the connection ended in order.

        An end in order (FIN) acknowledges all that had come until then, so a request that is not acknowledged was on
        its way when the node closed. A reset acknowledges nothing: it tells nothing of what the node had read.
        """
        if self._socket is None:
            return False
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return False
        if len(info) < _TCP_INFO_BYTES:
            return False
        (acked,) = struct.unpack_from("=Q", info, _BYTES_ACKED_AT)
        return int(acked) < self._written + 1  # the opening SYN counts as one

    def _fail(self, error: NodeClientError) -> None:
        self._is_reusable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        if self._answer is not None:
            self._answer.fail(error)
        self.abort()
