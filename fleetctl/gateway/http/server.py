"""The HTTP server of one process: accepts on a listener, in the clear or with TLS, and ends in order."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from fleetctl.gateway.http.client_connection import ClientConnection, Serve
from fleetctl.gateway.http.connection_limits import ConnectionLimits
from fleetctl.kit.errors import BadInputError
from fleetctl.settings.gateway_http import GatewayHttpSettings

log = structlog.get_logger()

BACKLOG = 2048
ACCEPT_PAUSE_S = 0.1  # when there is no descriptor for one more connection


class HttpServer:
    """Owner of a process's client connections. `start` once, then `drain`, then `close`."""

    def __init__(
        self, serve: Serve, settings: GatewayHttpSettings, *, count: Callable[[str], None] = lambda reason: None
    ) -> None:
        """`count` hears the reason of each connection that is ended by a limit. Raises BadInputError: bad TLS files."""
        self._serve = serve
        self._settings = settings
        self.limits = ConnectionLimits(settings, _max_connections(settings.max_connections), count=count)
        self._tls = None if settings.tls_certificate is None else _tls_context(settings)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptor: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        listener.setblocking(False)
        self._keep(self.limits.sweep_forever())
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connection, sock=listener, backlog=BACKLOG)
        else:
            listener.listen(BACKLOG)
            self._acceptor = self._keep(self._accept_forever(listener, self._tls))

    def stop_accepting(self, *, keeps_idle: bool = False) -> None:
        """Take no new connection; those that are there end with their next answer, idle ones now unless kept."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._acceptor is not None:
            self._acceptor.cancel()
            self._acceptor = None
        self.limits.begin_drain(keeps_idle=keeps_idle)

    async def drained(self) -> None:
        """Until every connection has ended."""
        await self.limits.emptied.wait()

    async def close(self) -> None:
        """End everything now."""
        self.stop_accepting()
        self.limits.abort_all()
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(0)  # the loop closes aborted sockets in its next turn

    def _connection(self) -> ClientConnection:
        return ClientConnection(self._serve, self.limits)

    def _keep(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_forever(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        """A handshake is part of a head: it has the same limits, in time and in number."""
        loop = asyncio.get_running_loop()
        # Not `sock_accept`: cancelled at the wrong moment it loses a connection that it took.
        ready = asyncio.Event()
        loop.add_reader(listener, ready.set)
        try:
            with listener:
                while True:
                    await ready.wait()
                    try:
                        sock, peer = listener.accept()
                    except BlockingIOError:
                        ready.clear()
                        continue
                    except OSError as error:
                        log.warning("http.not_accepted", error=str(error))
                        await asyncio.sleep(ACCEPT_PAUSE_S)
                        continue
                    self._begin_handshake(sock, peer, tls)
        finally:
            loop.remove_reader(listener)

    def _begin_handshake(self, sock: socket.socket, peer: object, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        handshake = Handshake(sock, peer[0] if isinstance(peer, tuple) else "", self.limits)
        if self.limits.admit(handshake) is not None:
            sock.close()
            return
        self.limits.begin_head(handshake, loop.time())
        handshake.task = self._keep(self._shake_hands(handshake, tls))

    async def _shake_hands(self, handshake: Handshake, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: ClientConnection(self._serve, self.limits, handshake=handshake),
                handshake.sock,
                ssl=tls,
                ssl_handshake_timeout=self._settings.head_limit_s,
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            handshake.sock.close()
            log.debug("tls.no_handshake", address=handshake.address, error=str(error))
        finally:
            self.limits.leave(handshake)


class Handshake:
    """A TLS connection before its first byte of HTTP. It counts as one whose head has not come."""

    def __init__(self, sock: socket.socket, address: str, limits: ConnectionLimits) -> None:
        self.sock = sock
        self.address = address
        self.task: asyncio.Task[None] | None = None
        self._limits = limits

    def abort(self) -> None:
        """Close at once."""
        if self.task is not None:
            self.task.cancel()

    expire_head = expire_slow = close_unused = abort


def _max_connections(wanted: int) -> int:
    """At most half of the descriptors that this process may open: nodes need the others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * wanted + 128
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, (soft - 128) // 2))


def _tls_context(settings: GatewayHttpSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_chain(context, settings)
    return context


def _load_chain(context: ssl.SSLContext, settings: GatewayHttpSettings) -> None:
    certificate, key = settings.tls_certificate, settings.tls_key
    assert certificate is not None
    assert key is not None
    for path in (certificate, key):
        if not Path(path).is_file():
            raise BadInputError(
                f"{path}: no such file", remedy="gateway.http.tls_certificate and tls_key name PEM files"
            )
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise BadInputError(f"{certificate}: not a certificate with the key {key}: {error}") from error
