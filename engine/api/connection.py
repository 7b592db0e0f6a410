"""One client connection: how long a request's head may be and take, and errors below HTTP in OpenAI's shape.

uvicorn's protocol takes heads of any size at any pace, which lets a stranger fill the memory without one request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.api.errors import ApiError, error_response

MAX_HEAD_BYTES = 64 * 2**10  # request line and headers, and what follows a chunked body
READ_BYTES = 256 * 2**10  # the most that the event loop hands over at once


class HeadTooLargeError(Exception):
    """Ends the parsing of a request; never leaves this module."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on each request's head, in bytes and in time."""

    head_timeout_s = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._unparsed_bytes = 0  # of a head that is not complete yet
        self._is_in_head = True
        self._is_refused = False
        self._is_taking_over = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on the first request head has its time limit."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Starts the clock of the first head."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        rest = data
        while rest:
            try:
                self.parser.feed_data(rest)
                rest = b""
            except httptools.HttpParserError:
                self.send_400_response("")
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = self._without_upgrade(rest[upgrade.args[0] :])
        if self._is_in_head:
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > MAX_HEAD_BYTES + READ_BYTES:
                self._refuse(_too_large())

    def _without_upgrade(self, rest: bytes) -> bytes:
        """What to parse on with after a head that offered another protocol, as Java's HTTP client's do (h2c).

        The parser stops at such a head, and uvicorn then loses the body. A new one takes over where it stopped: it is
        given a head of which only the framing matters.
        """
        framing = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        lines = [b"POST / HTTP/1.1\r\n", *(b"%b: %b\r\n" % pair for pair in framing), b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self._is_taking_over = True
        return b"".join(lines) + rest

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._is_taking_over:
            return
        super().on_message_begin()
        self._head_bytes = self._unparsed_bytes = 0
        self._is_in_head = True
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        """The target counts as part of the head."""
        if self._is_taking_over:
            return
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header counts as part of the head."""
        if self._is_taking_over:
            return
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: its clock stops."""
        if self._is_taking_over:
            self._is_taking_over = False
            return
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next head may come."""
        if not self.parser.should_upgrade():  # else its body is yet to come
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what can't be parsed; uvicorn's own answer is plain text."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_large())
        else:
            self._refuse(ApiError(400, "this is no valid HTTP request", code="bad_http"))

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLargeError

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._unparsed_bytes == 0:
            self.transport.close()  # it never asked for anything
        else:
            message = f"the request did not arrive within {self.head_timeout_s:g} s"
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answers and closes, unless an answer is being written: that one is cut."""
        self._is_refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            answer = error_response(error)
            lines = [STATUS_LINE[answer.status_code]]
            lines += [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
            self.transport.write(b"".join([*lines, b"connection: close\r\n\r\n", bytes(answer.body)]))
        self.transport.close()


def protocol_with(head_timeout_s: float) -> type[LimitedProtocol]:
    """The class that uvicorn makes one of for each connection."""
    return type("NodeProtocol", (LimitedProtocol,), {"head_timeout_s": head_timeout_s})


def _too_large() -> ApiError:
    return ApiError(431, f"the request's headers are larger than {MAX_HEAD_BYTES} bytes", code="headers_too_large")
