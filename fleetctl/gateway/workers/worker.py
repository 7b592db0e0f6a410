"""One worker, a supervisor's child: `python -m ... RUN_DIR FOLDER NUMBER LISTENER_FD [COUNTERS_FD SLOT]`.

Its stdin is a socket to the supervisor: first what it is launched with, then orders. When that socket ends, the
supervisor is gone: a worker that serves goes on until another supervisor takes the address over (`succession.py`), one
that was retiring drains as by SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import uvloop

from fleetctl.gateway.app import Gateway
from fleetctl.gateway.life import Orders, serve_until_stopped, tune_collector
from fleetctl.gateway.siblings.joined_views import WorkersNow
from fleetctl.gateway.siblings.siblings import Siblings
from fleetctl.gateway.workers.launch import ABORT, DRAIN, FAILED, RETIRE, SERVING, Launch, SupervisorState
from fleetctl.gateway.workers.succession import SUCCESSOR_LIMIT_S, wait_for_successor
from fleetctl.kit.errors import FleetctlError
from fleetctl.kit.log import configure_logging
from fleetctl.kit.shared_counters import SharedCounters
from fleetctl.settings.tree import Settings

log = structlog.get_logger()


def main(argv: Sequence[str]) -> int:
    """Serve until told to end. Returns the exit code."""
    for ignored in (signal.SIGHUP, signal.SIGUSR2):  # of a terminal, or to the whole group: the supervisor's
        signal.signal(ignored, signal.SIG_IGN)
    run_dir, folder, number, descriptor, *counters = argv
    channel = socket.socket(fileno=os.dup(0))
    launch = Launch.receive(channel)
    if launch is None:
        return 0
    try:
        settings = Settings(**launch.settings)
        configure_logging(settings.log.level, settings.log.format)
        listener = socket.socket(fileno=int(descriptor))
        gateway = Gateway(
            controller_url=launch.controller_url,
            controller_token=settings.controller_token(),
            node_token=settings.node_token(),
            run_dir=Path(run_dir),
            limits=settings.gateway,
            keys=settings.fleet.key_ring(),
            siblings=Siblings(Path(folder), int(number)),
            counters=_shared_counters(counters),
            about_workers=lambda: _workers_now(Path(folder).parent),
        )
        tune_collector()
        uvloop.run(_serve(gateway, listener, channel, Path(folder), int(number)))
    except FleetctlError as error:
        with suppress(OSError):
            words = error.message + (f"; try: {error.remedy}" if error.remedy else "")
            channel.sendall(FAILED + " ".join(words.split()).encode() + b"\n")
        return error.exit_code
    return 0


def _shared_counters(words: Sequence[str]) -> SharedCounters | None:
    """None: the supervisor has no slot left, or is of other code; this worker then holds its part of each limit."""
    if not words:
        return None
    descriptor, slot = map(int, words)
    try:
        return SharedCounters(descriptor, slot)
    except ValueError as error:
        log.warning("counters.not_shared", error=str(error))
        return None


def _workers_now(folder: Path) -> WorkersNow | None:
    state = SupervisorState.read(folder)
    return state.workers_now(folder) if state is not None else None


async def _serve(gateway: Gateway, listener: socket.socket, channel: socket.socket, folder: Path, number: int) -> None:
    orders = Orders()
    reader, writer = await asyncio.open_connection(sock=channel)
    obeying = asyncio.create_task(_obey(reader, orders, partial(wait_for_successor, folder, number, listener)))
    try:
        await serve_until_stopped(gateway, listener, orders=orders, on_serving=lambda: writer.write(SERVING))
    finally:
        obeying.cancel()
        writer.close()


async def _obey(
    reader: asyncio.StreamReader, orders: Orders, wait_for_next: Callable[[], Awaitable[socket.socket | None]]
) -> None:
    """Follow the supervisor's orders, and when it is killed those of the next one."""
    words = {RETIRE: orders.retire, DRAIN: orders.drain, ABORT: orders.abort}
    while True:
        with suppress(ConnectionError):
            async for word in reader:
                words[word]()
        if orders.retiring.is_set():
            break
        log.error("supervisor.gone", limit_s=SUCCESSOR_LIMIT_S)
        try:
            channel = await wait_for_next()
        except OSError as error:
            log.error("supervisor.not_awaited", error=str(error))
            break
        if channel is None:
            break
        log.info("supervisor.succeeded")
        reader, _writer = await asyncio.open_connection(sock=channel)
    orders.drain()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
