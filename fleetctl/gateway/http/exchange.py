"""The client's side of one request: its id, body, hang-up, and the answer as far as it was sent."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterable

from fleetctl.gateway.http.answers import (
    ErrorAnswer,
    Message,
    RawHeaders,
    Receive,
    Scope,
    Send,
    WholeAnswer,
    send_whole,
)

REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")  # what a node takes as well
BODY_TIMEOUT_S = 30.0

# Not passed on to a node: per hop, set anew by us, or words that only the gateway may say to a node.
_DROPPED = frozenset(
    {
        b"host",
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"accept-encoding",
        b"expect",
        b"x-request-id",
    }
)
_OURS = b"x-fleet-"


class BodyTooLargeError(Exception):
    """The client's body is over the limit."""


class BadDeadlineError(Exception):
    """The client's deadline is no positive number of seconds."""


class ClientGoneError(Exception):
    """The client hung up before its body was complete."""


class Exchange:
    """One HTTP exchange over ASGI. After `watch()`, a hang-up cancels the task that serves it."""

    __slots__ = ("_receive", "_send", "_task", "_watcher", "has_begun", "has_ended", "is_aborted", "is_gone", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[Message] | None = None
        self.has_begun = False  # the client has seen a status line
        self.has_ended = False  # the client has the whole answer
        self.is_gone = False  # the client hung up
        self.is_aborted = False  # we end it: the gateway is shutting down

    @property
    def method(self) -> str:
        """GET, POST, ..."""
        method: str = self.scope["method"]
        return method

    @property
    def path(self) -> str:
        """The decoded path, without the query."""
        path: str = self.scope["path"]
        return path

    @property
    def target(self) -> str:
        """Path and query as the client encoded them."""
        path: str = self.scope["raw_path"].decode("ascii")
        query = self.scope["query_string"]
        return f"{path}?{query.decode('latin-1')}" if query else path

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All headers in their order, names in lower case."""
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        return headers

    @property
    def address(self) -> str | None:
        """The address that the connection comes from; None when it has none."""
        client = self.scope.get("client")
        return client[0] if client else None

    def header(self, name: bytes) -> bytes | None:
        """The first header of this name (in lower case); None without one."""
        for each, value in self.headers:
            if each == name:
                return value
        return None

    def request_id(self) -> str | None:
        """The id the client gave, when it is one that we can pass on and log."""
        value = self.header(b"x-request-id")
        return value.decode("ascii") if value is not None and REQUEST_ID.match(value) else None

    def deadline_s(self) -> float | None:
        """Seconds from its arrival after which the client wants no answer. Raises BadDeadlineError."""
        given = [value for name, value in self.headers if name == b"x-fleet-deadline-s"]
        try:
            limits = [float(value) for value in given]
        except ValueError as error:
            raise BadDeadlineError from error
        if not all(math.isfinite(limit) and limit > 0 for limit in limits):
            raise BadDeadlineError
        return min(limits, default=None)

    def forwarded_headers(self) -> list[tuple[str, str]]:
        """The client's headers that a node gets as they are, and where the client's connection comes from.

        Addresses that it states itself stay before ours, as proxies do it: a node believes the last one only.
        """
        headers, addresses = [], []
        for name, value in self.headers:
            if name == b"x-forwarded-for":
                addresses.append(value.decode("latin-1"))
            elif name not in _DROPPED and not name.startswith(_OURS):
                headers.append((name.decode("latin-1"), value.decode("latin-1")))
        if self.address is not None:
            addresses.append(self.address)
        if addresses:
            headers.append(("X-Forwarded-For", ", ".join(addresses)))
        return headers

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole body. Raises BodyTooLargeError, ClientGoneError, or TimeoutError when it does not come."""
        for name, value in self.headers:
            if name == b"content-length" and (not value.isdigit() or int(value) > max_bytes):
                raise BodyTooLargeError
        parts: list[bytes] = []
        size = 0
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while (message := await self._receive())["type"] == "http.request":
                part: bytes = message["body"]
                size += len(part)
                if size > max_bytes:
                    raise BodyTooLargeError
                parts.append(part)
                if not message.get("more_body"):
                    return b"".join(parts)
        raise ClientGoneError

    def watch(self) -> None:
        """From now on a hang-up cancels the current task, with `is_gone` set."""
        self._task = asyncio.current_task()
        self._watcher = asyncio.get_running_loop().create_task(self._receive_one())
        self._watcher.add_done_callback(self._on_message)

    def abort(self) -> None:
        """Cancel the serving task, with `is_aborted` set."""
        if self._task is not None and not self.has_ended:
            self.is_aborted = True
            self._task.cancel()

    def close(self) -> None:
        """Stop watching for a hang-up."""
        if self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """Send the status line and headers of a stream."""
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        """Send a part of a stream that has begun."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of a stream that has begun."""
        self.has_ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, body: bytes, headers: RawHeaders) -> None:
        """Send a whole answer."""
        self.has_begun = self.has_ended = True
        await send_whole(self._send, status, body, headers)

    async def give(self, whole: WholeAnswer) -> None:
        """Send an answer that the gateway made itself."""
        await self.answer(whole.status, whole.body, whole.headers)

    async def fail(self, error: ErrorAnswer, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Tell the client: an error answer, or the last event of a stream that has begun. Never a silent cut."""
        if self.has_ended:
            return
        if self.has_begun:
            await self.end(error.event())
            return
        self.has_begun = self.has_ended = True
        answer = [(b"content-type", b"application/json"), *headers, *error.headers()]
        await send_whole(self._send, error.status, error.body(), answer)

    async def _receive_one(self) -> Message:
        return await self._receive()

    def _on_message(self, watcher: asyncio.Task[Message]) -> None:
        if watcher.cancelled() or watcher.exception() is not None or self.has_ended:
            return
        if watcher.result()["type"] == "http.disconnect" and self._task is not None:
            self.is_gone = True
            self._task.cancel()


def new_request_id() -> str:
    """An id of 32 hex digits for a request whose client gave none that we can use."""
    return os.urandom(16).hex()
