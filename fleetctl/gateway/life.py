"""The life of a gateway process: it serves, is told of its end, lets streams end, and is gone."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import uvloop

from fleetctl.gateway.app import Gateway
from fleetctl.gateway.compiled import is_in_use
from fleetctl.gateway.http.listener import bind_listener
from fleetctl.gateway.http.server import HttpServer
from fleetctl.settings.gateway import GatewaySettings

log = structlog.get_logger()

DRAIN_GRACE_S = 30.0
ABORT_GRACE_S = 2.0  # for the errors of what was cut to reach its clients
GC_THRESHOLD = (20_000, 20, 50)


class Orders:
    """What a gateway process was told of its end. Threading: event loop only."""

    def __init__(self) -> None:
        self.retiring = asyncio.Event()
        self.stopping = asyncio.Event()
        self.on_abort: Callable[[], None] = lambda: None  # while it serves: ends what is in flight

    def retire(self) -> None:
        """Another process serves on the same listener: take no more connections, end with the last one."""
        self.retiring.set()

    def drain(self) -> None:
        """Nobody serves after it: take nothing new, let streams end for a while."""
        self.retiring.set()
        self.stopping.set()

    def abort(self) -> None:
        """End now: what is in flight ends with an error event."""
        self.drain()
        self.on_abort()

    def drain_or_abort(self) -> None:
        """As a signal means it: who asks twice does not want to wait."""
        (self.abort if self.stopping.is_set() else self.drain)()


async def serve_until_stopped(
    gateway: Gateway,
    listener: socket.socket,
    *,
    orders: Orders | None = None,
    on_serving: Callable[[], None] = lambda: None,
    drain_grace_s: float = DRAIN_GRACE_S,
) -> None:
    """Serve until SIGTERM, SIGINT or an order, then take nothing new and let streams end.

    They have `drain_grace_s`, or as long as the settings say when another process takes over. Raises BadInputError:
    TLS files that can't be used.
    """
    server = gateway.make_server()
    loop = asyncio.get_running_loop()
    orders = orders or Orders()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, orders.drain_or_abort)
    async with gateway.opened():
        orders.on_abort = partial(_abort, gateway)
        host, port = listener.getsockname()[:2]
        await server.start(listener)
        log.info("gateway.started", host=host, port=port, compiled=is_in_use())
        on_serving()
        await orders.retiring.wait()
        if not orders.stopping.is_set():
            await _retire(gateway, server, orders)
        log.info("gateway.drain_started", in_flight=gateway.fates.in_flight, grace_s=drain_grace_s)
        gateway.is_draining = True
        server.stop_accepting()
        grace = loop.call_later(drain_grace_s, _abort, gateway)
        with suppress(TimeoutError):
            await asyncio.wait_for(server.drained(), drain_grace_s + ABORT_GRACE_S)
        grace.cancel()
        await server.close()
    gateway.fates.log.flush()
    log.info("gateway.stopped", outcomes={o.value: n for o, n in gateway.fates.counts.items()})


async def _retire(gateway: Gateway, server: HttpServer, orders: Orders) -> None:
    """Serve the connections that are there, each until its next answer, until none is left."""
    limit_s = gateway.retire_limit_s
    log.info("gateway.retiring", in_flight=gateway.fates.in_flight, limit_s=limit_s)
    server.stop_accepting(keeps_idle=True)
    ends = [asyncio.create_task(server.drained()), asyncio.create_task(orders.stopping.wait())]
    await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()


def run_gateway(
    settings: GatewaySettings, *, controller_url: str, controller_token: str | None, node_token: str, run_dir: Path
) -> None:
    """One process without a supervisor, until SIGTERM: for benches and tests.

    Raises BadInputError when it can't listen.
    """
    listener = bind_listener(settings.host, settings.port)
    gateway = Gateway(
        controller_url=controller_url,
        controller_token=controller_token,
        node_token=node_token,
        run_dir=run_dir,
        limits=settings,
    )
    tune_collector()
    uvloop.run(serve_until_stopped(gateway, listener))


def tune_collector() -> None:
    """Collect garbage rarely, once all is imported.

    Each request leaves a few objects behind for a while (its fate), so the default of a full collection every few
    hundred requests would cost as much as the proxying.
    """
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def _abort(gateway: Gateway) -> None:
    assert gateway.proxy is not None
    count = gateway.proxy.abort_all()
    if count:
        log.warning("gateway.drain_cut", in_flight=count)
