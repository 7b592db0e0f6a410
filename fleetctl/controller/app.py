"""The controller process: its state, its loops and its HTTP server, from start to an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import structlog
import uvicorn
from starlette.types import ASGIApp

from fleetctl.controller.config import ControllerConfig
from fleetctl.controller.controller import Controller, open_controller
from fleetctl.controller.database import Database, FencedError, StorageLostError
from fleetctl.controller.database_engine import is_shared
from fleetctl.controller.http_api import create_app
from fleetctl.controller.http_connections import ConnectionLimits, limited_protocol
from fleetctl.controller.leadership import Leadership, Member
from fleetctl.controller.metrics import ControllerMetrics
from fleetctl.controller.opened_state import LedState, open_journal
from fleetctl.controller.standby import SharedState, Standby, standby_app
from fleetctl.kit.clock import Clock, SystemClock
from fleetctl.kit.errors import BadInputError
from fleetctl.providers.local import LocalProvider
from fleetctl.providers.provider import NodeProvider
from runbooks.errors import StaleEpochError
from runbooks.journal import Journal

log = structlog.get_logger()

Ready = Callable[[str], None]
CLOSE_CONNECTIONS_S = 3
# At the start a database server may be about to start too, and a machine that is starved keeps a transaction open for
# longer than the server allows. Dying at once helps nobody: whoever started us would only start us again.
OPEN_WITHIN_S = 60.0
OPEN_PAUSE_S = 1.0


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
    settings = config.settings
    # The port first: a second controller by mistake must not claim the epoch of the one that runs.
    listener = _listen(settings.controller.host, settings.controller.port)
    provider = provider or LocalProvider(settings.run_dir, node_token_file=settings.node_token_file)
    try:
        with _on_signals(stopping.set, signal.SIGTERM, signal.SIGINT):
            if is_shared(settings.database_url):
                await _serve_shared(config, listener, ready, provider, clock or SystemClock(), stopping)
            else:
                async with open_controller(config, provider, clock) as controller:
                    await _lead(controller, listener, ready, stopping)
            log.info("controller.stopped")
    finally:
        listener.close()


async def _serve_shared(
    config: ControllerConfig,
    listener: socket.socket,
    ready: Ready | None,
    provider: NodeProvider,
    clock: Clock,
    stopping: asyncio.Event,
) -> None:
    """Stand by and lead in turn, on a database that other controllers use too."""
    settings = config.settings
    database, journal = await _opened(settings.database_url, stopping)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="controller-lease")
    leadership = Leadership(database, Member.new(_url_of(config, listener)), settings.controller.lease_s)
    try:
        state = SharedState(database, journal, leadership, thread)
        is_first = True
        while not stopping.is_set():
            standby = Standby(config, state, clock)
            led: LedState | None = None
            with contextlib.suppress(StorageLostError):
                led = await standby.claim()
            if led is None:
                led = await _stand_by(standby, listener, ready, stopping)
                ready, is_first = None, False
            if led is None:
                break
            # Nodes that ended meanwhile stay ended: whoever asked for a start asked the controller that led then.
            now = config if is_first else replace(config, start_nodes=False)
            renewing = asyncio.create_task(_renew(state, led, clock), name="lease")
            try:
                async with open_controller(now, provider, clock, led) as controller:
                    await _lead(controller, listener, ready, stopping, renewing)
            except FencedError as error:
                log.error("controller.fenced", error=error.message)
            except StorageLostError as error:  # while it took up its past: nothing was acted on yet
                log.warning("controller.not_opened", error=error.message, what_next="it stands by, and tries again")
                await _wait(stopping, OPEN_PAUSE_S)
                continue
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
                with contextlib.suppress(StorageLostError):
                    await state.call(leadership.release)
            ready, is_first = None, False
        with contextlib.suppress(StorageLostError):
            await state.call(leadership.leave)
    finally:
        thread.shutdown(wait=True)
        database.close()


async def _opened(url: str, stopping: asyncio.Event) -> tuple[Database, Journal]:
    """The shared database and the journal in it. A server that does not answer, or ends a transaction that a starved
    machine was too slow for, is asked again for a while. Raises StorageLostError after that."""
    until = time.monotonic() + OPEN_WITHIN_S
    while True:
        try:
            database = Database(url)
            try:
                return database, open_journal(database)
            except BaseException:
                database.close()
                raise
        except StorageLostError as error:
            left_s = until - time.monotonic()
            if left_s <= 0 or stopping.is_set():
                raise
            log.warning("storage.not_opened", error=error.message, tries_for_s=round(left_s))
        await _wait(stopping, OPEN_PAUSE_S)


async def _wait(stopping: asyncio.Event, at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await stopping.wait()


async def _stand_by(
    standby: Standby, listener: socket.socket, ready: Ready | None, stopping: asyncio.Event
) -> LedState | None:
    server = _server_of(standby_app(standby), standby.metrics, standby.config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(sockets=[listener.dup()]), name="http")
        if ready is not None:
            await server.answers.wait()
            ready(_address(listener))
        try:
            return await standby.wait_to_lead(stopping)
        finally:
            server.should_exit = True


async def _lead(
    controller: Controller,
    listener: socket.socket,
    ready: Ready | None,
    stopping: asyncio.Event,
    renewing: asyncio.Task[None] | None = None,
) -> None:
    """Act until `stopping`. Raises FencedError when another controller took over; `renewing` may know first."""
    ending = asyncio.Event()
    fenced: list[BaseException] = []
    app = create_app(controller, ending)
    server = _server_of(app, controller.metrics, controller.config)

    async def until_fenced(work: Awaitable[None]) -> None:
        try:
            await work
        except* (FencedError, StaleEpochError) as errors:
            fenced.append(_innermost(errors))
            ending.set()

    async def end_with_the_process() -> None:
        await stopping.wait()
        ending.set()

    try:
        with _on_signals(controller.content.ask_reload, signal.SIGHUP):  # as servers do with their configuration
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listener.dup()]), name="http")
                loops = group.create_task(until_fenced(controller.loops.run_all()), name="loops")
                group.create_task(until_fenced(controller.executor.run_forever()), name="runs")
                waiting = group.create_task(end_with_the_process(), name="end")
                fence = None if renewing is None else group.create_task(until_fenced(renewing), name="fence")
                await until_fenced(_resume(controller, ending))
                if ready is not None and not ending.is_set():
                    await server.answers.wait()
                    ready(_address(listener))
                await ending.wait()
                log.info("controller.stopping")
                controller.executor.stop()
                for task in filter(None, (loops, waiting, fence)):
                    task.cancel()
                server.should_exit = True
    finally:
        await controller.timeline.flush()
    if fenced:
        raise FencedError(str(fenced[0]), remedy="run one controller per state")


async def _resume(controller: Controller, ending: asyncio.Event) -> None:
    """Take up the runs that were under way. Storage that is lost now holds them up and ends nobody, as later on."""
    is_told = False
    while not ending.is_set():
        try:
            resumed = await controller.executor.resume()
        except StorageLostError as error:
            if not is_told:
                log.warning("controller.not_resumed", error=error.message, what_next="runs wait, it tries again")
            is_told = True
            await _wait(ending, OPEN_PAUSE_S)
            continue
        log.info("controller.started", epoch=controller.database.epoch, resumed_runs=resumed)
        return


async def _renew(state: SharedState, led: LedState, clock: Clock) -> None:
    """Go on leading, from the moment of the claim. Raises FencedError when another controller took over."""
    is_lost = False
    while True:
        await asyncio.sleep(state.leadership.pause_s)
        try:
            await state.call(state.leadership.renew, clock.now())
        except StorageLostError as error:
            if not is_lost:
                log.error("lease.not_renewed", error=error.message)
            is_lost = True
            continue
        if is_lost:
            log.info("lease.renewed", epoch=led.takeover.epoch)
        is_lost = False
        state.database.note_stored()


def _server_of(app: ASGIApp, metrics: ControllerMetrics, config: ControllerConfig) -> _Server:
    limits = ConnectionLimits(
        config.settings.controller.max_connections, lambda reason: metrics.http_refused.labels(reason=reason).inc()
    )
    return _Server(
        uvicorn.Config(
            app,
            http=limited_protocol(limits),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
        )
    )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _url_of(config: ControllerConfig, listener: socket.socket) -> str:
    """Where clients reach this controller; one that listens everywhere is found by its machine's name."""
    settings = config.settings.controller
    if settings.url is not None:
        return settings.url
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104
        return f"http://{socket.gethostname()}:{listener.getsockname()[1]}"
    return _address(listener)


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
