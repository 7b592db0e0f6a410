"""One connection to an HTTP server: a request goes out, the whole answer comes back. httptools reads the protocol."""

from __future__ import annotations

import asyncio
import zlib
from typing import NamedTuple, cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
_PACKED = {b"gzip", b"x-gzip", b"deflate"}
_GZIP_OR_ZLIB = 47  # zlib's number for "see which of the two it is"


class HttpAnswerError(Exception):
    """The peer's answer is no whole, valid one."""


class HttpAnswer(NamedTuple):
    """`body` is unpacked."""

    status: int
    body: bytes


class HttpConnection(asyncio.Protocol):
    """One request at a time. What is wrong with an answer, or too long, ends the connection."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_reusable = False
        self.has_heard = False  # any byte since the last request
        self.idle_since_s = 0.0  # loop time, kept by whoever pools it
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._parts: list[bytes] = []
        self._max_bytes = self._size = self._head_bytes = 0
        self._encoding = b""
        self._unpacker: zlib._Decompress | None = None
        self._is_body = False
        self._is_until_end = True  # without a length the end of the connection is the end of the answer

    async def request(self, request: bytes, max_bytes: int) -> HttpAnswer:
        """The answer to these bytes, with at most `max_bytes` of body, unpacked.

        Raises HttpAnswerError, and ConnectionError when the peer closes first.
        """
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the connection is closed")
        self._begin_answer()
        self.has_heard = self.is_reusable = False
        self._max_bytes = max_bytes
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            return await self._waiter
        finally:
            self._waiter = None
            self._parts = []

    def abort(self) -> None:
        """Close at once; a request in flight fails."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: bytes of the answer."""
        if self._waiter is None or self._waiter.done():
            self.abort()  # nobody asked
            return
        self.has_heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(HttpAnswerError(f"no valid HTTP answer: {error}"))
            return
        self._head_bytes += 0 if self._is_body else len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._fail(HttpAnswerError(f"headers longer than {MAX_HEAD_BYTES} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: without a length this is the end of the answer."""
        self.is_open = False
        if exc is None and self._is_body and self._is_until_end:
            self._finish()
        else:
            self._fail(ConnectionResetError("closed before the whole answer had come"))

    # -- httptools' callbacks -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by httptools."""
        if self._waiter is None or self._waiter.done():
            self.is_reusable = False  # more than was asked for: what comes next would be taken for another answer

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools for each header."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._is_until_end = False
        elif name == b"content-encoding":
            self._encoding = value.strip().lower()

    def on_headers_complete(self) -> None:
        """Called by httptools: a body follows, packed or not."""
        if self._parser.get_status_code() < 200:
            return
        self._is_body = True
        if self._encoding in _PACKED:
            self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif self._encoding not in (b"", b"identity"):
            self._fail(HttpAnswerError(f"packed as {self._encoding.decode('latin-1')}, which was not asked for"))

    def on_body(self, part: bytes) -> None:
        """Called by httptools for each part of the body."""
        if self._waiter is None or self._waiter.done():
            return
        if self._unpacker is not None:
            try:
                part = self._unpacker.decompress(part, self._max_bytes - self._size + 1)
            except zlib.error as error:
                self._fail(HttpAnswerError(f"cannot be unpacked: {error}"))
                return
        self._size += len(part)
        if self._size > self._max_bytes:
            self._fail(HttpAnswerError(f"the answer is longer than {self._max_bytes} bytes"))
            return
        self._parts.append(part)

    def on_message_complete(self) -> None:
        """Called by httptools: the answer is whole."""
        if self._parser.get_status_code() < 200:
            self._begin_answer()  # "continue" and the like: the answer is still to come
        else:
            self.is_reusable = self._parser.should_keep_alive()
            self._finish()

    # -- inside -------------------------------------------------------------------------------------------------

    def _begin_answer(self) -> None:
        self._parts = []
        self._size = self._head_bytes = 0
        self._encoding = b""
        self._unpacker = None
        self._is_body = False
        self._is_until_end = True

    def _finish(self) -> None:
        if self._unpacker is not None and not self._unpacker.eof:
            self._fail(HttpAnswerError("cannot be unpacked: cut short"))
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(HttpAnswer(self._parser.get_status_code(), b"".join(self._parts)))

    def _fail(self, error: Exception) -> None:
        self.is_reusable = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
