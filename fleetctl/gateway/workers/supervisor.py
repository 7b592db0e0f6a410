"""The process that owns a gateway's address: it starts workers that serve on its listener, and replaces them.

A reload starts a generation of workers with the settings and the code of now, waits until it serves, and lets the one
before end what it has. Connections wait in the one listener's queue all the while, so none is refused or reset
(docs/decisions/0040). It reads no request and imports no part of the gateway that may have to be replaced. A little
longer than others: a start, a reload and a death change the same few processes.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from pydantic import ValidationError

from fleetctl.gateway.siblings.metric_store import forget_worker, known_workers, unfolded_workers
from fleetctl.gateway.workers.launch import (
    ABORT,
    DRAIN,
    FAILED,
    RETIRE,
    SERVING,
    SIGN_OF_LIFE_S,
    STATE_FILE,
    WORKER_MODULE,
    Launch,
    SupervisorState,
    WorkerState,
    is_worker,
    workers_folder,
)
from fleetctl.gateway.workers.taken_address import TakenAddress, shared_folder
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.kit.restart_backoff import RestartBackoff
from fleetctl.kit.shared_counters import CounterMemory

log = structlog.get_logger()

READY_LIMIT_S = 60.0  # from a worker's start until it serves
END_LIMIT_S = 45.0  # beyond what a drain takes, its grace and what is cut included
LEFTOVERS_POLL_S = 0.5
MAX_LOST_TOLD = 100  # one line each


class NotReadyError(FleetctlError):
    """A generation of workers did not come to serve."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(eq=False, slots=True)
class _Worker:
    number: int  # never used twice
    generation: int
    index: int
    slot: int | None  # of the shared counters
    process: asyncio.subprocess.Process
    channel: asyncio.StreamWriter
    phase: str = "starting"
    problem: str = ""
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # it serves, or it ended
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, word: bytes) -> None:
        if not self.channel.is_closing():
            self.channel.write(word)


@dataclass(eq=False, slots=True)
class _Generation:
    number: int
    launch: Launch
    workers: list[_Worker] = field(default_factory=list)
    keepers: list[asyncio.Task[None]] = field(default_factory=list)


class Supervisor:
    """Owner of the listener and of the workers. `run_until_stopped` once."""

    def __init__(self, launch: Launch, address: TakenAddress, run_dir: Path, reread: Sequence[str]) -> None:
        """`run_dir`: the gateway's own folder. `reread`: a command that prints the launch of the settings then."""
        self._listener = address.listener
        self._heirs = address.channels  # to workers of a killed supervisor that serve until ours do
        self._run_dir = run_dir
        self._folder = workers_folder(run_dir, int(launch.settings["gateway"]["port"]))
        self._reread = reread
        self._shared = shared_folder(self._folder)
        self._num_spawned = self._num_before = max(known_workers(self._shared), default=0)
        before = SupervisorState.read(self._folder)
        self._leftovers = [] if before is None else before.leftovers(self._folder)
        # Workers hash alike, so that they can join what they know by hashes, and nobody else does.
        self._environment = {**os.environ, "PYTHONHASHSEED": str(1 + secrets.randbelow(2**32 - 1))}
        self._has_retired_heirs = False
        self._counters = CounterMemory()
        self._current = _Generation(1, launch)
        self._num_generations = 1
        self._workers: list[_Worker] = []  # of every generation
        self._watchers: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._deaths = 0
        self._reloads = 0
        self._reload_error: str | None = None

    async def run_until_stopped(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises NotReadyError when the first workers can't."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        for number in (signal.SIGHUP, signal.SIGUSR2):
            loop.add_signal_handler(number, self._reload_wanted.set)
        for old in self._folder.glob("[0-9]*/"):
            if old != self._shared:
                shutil.rmtree(old, ignore_errors=True)
        await self._fold_leftovers()
        folding = asyncio.create_task(self._fold_leftovers_forever(), name="gateway.leftovers")
        reloading = asyncio.create_task(self._reload_forever(), name="gateway.reload")
        living = asyncio.create_task(self._show_life_forever(), name="gateway.life")
        try:
            starting = asyncio.create_task(self._start(self._current))
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self._keep_all(self._current)
                self._order_heirs(RETIRE)
                self._has_retired_heirs = True
                self._write_state()
            else:
                starting.cancel()
            await stopping
        finally:
            reloading.cancel()
            folding.cancel()
            living.cancel()
            for keeper in self._current.keepers:
                keeper.cancel()
            await self._end_all()
            (self._folder / STATE_FILE).unlink(missing_ok=True)
            shutil.rmtree(self._shared, ignore_errors=True)

    def _stop(self) -> None:
        word = ABORT if self._stopping.is_set() else DRAIN
        log.info("supervisor.stopping", workers=len(self._workers), order=word.decode().strip())
        self._stopping.set()
        for worker in self._workers:
            worker.order(word)
        self._order_heirs(word)

    def _order_heirs(self, word: bytes) -> None:
        for channel in self._heirs:
            with suppress(OSError):
                channel.send(word)

    async def _end_all(self) -> None:
        self._listener.close()
        for worker in self._workers:
            worker.order(DRAIN)
        deadline = time.monotonic() + END_LIMIT_S
        while self._workers:
            worker = self._workers[0]
            with suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), max(0.0, deadline - time.monotonic()))
            if not worker.ended.is_set():
                log.error("worker.killed", pid=worker.process.pid, reason="it did not end")
                worker.process.kill()
                await worker.ended.wait()

    async def _start(self, generation: _Generation) -> None:
        """Its workers, until all serve. Raises NotReadyError; none of them is left then."""
        num = num_workers(generation.launch)
        for index in range(num):
            generation.workers.append(await self._spawn(generation, index))
        with suppress(TimeoutError):
            await asyncio.wait_for(
                asyncio.gather(*(worker.settled.wait() for worker in generation.workers)), READY_LIMIT_S
            )
        bad = [one for one in generation.workers if one.phase != "serving" or one.ended.is_set()]
        if not bad:
            return
        for worker in generation.workers:
            if worker.phase == "serving":
                worker.order(RETIRE)  # clients may be connected to it
            elif not worker.ended.is_set():
                worker.process.kill()
                await worker.ended.wait()
        first = bad[0]
        raise NotReadyError(
            first.problem or f"a worker did not come to serve within {READY_LIMIT_S:.0f} s; its log says why",
            max(1, first.process.returncode or 0),
        )

    async def _spawn(self, generation: _Generation, index: int) -> _Worker:
        ours, theirs = socket.socketpair()
        descriptor = self._listener.fileno()
        self._num_spawned += 1
        number = self._num_spawned
        slot = self._counters.claim()
        counters = () if slot is None else (str(self._counters.fd), str(slot))
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-m",
                    WORKER_MODULE,
                    str(self._run_dir),
                    str(self._shared),
                    str(number),
                    str(descriptor),
                    *counters,
                ),
                stdin=theirs.fileno(),
                pass_fds=(descriptor, self._counters.fd),
                env=self._environment,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(generation.launch.send())
        worker = _Worker(number, generation.number, index, slot, process, writer)
        self._workers.append(worker)
        watcher = asyncio.create_task(self._watch(worker, reader))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        if self._stopping.is_set():
            worker.order(DRAIN)
        self._write_state()
        return worker

    async def _watch(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        """Hear it until it ends."""
        with suppress(ConnectionError):
            async for word in reader:
                if word == SERVING and worker.phase == "starting":
                    worker.phase = "serving"
                    log.info("worker.serving", pid=worker.process.pid, generation=worker.generation)
                    worker.settled.set()
                    self._write_state()
                elif word.startswith(FAILED):
                    worker.problem = word.removeprefix(FAILED).decode("utf-8", "replace").strip()
        await worker.process.wait()
        if worker.slot is not None:
            self._counters.release(worker.slot)
        worker.channel.close()
        await self._fold(worker.number, worker.process.pid)
        self._workers.remove(worker)
        worker.ended.set()
        worker.settled.set()
        if worker.phase == "retiring":
            log.info("worker.retired", pid=worker.process.pid, generation=worker.generation)
        self._write_state()

    async def _fold(self, number: int, pid: int | None) -> None:
        """Keep what an ended worker counted, and tell what it carried."""
        try:
            lost = await asyncio.to_thread(forget_worker, self._shared, number)
        except OSError as error:
            log.error("worker.metrics_not_kept", error=str(error))
            return
        now = time.time()
        for request in lost[:MAX_LOST_TOLD]:
            log.error(
                "request.lost_with_worker",
                request_id=request.request_id,
                pid=pid,
                after_s=round(now - request.started_at, 3),
            )
        if len(lost) > MAX_LOST_TOLD:
            log.error("requests.lost_with_worker", pid=pid, requests=len(lost), told=MAX_LOST_TOLD)

    async def _fold_leftovers(self) -> None:
        """Workers of a supervisor that was killed: those that run end what they have, and are ours to tell of."""
        self._leftovers = [one for one in self._leftovers if is_worker(one.pid, self._folder)]
        running = {one.number for one in self._leftovers}
        unfolded = await asyncio.to_thread(unfolded_workers, self._shared)
        for number in sorted(unfolded - running):
            if number <= self._num_before:
                await self._fold(number, None)

    async def _fold_leftovers_forever(self) -> None:
        while self._leftovers:
            await asyncio.sleep(LEFTOVERS_POLL_S)
            await self._fold_leftovers()
            self._write_state()

    def _keep_all(self, generation: _Generation) -> None:
        generation.keepers = [asyncio.create_task(self._keep(generation, one)) for one in generation.workers]

    async def _keep(self, generation: _Generation, worker: _Worker) -> None:
        """Start another one in the worker's place whenever it ends: at once, then later each time."""
        backoff = RestartBackoff()
        while True:
            await worker.ended.wait()
            if self._stopping.is_set():
                return
            self._deaths += 1
            now = time.time()
            backoff.note_ended(now)
            assert backoff.due_at is not None
            log.error(
                "worker.ended",
                pid=worker.process.pid,
                exit_status=worker.process.returncode,
                problem=worker.problem,
                in_row=backoff.ends_in_row,
                again_in_s=backoff.due_at - now,
            )
            self._write_state()
            await asyncio.sleep(backoff.due_at - now)
            generation.workers.remove(worker)
            worker = await self._spawn(generation, worker.index)
            generation.workers.append(worker)
            backoff.note_started(time.time())

    async def _reload_forever(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            try:
                await self._reload()
                self._reload_error = None
            except FleetctlError as error:
                self._reload_error = error.message
                log.error("gateway.not_reloaded", error=error.message, generation=self._current.number)
            self._reloads += 1
            self._write_state()

    async def _reload(self) -> None:
        """Another generation in place of this one. Raises FleetctlError, and this one goes on."""
        before = self._current
        launch = await self._read_launch()
        if before.launch.settings["gateway"]["port"] != launch.settings["gateway"]["port"]:
            log.warning("gateway.address_kept", reason="host and port are taken up by a restart only")
        self._num_generations += 1
        generation = _Generation(self._num_generations, launch)
        await self._start(generation)
        for keeper in before.keepers:
            keeper.cancel()
        self._current = generation
        self._keep_all(generation)
        for worker in [one for one in self._workers if one.generation < generation.number]:
            worker.phase = "retiring"
            worker.order(RETIRE)
        log.info("gateway.reloaded", generation=generation.number, workers=len(generation.workers))

    async def _show_life_forever(self) -> None:
        while True:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            with suppress(OSError):
                os.utime(self._folder / STATE_FILE)

    async def _read_launch(self) -> Launch:
        """By the code of now, in a process of its own. Raises BadInputError."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._reread, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        out, told = await process.communicate()
        if process.returncode:
            lines = told.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise BadInputError(lines[0].removeprefix("error: ")[:500])
        try:
            return Launch.model_validate_json(out)
        except ValidationError as error:
            raise BadInputError("the settings as they are now can't be read by this gateway: restart it") from error

    def _write_state(self) -> None:
        state = SupervisorState(
            pid=os.getpid(),
            generation=self._current.number,
            num_wanted=num_workers(self._current.launch),
            deaths=self._deaths,
            reloads=self._reloads,
            reload_error=self._reload_error,
            shows_life=True,
            workers=(
                *(
                    WorkerState(
                        pid=one.process.pid,
                        number=one.number,
                        generation=one.generation,
                        index=one.index,
                        phase=one.phase,
                    )
                    for one in self._workers
                ),
                *(
                    one.model_copy(
                        update={"generation": 0, "phase": "retiring" if self._has_retired_heirs else one.phase}
                    )
                    for one in self._leftovers
                ),
            ),
        )
        try:
            state.write(self._folder)
        except OSError as error:  # a full disk: what serves goes on serving
            log.error("supervisor.state_not_written", error=str(error))


def num_workers(launch: Launch) -> int:
    """How many processes serve."""
    return int(launch.settings["gateway"].get("workers", 1))
