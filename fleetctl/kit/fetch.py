"""One GET of a text: within a time, within a size, or a reason why not.

Thousands of peers are asked every few seconds, so this stands on httptools and a connection kept for each: half the
CPU of a general HTTP client, and a seventh of the memory of a small controller.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from socket import SOCK_STREAM
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import aiohappyeyeballs

from fleetctl.kit.http_connection import HttpAnswer, HttpAnswerError, HttpConnection
from fleetctl.kit.stall import StallMonitor

_HEADERS = (
    "Accept: text/plain;version=0.0.4, application/json\r\nAccept-Encoding: gzip, identity\r\nUser-Agent: fleetctl\r\n"
)
_PORTS = {"http": 80, "https": 443}
_SAFE = "/%:@!$&'()*+,;=~-._?"
_MAX_KNOWN_URLS = 20_000
_IDLE_S = 60.0  # a connection unused for longer may be one that a firewall has forgotten
_NEXT_ADDRESS_S = 0.25  # a name's second address is tried when the first one does not answer


class Fetched(NamedTuple):
    """`text` is None when there is no whole answer; `problem` then says why."""

    text: str | None
    problem: str = ""


class TextAnswer(NamedTuple):
    """`status` is None when there is no whole answer; `problem` then says why."""

    status: int | None
    text: str = ""
    problem: str = ""


class _Origin(NamedTuple):
    is_tls: bool
    host: str
    port: int


class _Request(NamedTuple):
    origin: _Origin
    head: bytes


class Fetcher:
    """A pool of connections without a limit: a peer that hangs holds its own connection and nobody else's."""

    def __init__(self, *, timeout_s: float, max_bytes: int, stalls: StallMonitor | None = None) -> None:
        """`stalls`: time in which we did not attend is not counted as the peer's. `max_bytes`: of a body, unpacked."""
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._stalls = stalls or StallMonitor()
        self._requests: dict[tuple[str, str], _Request] = {}  # by URL and header
        self._idle: dict[_Origin, list[HttpConnection]] = {}
        self._tls: ssl.SSLContext | None = None
        self._next_look_s = 0.0

    async def fetch(self, url: str, authorization: str = "") -> Fetched:
        """The metrics text at `url`, if it answers 200 with one."""
        answer = await self.get(url, authorization)
        if answer.status is None:
            return Fetched(None, answer.problem)
        return Fetched(answer.text) if answer.status == 200 else Fetched(None, f"answered {answer.status}")

    async def get(self, url: str, authorization: str = "") -> TextAnswer:
        """The answer of any status. Reads at most `max_bytes` and takes at most `timeout_s` of our attention.

        `authorization`: value of that header; empty: none is sent.
        """
        try:
            # A limit on the whole: a peer that drips bytes must not hold its asker for ever.
            async with asyncio.timeout(None) as limit:
                timer = _AttendedTimer(self._timeout_s, self._stalls, limit)
                try:
                    answer = await self._answer(self._request_for(url, authorization))
                finally:
                    timer.cancel()
            if answer.status != 200:
                return TextAnswer(answer.status, answer.body.decode("utf-8", "replace"))
            return TextAnswer(200, answer.body.decode("utf-8"))
        except UnicodeDecodeError:
            return TextAnswer(None, "", "not in Prometheus' text format: not UTF-8")
        except TimeoutError:
            return TextAnswer(None, "", f"no whole answer within {self._timeout_s:g} s")
        except (HttpAnswerError, ValueError, OSError) as error:
            return TextAnswer(None, "", str(error) or type(error).__name__)

    async def close(self) -> None:
        """Close every idle connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes aborted sockets in its next turn

    async def _answer(self, request: _Request) -> HttpAnswer:
        """Raises HttpAnswerError, OSError."""
        idle = self._idle.get(request.origin, [])
        while idle:
            connection = idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._ask(connection, request)
            except ConnectionError:
                # Servers close what was idle for long, sometimes just as the next request goes out. Asked anew once.
                if connection.has_heard:
                    raise
                break
        return await self._ask(await self._connected(request.origin), request)

    async def _ask(self, connection: HttpConnection, request: _Request) -> HttpAnswer:
        try:
            answer = await connection.request(request.head, self._max_bytes)
        except BaseException:
            connection.abort()  # also when the time is up: the rest of the answer would come later
            raise
        if connection.is_open and connection.is_reusable:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.setdefault(request.origin, []).append(connection)
        else:
            connection.abort()
        return answer

    async def _connected(self, origin: _Origin) -> HttpConnection:
        """Raises OSError naming the address."""
        loop = asyncio.get_running_loop()
        self._close_idle(loop.time())
        try:
            addresses = await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM)
            sock = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S)
            try:
                _, connection = await loop.create_connection(
                    HttpConnection,
                    sock=sock,
                    ssl=self._context() if origin.is_tls else None,
                    server_hostname=origin.host if origin.is_tls else None,
                )
            except BaseException:
                sock.close()
                raise
        except TimeoutError:
            raise
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ConnectionError(f"cannot connect to {origin.host}:{origin.port}: {reason}") from error
        return connection

    def _close_idle(self, now_s: float) -> None:
        """Looks at all of them once in a while only: a whole fleet may connect at once."""
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _IDLE_S
        for origin, connections in list(self._idle.items()):
            kept = [each for each in connections if each.is_open and each.idle_since_s >= now_s - _IDLE_S]
            for connection in connections:
                if connection not in kept:
                    connection.abort()
            connections[:] = kept
            if not kept:
                del self._idle[origin]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _request_for(self, url: str, authorization: str) -> _Request:
        """Raises ValueError for what is no http or https URL."""
        known = self._requests.get((url, authorization))
        if known is None:
            if len(self._requests) >= _MAX_KNOWN_URLS:
                self._requests.clear()
            known = self._requests[(url, authorization)] = _request(url, authorization)
        return known


class _AttendedTimer:
    """Lets `limit` expire after so many seconds, those of our own stalls not counted."""

    def __init__(self, timeout_s: float, stalls: StallMonitor, limit: asyncio.Timeout) -> None:
        self._timeout_s, self._stalls, self._limit = timeout_s, stalls, limit
        self._granted_s = stalls.stalled_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s, self._expire)

    def cancel(self) -> None:
        """The answer is there."""
        self._timer.cancel()

    def _expire(self) -> None:
        stalled_s = self._stalls.stalled_s
        more_s, self._granted_s = min(stalled_s - self._granted_s, self._timeout_s), stalled_s
        if more_s > 0:
            self._timer = self._loop.call_later(more_s, self._expire)
        else:
            self._limit.reschedule(self._loop.time())


def _request(url: str, authorization: str) -> _Request:
    parts = urlsplit(url)
    default_port = _PORTS.get(parts.scheme)
    if default_port is None or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https URL")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    port = parts.port or default_port
    name = f"[{host}]" if ":" in host else host
    target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
    head = f"GET {target} HTTP/1.1\r\nHost: {name if port == default_port else f'{name}:{port}'}\r\n{_HEADERS}"
    if authorization:
        head += f"Authorization: {authorization}\r\n"
    elif parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        head += f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    return _Request(_Origin(parts.scheme == "https", host, port), f"{head}\r\n".encode("ascii"))
