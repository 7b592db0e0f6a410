"""The controller process: its state, its loops and its HTTP server, from start to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import structlog
import uvicorn

from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import FencedError
from fleetctl.controller.http_api import create_app
from fleetctl.controller.http_connections import ConnectionLimits, limited_protocol
from fleetctl.kit.clock import Clock
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.local import LocalProvider
from fleetctl.providers.provider import NodeProvider
from runbooks.errors import StaleEpochError

log = structlog.get_logger()

Ready = Callable[[str], None]
CLOSE_CONNECTIONS_S = 3


async def serve(
    config: ControllerConfig,
    ready: Ready | None = None,
    *,
    provider: NodeProvider | None = None,
    clock: Clock | None = None,
    stopping: asyncio.Event | None = None,
) -> None:
    """Run the controller until SIGTERM, SIGINT or `stopping`; nodes and runs are left as they are.

    `ready` is called with the server's URL once it answers. Runs that were under way go on at the next start.
    Raises BadInputError (port in use, unusable state), FencedError when another controller took over.
    """
    stopping = stopping or asyncio.Event()
    _allow_many_files()
    # The port first: a second controller by mistake must not claim the epoch of the one that runs.
    listener = _listen(config.settings.controller.host, config.settings.controller.port)
    try:
        settings = config.settings
        provider = provider or LocalProvider(settings.run_dir, node_token_file=settings.node_token_file)
        async with open_controller(config, provider, clock) as controller:
            with (
                _on_signals(stopping.set, signal.SIGTERM, signal.SIGINT),
                _on_signals(controller.content.ask_reload, signal.SIGHUP),  # as servers do with their configuration
            ):
                await _run(controller, listener, ready, stopping)
            log.info("controller.stopped")
    finally:
        listener.close()


async def _run(controller: Controller, listener: socket.socket, ready: Ready | None, stopping: asyncio.Event) -> None:
    refused = controller.metrics.http_refused
    limits = ConnectionLimits(
        controller.config.settings.controller.max_connections, lambda reason: refused.labels(reason=reason).inc()
    )
    server = _Server(
        uvicorn.Config(
            create_app(controller, stopping),
            http=limited_protocol(limits),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
        )
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]), name="http")
            loops = group.create_task(controller.loops.run_all(), name="loops")
            group.create_task(controller.executor.run_forever(), name="runs")
            resumed = await controller.executor.resume()
            log.info("controller.started", epoch=controller.database.epoch, resumed_runs=resumed)
            if ready is not None:
                await server.answers.wait()
                host, port = listener.getsockname()[:2]
                ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await stopping.wait()
            log.info("controller.stopping")
            controller.executor.stop()
            loops.cancel()
            server.should_exit = True
    except* (FencedError, StaleEpochError) as fenced:
        raise FencedError(str(_innermost(fenced)), remedy="run one controller per state") from None
    finally:
        await controller.timeline.flush()


def _allow_many_files() -> None:
    """A connection for each node, and a thousand for clients: the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before the state is closed."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.answers.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadInputError(
                f"controller: port {port} on {host} is in use",
                remedy="stop what listens there, or set controller.port",
            ) from error
        raise BadInputError(
            f"controller: can't listen on {host}:{port}: {error.strerror or error}", remedy="set controller.host"
        ) from error


@contextlib.contextmanager
def _on_signals(act: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Within, `act` is called at each of these signals. Outside of the main thread it is not: whoever embeds us stops
    us by `stopping`, and reloads over HTTP."""
    loop = asyncio.get_running_loop()
    taken: list[signal.Signals] = []
    for number in numbers:
        try:
            loop.add_signal_handler(number, act)
        except (ValueError, RuntimeError, NotImplementedError):
            continue
        taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)
