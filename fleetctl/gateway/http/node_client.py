"""Requests to nodes: one connection pool for all of them. What goes wrong is told by whether a node had the request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import aiohttp
from yarl import URL

KEEP_ALIVE_S = 4.0  # below uvicorn's 5 s: a node must not close a connection as we write to it
# TCP's own: a machine that lost its power and came back knows nothing of our connections, and says so only when asked.
TCP_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class NodeClientError(Exception):
    """A node gave no whole answer."""


class NodeConnectError(NodeClientError):
    """No connection was made: the node never had the request."""


class NodeDisconnectedError(NodeClientError):
    """The connection ended, or what came was no HTTP, with the request sent: the node may have had it in hand."""


class NodeAnswer:
    """A node's status and headers, and its body as it comes. `release()` is owed once."""

    __slots__ = ("_response", "content_type", "raw_headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.raw_headers: Iterable[tuple[bytes, bytes]] = response.raw_headers
        self.content_type = response.content_type  # without parameters, in lower case

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case; None without one."""
        return self._response.headers.get(name)

    async def read_any(self) -> bytes:
        """The next part of the body as soon as there is one; empty at its end. Raises NodeDisconnectedError."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise NodeDisconnectedError(type(error).__name__) from error

    def release(self) -> None:
        """Give the connection back when the body was read to its end, else close it: that tells the node to stop."""
        self._response.release()


class NodeClient:
    """Owner of the connections to nodes. Threading: event loop only."""

    def __init__(self, *, connect_limit_s: float) -> None:
        """`connect_limit_s`: until a node must have taken a connection."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, socket_factory=_make_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_limit_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # bytes pass as they are
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Accept", "Content-Type"),
        )

    async def request(
        self, method: str, base: str, target: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None
    ) -> NodeAnswer:
        """Send a request and wait for the head of its answer.

        `base` is the node's URL without a slash at its end; `target` is an encoded path with its query. Raises
        NodeConnectError, NodeDisconnectedError.
        """
        try:
            response = await self._session.request(
                method, URL(base + target, encoded=True), data=body, headers=tuple(headers), allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NodeConnectError(type(error).__name__) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NodeDisconnectedError(type(error).__name__) from error
        return NodeAnswer(response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()
        await asyncio.sleep(0)  # the loop closes sockets in its next turn


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in TCP_KEEP_ALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
