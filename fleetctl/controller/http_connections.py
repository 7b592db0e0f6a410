"""Limits on the connections of the HTTP API: how many, how long a request's head may take, and how large it may be.

uvicorn has none of these. Without them some thousand clients that begin a request and never end it hold memory and
descriptors for good, and whatever else the controller does waits behind them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger()

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 10.0
LOG_EVERY_S = 60.0


class ConnectionLimits:
    """The open connections of one server, oldest unfinished head first."""

    def __init__(self, max_connections: int, count: Callable[[str], None]) -> None:
        """`count` is called with the reason of each connection that is ended: full, head_timeout, head_too_large."""
        self.max_connections = max_connections
        self._count = count
        self._open: set[LimitedProtocol] = set()
        self._unfinished: dict[LimitedProtocol, None] = {}
        self._log_again_s = 0.0

    def admit(self, connection: LimitedProtocol) -> bool:
        """Whether there is room. When all places are taken, the client that is longest at its head has to go."""
        if len(self._open) >= self.max_connections:
            self.note("full")
            oldest = next(iter(self._unfinished), None)
            if oldest is None:
                return False
            oldest.abort()
        self._open.add(connection)
        return True

    def begin_head(self, connection: LimitedProtocol) -> None:
        """The connection is expected to send a head now."""
        self._unfinished[connection] = None

    def end_head(self, connection: LimitedProtocol) -> None:
        """Its head is there."""
        self._unfinished.pop(connection, None)

    def leave(self, connection: LimitedProtocol) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._unfinished.pop(connection, None)

    def note(self, reason: str) -> None:
        """Count an ended connection; a flood gives one log line a minute."""
        self._count(reason)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._log_again_s:
            self._log_again_s = now_s + LOG_EVERY_S
            log.warning(
                "http.connection_refused",
                reason=reason,
                open=len(self._open),
                unfinished_heads=len(self._unfinished),
                max_connections=self.max_connections,
            )


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`, which `limited_protocol` sets."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._is_in_head = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Called by asyncio."""
        # Head and body of an answer are two writes: the second would wait for the client's word on the first, 40 ms.
        # asyncio only sees to that for sockets that name their protocol, which those of `socket.create_server` don't.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        if self.limits.admit(self):
            self._begin_head()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._end_head()
        self.limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self.transport.is_closing():
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a request."""
        if not self._is_in_head:  # a kept connection's next request
            self._begin_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._end_head()
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def abort(self) -> None:
        """Close at once, without an answer."""
        self.limits.leave(self)
        self._end_head()
        self.transport.abort()

    def _begin_head(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self.limits.begin_head(self)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._expire_head)

    def _end_head(self) -> None:
        self._is_in_head = False
        self.limits.end_head(self)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _expire_head(self) -> None:
        self.limits.note("head_timeout")
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole request head within {HEAD_TIMEOUT_S:g} s")

    def _refuse_head(self) -> None:
        self.limits.note("head_too_large")
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes"
        )

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._end_head()
        body = f'{{"error":"{message}","remedy":null,"exit_code":2}}'.encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """The protocol class of one server."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
