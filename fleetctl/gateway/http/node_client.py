"""Requests to nodes: one pool of connections for all of them. What goes wrong tells whether a node had the request."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import deque
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection

from fleetctl.gateway.http.answers import RawHeaders
from fleetctl.gateway.http.message_head import header_lines
from fleetctl.gateway.http.node_connection import (
    HungUpError,
    NodeAnswer,
    NodeClientError,
    NodeConnectError,
    NodeConnection,
    NodeDisconnectedError,
    StaleConnectionError,
)

__all__ = ["HungUpError", "NodeAnswer", "NodeClient", "NodeClientError", "NodeConnectError", "NodeDisconnectedError"]

KEEP_ALIVE_S = 4.0  # below uvicorn's 5 s: a node must not close a connection as we write to it
# TCP's own: a machine that lost its power and came back knows nothing of our connections, and says so only when asked.
_IDLE: int = getattr(socket, "TCP_KEEPIDLE", 0) or getattr(socket, "TCP_KEEPALIVE", 0)  # macOS has another name
TCP_KEEP_ALIVE = ((_IDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
MAX_ORIGINS = 10_000
RESOLVED_S = 10.0  # a name's addresses are looked up again after this long
_NEXT_ADDRESS_S = 0.25  # a name's second address is tried when the first one does not answer
_PORTS = {"http": 80, "https": 443}


class _Origin:
    """One node's address, and its idle connections: the one used last is used next, so that the others can expire."""

    __slots__ = ("_literal", "_resolved_at_s", "_resolving", "host", "idle", "is_tls", "name", "port", "prefix")

    def __init__(self, base: str) -> None:
        """Raises ValueError for what is no http or https URL."""
        parts = urlsplit(base)
        default_port = _PORTS.get(parts.scheme)
        if default_port is None or not parts.hostname:
            raise ValueError(f"{base!r} is no http or https URL")
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
        self.port = parts.port or default_port
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.name = name if self.port == default_port else f"{name}:{self.port}"
        self.prefix = parts.path
        self.idle: deque[NodeConnection] = deque()
        self._literal = _literal_address(self.host, self.port)
        self._resolved_at_s = 0.0
        self._resolving: asyncio.Task[list[AddrInfoType]] | None = None

    async def addresses(self) -> list[AddrInfoType]:
        """Where it is. A name is looked up once for all who ask meanwhile, and again after a while. Raises OSError."""
        if self._literal:
            return self._literal
        loop = asyncio.get_running_loop()
        task = self._resolving
        if task is None or (task.done() and loop.time() - self._resolved_at_s > RESOLVED_S):
            self._resolved_at_s = loop.time()
            task = self._resolving = loop.create_task(self._look_up(loop), name="gateway.resolve")
        return await asyncio.shield(task)

    def close(self) -> None:
        """Nobody waits for a look-up any more."""
        if self._resolving is not None:
            self._resolving.cancel()

    def forget_addresses(self) -> None:
        """No connection came of them: the next one looks them up anew."""
        if self._resolving is not None and self._resolving.done():
            self._resolving = None

    async def _look_up(self, loop: asyncio.AbstractEventLoop) -> list[AddrInfoType]:
        return cast(list[AddrInfoType], await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))


class PoolCounts(NamedTuple):
    """Connections to nodes, as they are now."""

    open: int
    idle: int


class NodeClient:
    """Owner of the connections to nodes. Threading: event loop only."""

    def __init__(self, *, connect_limit_s: float) -> None:
        """`connect_limit_s`: until a node must have taken a connection."""
        self._connect_limit_s = connect_limit_s
        self._origins: dict[str, _Origin] = {}
        self._open: set[NodeConnection] = set()
        self._tls: ssl.SSLContext | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(
        self, method: str, base: str, target: str, *, headers: RawHeaders = (), body: bytes | None = None
    ) -> NodeAnswer:
        """Send a request and wait for the head of its answer.

        `base` is the node's URL without a slash at its end; `target` is an encoded path with its query. Redirects are
        not followed, bodies are not unpacked, and no header is added but Host and Content-Length. Raises
        NodeConnectError, NodeDisconnectedError (HungUpError when the node is well all the same).
        """
        origin = self._origin(base)
        head = _head(method, origin, target, headers, body)
        is_head = method == "HEAD"
        while (connection := self._idle(origin)) is not None:
            try:
                return await self._send(connection, head, body, is_head)
            except HungUpError as error:
                await self._check_alive(origin, error)
                raise
            except StaleConnectionError:
                continue  # it never had the request, and neither will it on the other idle ones, one after the other
        connection = await self._connected(origin)
        try:
            return await self._send(connection, head, body, is_head)
        except StaleConnectionError as error:
            raise NodeDisconnectedError(str(error)) from error

    def counts(self) -> PoolCounts:
        """How many connections there are."""
        return PoolCounts(len(self._open), sum(len(origin.idle) for origin in self._origins.values()))

    async def aclose(self) -> None:
        """Close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for origin in self._origins.values():
            origin.close()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # the loop closes aborted sockets in its next turn

    async def _send(self, connection: NodeConnection, head: bytes, body: bytes | None, is_head: bool) -> NodeAnswer:
        try:
            return await connection.request(head, body, is_head=is_head)
        except BaseException:
            connection.abort()  # also when nobody waits any more: the answer would come later
            raise

    async def _check_alive(self, origin: _Origin, error: HungUpError) -> None:
        """A node that died with the request takes no new connection. Raises NodeDisconnectedError then."""
        try:
            connection = await self._connected(origin)
        except NodeConnectError:
            raise NodeDisconnectedError(str(error)) from error
        connection.idle_since_s = asyncio.get_running_loop().time()
        origin.idle.append(connection)

    def _origin(self, base: str) -> _Origin:
        origin = self._origins.get(base)
        if origin is None:
            if len(self._origins) >= MAX_ORIGINS:
                self._forget_unused()
            try:
                origin = self._origins[base] = _Origin(base)
            except ValueError as error:
                raise NodeConnectError(str(error)) from error
        return origin

    def _idle(self, origin: _Origin) -> NodeConnection | None:
        idle = origin.idle
        while idle:
            connection = idle.pop()
            if connection.is_open:
                if asyncio.get_running_loop().time() - connection.idle_since_s <= KEEP_ALIVE_S:
                    return connection
                connection.abort()
        return None

    async def _connected(self, origin: _Origin) -> NodeConnection:
        loop = asyncio.get_running_loop()

        def give_back(connection: NodeConnection) -> None:
            connection.idle_since_s = loop.time()
            origin.idle.append(connection)
            if self._sweeper is None:
                self._sweeper = loop.call_later(KEEP_ALIVE_S, self._sweep)

        try:
            async with asyncio.timeout(self._connect_limit_s):
                sock = await start_connection(await origin.addresses(), happy_eyeballs_delay=_NEXT_ADDRESS_S)
                try:
                    _keep_alive(sock)
                    _, connection = await loop.create_connection(
                        lambda: NodeConnection(give_back, self._open.discard),
                        sock=sock,
                        ssl=self._context() if origin.is_tls else None,
                        server_hostname=origin.host if origin.is_tls else None,
                    )
                except BaseException:
                    sock.close()
                    raise
        except (OSError, TimeoutError) as error:
            origin.forget_addresses()
            reason = str(error) or f"no connection within {self._connect_limit_s:g} s"
            raise NodeConnectError(f"{origin.name}: {reason}") from error
        self._open.add(connection)
        return connection

    def _sweep(self) -> None:
        """Close what was idle for too long. The oldest ones of a node stand left."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() - KEEP_ALIVE_S
        is_any_left = False
        for origin in self._origins.values():
            idle = origin.idle
            while idle and (not idle[0].is_open or idle[0].idle_since_s <= until_s):
                idle.popleft().abort()
            is_any_left = is_any_left or bool(idle)
        self._sweeper = loop.call_later(KEEP_ALIVE_S / 2, self._sweep) if is_any_left else None

    def _forget_unused(self) -> None:
        for base in [base for base, origin in self._origins.items() if not origin.idle]:
            del self._origins[base]

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _head(method: str, origin: _Origin, target: str, headers: RawHeaders, body: bytes | None) -> bytes:
    """Raises NodeConnectError for a header, or a target, that would end its own line."""
    first = f"{method} {origin.prefix}{target} HTTP/1.1\r\nHost: {origin.name}\r\n".encode("latin-1")
    has_length = body is not None or method not in ("GET", "HEAD", "OPTIONS")
    length = b"Content-Length: %d\r\n" % (len(body) if body else 0) if has_length else b""
    try:
        lines = header_lines(headers)
    except ValueError as error:
        raise NodeConnectError(str(error)) from error
    if "\n" in target or "\r" in target:
        raise NodeConnectError("the target has a line break")
    return b"".join((first, lines, length, b"\r\n"))


def _literal_address(host: str, port: int) -> list[AddrInfoType]:
    """Of a host that is an address itself, which nobody has to look up; empty for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return []
    if address.version == 6 and address.scope_id:
        return []  # the zone's number is the resolver's to tell
    family, at = (socket.AF_INET, (host, port)) if address.version == 4 else (socket.AF_INET6, (host, port, 0, 0))
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", at)]


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in TCP_KEEP_ALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
