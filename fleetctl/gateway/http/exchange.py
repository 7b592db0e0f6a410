"""The client's side of one request: its id, body, hang-up, and the answer as far as it was sent.

A little longer than others: what may be sent next depends on all of it.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from fleetctl.gateway.http.answers import ErrorAnswer, RawHeaders, WholeAnswer
from fleetctl.gateway.http.body_budget import BodyBudget
from fleetctl.gateway.http.message_head import CHUNKED, RequestHead, answer_head, has_body

REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")  # what a node takes as well

# Not passed on to a node: per hop, set anew by us, or words that only the gateway may say to a node.
_DROPPED = frozenset(
    {
        b"host",
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"http2-settings",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"accept-encoding",
        b"expect",
        b"x-request-id",
        b"x-forwarded-for",  # goes on with our own part
    }
)
_OURS = b"x-fleet-"
_ADDRESSES = b"x-forwarded-for"


class BodyTooLargeError(Exception):
    """The client's body is over the limit."""


class TooManyBodiesError(Exception):
    """So much of other clients' bodies is on its way in that there is no room for this one."""


class BadDeadlineError(Exception):
    """The client's deadline is no positive number of seconds."""


class ClientGoneError(Exception):
    """The client hung up before its body was complete."""


class BadFramingError(Exception):
    """The client's body is not framed as HTTP says."""


class ClientSink(Protocol):
    """The connection of an exchange, as far as an exchange knows it."""

    address: str
    is_full: bool  # so much is unsent that it is better to wait

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may follow, as far as the connection is concerned."""

    def write(self, data: bytes) -> None:
        """Send these bytes. Never waits."""

    async def wait_for_room(self) -> None:
        """Until the client has read most of what is unsent."""

    def finish(self, exchange: Exchange, *, keeps_alive: bool) -> None:
        """The whole answer of this exchange was written."""


class KeptBody:
    """The body of an answer as it passes, up to a bound."""

    __slots__ = ("_bytes_left", "parts")

    def __init__(self, max_bytes: int) -> None:
        self._bytes_left = max_bytes
        self.parts: list[bytes] = []

    @property
    def is_too_long(self) -> bool:
        """Whether there was more than may be kept, or it was closed: then nothing is."""
        return self._bytes_left < 0

    def note(self, data: bytes) -> None:
        """A part of the body."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.parts.clear()
        else:
            self.parts.append(data)

    def close(self) -> None:
        """Keep nothing any more."""
        self._bytes_left = -1
        self.parts.clear()


class Exchange:
    """One request and its answer. After `watch()`, a hang-up cancels the task that serves it."""

    __slots__ = (
        "_bodies",
        "_body_limit_s",
        "_is_broken",
        "_is_pushed_out",
        "_is_whole",
        "_keeps_alive",
        "_max_body_bytes",
        "_parts",
        "_pending",
        "_sink",
        "_size",
        "_task",
        "_waiter",
        "_writes_body",
        "address",
        "copy_to",
        "gone_reason",
        "has_begun",
        "has_ended",
        "head",
        "headers",
        "is_aborted",
        "is_gone",
        "method",
        "path",
        "target",
    )

    def __init__(
        self, head: RequestHead, sink: ClientSink, bodies: BodyBudget, *, max_body_bytes: int, body_limit_s: float
    ) -> None:
        """`bodies`: what all bodies may hold together until they are taken up."""
        self.head = head
        self.method = head.method
        self.path = head.path  # decoded, without the query
        self.target = head.target  # path and query as the client encoded them
        self.headers = head.headers  # in their order, names in lower case
        self.address: str | None = sink.address or None  # where the connection comes from
        self.has_begun = False  # the client has seen a status line
        self.has_ended = False  # the client has the whole answer
        self.is_gone = False  # the client hung up
        self.gone_reason = ""  # why, when we hung up on it
        self.is_aborted = False  # we end it: the gateway is shutting down
        self._sink = sink
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes
        self._body_limit_s = body_limit_s
        self.copy_to: list[Callable[[bytes], None]] = []  # each gets the body of the answer as well
        self._parts: list[bytes] = []
        self._size = 0
        self._is_whole = False  # the body has come
        self._is_broken = False
        self._is_pushed_out = False  # there was no room for the body
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[object] | None = None
        self._pending = b""  # the head of a stream: it goes out with the first part
        self._keeps_alive = False
        self._writes_body = True

    # -- the request ------------------------------------------------------------------------------------------------

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name (in lower case); None without one."""
        return self.head.first.get(name)

    def request_id(self) -> str | None:
        """The id the client gave, when it is one that we can pass on and log."""
        value = self.header(b"x-request-id")
        return value.decode("ascii") if value is not None and REQUEST_ID.match(value) else None

    def names_itself(self, request_id: str) -> bool:
        """Whether the id in the body counts: the client gave none in the head, and this one can be passed on."""
        return self.request_id() is None and REQUEST_ID.match(request_id.encode(errors="replace")) is not None

    def deadline_s(self) -> float | None:
        """Seconds from its arrival after which the client wants no answer. Raises BadDeadlineError."""
        if b"x-fleet-deadline-s" not in self.head.first:
            return None
        given = [value for name, value in self.headers if name == b"x-fleet-deadline-s"]
        try:
            limits = [float(value) for value in given]
        except ValueError as error:
            raise BadDeadlineError from error
        if not all(math.isfinite(limit) and limit > 0 for limit in limits):
            raise BadDeadlineError
        return min(limits)

    def forwarded_headers(self) -> list[tuple[bytes, bytes]]:
        """The client's headers that a node gets as they are, and where the client's connection comes from.

        Addresses that it states itself stay before ours, as proxies do it: a node believes the last one only. Headers
        that `Connection` names are of this hop alone.
        """
        dropped, first = _DROPPED, self.head.first
        if b"connection" in first and not (named := self._named_by_connection()) <= dropped:
            dropped = dropped | named
        headers = [pair for pair in self.headers if pair[0] not in dropped and not pair[0].startswith(_OURS)]
        addresses = [value for name, value in self.headers if name == _ADDRESSES] if _ADDRESSES in first else []
        if self.address is not None:
            addresses.append(self.address.encode())
        if addresses:
            headers.append((_ADDRESSES, b", ".join(addresses)))
        return headers

    def _named_by_connection(self) -> set[bytes]:
        values = b",".join(value for name, value in self.headers if name == b"connection")
        return {each.strip().lower() for each in values.split(b",")}

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole body.

        Raises BodyTooLargeError, TooManyBodiesError, BadFramingError, ClientGoneError, or TimeoutError when it does
        not come.
        """
        if not self._is_whole:
            stated = self.header(b"content-length")
            if stated is not None and (not stated.isdigit() or int(stated) > max_bytes):
                raise BodyTooLargeError
            if self.header(b"expect") is not None and not self._size:
                self._sink.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(self._body_limit_s):
                while not (self._is_whole or self._is_unreadable) and self._size <= max_bytes:
                    self._waiter = asyncio.get_running_loop().create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
        if self._size > max_bytes or self._size > self._max_body_bytes:
            raise BodyTooLargeError
        if self._is_pushed_out:
            raise TooManyBodiesError
        if self._is_broken:
            raise BadFramingError
        if not self._is_whole:
            raise ClientGoneError
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._bodies.release(self)
        return body

    @property
    def _is_unreadable(self) -> bool:
        return self.is_gone or self._is_broken or self._is_pushed_out

    def watch(self) -> None:
        """From now on a hang-up cancels the current task, with `is_gone` set."""
        self._task = asyncio.current_task()
        if self.is_gone and self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        """Cancel the serving task, with `is_aborted` set."""
        if self._task is not None and not self.has_ended:
            self.is_aborted = True
            self._task.cancel()

    def close(self) -> None:
        """Stop watching for a hang-up."""
        self._task = None

    # -- the answer -------------------------------------------------------------------------------------------------

    def begin(self, status: int, headers: RawHeaders) -> None:
        """The status line and headers of a stream; they go out with its first part."""
        self.has_begun = True
        self._writes_body = has_body(self.method, status)
        self._keeps_alive = self._may_keep_alive() and not self.head.is_http10
        framing = CHUNKED if self._writes_body and not self.head.is_http10 else b""
        self._pending = answer_head(status, headers, framing, keeps_alive=self._keeps_alive)

    def send(self, data: bytes) -> bool:
        """Send a part of a stream that has begun; whether more may follow before `wait_for_room`. Never waits."""
        self._sink.write(self._framed(data))
        return not self._sink.is_full

    async def wait_for_room(self) -> None:
        """Until a slow client has read most of what it was sent."""
        if self._sink.is_full:
            await self._sink.wait_for_room()

    async def write(self, data: bytes) -> None:
        """Send a part of a stream that has begun; waits while the client is slow."""
        if not self.send(data):
            await self._sink.wait_for_room()

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of a stream that has begun."""
        self.has_ended = True
        last = self._framed(data)
        if self._writes_body and not self.head.is_http10:
            last += b"0\r\n\r\n"
        self._sink.write(last)
        self._sink.finish(self, keeps_alive=self._keeps_alive)

    async def answer(self, status: int, body: bytes, headers: RawHeaders) -> None:
        """Send a whole answer."""
        self.answer_at_once(status, body, headers)

    def answer_at_once(self, status: int, body: bytes, headers: RawHeaders) -> None:
        """Send a whole answer."""
        self.has_begun = self.has_ended = True
        for note in self.copy_to:
            note(body)
        keeps_alive = self._may_keep_alive()
        framing = b"" if status in (204, 304) else b"content-length: %d\r\n" % len(body)
        head = answer_head(status, headers, framing, keeps_alive=keeps_alive)
        self._sink.write(head + body if has_body(self.method, status) else head)
        self._sink.finish(self, keeps_alive=keeps_alive)

    async def give(self, whole: WholeAnswer) -> None:
        """Send an answer that the gateway made itself."""
        self.answer_at_once(whole.status, whole.body, whole.headers)

    async def fail(self, error: ErrorAnswer, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Tell the client: an error answer, or the last event of a stream that has begun. Never a silent cut."""
        if self.has_ended:
            return
        if self.has_begun:
            await self.end(error.event())
            return
        answer = [(b"content-type", b"application/json"), *headers, *error.headers()]
        self.answer_at_once(error.status, error.body(), answer)

    def _framed(self, data: bytes) -> bytes:
        for note in self.copy_to:
            note(data)
        pending, self._pending = self._pending, b""
        if not data or not self._writes_body:
            return pending
        if self.head.is_http10:
            return pending + data
        return b"%b%x\r\n%b\r\n" % (pending, len(data), data)

    def _may_keep_alive(self) -> bool:
        return self._is_whole and self.head.keeps_alive and self._sink.keeps_alive

    # -- called by the connection -----------------------------------------------------------------------------------

    @property
    def is_received(self) -> bool:
        """Whether the whole request has come."""
        return self._is_whole

    def feed(self, part: bytes) -> None:
        """A part of the body."""
        self._size += len(part)
        if self._size <= self._max_body_bytes and not self._is_pushed_out:
            self._parts.append(part)
            self._bodies.hold(self, len(part))
        else:
            self.release_body()
            self._wake()

    def push_out(self) -> None:
        """There is no room for the body: whoever serves it says so."""
        self._is_pushed_out = True
        self._parts.clear()
        self._wake()

    def release_body(self) -> None:
        """Nobody wants what came of the body."""
        self._parts.clear()
        self._bodies.release(self)

    def feed_end(self) -> None:
        """The body is whole."""
        self._is_whole = True
        self._wake()

    def note_broken(self) -> None:
        """The rest of the body can't be read."""
        self._is_broken = True
        self._wake()

    def note_gone(self, reason: str = "") -> None:
        """The client hung up, or we hung up on it for `reason`."""
        if self.has_ended or self.is_gone:
            return
        self.is_gone = True
        self.gone_reason = reason
        self._wake()
        if self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def new_request_id() -> str:
    """An id of 32 hex digits for a request whose client gave none that we can use."""
    return os.urandom(16).hex()
